//! When something has to happen although nothing comes in.

use super::Replica;
use super::views::Phase;
use crate::identity::{Nanos, Time};
use crate::metrics::Voting;
use crate::ordering::suspicion::{Progress, Reason};
use crate::service::Service;
use crate::state::{StateError, Store};
use crate::step::{Destination, Effect, Effects, Timer};
use crate::wire::limits::{
    BATCH_REQUESTS_MAX, CLOCK_LEAD_MAX, FETCH_BYTES_MAX, FETCH_HEDGE, FLUSH_INTERVAL,
    STATUS_INTERVAL,
};

/// Which timers are set.
#[derive(Debug, Default)]
pub(super) struct Timers {
    progress: bool,
    flush: bool,
    fetch: bool,
    clock: bool,
    tick: Option<Time>,
}

fn set(timer: Timer, after: Nanos, effects: &mut Effects) {
    effects.push(Effect::SetTimer { timer, after });
}

impl Timers {
    /// There was progress: its timer starts anew, if it is needed.
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

    /// Whether a proposal is being held back until our clock gets there.
    pub(super) const fn clock_armed(&self) -> bool {
        self.clock
    }
}

impl<S: Service, D: Store> Replica<S, D> {
    /// A timer ran out.
    pub(super) fn timer(&mut self, timer: Timer, effects: &mut Effects) -> Result<(), StateError> {
        match timer {
            Timer::Progress => {
                self.timers.progress = false;
                self.out_of_patience(effects);
            }
            Timer::Status => {
                self.send_status(None, effects);
                set(Timer::Status, STATUS_INTERVAL, effects);
            }
            Timer::Tick => self.timers.tick = None,
            Timer::Flush => {
                self.timers.flush = false;
                self.history.due = true;
                self.flush_if_due(effects)?;
            }
            Timer::Fetch => {
                self.timers.fetch = false;
                self.ask_again(effects);
            }
            Timer::Clock => self.timers.clock = false,
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
        if !self.history.is_empty() && !self.history.is_flushing() && !self.timers.flush {
            self.timers.flush = true;
            set(Timer::Flush, FLUSH_INTERVAL, effects);
        }
        if self.inquiring() && !self.timers.fetch {
            self.timers.ask_again_after(FETCH_HEDGE, effects);
        }
        if !self.timers.clock
            && let Some(time) = self.clock_lead()
        {
            self.timers.clock = true;
            let lawful = time.since(self.now.clock.plus(CLOCK_LEAD_MAX));
            set(Timer::Clock, Nanos(lawful.0.saturating_add(1)), effects);
        }
    }

    fn set_progress_timer(&mut self, effects: &mut Effects) {
        let waiting = self.voting == Voting::Voting && self.has_work();
        if waiting && !self.timers.progress {
            if self.grievances.progress == Progress::Expired {
                return;
            }
            if self.grievances.progress == Progress::Idle {
                self.grievances.progress = Progress::Waiting;
            }
            self.timers.progress = true;
            set(Timer::Progress, self.grievances.half_timeout(), effects);
        } else if !waiting {
            self.timers.progressed(effects);
            self.grievances.progress = Progress::Idle;
        }
    }

    /// Whether something should be committing now.
    ///
    /// Between two views the time starts to run only when q replicas have come along: whoever is
    /// dragged ahead by a liar waits there for the others instead of running away from them.
    fn has_work(&self) -> bool {
        if self.views.phase == Phase::Changing {
            let come = self.views.departures.arrived(self.views.view);
            return come >= usize::from(self.context.quorum);
        }
        self.slot.proposal.is_some()
            || !self.pool.is_empty()
            || self.views.choice.carried_at(self.slot.sequence).is_some()
            || self
                .deadline
                .is_some_and(|deadline| deadline.plus(CLOCK_LEAD_MAX) <= self.now.clock)
    }

    /// The progress timer ran out: halfway, the leader is given what it may lack; then it is
    /// suspected, unless this replica itself is what is slow.
    fn out_of_patience(&mut self, effects: &mut Effects) {
        match self.grievances.progress {
            Progress::Idle | Progress::Expired => {}
            Progress::Waiting => {
                self.forward(effects);
                self.grievances.progress = Progress::Forwarded;
            }
            Progress::Forwarded => {
                if self.promises.outstanding() || self.history.backlog() {
                    return;
                }
                if self.waits_for_body() && !self.slot.patience_used {
                    self.slot.patience_used = true;
                    return;
                }
                self.grievances.progress = Progress::Expired;
                self.suspect(Reason::Progress, effects);
            }
        }
    }

    /// Forwards what has been waiting to the leader, which seems not to have it: once in each view.
    fn forward(&mut self, effects: &mut Effects) {
        let leader = self.leader();
        if leader == self.config.replica || !self.views.active() {
            return;
        }
        let mut bytes = 0;
        let mut chosen = Vec::new();
        for body in self.pool.iter() {
            if bytes > FETCH_BYTES_MAX || chosen.len() >= BATCH_REQUESTS_MAX {
                break;
            }
            let in_flight = self.slot.bodies.contains_key(body.digest_ref());
            if !in_flight && !self.forwarded.contains(body.digest_ref()) {
                bytes += body.frame().len();
                chosen.push((body.digest(), body.frame().clone()));
            }
        }
        for (digest, frame) in chosen {
            self.counters.forwarded += 1;
            self.forwarded.insert(digest);
            if let Some(arrival) = self.pool.arrival(&digest) {
                self.grievances.forwarded(digest, arrival);
            }
            let to = Destination::Replica(leader);
            effects.push(Effect::Send {
                to,
                frame,
                after: None,
            });
        }
    }

    fn set_tick_timer(&mut self, effects: &mut Effects) {
        let Some(deadline) = self.deadline else {
            return;
        };
        // A backup allows for the leader's clock being behind its own.
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
