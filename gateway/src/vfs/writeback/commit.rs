//! From written bytes to committed content.
//!
//! ```text
//! frozen runs -+- tiny file -> seal into the inode --------------------+
//!              +- slices, some at a time -> w acknowledgements of each -+-> commit
//! ```
//!
//! Data before metadata: a commit names only slices that w clouds have acknowledged. A commit that
//! is too large for one operation takes several; the last one carries times and pending attributes.
//! A commit that takes long is split as well: the slices that have arrived, in the file's order,
//! are committed as a part, and their memory is freed ([`Uploads`]). A failed commit leaves the
//! file as it was, or with a part of the new bytes, as any interrupted write may; no length is ever
//! seen without its bytes.
//!
//! How many rows an operation writes depends on the old extents of its runs, which only the servers
//! know. A commit that is too large for one operation is halved, down to parts of a single run.
//!
//! Every operation requires the inode's version that we know, and is refused if that has changed.
//! Two things follow:
//! * An operation that we gave up on, and that is executed long after, finds another version once
//!   anything newer was committed, and does nothing.
//! * A refused commit reads the attributes again and commits the same runs at the new version. That
//!   may be the version of an earlier commit of the same runs, whose answer was lost: to write the
//!   same bytes to the same places twice changes nothing. Bytes outside the runs, and a length,
//!   that other sessions wrote stay.

use super::owner::Writeback;
use super::upload::Uploads;
use crate::clock;
use crate::error::VfsError;
use crate::keys::ValueBinding;
use crate::slices::{Stored, StoredSlice};
use crate::vfs::files::{Departure, DirtyRuns, FrozenRuns, Node};
use crate::vfs::known::{ContentMap, Piece};
use bytes::Bytes;
use quorumfs_bft::identity::{Sequence, SessionId, Time};
use quorumfs_metadata::attributes::{Attributes, Credentials, Timestamp};
use quorumfs_metadata::identity::{InodeId, InodeVersion, PrincipalNumber};
use quorumfs_metadata::limits::{COMMIT_EXTENTS_MAX, INLINE_BYTES_MAX};
use quorumfs_metadata::operation::{
    Commit, NewContent, NewExtent, Precondition, SetAttributes, SetTime, Step,
};
use quorumfs_metadata::reply::StepDone;
use quorumfs_metadata::row::{Inline, Object, Sealed, Slice};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// How often a commit reads the attributes again and starts over before it fails, to be retried
/// later.
pub(in crate::vfs) const TRIES: u32 = 16;

/// A run of a slice that is to become an extent.
#[derive(Clone, Copy)]
struct CommitPart {
    /// Index of the stored run.
    of: usize,
    slice_offset: u32,
    length: u32,
}

/// The uploads of a commit, and those that have arrived and are not committed yet.
struct Upload {
    /// The inline bytes that were written out as well, as long as the file is inline.
    inline: Option<Bytes>,
    uploads: Uploads,
    stored: Vec<Stored>,
    rest: VecDeque<Vec<CommitPart>>,
    /// How many operations were committed.
    steps: u64,
    /// When the content was last changed before the first of them.
    mtime: Timestamp,
}

impl Upload {
    fn new(inline: Option<Bytes>, uploads: Uploads, mtime: Timestamp) -> Self {
        Self {
            inline,
            uploads,
            stored: Vec::new(),
            rest: VecDeque::new(),
            steps: 0,
            mtime,
        }
    }

    /// The servers do not accept the keys any more that these runs were sealed under.
    fn seal_anew(&mut self, runs: &FrozenRuns) {
        self.uploads = match &self.inline {
            Some(inline) => Uploads::new(&over_inline(inline, runs), BTreeMap::new()),
            None => Uploads::new(runs, BTreeMap::new()),
        };
        self.stored.clear();
        self.rest.clear();
    }

    /// These have arrived, after all before them were committed.
    fn take_in(&mut self, stored: Vec<Stored>) {
        let parts: Vec<CommitPart> = (0..)
            .zip(&stored)
            .map(|(of, stored): (usize, &Stored)| CommitPart {
                of,
                slice_offset: 0,
                length: stored.written.slice.length,
            })
            .collect();
        let rest = parts.chunks(COMMIT_EXTENTS_MAX).map(<[CommitPart]>::to_vec);
        self.rest = rest.collect();
        self.stored = stored;
    }

    /// Whether the next group is the last.
    fn is_last(&self) -> bool {
        self.rest.len() <= 1 && self.uploads.is_done()
    }

    /// Where the last stored run ends.
    fn end(&self) -> u64 {
        let end = |last: &Stored| {
            let length = last.written.slice.length;
            last.offset.saturating_add(length.into())
        };
        self.stored.last().map_or(0, end)
    }

    /// Splits the next group in two: it was too large for one operation. Returns whether that was
    /// possible.
    fn split(&mut self) -> bool {
        let Some(mut group) = self.rest.pop_front() else {
            return false;
        };
        let behind = match group.as_mut_slice() {
            // One run over very many small extents: as two runs of the same slice.
            [only] if only.length > 1 => {
                let half = only.length / 2;
                let second = CommitPart {
                    of: only.of,
                    slice_offset: only.slice_offset.saturating_add(half),
                    length: only.length.saturating_sub(half),
                };
                only.length = half;
                vec![second]
            }
            _ => group.split_off(group.len() / 2),
        };
        let splits = !group.is_empty();
        self.rest.push_front(behind);
        if splits {
            self.rest.push_front(group);
        }
        splits
    }

    /// The servers have these.
    fn committed(&mut self, group: &[CommitPart], pieces: &mut Vec<(u64, Piece)>) {
        self.inline = None;
        self.steps = self.steps.saturating_add(1);
        for part in group {
            if let Some(stored) = self.stored.get_mut(part.of) {
                stored.committed();
                pieces.push(piece(stored, part));
            }
        }
    }
}

impl Writeback {
    /// Commits a departure; returns the new attributes and the known content.
    pub(in crate::vfs) async fn commit(
        self: &Arc<Self>,
        node: &Arc<Node>,
        departure: &Departure,
    ) -> Result<(Attributes, ContentMap), VfsError> {
        let mut upload = None;
        let (mut tries, mut steps) = (0, 0);
        loop {
            let outcome = self.commit_once(node, departure, &mut upload).await;
            let stepped = upload.as_ref().map_or(0, |upload| upload.steps);
            // A long commit may meet many changes by other sessions.
            tries = if stepped == steps { tries + 1 } else { 1 };
            steps = stepped;
            match outcome {
                Err(error) if error.is_out_of_date() && tries < TRIES => {
                    if self.services.catch_up(&error).await?
                        && let Some(upload) = &mut upload
                    {
                        upload.seal_anew(&departure.runs());
                    }
                    self.files.refresh_attributes(node.inode).await?;
                }
                outcome => return outcome,
            }
        }
    }

    async fn commit_once(
        self: &Arc<Self>,
        node: &Arc<Node>,
        departure: &Departure,
        upload: &mut Option<Upload>,
    ) -> Result<(Attributes, ContentMap), VfsError> {
        let Some(end) = departure.end else {
            let base = node.state().base;
            let (_, attributes) = self.finish(&base, departure, None).await?;
            return Ok((attributes, known_content(node, &attributes, 1)));
        };
        let (base, content) = self.commit_base(node).await?;
        let inline = content.inline_bytes();
        if upload
            .as_ref()
            .is_some_and(|old| old.inline.as_ref() != inline)
        {
            *upload = None;
        }
        if upload.is_none() {
            let size = base.size.max(end);
            let tiny = content.is_empty() || inline.is_some();
            if tiny && size <= u64::from(INLINE_BYTES_MAX) {
                let before = inline.cloned().unwrap_or_default();
                let all = over_inline(&before, &departure.runs());
                // Inline bytes begin at 0 and have no holes.
                if !all.has_gaps() {
                    return self.commit_inline(&base, departure, &all, size).await;
                }
            }
        }
        let upload = upload.get_or_insert_with(|| {
            let runs = departure.runs();
            let early = departure.take_uploads();
            // Runs that are laid over inline bytes may differ from those that were uploaded early.
            let uploads = match inline {
                Some(inline) => Uploads::new(&over_inline(inline, &runs), BTreeMap::new()),
                None => Uploads::new(&runs, early),
            };
            Upload::new(inline.cloned(), uploads, base.mtime)
        });
        loop {
            if upload.rest.is_empty() {
                let part = upload.uploads.part(self, node.inode).await?;
                upload.take_in(part);
            }
            // That may have taken long.
            let (base, content) = self.commit_base(node).await?;
            if content.inline_bytes() != upload.inline.as_ref() {
                return Err(VfsError::refused("commit", Errno::AGAIN));
            }
            let (last, before) = (upload.uploads.is_done(), base.version);
            let (base, content) = self
                .commit_slices(node, departure, base, content, upload)
                .await?;
            if last {
                return Ok((base, content));
            }
            let mut state = node.state();
            state.arrive_until(upload.end(), departure, &base, &content);
            if !content.is_unknown() && state.base.version == base.version {
                let size = state.size();
                self.known
                    .last_open()
                    .committed(before, &Attributes { size, ..base });
            }
            self.book(&mut state);
            self.budget.committed(true);
        }
    }

    /// What a commit is based on: attributes, and how the content is stored at that version.
    pub(in crate::vfs) async fn commit_base(
        &self,
        node: &Arc<Node>,
    ) -> Result<(Attributes, ContentMap), VfsError> {
        loop {
            {
                let state = node.state();
                // Only a small file can have inline bytes.
                let few = state.base.allocated <= INLINE_BYTES_MAX.into();
                if !state.content.is_unknown() || !few {
                    return Ok((state.base, state.content.clone()));
                }
            }
            self.files.learn_content(node, 0).await?;
        }
    }

    async fn commit_inline(
        &self,
        base: &Attributes,
        departure: &Departure,
        all: &FrozenRuns,
        size: u64,
    ) -> Result<(Attributes, ContentMap), VfsError> {
        let plain = all.flatten(usize::try_from(all.end()).unwrap_or(0));
        let key = self.services.volume.current_key()?;
        let binding = ValueBinding::content(base.inode);
        let next = InodeVersion(base.version.0.saturating_add(1));
        let bytes = key.small_value_key().seal(binding, next, &plain)?;
        let sealed = Sealed {
            epoch: key.epoch(),
            bytes,
        };
        let length = u16::try_from(plain.len()).unwrap_or(u16::MAX);
        let last = Commit {
            size: Some(size),
            mtime: departure.pending.mtime,
            ..commit_of(base, NewContent::Inline(Inline { length, sealed }))
        };
        let (_, attributes) = self.finish(base, departure, Some(last)).await?;
        Ok((
            attributes,
            ContentMap::inline(attributes.version, Bytes::from(plain)),
        ))
    }

    async fn commit_slices(
        &self,
        node: &Arc<Node>,
        departure: &Departure,
        mut base: Attributes,
        mut content: ContentMap,
        upload: &mut Upload,
    ) -> Result<(Attributes, ContentMap), VfsError> {
        let mut pieces = Vec::new();
        let mut last_version = base.version;
        while let Some(group) = upload.rest.front().cloned() {
            let commit = commit_of_slices(&base, &upload.stored, &group);
            let last = upload.is_last();
            let done = if !last {
                let done = self.commit_part(departure, &base, commit).await;
                done.map(|attributes| (1, attributes))
            } else {
                // Another session has changed the content between two parts. A time that is not in
                // the journal keeps a replay from laying the first parts over that change.
                let between = upload.steps > 0 && base.mtime != upload.mtime;
                let mtime = departure.pending.mtime;
                let commit = Commit {
                    size: Some(base.size.max(departure.end.unwrap_or(0))),
                    mtime: mtime.map(|at| if between { clock::now() } else { at }),
                    ..commit
                };
                self.finish(&base, departure, Some(commit)).await
            };
            let (steps, attributes) = match done {
                Err(error) if error.is_too_large() && upload.split() => continue,
                done => done?,
            };
            last_version = InodeVersion(last_version.0.saturating_add(steps));
            base = attributes;
            if !last {
                node.state().learn(&base);
            }
            upload.rest.pop_front();
            upload.committed(&group, &mut pieces);
        }
        if base.version == last_version {
            content.apply(base.version, pieces.into_iter());
        } else {
            content = ContentMap::unknown(base.version);
        }
        Ok((base, content))
    }

    /// One of several operations of a commit; not the last.
    async fn commit_part(
        &self,
        departure: &Departure,
        base: &Attributes,
        commit: Commit,
    ) -> Result<Attributes, VfsError> {
        let credentials = committer(departure, base, self.services.metadata.own());
        let step = Step::Commit(commit);
        match self
            .services
            .metadata
            .step("commit", credentials, departure.done_at(), step)
            .await?
        {
            StepDone::Committed(attributes) => Ok(attributes),
            other => Err(self.services.metadata.mismatch("commit", &other)),
        }
    }

    /// The last operation of a commit: content, size and times, and pending attributes. Returns how
    /// many steps changed the inode.
    async fn finish(
        &self,
        base: &Attributes,
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
            ..SetAttributes::of(base.inode)
        };
        if change != SetAttributes::of(base.inode) {
            steps.push(Step::SetAttributes(change));
        }
        let count = steps.len() as u64;
        let credentials = committer(departure, base, self.services.metadata.own());
        let preconditions = vec![unchanged(base.inode, base.version)];
        let at = departure.done_at();
        let done = self
            .services
            .metadata
            .compound("commit", credentials, at, preconditions, steps)
            .await?;
        match done.last() {
            Some(StepDone::Committed(attributes) | StepDone::Set(attributes)) => {
                Ok((count, *attributes))
            }
            other => Err(self.services.metadata.mismatch("commit", &other)),
        }
    }
}

/// The inode must be as we know it. An operation whose answer was lost may be executed much later;
/// this keeps it from being executed over later changes.
pub(in crate::vfs) const fn unchanged(inode: InodeId, version: InodeVersion) -> Precondition {
    Precondition::Unchanged {
        inode,
        version: Some(version),
        ctime: None,
    }
}

/// The credentials of a commit. Pending attributes were checked to come from the owner or the
/// superuser; the servers allow content for any user that the principal may act for.
fn committer(departure: &Departure, base: &Attributes, own: Credentials) -> Credentials {
    if departure.pending.mode.is_none()
        && departure.pending.atime.is_none()
        && departure.end.is_some()
        || own == Credentials::root()
    {
        return own;
    }
    Credentials::user(base.uid, base.gid)
}

/// The known content, if only our own operation changed the inode.
fn known_content(node: &Arc<Node>, attributes: &Attributes, changes: u64) -> ContentMap {
    let mut content = node.state().content.clone();
    if attributes.version.0 == content.version().0.saturating_add(changes) {
        content.unchanged_at(attributes.version);
        return content;
    }
    ContentMap::unknown(attributes.version)
}

/// `frozen` over the inline bytes of a tiny file.
fn over_inline(inline: &Bytes, frozen: &FrozenRuns) -> FrozenRuns {
    let mut all = DirtyRuns::default();
    all.write(0, inline);
    for (offset, run) in frozen.iter() {
        all.write(offset, run);
    }
    all.freeze()
}

pub(in crate::vfs) fn commit_of(base: &Attributes, content: NewContent) -> Commit {
    Commit {
        inode: base.inode,
        expected: Some(base.version),
        objects: Vec::new(),
        slices: Vec::new(),
        content,
        size: None,
        mtime: None,
    }
}

fn commit_of_slices(base: &Attributes, all: &[Stored], group: &[CommitPart]) -> Commit {
    let (mut objects, mut slices, mut extents) = (Vec::new(), Vec::new(), Vec::new());
    let mut named = BTreeSet::new();
    for part in group {
        let Some(stored) = all.get(part.of) else {
            continue;
        };
        if !stored.is_committed() {
            // Several slices may share an object, with each other and with those of other files.
            if named.insert(stored.written.object.id) {
                objects.push(stored.written.object.clone());
            }
            slices.push(stored.written.slice.clone());
        }
        extents.push(NewExtent {
            offset: stored.offset.saturating_add(part.slice_offset.into()),
            slice: stored.written.slice.id,
            slice_offset: part.slice_offset,
            length: part.length,
        });
    }
    Commit {
        objects,
        slices,
        ..commit_of(base, NewContent::Extents(extents))
    }
}

/// What a reader needs of a part of a slice that was just committed.
fn piece(stored: &Stored, part: &CommitPart) -> (u64, Piece) {
    let (object, slice) = (&stored.written.object, &stored.written.slice);
    let row = StoredSlice {
        id: slice.id,
        slice: Slice {
            object: slice.object,
            offset: slice.offset,
            length: slice.length,
            sealed_length: slice.sealed_length,
            codec: slice.codec,
            keys: slice.keys.clone(),
            references: 1,
        },
        object: Object {
            class: object.class,
            policy: object.policy,
            length: object.length,
            shard_length: object.shard_length,
            shards: object.shards.clone(),
            writer: SessionId(0),
            principal: PrincipalNumber(0),
            checked: false,
            committed: Time(0),
            born: Sequence(0),
            generation: 0,
            live_bytes: u64::from(slice.sealed_length),
            slices: 1,
        },
    };
    (
        stored.offset.saturating_add(part.slice_offset.into()),
        Piece {
            stored: Arc::new(row),
            slice_offset: part.slice_offset,
            length: part.length,
        },
    )
}
