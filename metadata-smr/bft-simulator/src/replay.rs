//! Replays a real replica's recording: its core gets the same events, and has to do the same.
//!
//! ```text
//!   recording ─┬─ Start, Found ──► Replica::recover ─┐
//!              ├─ Told ──────────► Replica::step ────┼─► effects ──► their marks ─┐
//!              ├─ Read ──────────► the store, when   │                            ▼
//!              │                   the core asks ────┘                         equal?
//!              └─ Did ────────────────────────────────────────────────────────────┘
//! ```
//!
//! No effect is carried out: the consequences of the original effects are in the recording as
//! events. So a replay needs no disk, no peers and no waiting, and takes only the core's own time.
//!
//! It ends at the first difference. If the core is the one that recorded, the difference shows a
//! non-determinism. If it is another one, a release with a defect fixed or with a planted defect,
//! the difference shows where that first matters. Without a difference, it ends where the recording
//! does, or where the core poisons itself again.
//!
//! A core that panicked panics again, at the last event; the trace names that event before.
//!
//! Source: R. O'Callahan et al., "Engineering Record and Replay for Deployability" (2017), for
//! recording only what crosses the boundary of the deterministic part.

mod description;
mod tape;

#[cfg(test)]
mod tests;

use crate::simulation::Trace;
use quorumfs_bft::identity::{Now, Sequence};
use quorumfs_bft::journal::{self, Journal};
use quorumfs_bft::recording::{Entry, Mark, Marker, Recording, Unreadable};
use quorumfs_bft::replica::{Config, Replica};
use quorumfs_bft::sabotage::{Planted, Sabotage};
use quorumfs_bft::service::Service;
use quorumfs_bft::step::{Effect, Effects, Event};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::io::Read;
use std::rc::Rc;
use tape::{Rows, Tape};

/// How many of the events before a difference are shown.
const BEFORE: usize = 8;

/// The outcome of a replay.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Events after which the core did the same as in the recording.
    pub events: u64,
    /// Effects that were the same.
    pub effects: u64,
    /// Rows that it read.
    pub reads: u64,
    /// The last batch that it executed.
    pub committed: Sequence,
    /// Why it ended.
    pub end: End,
}

/// Why a replay ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything was the same.
    Same {
        /// Why the recording ends, unless it is truncated, as by a kill.
        over: Option<String>,
    },
    /// The core poisoned itself, as in the recording.
    Poisoned {
        /// The position.
        place: RecordingPosition,
        /// The reason.
        reason: String,
    },
    /// The core did something else than in the recording.
    Different {
        /// The position.
        place: RecordingPosition,
        /// The difference.
        what: String,
        /// The last events before that.
        before: Vec<RecordingPosition>,
    },
    /// The recording cannot be read any further.
    Unreadable(Unreadable),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same { over } => {
                let over = over.as_deref().unwrap_or("it is truncated");
                write!(f, "the same as then; the recording ends: {over}")
            }
            Self::Poisoned { place, reason } => {
                write!(f, "poisoned as recorded: {reason}\n  {place}")
            }
            Self::Different {
                place,
                what,
                before,
            } => {
                writeln!(f, "different from the recording: {what}")?;
                before.iter().try_for_each(|it| writeln!(f, "  {it}"))?;
                write!(f, "> {place}")
            }
            Self::Unreadable(error) => error.fmt(f),
        }
    }
}

/// A position in a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingPosition {
    /// The event's number, from 1; the start is 0.
    pub event: u64,
    /// The replica's clocks.
    pub now: Now,
    /// The event as text.
    pub input: String,
}

impl fmt::Display for RecordingPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.now.monotonic.0 / 1_000;
        let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
        let Self { event, input, .. } = self;
        write!(f, "event {event} at {seconds}.{micros:06} s: {input}")
    }
}

/// Replays a recording of `service`, and compares what the core does. Passes events and effects to
/// `trace`.
pub fn replay<R: Read>(
    recording: Recording<R>,
    service: impl Service + 'static,
    sabotage: Option<Sabotage>,
    trace: Trace<'_>,
) -> Replayed {
    let mut player = Player {
        tape: Rc::new(RefCell::new(Tape::new(recording))),
        marker: Marker::default(),
        trace,
        events: 0,
        effects: 0,
        committed: Sequence(0),
        recent: VecDeque::new(),
    };
    let Err(end) = player.play(Box::new(service), sabotage);
    let reads = player.tape.borrow().reads;
    Replayed {
        events: player.events,
        effects: player.effects,
        reads,
        committed: player.committed,
        end,
    }
}

struct Player<'a, R> {
    tape: Rc<RefCell<Tape<R>>>,
    marker: Marker,
    trace: Trace<'a>,
    events: u64,
    effects: u64,
    committed: Sequence,
    /// The latest events, with their times; no event stands for the start.
    recent: VecDeque<(Now, Option<Event>)>,
}

impl<R: Read> Player<'_, R> {
    fn play(
        &mut self,
        service: Box<dyn Service>,
        sabotage: Option<Sabotage>,
    ) -> Result<Infallible, End> {
        let start = self.tape.borrow().start().clone();
        let config = Config {
            sabotage: Planted::new(sabotage),
            ..start.config
        };
        let journal = Journal {
            entries: self.found()?,
            condition: start.condition,
            next: start.next,
        };
        let mut effects = Effects::default();
        self.note_event(start.now, None);
        let rows = Rows(self.tape.clone());
        let core = Replica::recover(config, service, rows, journal, start.now, &mut effects);
        if let Err(error) = &core {
            let reason = error.to_string();
            effects.push(Effect::Poison { reason });
        }
        self.compare(&mut effects)?;
        // A core that could not start has ended with its poison.
        let mut core = core.map_err(|_| self.different("the replay cannot start".to_owned()))?;
        loop {
            self.committed = core.committed();
            match self.take()? {
                Some(Entry::Event { now, event }) => {
                    self.events += 1;
                    self.note_event(now, Some(event.clone()));
                    core.step(now, event, &mut effects);
                    self.compare(&mut effects)?;
                }
                Some(Entry::End { why }) => return Err(End::Same { over: Some(why) }),
                Some(other) => {
                    let other = description::entry(&other);
                    return Err(self.different(format!("the recording goes on with {other}")));
                }
                None => return Err(End::Same { over: None }),
            }
        }
    }

    /// The journal that it started from.
    fn found(&mut self) -> Result<Vec<journal::Entry>, End> {
        let mut entries = Vec::new();
        let mut tape = self.tape.borrow_mut();
        while let Some((token, record)) = tape.found().map_err(End::Unreadable)? {
            entries.push(journal::Entry { token, record });
        }
        Ok(entries)
    }

    fn take(&mut self) -> Result<Option<Entry>, End> {
        self.tape.borrow_mut().take().map_err(End::Unreadable)
    }

    /// Notes the next event of the core.
    fn note_event(&mut self, now: Now, event: Option<Event>) {
        if self.recent.len() > BEFORE {
            self.recent.pop_front();
        }
        self.recent.push_back((now, event));
        let place = self.trace.is_some().then(|| self.place());
        if let (Some(trace), Some(place)) = (&mut self.trace, place) {
            trace(&place.to_string());
        }
    }

    /// Checks that the core's effects are the recorded ones.
    fn compare(&mut self, effects: &mut Effects) -> Result<(), End> {
        if let Some(trace) = &mut self.trace {
            for effect in effects.iter() {
                trace(&format!("    {}", description::effect(effect)));
            }
        }
        let error = self.tape.borrow_mut().error.take();
        if let Some(error) = error {
            return Err(match error {
                tape::TapeError::Cut => End::Same { over: None },
                tape::TapeError::Unreadable(error) => End::Unreadable(error),
                tape::TapeError::Different(what) => self.different(what),
            });
        }
        let marks = match self.take()? {
            Some(Entry::Effects { effects }) => effects,
            Some(Entry::End { why }) => return Err(End::Same { over: Some(why) }),
            None => return Err(End::Same { over: None }),
            Some(other) => {
                let other = description::entry(&other);
                let what = format!("the recording has {other}, the replay does not");
                return Err(self.different(what));
            }
        };
        let mut marks = marks.into_iter();
        let mut poison = None;
        for (number, effect) in (1_u64..).zip(effects.drain()) {
            if let Some(what) = self.differs(marks.next(), &effect) {
                return Err(self.different(format!("effect {number}: {what}")));
            }
            self.effects += 1;
            if let Effect::Poison { reason } = effect {
                poison = Some(reason);
            }
        }
        if let Some(mark) = marks.next() {
            let (more, kind) = (marks.len(), mark.kind());
            let what = format!("the recording has {kind} and {more} more, the replay nothing");
            return Err(self.different(what));
        }
        match poison {
            Some(reason) => Err(End::Poisoned {
                place: self.place(),
                reason,
            }),
            None => Ok(()),
        }
    }

    fn differs(&self, recorded: Option<Mark>, effect: &Effect) -> Option<String> {
        let mark = self.marker.mark(effect);
        let described = description::effect(effect);
        match recorded {
            Some(recorded) if recorded == mark => None,
            Some(recorded) if recorded.kind() == mark.kind() => {
                Some(format!("the recording has another one than {described}"))
            }
            Some(recorded) => {
                let kind = recorded.kind();
                Some(format!("the recording has {kind}, the replay {described}"))
            }
            None => Some(format!("the recording has none, the replay {described}")),
        }
    }

    fn different(&self, what: String) -> End {
        let mut before = self.places();
        before.pop();
        End::Different {
            place: self.place(),
            what,
            before,
        }
    }

    /// The current position.
    fn place(&self) -> RecordingPosition {
        let last = self.places().pop();
        last.unwrap_or(RecordingPosition {
            event: 0,
            now: Now::default(),
            input: description::START.to_owned(),
        })
    }

    fn places(&self) -> Vec<RecordingPosition> {
        let first = (self.events + 1).saturating_sub(self.recent.len() as u64);
        let numbered = (first..).zip(&self.recent);
        let place =
            |(event, (now, event_before)): (u64, &(Now, Option<Event>))| RecordingPosition {
                event,
                now: *now,
                input: description::event(event_before.as_ref()),
            };
        numbered.map(place).collect()
    }
}
