//! A real replica's life once more: its core is told what it was told then, and has to do the same.
//!
//! ```text
//!   recording ─┬─ Start, Found ──► Replica::recover ─┐
//!              ├─ Told ──────────► Replica::step ────┼─► effects ──► their marks ─┐
//!              ├─ Read ──────────► the store, when   │                            ▼
//!              │                   the core asks ────┘                         equal?
//!              └─ Did ────────────────────────────────────────────────────────────┘
//! ```
//!
//! Nothing is carried out: what came of the effects then is in the recording as events. So a replay
//! needs no disk, no peers and no waiting, and takes the time that the core took.
//!
//! It ends at the first difference, which is where to look if the core that replays is the one that
//! recorded: it is then not the function that it should be. If it is another one, a release with a
//! defect mended or one with a defect built in, the difference is where that matters first. If
//! there is none, it ends where the recording does, or where the core poisons itself again.
//!
//! A core that panicked then does so again, while it is told of the last event; the trace names it
//! before.
//!
//! Source: R. O'Callahan et al., "Engineering Record and Replay for Deployability" (2017), for
//! recording what comes in over the border of what is deterministic, and nothing else.

mod tape;
mod telling;

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

/// How many of the events before a difference are named.
const BEFORE: usize = 8;

/// What came of a replay.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Events that the core was told, and did the same as then.
    pub events: u64,
    /// Effects that were the same.
    pub effects: u64,
    /// Rows that it read.
    pub reads: u64,
    /// The last batch that it executed.
    pub committed: Sequence,
    /// Why it went no further.
    pub end: End,
}

/// Why a replay went no further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything came again.
    Same {
        /// Why the recording ends, unless it was cut short: as by a kill.
        over: Option<String>,
    },
    /// The core poisoned itself, as it did then.
    Poisoned {
        /// Where.
        place: Place,
        /// Why.
        reason: String,
    },
    /// The core did something else than then.
    Different {
        /// Where.
        place: Place,
        /// What was different.
        what: String,
        /// What it was told last before that.
        before: Vec<Place>,
    },
    /// The recording cannot be read any further.
    Unreadable(Unreadable),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same { over } => {
                let over = over.as_deref().unwrap_or("it is cut short");
                write!(f, "the same as then; the recording ends: {over}")
            }
            Self::Poisoned { place, reason } => write!(f, "poisoned as then: {reason}\n  {place}"),
            Self::Different {
                place,
                what,
                before,
            } => {
                writeln!(f, "not the same as then: {what}")?;
                before.iter().try_for_each(|it| writeln!(f, "  {it}"))?;
                write!(f, "> {place}")
            }
            Self::Unreadable(error) => error.fmt(f),
        }
    }
}

/// A moment of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The event's number, from 1; the start is 0.
    pub event: u64,
    /// The replica's clocks.
    pub now: Now,
    /// What it was told.
    pub told: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.now.monotonic.0 / 1_000;
        let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
        let Self { event, told, .. } = self;
        write!(f, "event {event} at {seconds}.{micros:06} s: {told}")
    }
}

/// Tells a core of `service` everything that is recorded, and compares what it does. Gives what is
/// to be seen on the way to `trace`.
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
        told: VecDeque::new(),
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
    /// What the core was told last, and when; nothing for the start.
    told: VecDeque<(Now, Option<Event>)>,
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
        self.tell(start.now, None);
        let rows = Rows(self.tape.clone());
        let core = Replica::recover(config, service, rows, journal, start.now, &mut effects);
        if let Err(error) = &core {
            let reason = error.to_string();
            effects.push(Effect::Poison { reason });
        }
        self.compare(&mut effects)?;
        // What could not start has ended with its poison.
        let mut core = core.map_err(|_| self.different("the replay cannot start".to_owned()))?;
        loop {
            self.committed = core.committed();
            match self.take()? {
                Some(Entry::Event { now, event }) => {
                    self.events += 1;
                    self.tell(now, Some(event.clone()));
                    core.step(now, event, &mut effects);
                    self.compare(&mut effects)?;
                }
                Some(Entry::End { why }) => return Err(End::Same { over: Some(why) }),
                Some(other) => {
                    let other = telling::entry(&other);
                    return Err(self.different(format!("the recording goes on with {other}")));
                }
                None => return Err(End::Same { over: None }),
            }
        }
    }

    /// The journal that it started on.
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

    /// Notes what the core is told next.
    fn tell(&mut self, now: Now, event: Option<Event>) {
        if self.told.len() > BEFORE {
            self.told.pop_front();
        }
        self.told.push_back((now, event));
        let place = self.trace.is_some().then(|| self.place());
        if let (Some(trace), Some(place)) = (&mut self.trace, place) {
            trace(&place.to_string());
        }
    }

    /// Whether what the core did is what is recorded.
    fn compare(&mut self, effects: &mut Effects) -> Result<(), End> {
        if let Some(trace) = &mut self.trace {
            for effect in effects.iter() {
                trace(&format!("    {}", telling::effect(effect)));
            }
        }
        let trouble = self.tape.borrow_mut().trouble.take();
        if let Some(trouble) = trouble {
            return Err(match trouble {
                tape::Trouble::Cut => End::Same { over: None },
                tape::Trouble::Unreadable(error) => End::Unreadable(error),
                tape::Trouble::Different(what) => self.different(what),
            });
        }
        let marks = match self.take()? {
            Some(Entry::Effects { effects }) => effects,
            Some(Entry::End { why }) => return Err(End::Same { over: Some(why) }),
            None => return Err(End::Same { over: None }),
            Some(other) => {
                let other = telling::entry(&other);
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
        let said = telling::effect(effect);
        match recorded {
            Some(recorded) if recorded == mark => None,
            Some(recorded) if recorded.kind() == mark.kind() => {
                Some(format!("the recording has another one than {said}"))
            }
            Some(recorded) => {
                let kind = recorded.kind();
                Some(format!("the recording has {kind}, the replay {said}"))
            }
            None => Some(format!("the recording has none, the replay {said}")),
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

    /// Where it is.
    fn place(&self) -> Place {
        let last = self.places().pop();
        last.unwrap_or(Place {
            event: 0,
            now: Now::default(),
            told: telling::START.to_owned(),
        })
    }

    fn places(&self) -> Vec<Place> {
        let first = (self.events + 1).saturating_sub(self.told.len() as u64);
        let numbered = (first..).zip(&self.told);
        let place = |(event, (now, told)): (u64, &(Now, Option<Event>))| Place {
            event,
            now: *now,
            told: telling::told(told.as_ref()),
        };
        numbered.map(place).collect()
    }
}
