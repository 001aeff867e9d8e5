//! The consistency check: whether an object's digests are those of one content, with one answer for
//! every reader.
//!
//! A writer can order data shards of one content and parity of another. Each shard then has its
//! digest, and a reader's result would depend on which clouds answer. So a gateway uses nothing of
//! an object of another principal before this check:
//!
//! ```text
//!   any k shards that have their digests ──decode──► content ──code again──► all n shards
//!                                                                              │
//!        every one of the n has its ordered digest  ⇔  the object is a code word
//! ```
//!
//! The answer does not depend on the choice of the k shards. If the digests are those of a code
//! word, any k shards that have them are its shards, since two shards with one digest cannot be
//! found, and they decode to it. If they are not, the content that any k shards decode to does not
//! have all n digests, or the digests would be its own. So either every reader gets the content, or
//! every reader gets an error that names the writer; never some the one and some the other.
//!
//! The trust boundary is the principal. An object of this process's own principal is read cell by
//! cell, at no extra cost. Any other object is read once from k whole shards, unless it is ordered
//! as *checked* by a principal other than its writer. Completion and scrubs check objects and have
//! that ordered. The results are cached here, up to a bound.

use super::Reads;
use crate::blocks::object::{BlockError, Sabotage, StoredObject, Writer};
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::limits::CHECKED_OBJECTS_MAX;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most objects found good that are remembered.
const GOOD_MAX: usize = 1 << 16;
/// The most objects found poisoned that are remembered.
const POISONED_MAX: usize = 1024;
/// The most good objects that await an order; further ones are ordered after their next check.
const UNCONFIRMED_MAX: usize = 4096;

/// An object whose shards are inconsistent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Poisoned {
    /// The object.
    pub object: ObjectId,
    /// The first shard that contradicts the others.
    pub shard: usize,
    /// Its writer.
    pub writer: Writer,
}

impl Poisoned {
    fn error(&self) -> BlockError {
        BlockError::WrittenWrong {
            object: self.object,
            writer: self.writer.clone(),
            shard: self.shard,
        }
    }
}

#[derive(Debug, Default)]
struct ConsistencyRecords {
    good: BTreeSet<ObjectId>,
    /// The same, in order of arrival.
    oldest: VecDeque<ObjectId>,
    poisoned: BTreeMap<ObjectId, Poisoned>,
    unconfirmed: BTreeSet<ObjectId>,
}

/// The results of the checks.
#[derive(Debug, Default)]
pub(super) struct ConsistencyChecks(Mutex<ConsistencyRecords>);

impl ConsistencyChecks {
    fn records(&self) -> MutexGuard<'_, ConsistencyRecords> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an object passed; `None` if it was not checked here.
    fn known(&self, object: ObjectId) -> Option<Result<(), BlockError>> {
        let records = self.records();
        if let Some(poisoned) = records.poisoned.get(&object) {
            return Some(Err(poisoned.error()));
        }
        records.good.contains(&object).then_some(Ok(()))
    }

    fn good(&self, object: ObjectId) {
        let mut records = self.records();
        if records.good.insert(object) {
            records.oldest.push_back(object);
            if records.unconfirmed.len() < UNCONFIRMED_MAX {
                records.unconfirmed.insert(object);
            }
        }
        if records.oldest.len() > GOOD_MAX
            && let Some(oldest) = records.oldest.pop_front()
        {
            records.good.remove(&oldest);
        }
    }

    fn poisoned(&self, poisoned: Poisoned) {
        let mut records = self.records();
        if records.poisoned.len() >= POISONED_MAX {
            records.poisoned.pop_first();
        }
        records.poisoned.insert(poisoned.object, poisoned);
    }

    fn is_poisoned(&self, object: ObjectId) -> bool {
        self.records().poisoned.contains_key(&object)
    }

    fn take_unconfirmed(&self) -> Vec<ObjectId> {
        let mut records = self.records();
        let some = records
            .unconfirmed
            .iter()
            .take(CHECKED_OBJECTS_MAX)
            .copied();
        let some: Vec<_> = some.collect();
        for object in &some {
            records.unconfirmed.remove(object);
        }
        some
    }
}

impl Reads {
    /// Whether an object has to be checked before anything of it is used.
    pub(super) async fn must_be_checked(&self, object: &StoredObject) -> bool {
        !object.is_checked()
            && !self
                .clouds
                .is_sabotaged(Sabotage::ForeignDataShardsBelieved)
            && !self.is_own(object).await
    }

    /// The known result for an object; `None` if it still has to be decoded, by
    /// [`gather`](Self::gather) or [`gather_unhedged`](Self::gather_unhedged), which record the
    /// result.
    pub(in crate::blocks) async fn check_result(
        &self,
        object: &StoredObject,
    ) -> Option<Result<(), BlockError>> {
        if !self.must_be_checked(object).await {
            return Some(Ok(()));
        }
        self.consistency.known(object.id())
    }

    /// Refuses another principal's object whose shards are inconsistent.
    pub(super) async fn ensure_consistent(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
    ) -> Result<(), BlockError> {
        match self.check_result(object).await {
            Some(known) => known,
            None => {
                let object = self.clouds.with_replacements(object);
                let rebuilt = self.rebuilt(&object, Vec::new(), BTreeSet::new());
                rebuilt.await.map(drop)
            }
        }
    }

    /// Records the result of decoding an object and coding it again: the first shard that does not
    /// have its digest, if there is one.
    pub(super) async fn record_check(&self, object: &StoredObject, wrong: Option<usize>) {
        match wrong {
            Some(shard) => {
                let poisoned = Poisoned {
                    object: object.id(),
                    shard,
                    writer: self.with_name(object.writer()).await,
                };
                if !self.consistency.is_poisoned(object.id()) {
                    tracing::error!(
                        object = %poisoned.object, shard, writer = %poisoned.writer,
                        "object is poisoned: its shards are inconsistent"
                    );
                }
                self.consistency.poisoned(poisoned);
            }
            None if self.must_be_checked(object).await => self.consistency.good(object.id()),
            None => {}
        }
    }

    /// The objects found poisoned.
    pub(in crate::blocks) fn all_poisoned(&self) -> Vec<Poisoned> {
        let records = self.consistency.records();
        records.poisoned.values().cloned().collect()
    }

    pub(in crate::blocks) fn is_poisoned(&self, object: ObjectId) -> bool {
        self.consistency.is_poisoned(object)
    }

    /// Some objects that were found good and await an order; each is given once.
    pub(in crate::blocks) fn take_checked(&self) -> Vec<ObjectId> {
        self.consistency.take_unconfirmed()
    }
}
