//! From written bytes to committed content.
//!
//! ```text
//! frozen runs ─┬─ tiny file ─► seal into the inode ────────────────────┐
//!              └─ slices, some at a time ─► w acknowledgements of each ─┴─► commit
//! ```
//!
//! Data before metadata: a commit names only slices that w clouds have acknowledged. What does not
//! fit one operation goes in several; the last one carries size and times, so that a reader never
//! sees a length without its bytes. A failed commit leaves the file as it was, or with a part of the
//! new bytes within its old length, as any interrupted write may.

use super::VfsError;
use super::clock;
use super::content::{ContentMap, Piece, StoredSlice};
use super::dirty::{DirtyRuns, FrozenRuns};
use super::file_system::Inner;
use super::node::{Departure, Node};
use super::slice_store::{SliceStore, WrittenSlice};
use crate::keys::ValueBinding;
use crate::metadata::AllocatedId;
use bytes::Bytes;
use quorumfs_bft::identity::SessionId;
use quorumfs_metadata::attributes::{Attributes, Credentials};
use quorumfs_metadata::identity::InodeVersion;
use quorumfs_metadata::limits::{COMMIT_EXTENTS_MAX, INLINE_BYTES_MAX};
use quorumfs_metadata::operation::{Commit, NewContent, NewExtent, SetAttributes, SetTime, Step};
use quorumfs_metadata::reply::StepDone;
use quorumfs_metadata::row::{Inline, Object, ObjectState, Sealed, Slice};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A run of the file with the slice that it became. Abandoned when it is dropped uncommitted.
struct Stored {
    offset: u64,
    written: WrittenSlice,
    slices: Arc<dyn SliceStore>,
    committed: bool,
    /// Keeps the allocation open until the commit.
    _id: AllocatedId,
}

impl Stored {
    fn committed(&mut self) {
        self.committed = true;
        self.slices.committed(self.written.object.id);
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        if !self.committed {
            self.slices.abandoned(self.written.object.id);
        }
    }
}

impl Inner {
    /// Commits what has departed; answers the new attributes and what is known of the content.
    pub(crate) async fn commit(
        self: &Arc<Self>,
        node: &Arc<Node>,
        departure: &Departure,
    ) -> Result<(Attributes, ContentMap), VfsError> {
        if departure.frozen.is_empty() {
            let (_, attributes) = self.finish(node, departure, None).await?;
            return Ok((attributes, kept(node, &attributes, 1)));
        }
        let content = self.content_before(node, departure).await?;
        let tiny = departure.size <= u64::from(INLINE_BYTES_MAX)
            && (content.is_empty() || content.inline_bytes().is_some());
        if tiny {
            return self.commit_inline(node, departure, &content).await;
        }
        let runs = match content.inline_bytes() {
            Some(inline) => beneath(inline, &departure.frozen),
            None => departure.frozen.clone(),
        };
        self.commit_slices(node, departure, content, runs).await
    }

    /// How the file's content is kept, as far as a commit has to know.
    async fn content_before(
        &self,
        node: &Arc<Node>,
        departure: &Departure,
    ) -> Result<ContentMap, VfsError> {
        loop {
            let content = node.state().content.clone();
            // Only a file without extents can have its bytes in the inode.
            if !content.is_unknown() || departure.base.allocated > 0 {
                return Ok(content);
            }
            self.learn_content(node, 0).await?;
        }
    }

    async fn commit_inline(
        &self,
        node: &Arc<Node>,
        departure: &Departure,
        content: &ContentMap,
    ) -> Result<(Attributes, ContentMap), VfsError> {
        let before = content.inline_bytes().cloned().unwrap_or_default();
        let size = usize::try_from(departure.size).unwrap_or(0);
        let plain = beneath(&before, &departure.frozen).flatten(size);
        let key = self.volume.current_key();
        let binding = ValueBinding::content(node.inode);
        let next = InodeVersion(departure.base.version.0.saturating_add(1));
        let bytes = key.small_value_key().seal(binding, next, &plain)?;
        let sealed = Sealed {
            epoch: key.epoch(),
            bytes,
        };
        let length = u16::try_from(plain.len()).unwrap_or(u16::MAX);
        let last = Commit {
            size: Some(departure.size),
            mtime: departure.pending.mtime,
            ..commit_of(node, NewContent::Inline(Inline { length, sealed }))
        };
        let (_, attributes) = self.finish(node, departure, Some(last)).await?;
        Ok((
            attributes,
            ContentMap::inline(attributes.version, Bytes::from(plain)),
        ))
    }

    async fn commit_slices(
        self: &Arc<Self>,
        node: &Arc<Node>,
        departure: &Departure,
        mut content: ContentMap,
        runs: FrozenRuns,
    ) -> Result<(Attributes, ContentMap), VfsError> {
        let mut stored = self.upload(&runs).await?;
        let mut groups: Vec<&mut [Stored]> = stored.chunks_mut(COMMIT_EXTENTS_MAX).collect();
        let (last, earlier) = groups
            .split_last_mut()
            .ok_or_else(|| VfsError::refused("commit", Errno::INVAL))?;
        for group in earlier.iter_mut() {
            let step = Step::Commit(commit_of_slices(node, group));
            let credentials = owner(departure, self.metadata.own());
            match self
                .metadata
                .step("commit", credentials, clock::now(), step)
                .await?
            {
                StepDone::Committed(attributes) => {
                    group.iter_mut().for_each(Stored::committed);
                    node.state().learn(&attributes);
                }
                other => return Err(self.metadata.mismatch("commit", &other)),
            }
        }
        let commit = Commit {
            size: Some(departure.size),
            mtime: departure.pending.mtime,
            ..commit_of_slices(node, last)
        };
        let (steps, attributes) = self.finish(node, departure, Some(commit)).await?;
        last.iter_mut().for_each(Stored::committed);
        // What we know of the content holds on only if nobody else changed the inode in between.
        let changes = (earlier.len() as u64).saturating_add(steps);
        let expected = InodeVersion(content.version().0.saturating_add(changes));
        if attributes.version == expected {
            content.apply(attributes.version, stored.iter().map(piece));
        } else {
            content = ContentMap::unknown(attributes.version);
        }
        Ok((attributes, content))
    }

    /// Seals each run and puts it to the clouds, a few at a time.
    async fn upload(self: &Arc<Self>, runs: &FrozenRuns) -> Result<Vec<Stored>, VfsError> {
        let mut uploads = tokio::task::JoinSet::new();
        let mut stored = BTreeMap::new();
        let mut rest = runs.iter();
        loop {
            while uploads.len() < self.options.slices_in_flight.max(1)
                && let Some((offset, run)) = rest.next()
            {
                let (inner, run) = (self.clone(), run.clone());
                uploads.spawn(async move {
                    let id = inner.metadata.allocate().await?;
                    let written = inner.slices.write(&id, run).await?;
                    Ok::<_, VfsError>(Stored {
                        offset,
                        written,
                        slices: inner.slices.clone(),
                        committed: false,
                        _id: id,
                    })
                });
            }
            match uploads.join_next().await {
                None => return Ok(stored.into_values().collect()),
                Some(Ok(Ok(one))) => {
                    stored.insert(one.offset, one);
                }
                Some(Ok(Err(error))) => return Err(error),
                Some(Err(error)) => {
                    return Err(VfsError::Internal {
                        reason: error.to_string(),
                    });
                }
            }
        }
    }

    /// The last operation of a commit: content, size and times, and attributes that rode along.
    /// Answers how many steps changed the inode.
    async fn finish(
        &self,
        node: &Arc<Node>,
        departure: &Departure,
        commit: Option<Commit>,
    ) -> Result<(u64, Attributes), VfsError> {
        let pending = &departure.pending;
        let mut steps = Vec::new();
        let mtime_rides = commit.is_none();
        if let Some(commit) = commit {
            steps.push(Step::Commit(commit));
        }
        let change = SetAttributes {
            mode: pending.mode,
            atime: pending.atime.map(SetTime::To),
            mtime: pending.mtime.filter(|_| mtime_rides).map(SetTime::To),
            ..SetAttributes::of(node.inode)
        };
        if change != SetAttributes::of(node.inode) {
            steps.push(Step::SetAttributes(change));
        }
        let count = steps.len() as u64;
        let credentials = owner(departure, self.metadata.own());
        let now = clock::now();
        let done = self
            .metadata
            .compound("commit", credentials, now, Vec::new(), steps)
            .await?;
        match done.last() {
            Some(StepDone::Committed(attributes) | StepDone::Set(attributes)) => {
                Ok((count, *attributes))
            }
            other => Err(self.metadata.mismatch("commit", &other)),
        }
    }
}

/// Who commits. What rides along was checked to be the owner's or the superuser's doing; content is
/// allowed to whoever the principal may speak for, whatever is named here.
fn owner(departure: &Departure, own: Credentials) -> Credentials {
    if departure.pending.mode.is_none()
        && departure.pending.atime.is_none()
        && !departure.frozen.is_empty()
        || own == Credentials::root()
    {
        return own;
    }
    Credentials::user(departure.base.uid, departure.base.gid)
}

/// What was known of the content, if only our own operation changed the inode.
fn kept(node: &Arc<Node>, attributes: &Attributes, changes: u64) -> ContentMap {
    let mut content = node.state().content.clone();
    if attributes.version.0 == content.version().0.saturating_add(changes) {
        content.unchanged_at(attributes.version);
        return content;
    }
    ContentMap::unknown(attributes.version)
}

/// `frozen` over the bytes that a tiny file had.
fn beneath(inline: &Bytes, frozen: &FrozenRuns) -> FrozenRuns {
    let mut all = DirtyRuns::default();
    all.write(0, inline);
    for (offset, run) in frozen.iter() {
        all.write(offset, run);
    }
    all.freeze()
}

fn commit_of(node: &Arc<Node>, content: NewContent) -> Commit {
    Commit {
        inode: node.inode,
        expected: None,
        objects: Vec::new(),
        slices: Vec::new(),
        content,
        size: None,
        mtime: None,
    }
}

fn commit_of_slices(node: &Arc<Node>, group: &[Stored]) -> Commit {
    let extents = group
        .iter()
        .map(|stored| NewExtent {
            offset: stored.offset,
            slice: stored.written.slice.id,
            slice_offset: 0,
            length: stored.written.slice.length,
        })
        .collect();
    Commit {
        objects: group
            .iter()
            .map(|stored| stored.written.object.clone())
            .collect(),
        slices: group
            .iter()
            .map(|stored| stored.written.slice.clone())
            .collect(),
        ..commit_of(node, NewContent::Extents(extents))
    }
}

/// What a reader needs to know of a slice that was just committed.
fn piece(stored: &Stored) -> (u64, Piece) {
    let (object, slice) = (&stored.written.object, &stored.written.slice);
    let row = StoredSlice {
        id: slice.id,
        slice: Slice {
            object: slice.object,
            offset: slice.offset,
            length: slice.length,
            sealed_length: slice.sealed_length,
            codec: slice.codec,
            key: slice.key.clone(),
            references: 1,
        },
        object: Object {
            class: object.class,
            policy: object.policy,
            length: object.length,
            shard_length: object.shard_length,
            shards: object.shards.clone(),
            writer: SessionId(0),
            live_bytes: u64::from(slice.sealed_length),
            slices: 1,
            pins: 0,
            state: ObjectState::Live,
        },
    };
    (
        stored.offset,
        Piece {
            stored: Arc::new(row),
            slice_offset: 0,
            length: slice.length,
        },
    )
}
