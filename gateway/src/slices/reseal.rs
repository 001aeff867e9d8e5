//! Content that is sealed under older key epochs gets keys of the newest: a job of one command.
//!
//! Every slice under an older key is read, verified, sealed again and written, so it costs the
//! clouds a read and a write of the content. Small slices go together into packs. The servers know
//! which slices are left, so a job that is interrupted goes on when it is started again; two at a
//! time do the work twice and no harm.
//!
//! ```text
//!   old slices, page by page ─► read and verify ─► seal under a new key ─► w acknowledgements
//!                                                                            │
//!   files, clones and times stay  ◄── slices that are still where they were ─┴─ ordered
//! ```
//!
//! Invariants:
//! * What is ordered is on w clouds, like a writer's content, and other principals' readers check
//!   it as they check that. Nothing is deleted here: the collector deletes the old objects.
//! * A slice whose content does not verify is left as it is, with its writer's name on it.
//!
//! Failure modes: *it stops in between*. Objects that were not ordered are garbage, which a sweep
//! finds. *Another key epoch begins meanwhile*. It is opened, and the slice is sealed once more in
//! the next round. *Clouds are unreachable*. The job waits as reads and writes do, and fails then;
//! what was done stays done.

use super::cloud_slices::{CloudSlices, draw_salt};
use super::packer::SMALL_BYTES;
use super::{SliceStore, StoredSlice};
use crate::blocks::{BlockStore, PlainSlice};
use crate::error::VfsError;
use crate::metadata::{AllocatedId, MetadataClient};
use crate::slices::Packing;
use crate::volume::Volume;
use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use quorumfs_metadata::identity::ObjectClass;
use quorumfs_metadata::limits::MOVE_SLICES_MAX;
use quorumfs_metadata::operation::ResealedSlice;
use quorumfs_metadata::reply::OldSlice;
use quorumfs_metadata::row::SliceKey;
use rustix::io::Errno;
use std::sync::Arc;

/// Rounds over all slices: the first finds nearly all, and others what changed meanwhile.
const ROUNDS_MAX: u32 = 4;

/// What was done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResealedContent {
    /// Slices that are under the newest key now.
    pub slices: u64,
    /// Bytes of their content.
    pub bytes: u64,
    /// Slices that could not be read, and are as they were.
    pub unreadable: u64,
    /// Slices that changed all the time.
    pub left: u64,
}

/// The job.
pub struct ContentResealer {
    volume: Arc<Volume>,
    metadata: Arc<MetadataClient>,
    blocks: BlockStore,
    slices: CloudSlices,
}

impl std::fmt::Debug for ContentResealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContentResealer").finish_non_exhaustive()
    }
}

/// A slice on its way.
struct OpenedSlice {
    old: OldSlice,
    plain: Bytes,
}

/// Slices that go into one object.
#[derive(Default)]
struct SliceBatch {
    slices: Vec<OpenedSlice>,
    bytes: u64,
}

impl SliceBatch {
    fn takes(&self, bytes: u64, most: u64) -> bool {
        let has_room = self.slices.len() < MOVE_SLICES_MAX;
        has_room && self.bytes.saturating_add(bytes) <= most
    }

    fn push(&mut self, opened: OpenedSlice) {
        self.bytes = self.bytes.saturating_add(opened.plain.len() as u64);
        self.slices.push(opened);
    }
}

impl ContentResealer {
    /// A job over a volume's content.
    #[must_use]
    pub fn new(volume: Arc<Volume>, metadata: Arc<MetadataClient>, blocks: BlockStore) -> Self {
        Self {
            slices: CloudSlices::new(Arc::clone(&volume), blocks.clone(), Packing::THRIFTY),
            volume,
            metadata,
            blocks,
        }
    }

    /// Seals all content anew that is under older key epochs than the newest. `told` hears how far
    /// it is.
    ///
    /// # Errors
    /// If this principal may not reconcile, or servers or clouds give no answer; what was done
    /// stays done.
    #[boxed]
    pub async fn run(
        &self,
        told: &mut (dyn FnMut(&ResealedContent) + Send),
    ) -> Result<ResealedContent, VfsError> {
        let mut done = ResealedContent::default();
        for _ in 0..ROUNDS_MAX {
            let shares = self.slices.shares();
            self.volume.refresh(&self.metadata, shares.as_ref()).await?;
            (done.unreadable, done.left) = (0, 0);
            self.round(&mut done, told).await?;
            if done.left == 0 {
                break;
            }
        }
        Ok(done)
    }

    async fn round(
        &self,
        done: &mut ResealedContent,
        told: &mut (dyn FnMut(&ResealedContent) + Send),
    ) -> Result<(), VfsError> {
        let most = u64::from(self.blocks.block_bytes_max());
        let (mut batch, mut after) = (SliceBatch::default(), None);
        loop {
            let (found, next) = self.metadata.slices_to_reseal(after).await?;
            for old in found {
                let Some(plain) = self.open(&old).await? else {
                    done.unreadable = done.unreadable.saturating_add(1);
                    continue;
                };
                let bytes = plain.len() as u64;
                let opened = OpenedSlice { old, plain };
                if opened.plain.len() >= SMALL_BYTES {
                    let mut alone = SliceBatch::default();
                    alone.push(opened);
                    self.seal(alone, done).await?;
                } else {
                    if !batch.takes(bytes, most) {
                        self.seal(std::mem::take(&mut batch), done).await?;
                    }
                    batch.push(opened);
                }
                told(done);
            }
            match next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        self.seal(batch, done).await?;
        told(done);
        Ok(())
    }

    /// The slice's content; `None` if it does not verify, or is gone.
    async fn open(&self, old: &OldSlice) -> Result<Option<Bytes>, VfsError> {
        let stored = StoredSlice {
            id: old.id,
            slice: old.slice.clone(),
            object: old.object.clone(),
        };
        match self.slices.read(&stored, 0..old.slice.length).await {
            Ok(plain) => Ok(Some(plain)),
            Err(error) if error.is_outage() || error.is_final() => Err(error),
            Err(error) => {
                tracing::warn!(slice = %old.id, %error, "content cannot be sealed anew");
                Ok(None)
            }
        }
    }

    /// Seals slices into one object, and has the servers take it.
    async fn seal(&self, batch: SliceBatch, done: &mut ResealedContent) -> Result<(), VfsError> {
        if batch.slices.is_empty() {
            return Ok(());
        }
        let key = self.volume.current_key()?;
        let realm = self.volume.realm().id();
        let (mut plain, mut keys) = (Vec::new(), Vec::new());
        for opened in &batch.slices {
            let salt = draw_salt()?;
            plain.push(PlainSlice {
                id: opened.old.id,
                key: key.slice_key(opened.old.id, &salt),
                plain: opened.plain.clone(),
            });
            let epoch = key.epoch();
            keys.push(SliceKey::Derived { realm, epoch, salt });
        }
        let class = match plain.len() {
            1 => ObjectClass::BLOCK,
            _ => ObjectClass::PACK,
        };
        // Held until the servers have answered: it keeps the allocation open.
        let id: AllocatedId = self.metadata.allocate().await?;
        let written = self.blocks.write_slices(id.object(), class, plain).await;
        let (object, sealed) = written.map_err(|error| VfsError::Data {
            doing: "sealing content anew",
            kind: error.kind(),
            reason: error.to_string(),
        })?;
        let placed = batch.slices.iter().zip(sealed).zip(keys);
        let slices = placed.map(|((opened, sealed), key)| ResealedSlice {
            home: opened.old.home,
            slice: opened.old.id,
            from: opened.old.slice.object,
            from_offset: opened.old.slice.offset,
            key,
            to: sealed.object,
            to_offset: sealed.offset,
            sealed_length: sealed.sealed_length,
            codec: sealed.codec,
        });
        let ordered = self
            .metadata
            .reseal_slices(vec![object], slices.collect())
            .await;
        let count = batch.slices.len() as u64;
        let resealed = match ordered {
            Ok(resealed) => u64::from(resealed),
            // Another key epoch has begun, or a cloud was replaced: left to the next round.
            Err(error) if is_overtaken(&error) => 0,
            Err(error) => {
                self.blocks.abandoned(id.object());
                return Err(error);
            }
        };
        match resealed {
            0 => self.blocks.abandoned(id.object()),
            _ => self.blocks.committed(id.object()),
        }
        if resealed == count {
            done.bytes = done.bytes.saturating_add(batch.bytes);
        }
        done.slices = done.slices.saturating_add(resealed);
        done.left = done.left.saturating_add(count.saturating_sub(resealed));
        Ok(())
    }
}

/// Whether the servers refuse it because keys, clouds or slices have changed meanwhile.
fn is_overtaken(error: &VfsError) -> bool {
    match error {
        VfsError::OtherKeys { .. } => true,
        VfsError::Refused { errno, .. } => matches!(*errno, Errno::AGAIN | Errno::IO),
        _ => false,
    }
}
