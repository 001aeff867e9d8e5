//! The implementations of what the loop drives: a replica, and its disk.

use super::{Core, Durable};
use crate::disk::Disk;
use bytes::Bytes;
use quorumfs_bft::identity::{Now, Sequence};
use quorumfs_bft::metrics::ReplicaStatus;
use quorumfs_bft::replica::Replica;
use quorumfs_bft::service::Service;
use quorumfs_bft::state::{DurableRoot, Store, WriteBatch};
use quorumfs_bft::step::{Effects, Event, Token};

impl<S: Service, D: Store> Core for Replica<S, D> {
    fn step(&mut self, now: Now, event: Event, effects: &mut Effects) {
        Self::step(self, now, event, effects);
    }

    fn status(&self) -> ReplicaStatus {
        Self::status(self)
    }

    fn committed(&self) -> Sequence {
        Self::committed(self)
    }
}

impl Durable for Disk {
    fn append(&mut self, record: Bytes, token: Token) -> Result<bool, String> {
        let appended = self.append_later(token, record);
        appended.map_err(|error| error.to_string())
    }

    fn wake(&mut self) {
        Self::wake(self);
    }

    fn flush(&mut self, batch: WriteBatch, root: DurableRoot) -> Result<(), String> {
        Self::flush(self, batch, root).map_err(|error| error.to_string())
    }

    fn trim(&mut self, before: Token) -> Result<(), String> {
        Self::trim(self, before).map_err(|error| error.to_string())
    }
}
