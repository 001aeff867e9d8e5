//! Compaction: live slices of sparse packs are moved into new packs.
//!
//! ```text
//!   sparse packs, the deadest first          listed by the metadata, at intervals
//!     | k shards of each, every byte proved   gather
//!     v
//!   sealed bytes of the live slices          no key: ciphertext is moved unchanged
//!     | w acknowledgements                    write
//!     v
//!   order: these slices lie there now        slices deleted or moved meanwhile are skipped
//!     |
//!     v
//!   the old packs are unreferenced           the collector deletes them, later
//! ```
//!
//! Invariants:
//! * **A crash anywhere leaves every slice at its old place or at its new one**, and both are good:
//!   the order comes after the quorum, moves each slice in one step, and nothing is deleted here. A
//!   reader that looked a slice up before its move goes on reading in the old pack.
//! * **It moves less than it frees**: a pack is sparse when less than half of it is needed. A batch
//!   needs a minimum of dead bytes, so that no object is put to free a few.
//! * A pack that this process still writes, or that was not sparse in the round before, is skipped:
//!   its other slices may be about to be committed.
//! * One batch at a time, of one new pack, at a limited rate. With nothing to do it only lists. A
//!   session that may not move slices of other writers does not even list.
//!
//! No state has to survive: the metadata lists the sparse packs for the next process.

use super::Reconciler;
use super::task::{Due, Task, TaskProgress};
use super::throttle::Throttle;
use crate::blocks::clouds::{PackedPage, PlacementError, SparsePack};
use crate::blocks::object::{BlockError, CELL_BYTES, Rebuilt};
use crate::blocks::write::Writes;
use crate::cost::PaidWork;
use quorumfs_metadata::identity::{Home, ObjectClass, ObjectId, SliceId};
use quorumfs_metadata::limits::{MOVE_SLICES_MAX, PACK_SLICES_MAX};
use quorumfs_metadata::operation::{NewObject, SliceMove};
use quorumfs_metadata::row::{Job, PackedSlice};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Packs in one page of a listing.
const PAGE: u32 = 64;
/// The most packs that one round looks at.
const PACKS_MAX: usize = 1024;
/// How long the job is taken for.
const JOB: Duration = Duration::from_secs(300);
/// How many times an operation is ordered before a round gives up.
const ORDER_TRIES: u32 = 4;

/// How compaction works.
#[derive(Clone, Copy, Debug)]
pub struct Compaction {
    /// The time between two rounds.
    pub every: Duration,
    /// The most bytes that it reads and writes in a second.
    pub bytes_per_second: Option<NonZeroU64>,
    /// The least dead bytes that are worth a batch.
    pub dead_bytes_min: u64,
}

impl Default for Compaction {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(60),
            bytes_per_second: NonZeroU64::new(8 << 20),
            dead_bytes_min: 1 << 20,
        }
    }
}

/// The result of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Packs that were sparse when it began.
    pub sparse: usize,
    /// Packs that it left without a live slice.
    pub packs: u64,
    /// Slices that were moved.
    pub slices: u64,
    /// Sealed bytes that it made unnecessary.
    pub bytes_freed: u64,
}

/// Why a round ended early; the next one goes on.
#[derive(Debug, thiserror::Error)]
pub enum CompactionError {
    /// An operation or a listing failed or was refused.
    #[error(transparent)]
    Order(#[from] PlacementError),
    /// The new pack could not be written.
    #[error(transparent)]
    Blocks(#[from] BlockError),
}

/// Slices on their way into a new pack.
#[derive(Default)]
struct Batch {
    stream: Vec<u8>,
    moves: Vec<SliceMove>,
    /// Packs whose live slices are all in it, and their dead and moved bytes.
    packs: u64,
    bytes_freed: u64,
}

/// Abandons the new pack when dropped, unless it was committed.
struct UncommittedPack<'a>(&'a Writes, Option<ObjectId>);

impl UncommittedPack<'_> {
    fn committed(&mut self) {
        if let Some(object) = self.1.take() {
            self.0.committed(object);
        }
    }
}

impl Drop for UncommittedPack<'_> {
    fn drop(&mut self) {
        if let Some(object) = self.1.take() {
            self.0.abandoned(object);
        }
    }
}

/// The task that compacts at intervals.
pub(super) struct CompactTask {
    reconciler: Arc<Reconciler>,
    /// `None` if this store does not compact by itself.
    compaction: Option<Compaction>,
    /// When the next round is due; `None` until that is asked for.
    due: Mutex<Option<Instant>>,
}

impl CompactTask {
    pub(super) fn new(reconciler: &Arc<Reconciler>, compaction: Option<Compaction>) -> Self {
        Self {
            reconciler: Arc::clone(reconciler),
            compaction,
            due: Mutex::default(),
        }
    }

    /// Whether there is something to do and this process may do it.
    async fn has_the_job(&self) -> bool {
        let log = self.reconciler.clouds.log();
        match log.list_sparse(None, 1).await {
            Ok(page) if !page.packs.is_empty() => {
                matches!(log.take_job(Job::Compaction, JOB).await, Ok(Some(_)))
            }
            _ => false,
        }
    }

    fn due(&self) -> MutexGuard<'_, Option<Instant>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait::async_trait]
impl Task for CompactTask {
    fn name(&self) -> &'static str {
        "compact"
    }

    fn next(&self) -> Due {
        let Some(compaction) = self.compaction else {
            return Due::Never;
        };
        Due::At(
            *self
                .due()
                .get_or_insert_with(|| Instant::now() + compaction.every),
        )
    }

    async fn run(&self) {
        let Some(compaction) = self.compaction else {
            return;
        };
        let is_paid = self.reconciler.allowance().allows(PaidWork::Compaction);
        if !is_paid || !self.has_the_job().await {
            *self.due() = None;
            return;
        }
        match self.reconciler.compact(&compaction).await {
            Ok(Compacted { slices: 0, .. }) => {}
            Ok(done) => tracing::info!(?done, "compacted"),
            Err(error) => tracing::warn!(%error, "compaction failed and will be tried again"),
        }
        *self.due() = None;
    }

    fn progress(&self) -> TaskProgress {
        TaskProgress {
            waiting: self.reconciler.sparse.load(Ordering::Relaxed) as u64,
            done: self.reconciler.clouds.counters().packs_compacted.get(),
        }
    }
}

impl Reconciler {
    /// One round. A caller that comes during a round waits for it and then has one of its own.
    pub(in crate::blocks) async fn compact(
        self: &Arc<Self>,
        compaction: &Compaction,
    ) -> Result<Compacted, CompactionError> {
        let mut seen = self.seen_sparse.lock().await;
        let throttle = Throttle::new(compaction.bytes_per_second);
        let mut sparse = self.sparse_packs().await?;
        let mut done = Compacted {
            sparse: sparse.len(),
            ..Compacted::default()
        };
        self.sparse.store(sparse.len(), Ordering::Relaxed);
        let now: BTreeSet<ObjectId> = sparse.iter().map(|pack| pack.object.id()).collect();
        let before = std::mem::replace(&mut *seen, now);
        sparse.retain(|pack| {
            let id = pack.object.id();
            before.contains(&id) && !self.writes.follows(id)
        });
        // The deadest first: they have the least to move for the bytes they free.
        sparse.sort_by_key(|pack| (Reverse(pack.dead_bytes()), pack.object.id()));
        let mut rest = sparse.as_slice();
        while !rest.is_empty() {
            let (some, behind) = rest.split_at(self.packs_that_fit_one(rest));
            let dead: u64 = some.iter().map(SparsePack::dead_bytes).sum();
            if dead < compaction.dead_bytes_min {
                break;
            }
            self.compact_some(some, &throttle, &mut done).await?;
            rest = behind;
        }
        Ok(done)
    }

    async fn sparse_packs(&self) -> Result<Vec<SparsePack>, PlacementError> {
        let (mut packs, mut after) = (Vec::new(), None);
        while packs.len() < PACKS_MAX {
            let page = self.clouds.log().list_sparse(after, PAGE).await?;
            packs.extend(page.packs);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(packs)
    }

    /// How many of the packs have live slices that fit one pack together; at least one.
    fn packs_that_fit_one(&self, packs: &[SparsePack]) -> usize {
        let mut room = u64::from(self.writes.block_bytes_max());
        let fits = packs.iter().take_while(|pack| {
            let left = room.checked_sub(pack.live_bytes);
            room = left.unwrap_or(0);
            left.is_some()
        });
        fits.count().max(1)
    }

    /// Moves the live slices of some packs into a new one.
    async fn compact_some(
        self: &Arc<Self>,
        packs: &[SparsePack],
        throttle: &Throttle,
        done: &mut Compacted,
    ) -> Result<(), CompactionError> {
        let mut batch = Batch::default();
        for pack in packs {
            self.take_live_slices(pack, throttle, &mut batch).await?;
        }
        if batch.moves.is_empty() {
            return Ok(());
        }
        throttle.pass(batch.stream.len() as u64).await;
        let id = self.clouds.log().new_object_id().await?;
        let length = batch.stream.len() as u64;
        for step in &mut batch.moves {
            step.to = id.object();
        }
        let stream = std::mem::take(&mut batch.stream).into();
        let new = self
            .writes
            .write_sealed(id.object(), ObjectClass::PACK, stream)
            .await?;
        let moved = self.order_moves(&new, &batch.moves).await?;
        self.clouds.counters().slices_moved.add(moved);
        self.clouds.counters().packs_compacted.add(batch.packs);
        let freed = batch.bytes_freed.saturating_sub(length);
        self.clouds.counters().bytes_freed.add(freed);
        done.slices += moved;
        done.packs += batch.packs;
        done.bytes_freed += freed;
        Ok(())
    }

    /// Adds the sealed bytes of a pack's live slices, as far as they fit.
    async fn take_live_slices(
        self: &Arc<Self>,
        pack: &SparsePack,
        throttle: &Throttle,
        batch: &mut Batch,
    ) -> Result<(), CompactionError> {
        let slices = self.packed_slices(pack.object.id()).await?;
        throttle.pass(u64::from(pack.object.length())).await;
        let object = self
            .clouds
            .with_replacements(&Arc::new(pack.object.clone()));
        let rebuilt = match self.reads.gather_unhedged(&object, Vec::new()).await {
            Ok(rebuilt) => rebuilt,
            Err(error) => {
                // It stays sparse, and another round finds its clouds again. A poisoned pack stays
                // too: moved out of it, its bytes would become content for every reader.
                let error = self.reads.named(error).await;
                tracing::warn!(%error, "a pack cannot be compacted now");
                return Ok(());
            }
        };
        let room = self.writes.block_bytes_max() as usize;
        let mut all = true;
        for (home, slice, place) in slices {
            let begin = batch.stream.len();
            let fits = begin + place.sealed_length as usize <= room
                && batch.moves.len() < PACK_SLICES_MAX as usize;
            let to_offset = u32::try_from(begin).ok().filter(|_| fits);
            let Some(to_offset) = to_offset else {
                all = false;
                break;
            };
            if !copy(&rebuilt, place, &mut batch.stream) {
                tracing::warn!(object = %object.id(), %slice, "a slice lies outside its pack");
                batch.stream.truncate(begin);
                all = false;
                continue;
            }
            batch.moves.push(SliceMove {
                home,
                slice,
                from: object.id(),
                from_offset: place.offset,
                sealed_length: place.sealed_length,
                // It has no id yet.
                to: object.id(),
                to_offset,
            });
        }
        if all {
            batch.packs += 1;
            batch.bytes_freed += u64::from(object.length());
        }
        Ok(())
    }

    async fn packed_slices(
        &self,
        pack: ObjectId,
    ) -> Result<Vec<(Home, SliceId, PackedSlice)>, PlacementError> {
        let (mut slices, mut after) = (Vec::new(), None);
        while slices.len() <= PACK_SLICES_MAX as usize {
            let PackedPage {
                slices: page,
                next: behind,
            } = self.clouds.log().list_packed(pack, after).await?;
            slices.extend(page);
            after = behind;
            if after.is_none() {
                break;
            }
        }
        Ok(slices)
    }

    /// Orders the moves, some at a time; returns how many slices were still at their old places.
    async fn order_moves(
        &self,
        new: &NewObject,
        moves: &[SliceMove],
    ) -> Result<u64, PlacementError> {
        let mut uncommitted = UncommittedPack(&self.writes, Some(new.id));
        let mut moved = 0;
        for some in moves.chunks(MOVE_SLICES_MAX) {
            let count = self.order_move(new, some).await;
            if count.as_ref().map_or(true, |count| *count == 0)
                && self.clouds.log().is_known(new.id).await.unwrap_or(false)
            {
                // An earlier try succeeded and its answer was lost.
                uncommitted.committed();
            }
            let count = count?;
            if count > 0 {
                uncommitted.committed();
            }
            moved += u64::from(count);
        }
        Ok(moved)
    }

    /// Orders one list of moves. Moves that were done already are skipped, so it can be repeated.
    async fn order_move(
        &self,
        new: &NewObject,
        moves: &[SliceMove],
    ) -> Result<u32, PlacementError> {
        let mut tries = 0;
        loop {
            match self.clouds.log().move_slices(new, moves.to_vec()).await {
                Ok(count) => return Ok(count),
                Err(error) if tries >= ORDER_TRIES => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(100 << tries)).await,
            }
            tries += 1;
        }
    }
}

/// Appends the sealed bytes of a slice; `false` if the pack ends before them.
fn copy(rebuilt: &Rebuilt, place: PackedSlice, to: &mut Vec<u8>) -> bool {
    let cell_bytes = u64::from(CELL_BYTES);
    let mut at = u64::from(place.offset);
    let end = at + u64::from(place.sealed_length);
    while at < end {
        let cell = at / cell_bytes;
        let from = at - cell * cell_bytes;
        let until = (end - cell * cell_bytes).min(cell_bytes);
        let within = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        let Some(part) = rebuilt.cell(cell).get(within(from)..within(until)) else {
            return false;
        };
        to.extend_from_slice(part);
        at += part.len() as u64;
    }
    true
}
