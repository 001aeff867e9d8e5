//! Observations of a run from outside: what each writer wrote, what was put, what resulted.
//!
//! Every part of the world writes here, and every check reads here. The trace is a hash of all
//! events in order, so that two runs of a seed can be compared.

use super::collecting::Retained;
use super::poison::Poison;
use bytes::Bytes;
use quorumfs_backends::ObjectName;
use quorumfs_bft_simulator::counters::Counters;
use quorumfs_metadata::identity::{ObjectId, PrincipalNumber, SliceId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// The content that a writer intends to write.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) plain: Bytes,
    /// How it was poisoned, and by which principal, if it was.
    pub(super) poison: Option<(Poison, PrincipalNumber)>,
}

#[derive(Default)]
pub(super) struct Records {
    hasher: blake3::Hasher,
    lines: Option<Vec<String>>,
    pub(super) counters: Counters,
    pub(super) violations: Vec<String>,
    pub(super) stalls: Vec<String>,
    /// The content of each slice.
    pub(super) attempts: BTreeMap<SliceId, Attempt>,
    /// Slices whose commit was acknowledged.
    pub(super) committed: BTreeSet<SliceId>,
    /// Slices whose removal was tried.
    pub(super) removed: BTreeSet<SliceId>,
    /// Objects that retained points need.
    pub(super) retained: Retained,
    /// Names that were put after they had been deleted.
    pub(super) late: BTreeSet<(u8, ObjectName)>,
    /// The body that honest gateways have put for each shard, under any of its names.
    pub(super) bodies: BTreeMap<(ObjectId, u8), blake3::Hash>,
    /// Shards that a cloud has acknowledged or returned, with the attempt in the name.
    pub(super) acknowledged: BTreeSet<(ObjectId, u8, u8)>,
    pub(super) operations: u64,
    pub(super) faults: u64,
    pub(super) first_life_steps: Option<u64>,
}

/// The records of one run.
pub(super) struct Ledger {
    records: Mutex<Records>,
    began: Instant,
}

impl Ledger {
    pub(super) fn new(tracing: bool) -> Self {
        let records = Records {
            lines: tracing.then(Vec::new),
            ..Records::default()
        };
        Self {
            records: Mutex::new(records),
            began: Instant::now(),
        }
    }

    pub(super) fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Virtual milliseconds since the beginning.
    pub(super) fn milliseconds(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Appends a line to the trace.
    pub(super) fn note(&self, line: &str) {
        let line = format!("{:>9} {line}", self.milliseconds());
        let mut records = self.records();
        records.hasher.update(line.as_bytes());
        if let Some(lines) = &mut records.lines {
            lines.push(line);
        }
    }

    pub(super) fn count(&self, name: &'static str) {
        self.records().counters.count(name);
    }

    /// A fault that affected an operation.
    pub(super) fn fault(&self, name: &'static str) {
        let mut records = self.records();
        records.faults += 1;
        records.counters.count(name);
    }

    pub(super) fn violation(&self, what: String) {
        self.note(&format!("VIOLATION {what}"));
        self.records().violations.push(what);
    }

    pub(super) fn stall(&self, what: String) {
        self.note(&format!("STALL {what}"));
        self.records().stalls.push(what);
    }

    /// A gateway puts this body for a shard. A shard is a pure function of ids and plaintext, so
    /// every body of it is the same. Two of them would be two plaintexts under one key and nonce.
    pub(super) fn put(&self, object: ObjectId, shard: u8, body: &[u8]) {
        let hash = blake3::hash(body);
        let known = *self.records().bodies.entry((object, shard)).or_insert(hash);
        if known != hash {
            self.violation(format!(
                "object {object}, shard {shard}: put with two contents: a nonce was used twice, or \
                 a cloud's content was not verified"
            ));
        }
    }

    /// The hash of the trace, its lines, and the records.
    pub(super) fn finish(&self) -> (blake3::Hash, Vec<String>, Records) {
        let mut records = std::mem::take(&mut *self.records());
        let lines = records.lines.take().unwrap_or_default();
        (records.hasher.finalize(), lines, records)
    }
}
