//! A probe: one more replica that receives another one's events, to time its steps.
//!
//! A replica's steps follow from its events alone, so the probe does the same as that replica. It
//! processes several thousand events, about ten batches, at once: no other replica's steps come
//! between them, as on a core of its own. The frames are decoded anew, a batch at a time, so that
//! the probe itself allocates and frees the memory of requests; that is counted apart from the
//! steps. Time is processor time of this thread, so that other programs do not count. The effects
//! of the steps are dropped, except writing the state.

use super::core::{NullSigner, start};
use super::replica::Null;
use crate::failure::{BenchResult as Result, failed};
use crate::processor::thread_seconds;
use bytes::Bytes;
use quorumfs_bft::identity::Now;
use quorumfs_bft::replica::{Config, Replica};
use quorumfs_bft::state::MemoryStore;
use quorumfs_bft::step::{Effect, Effects, Event, Peer};
use quorumfs_bft::wire::admit;

/// Events to process at once.
const EVENTS: usize = 4096;
/// Frames to decode before the first of them is processed.
const FRAMES: usize = 256;

/// An event of a probe.
enum ProbeEvent {
    Frame(Peer, Bytes),
    Event(Event),
}

/// The work of a probe, and the processor time that it took in seconds.
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
    waiting: Vec<(Now, ProbeEvent)>,
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

    /// Takes an event of the replica that this one follows.
    pub(super) fn observe(&mut self, now: Now, event: &Event) -> Result<()> {
        let event = match event {
            Event::Received { from, message } => ProbeEvent::Frame(*from, message.frame().clone()),
            event => ProbeEvent::Event(event.clone()),
        };
        self.waiting.push((now, event));
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

    fn take(&mut self, waiting: impl Iterator<Item = (Now, ProbeEvent)>) -> Result<()> {
        let context = self.config.context();
        let began = thread_seconds();
        let mut events = Vec::with_capacity(FRAMES);
        for (now, event) in waiting {
            let event = match event {
                ProbeEvent::Event(event) => event,
                ProbeEvent::Frame(from, frame) => {
                    let message = admit(frame, from, &NullSigner, &NullSigner, &context)
                        .map_err(|error| failed("admit a message", &error))?;
                    Event::Received { from, message }
                }
            };
            events.push((now, event));
        }
        let admitted = thread_seconds();
        self.spent.frames += admitted - began;
        let mut elsewhere = 0.0;
        let mut effects = Effects::default();
        for (now, event) in events {
            self.core.step(now, event, &mut effects);
            for effect in effects.drain() {
                match effect {
                    Effect::Flush { batch, .. } => {
                        let began = thread_seconds();
                        self.store.apply(&batch);
                        drop(batch);
                        elsewhere += thread_seconds() - began;
                    }
                    Effect::Poison { reason } => return Err(failed("run a core", &reason)),
                    _ => {}
                }
            }
        }
        self.spent.steps += thread_seconds() - admitted - elsewhere;
        Ok(())
    }

    /// Its work so far.
    pub(super) fn spent(&self) -> Spent {
        let counters = self.core.status().counters;
        Spent {
            operations: counters.operations,
            batches: counters.batches,
            ..self.spent
        }
    }
}
