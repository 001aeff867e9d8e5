//! Small slices share objects: group commit, as in a write-ahead log.
//!
//! A put costs money and a round trip whatever its size, so slices that are written at the same
//! time go together:
//!
//! ```text
//!   writers   a  b c d e  f g
//!             |  |_____|  |_        gather while packs are in flight
//!   clouds   [a] [b c d e]          as many acknowledgements as packs, not as writers
//! ```
//!
//! * **A single writer never waits**: if nothing is in flight a slice goes at once, in a *block* of
//!   its own; unless a pack has just returned, whose writers will soon send more. It is a block and
//!   not a pack of one, because it is deleted as a whole: it never has a part to compact, and no
//!   list of slices to store.
//! * Otherwise slices gather. The pack departs when it is full, whatever else is in flight; or when
//!   fewer than [`AT_ONCE`] are in flight and either no slice has arrived for a [pause](Packing) or
//!   the first has lost its [patience](Packing).
//! * **A pack succeeds or fails as one**: if w clouds do not take it, each of its writers gets the
//!   error, and tries again with new ids. The packer itself never retries: ids are used once.
//! * A writer that gives up leaves its slice in the pack, unused, and the packer treats it as if
//!   its commit had failed.
//! * The pack's object is [committed](Packer::committed) as soon as one of its slices is, for then
//!   the servers have it, and [abandoned](Packer::abandoned) when the last of them is given up. Its
//!   id is one of its writers'; all of them hold the allocation until they are done.
//!
//! Slices of several realms never meet: a packer belongs to one file system, which has one realm.
//! Slices of several key epochs may. Nothing depends on it: every slice has a key of its own, its
//! row names the epoch, and one that is sealed anew leaves its pack as an overwritten one does.
//!
//! Memory: the slices that wait here count in their writers' dirty bytes, which are bounded; the
//! block store reserves its own memory before it seals a pack.

use super::WrittenSlice;
use crate::blocks::{BlockError, BlockStore, PlainSlice, SealedSlice};
use crate::keys::SliceKey;
use crate::metadata::AllocatedId;
use bytes::Bytes;
use quorumfs_metadata::identity::{ObjectClass, ObjectId};
use quorumfs_metadata::limits::PACK_SLICES_MAX;
use quorumfs_metadata::operation::NewObject;
use quorumfs_metadata::row;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// Slices of fewer plain bytes share an object if they can.
pub(crate) const SMALL_BYTES: usize = 1 << 20;
/// Packs in flight beyond which slices gather until one has returned or theirs is full.
const AT_ONCE: usize = 2;

/// How long slices wait for others to share an object with. A slice that finds nothing in flight
/// waits for neither, except after a pack that returned less than a patience ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// A pack departs when no slice has arrived for so long.
    pub pause: Duration,
    /// A pack departs when its first slice has waited for so long.
    pub patience: Duration,
}

impl Packing {
    /// If a process waits for the slice: far less than a round trip to a cloud.
    pub const PROMPT: Self = Self {
        pause: Duration::from_millis(2),
        patience: Duration::from_millis(30),
    };

    /// If many files are brought in and only the end of the last matters.
    pub const THRIFTY: Self = Self {
        pause: Duration::from_millis(50),
        patience: Duration::from_millis(1000),
    };
}

/// A writer's slice, and a hold on the pack until the slice is committed or abandoned.
type PackResult = Result<(WrittenSlice, PackHold), Arc<BlockError>>;

struct Waiting {
    id: AllocatedId,
    /// As its row names it.
    row_key: row::SliceKey,
    key: SliceKey,
    plain: Bytes,
    since: Instant,
    answer: oneshot::Sender<PackResult>,
}

/// A pack with slices that are neither committed nor abandoned yet.
struct Pack {
    unresolved: usize,
    is_committed: bool,
}

#[derive(Default)]
struct PackerState {
    waiting: VecDeque<Waiting>,
    last_arrival: Option<Instant>,
    in_flight: usize,
    /// Until when the writers of a returned pack may send more.
    rejoin_until: Option<Instant>,
    /// Whether a task watches the gathering slices.
    is_watched: bool,
    packs: BTreeMap<ObjectId, Pack>,
}

/// Packs slices on their way to a block store.
pub(crate) struct Packer {
    blocks: BlockStore,
    packing: Packing,
    state: Mutex<PackerState>,
    /// A pack has returned.
    returned: Notify,
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        f.debug_struct("Packer")
            .field("waiting", &state.waiting.len())
            .field("in_flight", &state.in_flight)
            .finish_non_exhaustive()
    }
}

/// Abandons the slice unless its writer took it over.
struct PackHold(Option<(Arc<Packer>, ObjectId)>);

impl Drop for PackHold {
    fn drop(&mut self) {
        if let Some((packer, object)) = self.0.take() {
            packer.abandoned(object);
        }
    }
}

impl Packer {
    pub(crate) fn new(blocks: BlockStore, packing: Packing) -> Arc<Self> {
        Arc::new(Self {
            blocks,
            packing,
            state: Mutex::default(),
            returned: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, PackerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seals a small slice, together with others that are written now, and returns once w clouds
    /// have acknowledged it.
    pub(crate) async fn write(
        self: &Arc<Self>,
        id: AllocatedId,
        (row_key, key): (row::SliceKey, SliceKey),
        plain: Bytes,
    ) -> Result<WrittenSlice, Arc<BlockError>> {
        let (answer, result) = oneshot::channel();
        let since = Instant::now();
        {
            let mut state = self.state();
            state.waiting.push_back(Waiting {
                id,
                row_key,
                key,
                plain,
                since,
                answer,
            });
            state.last_arrival = Some(since);
            let is_alone = state.in_flight == 0
                && state.waiting.len() == 1
                && state.rejoin_until.is_none_or(|until| until <= since);
            if is_alone {
                self.depart(&mut state);
            }
            while self.is_full(&state) {
                self.depart(&mut state);
            }
            if !state.waiting.is_empty() && !state.is_watched {
                state.is_watched = true;
                tokio::spawn(Arc::clone(self).watch());
            }
        }
        // The task that would answer ends early only with its runtime.
        let result = result.await.map_err(|_| Arc::new(BlockError::Shut))?;
        let (written, mut unresolved) = result?;
        unresolved.0 = None;
        Ok(written)
    }

    /// How many of the waiting slices fit one pack.
    fn fitting(&self, state: &PackerState) -> usize {
        let mut space = u64::from(self.blocks.block_bytes_max());
        let fits = state.waiting.iter().take_while(|waiting| {
            let left = space.checked_sub(waiting.plain.len() as u64);
            space = left.unwrap_or(0);
            left.is_some()
        });
        // One that does not fit at all is refused by the block store.
        fits.take(PACK_SLICES_MAX as usize).count().max(1)
    }

    /// Whether the waiting slices fill more than a pack, or just one.
    fn is_full(&self, state: &PackerState) -> bool {
        let fitting = self.fitting(state);
        fitting < state.waiting.len() || fitting == PACK_SLICES_MAX as usize
    }

    /// Sends a pack of the slices that have waited longest.
    fn depart(self: &Arc<Self>, state: &mut PackerState) {
        let count = self.fitting(state).min(state.waiting.len());
        let pack: Vec<Waiting> = state.waiting.drain(..count).collect();
        state.in_flight += 1;
        let packer = Arc::clone(self);
        tokio::spawn(async move { packer.send(pack).await });
    }

    /// Sends gathering slices when it is time, until there are none.
    async fn watch(self: Arc<Self>) {
        loop {
            let until = {
                let mut state = self.state();
                let (Some(first), Some(last_arrival)) = (state.waiting.front(), state.last_arrival)
                else {
                    state.is_watched = false;
                    return;
                };
                let until =
                    (last_arrival + self.packing.pause).min(first.since + self.packing.patience);
                if state.in_flight < AT_ONCE && until <= Instant::now() {
                    self.depart(&mut state);
                    continue;
                }
                (state.in_flight < AT_ONCE).then_some(until)
            };
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => self.returned.notified().await,
            }
        }
    }

    async fn send(self: Arc<Self>, pack: Vec<Waiting>) {
        let written = self.put(&pack).await;
        let outcome = {
            let mut state = self.state();
            state.in_flight = state.in_flight.saturating_sub(1);
            if pack.len() > 1 {
                state.rejoin_until = Some(Instant::now() + self.packing.patience);
            }
            if let Ok((object, _)) = &written
                && object.class == ObjectClass::PACK
            {
                let pack = Pack {
                    unresolved: pack.len(),
                    is_committed: false,
                };
                state.packs.insert(object.id, pack);
            }
            written.map_err(Arc::new)
        };
        self.returned.notify_one();
        let lease = pack.first().map(|first| first.id.clone());
        match outcome {
            Ok((object, slices)) => {
                for (waiting, slice) in pack.into_iter().zip(slices) {
                    let written = WrittenSlice {
                        slice: slice.into_new(waiting.row_key),
                        object: object.clone(),
                        lease: lease.clone(),
                    };
                    let unresolved = PackHold(Some((Arc::clone(&self), object.id)));
                    // A writer that gave up does not receive it, and dropping it abandons the
                    // slice.
                    let _ = waiting.answer.send(Ok((written, unresolved)));
                }
            }
            Err(error) => {
                for waiting in pack {
                    let _ = waiting.answer.send(Err(Arc::clone(&error)));
                }
            }
        }
    }

    async fn put(&self, pack: &[Waiting]) -> Result<(NewObject, Vec<SealedSlice>), BlockError> {
        if let [only] = pack {
            let (object, slice, plain) = (only.id.object(), only.id.slice(), only.plain.clone());
            let stored = self.blocks.write(object, slice, &only.key, plain).await?;
            return Ok((stored.object, vec![stored.slice]));
        }
        let plain = |waiting: &Waiting| PlainSlice {
            id: waiting.id.slice(),
            key: waiting.key.clone(),
            plain: waiting.plain.clone(),
        };
        let slices = pack.iter().map(plain).collect();
        let object = pack.first().map(|first| first.id.object());
        let object = object.unwrap_or_default();
        self.blocks
            .write_slices(object, ObjectClass::PACK, slices)
            .await
    }

    /// A commit of one of the object's slices succeeded.
    pub(crate) fn committed(&self, object: ObjectId) {
        let mut state = self.state();
        if let Some(pack) = state.packs.get_mut(&object) {
            pack.unresolved = pack.unresolved.saturating_sub(1);
            let is_first = !std::mem::replace(&mut pack.is_committed, true);
            if pack.unresolved == 0 {
                state.packs.remove(&object);
            }
            if !is_first {
                return;
            }
        }
        drop(state);
        self.blocks.committed(object);
    }

    /// One of the object's slices will not be committed, or it is unknown whether it was.
    pub(crate) fn abandoned(&self, object: ObjectId) {
        let mut state = self.state();
        if let Some(pack) = state.packs.get_mut(&object) {
            pack.unresolved = pack.unresolved.saturating_sub(1);
            if pack.unresolved > 0 {
                return;
            }
            let is_committed = pack.is_committed;
            state.packs.remove(&object);
            if is_committed {
                return;
            }
        }
        drop(state);
        self.blocks.abandoned(object);
    }
}
