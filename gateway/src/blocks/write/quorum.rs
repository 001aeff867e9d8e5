//! The quorum write: n shards for n clouds, returned when w = k + f of them are acknowledged.
//!
//! ```text
//! order    clouds that answer before suspended ones; the t that are to keep the object first
//! fast     all t at once                      cheap   w of the t at once, the quickest ones
//!            │ one fails, or is late: the next of the order is asked as well (spill)
//!            ▼
//!          w acknowledged ──► the write returns; up to t go on in the background
//! ```
//!
//! With w acknowledgements, k good shards remain whichever f clouds lie or vanish; fewer are never
//! reported as written. The write does not wait for the rest; see `in_flight`. A put is *late*
//! when it takes longer than twice the time of nearly all recent puts of its cloud. It is not
//! aborted: whichever put is acknowledged first counts.

use super::Writes;
use crate::blocks::clouds::{Exchange, Preference};
use crate::blocks::object::{
    BlockError, Failures, Sabotage, ShardBytes, ShardFault, StoredObject, shard_index,
};
use bytes::Bytes;
use quorumfs_backends::StoreErrorKind;
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::operation::PlacedShard;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The result of a put.
type PutAnswer = (usize, Result<PlacedShard, ShardFault>);

/// Forgets the object when dropped, unless the write succeeded.
struct UnfinishedWrite<'a>(&'a Writes, Option<ObjectId>);

impl Drop for UnfinishedWrite<'_> {
    fn drop(&mut self) {
        if let Some(object) = self.1 {
            self.0.abandoned(object);
        }
    }
}

/// A quorum write under way.
struct Puts {
    writes: Arc<Writes>,
    object: Arc<StoredObject>,
    answers: mpsc::Sender<PutAnswer>,
    /// The shards that are not yet sent, in the order of their clouds.
    rest: VecDeque<(usize, Bytes)>,
    /// The time from which each running put is late; `None` once it is counted as late.
    running: BTreeMap<usize, Option<Instant>>,
    acknowledged: usize,
    faults: Vec<ShardFault>,
}

impl Puts {
    /// Starts the put of the next shard; returns whether there was one.
    fn launch(&mut self) -> bool {
        let Some((shard, body)) = self.rest.pop_front() else {
            return false;
        };
        let (writes, object) = (Arc::clone(&self.writes), Arc::clone(&self.object));
        let late = writes.clouds.put_delay(&object, shard, body.len());
        self.running.insert(shard, Some(Instant::now() + late));
        let (id, index) = (object.id(), shard_index(shard).0);
        writes.put_begins(id, index, body.len());
        let (follower, answers) = (Arc::clone(&self.writes), self.answers.clone());
        let put = tokio::spawn(async move {
            let result = writes.clouds.place(&object, shard, body, 0).await;
            writes.put_ends(id, index, &result);
            // The write may have returned already.
            let _ = answers.try_send((shard, result));
        });
        follower.put_runs(id, index, put.abort_handle());
        true
    }

    /// Records an answer.
    fn answered(&mut self, (shard, result): PutAnswer) {
        self.running.remove(&shard);
        match result {
            Ok(_) => self.acknowledged += 1,
            Err(fault) => self.faults.push(fault),
        }
    }

    /// When the next running put becomes late.
    fn next_late(&self) -> Option<Instant> {
        self.running.values().flatten().min().copied()
    }

    /// Starts the next put for each one that is late now.
    fn spill(&mut self) {
        let now = Instant::now();
        let mut late = 0;
        for when in self.running.values_mut() {
            if when.is_some_and(|when| when <= now) {
                *when = None;
                late += 1;
            }
        }
        for _ in 0..late {
            if self.launch() {
                self.writes.clouds.counters().puts_spilled.add(1);
            }
        }
    }

    /// Whether the next cloud should be avoided now.
    fn is_next_suspended(&self) -> bool {
        let next = self.rest.front();
        next.is_none_or(|(shard, _)| self.writes.clouds.is_suspended(&self.object, *shard))
    }
}

impl Writes {
    /// Puts the shards and waits for w of them.
    pub(super) async fn put_quorum(
        self: &Arc<Self>,
        object: Arc<StoredObject>,
        bodies: Vec<ShardBytes>,
    ) -> Result<Vec<PlacedShard>, BlockError> {
        let (quorum, target) = (object.policy().write_quorum(), object.policy().target());
        let (mut wanted, target) = (usize::from(quorum), usize::from(target));
        if self.clouds.is_sabotaged(Sabotage::CommittedBeforeQuorum) {
            wanted -= 1;
        }
        let (answers, mut answered) = mpsc::channel(bodies.len().max(1));
        self.begin(object.id());
        let mut unsettled = UnfinishedWrite(self, Some(object.id()));
        let mut puts = Puts {
            writes: Arc::clone(self),
            rest: self.put_order(&object, bodies),
            object,
            answers,
            running: BTreeMap::new(),
            acknowledged: 0,
            faults: Vec::new(),
        };
        let first = match self.clouds.config().preference {
            Preference::Fast => target,
            Preference::Cheap => wanted,
        };
        while puts.running.len() < first && !puts.is_next_suspended() && puts.launch() {}
        while puts.acknowledged < wanted {
            while puts.acknowledged + puts.running.len() < wanted && puts.launch() {}
            if puts.acknowledged + puts.running.len() < wanted {
                // The write has failed; a moment for the other answers makes the message complete.
                let rest = async {
                    while !puts.running.is_empty()
                        && let Some(answer) = answered.recv().await
                    {
                        puts.answered(answer);
                    }
                };
                let _ = tokio::time::timeout(self.clouds.config().timeouts.hedge_max, rest).await;
                return Err(too_few(&puts, wanted));
            }
            let late = puts.next_late().filter(|_| !puts.rest.is_empty());
            tokio::select! {
                biased;
                answer = answered.recv() => {
                    // This function holds the channel's other end, so it does not close.
                    if let Some(answer) = answer {
                        puts.answered(answer);
                    }
                    if puts.acknowledged == 1
                        && self.clouds.is_sabotaged(Sabotage::AcknowledgementCountedTwice)
                    {
                        puts.acknowledged += 1;
                    }
                }
                () = tokio::time::sleep_until(late.unwrap_or_else(Instant::now)),
                    if late.is_some() => puts.spill(),
            }
        }
        // Puts that fail from here on are left to completion.
        while puts.acknowledged + puts.running.len() < target
            && !puts.is_next_suspended()
            && puts.launch()
        {}
        unsettled.1 = None;
        Ok(self.settle(puts.object.id()))
    }

    /// The order in which clouds are sent their shards.
    fn put_order(
        &self,
        object: &StoredObject,
        bodies: Vec<ShardBytes>,
    ) -> VecDeque<(usize, Bytes)> {
        let target = usize::from(object.policy().target());
        let mut order: Vec<(usize, Bytes)> = bodies
            .into_iter()
            .enumerate()
            .map(|(shard, made)| (shard, made.body))
            .collect();
        order.sort_by_cached_key(|(shard, body)| {
            let quick = match self.clouds.config().preference {
                Preference::Fast => None,
                Preference::Cheap => {
                    let link = self.clouds.link_of(object, *shard).ok();
                    link.map(|link| link.health.usual(Exchange::Put(body.len() as u64)))
                }
            };
            (
                self.clouds.is_suspended(object, *shard),
                *shard >= target,
                quick,
            )
        });
        order.into()
    }
}

fn too_few(puts: &Puts, wanted: usize) -> BlockError {
    let is_full = |fault: &ShardFault| match fault {
        ShardFault::Store(error) => error.kind == StoreErrorKind::Full,
        _ => false,
    };
    let passing = puts.faults.iter().filter(|fault| fault.is_passing());
    let may_take_it = puts.acknowledged + puts.running.len() + passing.count();
    BlockError::TooFewAcknowledged {
        object: puts.object.id(),
        acknowledged: puts.acknowledged,
        wanted,
        full: puts.faults.iter().any(is_full),
        passing: may_take_it >= wanted,
        failures: Failures(puts.faults.iter().map(ToString::to_string).collect()),
    }
}
