//! Whether an object's digests are those of one content: one answer for every reader.
//!
//! A writer can order data shards of one content and parity of another. Each shard then has its
//! digest, and what a reader gets would depend on which clouds answer. So whoever did not write an
//! object itself believes nothing of it before this check:
//!
//! ```text
//!   any k shards that have their digests ──decode──► content ──code again──► all n shards
//!                                                                              │
//!        every one of the n has its ordered digest  ⇔  the object is a code word
//! ```
//!
//! The answer does not depend on which k shards are taken. If the digests are those of a code word,
//! any k shards that have them are its shards, for nobody finds two shards with one digest, and
//! they decode to it. If they are not, whatever k shards decode to is not what all n digests say,
//! or the digests would be its own. So either everybody is given the content, or everybody an
//! error that names the writer: never some the one and some the other.
//!
//! The border of trust is the principal: what this process's own principal wrote is read as it
//! comes, cell by cell, and costs nothing. Everything else is read once from k whole shards, unless
//! the order says that somebody other than its writer has *checked* it; completion and scrubs do,
//! and have it ordered. What was found is remembered here, as much as fits.

use super::engine::Engine;
use super::error::BlockError;
use super::object::StoredObject;
use super::sabotage::Sabotage;
use super::writer::Writer;
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::limits::CHECKED_OBJECTS_MAX;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Objects that were found good and are remembered.
const GOOD_MAX: usize = 1 << 16;
/// Objects that were found poisoned and are remembered.
const POISONED_MAX: usize = 1024;
/// Objects that wait to be told of by order; what does not fit is told of by whoever looks next.
const UNTOLD_MAX: usize = 4096;

/// An object whose shards do not fit each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Poisoned {
    /// Which one.
    pub object: ObjectId,
    /// The first shard that is not what the others say.
    pub shard: usize,
    /// Who wrote it.
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
struct Records {
    good: BTreeSet<ObjectId>,
    /// The same, in the order in which they came.
    oldest: VecDeque<ObjectId>,
    poisoned: BTreeMap<ObjectId, Poisoned>,
    untold: BTreeSet<ObjectId>,
}

/// What checks have found.
#[derive(Debug, Default)]
pub(super) struct CodeWords(Mutex<Records>);

impl CodeWords {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an object is one; `None` if nobody has looked.
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
            if records.untold.len() < UNTOLD_MAX {
                records.untold.insert(object);
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

    /// Those that were found poisoned.
    pub(super) fn all_poisoned(&self) -> Vec<Poisoned> {
        self.records().poisoned.values().cloned().collect()
    }

    pub(super) fn is_poisoned(&self, object: ObjectId) -> bool {
        self.records().poisoned.contains_key(&object)
    }

    fn take_untold(&self) -> Vec<ObjectId> {
        let mut records = self.records();
        let some = records.untold.iter().take(CHECKED_OBJECTS_MAX).copied();
        let some: Vec<_> = some.collect();
        for object in &some {
            records.untold.remove(object);
        }
        some
    }
}

impl Engine {
    /// Whether an object has to be checked before anything of it is believed.
    pub(super) async fn must_be_checked(&self, object: &StoredObject) -> bool {
        !object.is_checked()
            && !self.is_sabotaged(Sabotage::ForeignDataShardsBelieved)
            && !self.is_own(object).await
    }

    /// What is known of an object that has to be checked; `None` if it still has to be decoded, by
    /// [`gather`](Self::gather) or [`gather_patiently`](Self::gather_patiently), which enter what
    /// comes of it.
    pub(super) async fn believed(&self, object: &StoredObject) -> Option<Result<(), BlockError>> {
        if !self.must_be_checked(object).await {
            return Some(Ok(()));
        }
        self.code_words.known(object.id())
    }

    /// Refuses an object of another principal's whose shards do not fit each other.
    pub(super) async fn believe(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
    ) -> Result<(), BlockError> {
        match self.believed(object).await {
            Some(known) => known,
            None => {
                let object = self.with_replacements(object);
                let rebuilt = self.rebuilt(&object, Vec::new(), BTreeSet::new());
                rebuilt.await.map(drop)
            }
        }
    }

    /// Enters what decoding an object and coding it again has shown: the first shard that is not
    /// what its digest says, if there is one.
    pub(super) async fn enter_check(&self, object: &StoredObject, wrong: Option<usize>) {
        match wrong {
            Some(shard) => {
                let poisoned = Poisoned {
                    object: object.id(),
                    shard,
                    writer: self.with_name(object.writer()).await,
                };
                if !self.code_words.is_poisoned(object.id()) {
                    tracing::error!(
                        object = %poisoned.object, shard, writer = %poisoned.writer,
                        "poisoned: its shards do not fit each other"
                    );
                }
                self.code_words.poisoned(poisoned);
            }
            None if self.must_be_checked(object).await => self.code_words.good(object.id()),
            None => {}
        }
    }

    /// Has it ordered which objects were found good, so that others need not look again.
    pub(super) async fn tell_checked(&self) {
        if !self.config.restores {
            return;
        }
        loop {
            let some = self.code_words.take_untold();
            if some.is_empty() {
                return;
            }
            let count = some.len();
            if let Err(error) = self.log.confirm_checked(some).await {
                // Whoever looks again tells again.
                tracing::debug!(%error, count, "objects that were checked are not told of");
                return;
            }
        }
    }
}
