//! One replica: the composition of everything else.

pub mod config;

pub use crate::metrics::ReplicaStatus as Status;
pub use config::{Config, Sabotage};

use crate::identity::{Now, View};
use crate::journal::Journal;
use crate::metrics::{Counters, Voting};
use crate::service::Service;
use crate::state::{StateError, Store};
use crate::step::{Effects, Event};

/// One replica of `S`, with its state in `D`.
pub struct Replica<S, D> {
    config: Config,
    service: S,
    store: D,
}

impl<S: Service, D: Store> Replica<S, D> {
    /// Starts a replica on what it finds of its journal ([`crate::journal::examine`]) and state.
    ///
    /// # Errors
    /// If the state store fails; nothing was sent then, and nothing may be.
    pub fn recover(
        config: Config,
        service: S,
        store: D,
        journal: Journal,
        now: Now,
        effects: &mut Effects,
    ) -> Result<Self, StateError> {
        let _ = (journal, now, effects);
        Ok(Self {
            config,
            service,
            store,
        })
    }

    /// Handles one event.
    pub fn step(&mut self, now: Now, event: Event, effects: &mut Effects) {
        let _ = (now, event, effects, &self.service, &self.store);
    }

    /// How it is.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            replica: self.config.replica,
            view: View(0),
            leader: self.config.context().leader(View(0)),
            active: true,
            sequence: Default::default(),
            batch: Default::default(),
            time: Default::default(),
            durable: Default::default(),
            root: Default::default(),
            voting: Voting::Voting,
            signers: Vec::new(),
            sessions: 0,
            waiting: 0,
            counters: Counters::default(),
        }
    }
}
