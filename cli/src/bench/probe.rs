//! One more replica that hears what another one hears, and how long its steps take.
//!
//! A replica's steps follow from its events alone, so whoever hears the same does the same. The
//! probe hears several thousand events, about ten batches, in one go: no other replica's steps come
//! between them, as on a core that is a replica's own. The frames are taken apart anew, a batch at
//! a time, so that what a request occupies is the probe's own, and is released by it; that is
//! counted apart from the steps. So that others on the machine do not count, time is what this
//! thread was given of a processor. What the steps ask for is done outside of it: nothing but
//! writing the state.

use super::core::{Nobody, given, start};
use super::failed;
use super::replica::Null;
use crate::failure::Outcome as Result;
use bytes::Bytes;
use quorumfs_bft::identity::Now;
use quorumfs_bft::replica::{Config, Replica};
use quorumfs_bft::state::MemoryStore;
use quorumfs_bft::step::{Effect, Effects, Event, Peer};
use quorumfs_bft::wire::admit;

/// Events that are heard in one go.
const EVENTS: usize = 4096;
/// Frames that are taken apart before the first of them is heard.
const FRAMES: usize = 256;

/// What a probe hears.
enum Heard {
    Frame(Peer, Bytes),
    Event(Event),
}

/// What a probe has done, and the seconds of a processor that it took.
#[derive(Clone, Copy, Default)]
pub(super) struct Spent {
    pub(super) steps: f64,
    pub(super) frames: f64,
    pub(super) operations: u64,
    pub(super) batches: u64,
}

impl Spent {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            steps: self.steps - before.steps,
            frames: self.frames - before.frames,
            operations: self.operations - before.operations,
            batches: self.batches - before.batches,
        }
    }
}

pub(super) struct Probe {
    config: Config,
    core: Replica<Null, MemoryStore>,
    store: MemoryStore,
    waiting: Vec<(Now, Heard)>,
    spent: Spent,
}

impl Probe {
    pub(super) fn new(config: Config, now: Now) -> Result<Self> {
        let (core, store) = start(config.clone(), now, &mut Effects::default())?;
        Ok(Self {
            config,
            core,
            store,
            waiting: Vec::new(),
            spent: Spent::default(),
        })
    }

    /// The replica that this one follows hears this.
    pub(super) fn hear(&mut self, now: Now, event: &Event) -> Result<()> {
        let heard = match event {
            Event::Received { from, message } => Heard::Frame(*from, message.frame().clone()),
            event => Heard::Event(event.clone()),
        };
        self.waiting.push((now, heard));
        match self.waiting.len() < EVENTS {
            true => Ok(()),
            false => self.catch_up(),
        }
    }

    fn catch_up(&mut self) -> Result<()> {
        let mut waiting = std::mem::take(&mut self.waiting).into_iter();
        while waiting.len() > 0 {
            self.take(waiting.by_ref().take(FRAMES))?;
        }
        Ok(())
    }

    fn take(&mut self, waiting: impl Iterator<Item = (Now, Heard)>) -> Result<()> {
        let context = self.config.context();
        let began = given();
        let mut events = Vec::with_capacity(FRAMES);
        for (now, heard) in waiting {
            let event = match heard {
                Heard::Event(event) => event,
                Heard::Frame(from, frame) => {
                    let message = admit(frame, from, &Nobody, &Nobody, &context)
                        .map_err(|error| failed("let a message in", &error))?;
                    Event::Received { from, message }
                }
            };
            events.push((now, event));
        }
        let admitted = given();
        self.spent.frames += admitted - began;
        let mut elsewhere = 0.0;
        let mut effects = Effects::default();
        for (now, event) in events {
            self.core.step(now, event, &mut effects);
            for effect in effects.drain() {
                match effect {
                    Effect::Flush { batch, .. } => {
                        let began = given();
                        self.store.apply(&batch);
                        drop(batch);
                        elsewhere += given() - began;
                    }
                    Effect::Poison { reason } => return Err(failed("run a core", &reason)),
                    _ => {}
                }
            }
        }
        self.spent.steps += given() - admitted - elsewhere;
        Ok(())
    }

    /// What it has done so far.
    pub(super) fn spent(&self) -> Spent {
        let counters = self.core.status().counters;
        Spent {
            operations: counters.operations,
            batches: counters.batches,
            ..self.spent
        }
    }
}
