//! When something has to happen although nothing comes in.

use super::Replica;
use super::views::Phase;
use crate::identity::{Monotonic, Nanos, SessionId, Time};
use crate::metrics::Voting;
use crate::ordering::suspicion::{Forwarded, Progress, Reason};
use crate::service::Service;
use crate::state::{StateError, Store};
use crate::step::{Destination, Effect, Effects, Timer};
use crate::wire::Envelope;
use crate::wire::limits::{
    BATCH_REQUESTS_MAX, CLOCK_LEAD_MAX, FETCH_BYTES_MAX, FORWARDED_BY_AGE, OPENING_RECENT,
    STATUS_INTERVAL,
};
use crate::wire::message::Message;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Which timers are set.
#[derive(Debug, Default)]
pub(super) struct Timers {
    progress: bool,
    fetch: bool,
    clock: Option<Time>,
    tick: Option<Time>,
    batch: Option<Monotonic>,
}

/// The session of a request, or `Some(None)` for an attempt to open one. `None` if it closes one,
/// which is not waited for.
fn session_of(body: &Envelope) -> Option<Option<SessionId>> {
    match body.message() {
        Message::Request(request) => Some(Some(request.session)),
        Message::OpenSession(_) => Some(None),
        _ => None,
    }
}

fn set(timer: Timer, after: Nanos, effects: &mut Effects) {
    effects.push(Effect::SetTimer { timer, after });
}

impl Timers {
    /// There was progress: its timer starts again, if it is needed.
    pub(super) fn progressed(&mut self, effects: &mut Effects) {
        if self.progress {
            self.progress = false;
            effects.push(Effect::CancelTimer {
                timer: Timer::Progress,
            });
        }
    }

    /// Something was asked for.
    pub(super) fn ask_again_after(&mut self, after: Nanos, effects: &mut Effects) {
        self.fetch = true;
        set(Timer::Fetch, after, effects);
    }

    /// When the next batch is due, if that is being waited for.
    pub(super) const fn batch_due(&self) -> Option<Monotonic> {
        self.batch
    }

    /// Whether a proposal of this time is being held back until our clock reaches it.
    pub(super) fn clock_armed(&self, time: Time) -> bool {
        self.clock == Some(time)
    }
}

impl<S: Service, D: Store> Replica<S, D> {
    /// A timer ran out.
    pub(super) fn timer(&mut self, timer: Timer, effects: &mut Effects) -> Result<(), StateError> {
        match timer {
            Timer::Progress => {
                self.timers.progress = false;
                self.progress_timer_expired(effects);
            }
            Timer::Status => {
                self.reconsider();
                self.return_leadership(effects);
                self.send_status(None, effects);
                // A request that was here at the last STATUS and still is has waited for long.
                let before = std::mem::replace(&mut self.aged, self.pool.arrivals());
                self.forward(before, FORWARDED_BY_AGE, effects);
                self.remind_observers(effects)?;
                set(Timer::Status, STATUS_INTERVAL, effects);
            }
            Timer::Tick => self.timers.tick = None,
            Timer::Fetch => {
                self.timers.fetch = false;
                self.ask_again(effects);
            }
            Timer::Clock => self.timers.clock = None,
            Timer::Batch => self.timers.batch = None,
        }
        Ok(())
    }

    /// Sets the timers that never stop.
    pub(super) fn start_timers(&mut self, effects: &mut Effects) {
        set(Timer::Status, STATUS_INTERVAL, effects);
    }

    /// Sets and cancels timers by what is being waited for now.
    pub(super) fn set_timers(&mut self, effects: &mut Effects) {
        self.set_progress_timer(effects);
        self.set_tick_timer(effects);
        if self.inquiring() && !self.timers.fetch {
            let patience = self.patience_with(self.leader());
            self.timers.ask_again_after(patience, effects);
        }
        self.set_batch_timer(effects);
        let lead = self.clock_lead();
        if self.timers.clock == lead {
            return;
        }
        // Another proposal than the one that it was set for, or none any more.
        self.timers.clock = lead;
        match lead {
            Some(time) => {
                let lawful = time.since(self.now.clock.plus(CLOCK_LEAD_MAX));
                set(Timer::Clock, Nanos(lawful.0.saturating_add(1)), effects);
            }
            None => effects.push(Effect::CancelTimer {
                timer: Timer::Clock,
            }),
        }
    }

    /// Sets the timers that further waiting requests can need. Those that are set stay.
    pub(super) fn set_request_timers(&mut self, effects: &mut Effects) {
        if !self.timers.progress {
            self.set_progress_timer(effects);
        }
        if !self.collects() {
            self.set_batch_timer(effects);
        }
    }

    fn set_batch_timer(&mut self, effects: &mut Effects) {
        if let Some(wait) = self.next_batch_due() {
            let at = self.now.monotonic.plus(wait);
            if self.timers.batch.is_none_or(|set| at < set) {
                self.timers.batch = Some(at);
                set(Timer::Batch, wait, effects);
            }
        }
    }

    fn set_progress_timer(&mut self, effects: &mut Effects) {
        let waiting = self.voting == Voting::Voting && self.has_work();
        if waiting && !self.timers.progress {
            if self.suspicions.progress == Progress::Expired {
                return;
            }
            if self.suspicions.progress == Progress::Idle {
                self.suspicions.progress = Progress::Waiting;
            }
            self.timers.progress = true;
            set(Timer::Progress, self.suspicions.half_timeout(), effects);
        } else if !waiting {
            self.timers.progressed(effects);
            self.suspicions.progress = Progress::Idle;
        }
    }

    /// Whether something should be committing now.
    ///
    /// Between two views the timer starts only when q replicas have come along: a replica that a
    /// liar has drawn ahead waits there for the others instead of going further.
    fn has_work(&self) -> bool {
        if self.views.phase == Phase::Changing {
            let come = self.views.departures.arrived(self.views.view);
            return come >= usize::from(self.context.quorum);
        }
        let open = self.window.lowest();
        let mut slots = self.window.iter();
        slots.any(|slot| slot.proposal.is_some() || slot.received.is_some())
            || !self.pool.is_empty()
            || self.views.choice.carried_at(open.sequence).is_some()
            || self.waits_for_others()
            || self
                .deadline
                .is_some_and(|deadline| deadline.plus(CLOCK_LEAD_MAX) <= self.now.clock)
    }

    /// The progress timer ran out: halfway, the leader is sent what it may lack; then it is
    /// suspected, unless this replica itself is slow.
    fn progress_timer_expired(&mut self, effects: &mut Effects) {
        match self.suspicions.progress {
            Progress::Idle | Progress::Expired => {}
            Progress::Waiting => {
                self.forward(u64::MAX, BATCH_REQUESTS_MAX, effects);
                self.suspicions.progress = Progress::Forwarded;
            }
            Progress::Forwarded => {
                let ended = self.epochs.ended();
                if self.journal_writes.outstanding() || self.history.backlog() || ended {
                    return;
                }
                if self.waits_for_body() && !self.window.lowest().patience_used {
                    self.window.lowest_mut().patience_used = true;
                    return;
                }
                self.suspicions.progress = Progress::Expired;
                self.suspect(Reason::Progress, effects);
            }
        }
    }

    /// Forwards to the leader, which seems not to have them, waiting requests that came here among
    /// the first `before`, at most so many: each once in a view, and once more when it is its
    /// session's turn to be watched. Old attempts to open a session are not watched, since by the
    /// leader's clock they may be too old.
    fn forward(&mut self, before: u64, most: usize, effects: &mut Effects) {
        let leader = self.leader();
        let votes = self.voting == Voting::Voting;
        if leader == self.config.replica || !self.views.active() || !votes {
            return;
        }
        let mut bytes = 0;
        let mut chosen = Vec::new();
        let asked = self.window.asked();
        let mut taken = BTreeSet::new();
        for body in self.pool.iter() {
            if bytes > FETCH_BYTES_MAX || chosen.len() >= most {
                break;
            }
            let digest = body.digest();
            if self.pool.arrival(&digest) >= Some(before) {
                break;
            }
            let length = body.frame().len();
            let session = session_of(body);
            let old = matches!(body.message(), Message::OpenSession(open)
                if self.now.clock.since(open.time).0 > OPENING_RECENT.0 / 2);
            let watch = session.is_some_and(|session| {
                !old && !taken.contains(&session) && self.suspicions.would_watch(session, length)
            });
            let in_flight = asked.contains(&digest);
            if !in_flight && (watch || !self.forwarded.contains(&digest)) {
                bytes += length;
                taken.extend(session.filter(|_| watch));
                chosen.push((digest, Arc::clone(body), watch));
            }
        }
        let proposed = self.window.iter().filter(|slot| slot.proposal.is_some());
        let under_way = proposed.map(|slot| slot.sequence).max();
        let under_way = under_way.unwrap_or(self.last_executed.sequence);
        for (digest, body, watch) in chosen {
            self.counters.forwarded += 1;
            self.forwarded.insert(digest);
            let lane = match body.message() {
                Message::Request(request) => Some((request.session, request.lane)),
                _ => None,
            };
            let request = Forwarded {
                lane,
                bytes: body.frame().len(),
                arrivals: self.pool.arrivals(),
                under_way,
            };
            if watch {
                self.suspicions.forwarded(digest, request);
            }
            effects.push(Effect::Send {
                to: Destination::Replica(leader),
                frame: body.frame().clone(),
                after: None,
            });
        }
    }

    fn set_tick_timer(&mut self, effects: &mut Effects) {
        let Some(deadline) = self.deadline else {
            return;
        };
        // A backup allows for a leader's clock that is behind its own.
        let due = if self.leads() {
            deadline
        } else {
            deadline.plus(CLOCK_LEAD_MAX)
        };
        if self.timers.tick == Some(due) || due <= self.now.clock {
            return;
        }
        self.timers.tick = Some(due);
        set(Timer::Tick, due.since(self.now.clock), effects);
    }
}
