//! Small slices share objects: group commit, as a write-ahead log has it.
//!
//! A put costs money and a round trip whatever its size, so slices that are written at the same
//! time go together:
//!
//! ```text
//!   writers   a  b c d e  f g
//!             |  |_____|  |_        gather while packs are on their way
//!   clouds   [a] [b c d e]          as many acknowledgements as packs, not as writers
//! ```
//!
//! * **Who is alone never waits**: if nothing is on its way a slice goes at once, in a *block* of
//!   its own; unless a pack has just come back, whose writers will soon be here again. A block and
//!   not a pack of one, because it dies as a whole: there is never a part of it to move away, and
//!   no list of its slices to keep.
//! * Otherwise slices gather. The pack departs when it is full, whatever else is under way; or when
//!   fewer than [`AT_ONCE`] are on their way and either nobody has come for a [pause](Packing) or
//!   the first has lost its [patience](Packing).
//! * **A pack succeeds or fails as one**: if w clouds do not take it, each of its writers hears so,
//!   and comes again with new ids. The packer itself never tries again: ids are burned.
//! * Who gives up waiting takes nothing with him: his slice lies dead in the pack, which is told as
//!   if his commit had failed.
//! * The pack's object is [committed](Packer::committed) as soon as one of its slices is, for then
//!   the servers know it, and [abandoned](Packer::abandoned) when the last of them is given up.
//!   Its id is one of its writers'; all of them hold on to the allocation until they are through.
//!
//! Slices of several realms never meet: a packer belongs to one file system, which has one realm.
//! Slices of several key epochs may. Nothing depends on it: every slice has a key of its own, its
//! row says of which epoch, and one that is sealed anew leaves its pack as one that is overwritten.
//!
//! Memory: what waits here is held by its writers already, who are bounded by what they may have
//! dirty; the block store takes its own share before it seals a pack.

use super::slice_store::WrittenSlice;
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
/// Packs on their way beyond which slices gather until one is back or theirs is full.
const AT_ONCE: usize = 2;

/// How long slices wait for others to share an object with. Neither is waited for by a slice that
/// finds nothing on its way, nor a pack that came back less than a patience ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// A pack departs when nobody has come for so long.
    pub pause: Duration,
    /// A pack departs when its first slice has waited for so long.
    pub patience: Duration,
}

impl Packing {
    /// For whom somebody waits: far less than a round trip to a cloud.
    pub const PROMPT: Self = Self {
        pause: Duration::from_millis(2),
        patience: Duration::from_millis(30),
    };

    /// For who brings in many files and cares for the last of them.
    pub const THRIFTY: Self = Self {
        pause: Duration::from_millis(50),
        patience: Duration::from_millis(1000),
    };
}

/// What a writer hears: his slice, and a hold on the pack until he has told what becomes of it.
type Heard = Result<(WrittenSlice, Untold), Arc<BlockError>>;

struct Waiting {
    id: AllocatedId,
    /// As its row says it.
    row_key: row::SliceKey,
    key: SliceKey,
    plain: Bytes,
    since: Instant,
    answer: oneshot::Sender<Heard>,
}

/// A pack whose writers have not all told what became of their slices.
struct Pack {
    untold: usize,
    is_committed: bool,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    last_came: Option<Instant>,
    on_their_way: usize,
    /// Until when the writers of a pack that came back may be here again.
    company_until: Option<Instant>,
    /// Whether a task watches over what gathers.
    is_watched: bool,
    packs: BTreeMap<ObjectId, Pack>,
}

/// Brings slices together on their way to a block store.
pub(crate) struct Packer {
    blocks: BlockStore,
    packing: Packing,
    state: Mutex<State>,
    /// A pack is back.
    back: Notify,
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        f.debug_struct("Packer")
            .field("waiting", &state.waiting.len())
            .field("on_their_way", &state.on_their_way)
            .finish_non_exhaustive()
    }
}

/// Tells that a slice is given up unless its writer took it over.
struct Untold(Option<(Arc<Packer>, ObjectId)>);

impl Drop for Untold {
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
            back: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
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
        let (answer, heard) = oneshot::channel();
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
            state.last_came = Some(since);
            let is_alone = state.on_their_way == 0
                && state.waiting.len() == 1
                && state.company_until.is_none_or(|until| until <= since);
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
        let heard = heard.await.map_err(|_| Arc::new(BlockError::Shut))?;
        let (written, mut untold) = heard?;
        untold.0 = None;
        Ok(written)
    }

    /// How many of those that wait fit one pack.
    fn fitting(&self, state: &State) -> usize {
        let mut room = u64::from(self.blocks.block_bytes_max());
        let fits = state.waiting.iter().take_while(|waiting| {
            let left = room.checked_sub(waiting.plain.len() as u64);
            room = left.unwrap_or(0);
            left.is_some()
        });
        // One that does not fit at all is refused by the block store.
        fits.take(PACK_SLICES_MAX as usize).count().max(1)
    }

    /// Whether those that wait fill more than a pack, or just one.
    fn is_full(&self, state: &State) -> bool {
        let fitting = self.fitting(state);
        fitting < state.waiting.len() || fitting == PACK_SLICES_MAX as usize
    }

    /// Sends a pack of those that have waited longest.
    fn depart(self: &Arc<Self>, state: &mut State) {
        let count = self.fitting(state).min(state.waiting.len());
        let pack: Vec<Waiting> = state.waiting.drain(..count).collect();
        state.on_their_way += 1;
        let packer = Arc::clone(self);
        tokio::spawn(async move { packer.send(pack).await });
    }

    /// Sends what gathers when it is time, until nothing does.
    async fn watch(self: Arc<Self>) {
        loop {
            let until = {
                let mut state = self.state();
                let (Some(first), Some(last_came)) = (state.waiting.front(), state.last_came)
                else {
                    state.is_watched = false;
                    return;
                };
                let until =
                    (last_came + self.packing.pause).min(first.since + self.packing.patience);
                if state.on_their_way < AT_ONCE && until <= Instant::now() {
                    self.depart(&mut state);
                    continue;
                }
                (state.on_their_way < AT_ONCE).then_some(until)
            };
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => self.back.notified().await,
            }
        }
    }

    async fn send(self: Arc<Self>, pack: Vec<Waiting>) {
        let written = self.put(&pack).await;
        let outcome = {
            let mut state = self.state();
            state.on_their_way = state.on_their_way.saturating_sub(1);
            if pack.len() > 1 {
                state.company_until = Some(Instant::now() + self.packing.patience);
            }
            if let Ok((object, _)) = &written
                && object.class == ObjectClass::PACK
            {
                let pack = Pack {
                    untold: pack.len(),
                    is_committed: false,
                };
                state.packs.insert(object.id, pack);
            }
            written.map_err(Arc::new)
        };
        self.back.notify_one();
        let lease = pack.first().map(|first| first.id.clone());
        match outcome {
            Ok((object, slices)) => {
                for (waiting, slice) in pack.into_iter().zip(slices) {
                    let written = WrittenSlice {
                        slice: slice.into_new(waiting.row_key),
                        object: object.clone(),
                        lease: lease.clone(),
                    };
                    let untold = Untold(Some((Arc::clone(&self), object.id)));
                    // Whoever gave up does not hear it, and has it abandoned.
                    let _ = waiting.answer.send(Ok((written, untold)));
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

    /// A commit of one of the object's slices got through.
    pub(crate) fn committed(&self, object: ObjectId) {
        let mut state = self.state();
        if let Some(pack) = state.packs.get_mut(&object) {
            pack.untold = pack.untold.saturating_sub(1);
            let is_first = !std::mem::replace(&mut pack.is_committed, true);
            if pack.untold == 0 {
                state.packs.remove(&object);
            }
            if !is_first {
                return;
            }
        }
        drop(state);
        self.blocks.committed(object);
    }

    /// One of the object's slices will not be committed, or nobody knows whether it was.
    pub(crate) fn abandoned(&self, object: ObjectId) {
        let mut state = self.state();
        if let Some(pack) = state.packs.get_mut(&object) {
            pack.untold = pack.untold.saturating_sub(1);
            if pack.untold > 0 {
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
