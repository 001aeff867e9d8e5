//! The file system as a plain single machine would implement it, to judge replies.
//!
//! Written from the manual pages, not from the service: maps in memory, a file as a map from offset
//! to the source of its byte, no rows, no queues, no bounds. It covers compounds of one session
//! whose names are "sealed" by [`seal_name`](super::seal_name), and predicts errors, inode numbers
//! and everything of `stat` but times and versions.
//!
//! A model is a value: a search for a linearization clones it at every branch.

mod acl;
mod capsules;
mod extended;
mod namespace;
mod news;
mod quota;
mod shards;
mod shared;
mod trash;

use crate::acl::permits;
use crate::attributes::{Access, Attributes, Credentials, Detail, Mode};
use crate::error::Error;
use crate::identity::{Gid, InodeId, SliceId, Uid};
use crate::operation::{
    CloneRange, Commit, Compound, NewContent, Operation, Precondition, SetAttributes, SetTime, Step,
};
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, QueryResult, Response, StepDone};
use acl::in_group;
pub(super) use capsules::place as capsule_place;
use std::collections::{BTreeMap, BTreeSet};

/// A file system in memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Model {
    inodes: BTreeMap<InodeId, Inode>,
    next: u64,
    shards: shards::Shards,
    capsules: capsules::Capsules,
    limits: quota::Limits,
    trash: trash::Trash,
    /// Whether several clients share the realm.
    is_shared: bool,
    /// Inodes without a name that may be in the grave.
    buried: BTreeMap<InodeId, Inode>,
    /// Whether inodes without a name stay.
    keeps_nameless: bool,
    /// Whether it judges what clients are told of the changes of others.
    keeps_events: bool,
    events: news::Events,
    batch: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Inode {
    /// The number of the compound that created it.
    born: u64,
    mode: u16,
    uid: u32,
    gid: u32,
    links: u32,
    lists: acl::Lists,
    extended: extended::Extended,
    kind: ModelKind,
}

/// The source of a byte: a slice and an offset in it.
type ByteSource = (SliceId, u32);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ModelKind {
    Directory {
        parent: InodeId,
        entries: BTreeMap<Vec<u8>, InodeId>,
    },
    File {
        size: u64,
        inline: u64,
        bytes: BTreeMap<u64, ByteSource>,
    },
    Symlink {
        length: u64,
        sealed: u64,
    },
    Special,
}

/// The result of a modelled step: the inodes that its reply shows, in order.
type StepResult = Result<Vec<InodeId>, Error>;

impl Default for Model {
    fn default() -> Self {
        let root = Inode {
            born: 0,
            mode: 0o755,
            uid: 0,
            gid: 0,
            links: 2,
            lists: acl::Lists::default(),
            extended: extended::Extended::default(),
            kind: ModelKind::Directory {
                parent: InodeId::ROOT,
                entries: BTreeMap::new(),
            },
        };
        Self {
            inodes: BTreeMap::from([(InodeId::ROOT, root)]),
            next: 2,
            shards: shards::Shards::default(),
            capsules: capsules::Capsules::default(),
            limits: quota::Limits::default(),
            trash: trash::Trash::default(),
            is_shared: false,
            buried: BTreeMap::new(),
            keeps_nameless: false,
            keeps_events: false,
            events: news::Events::new(),
            batch: 0,
        }
    }
}

impl Model {
    /// Applies an operation as it was sent, and returns whether the answer is possible; `None` is a
    /// lost answer.
    pub fn execute(&mut self, operation: &[u8], answer: Option<&[u8]>) -> bool {
        let compound = match Operation::from_bytes(operation) {
            Ok(Operation::Compound(compound)) => compound,
            Ok(Operation::SetQuota(set)) => {
                self.limits.set(&set);
                let done =
                    |answer| Response::from_bytes(answer) == Ok(Response(Ok(Done::QuotaSet)));
                return answer.is_none_or(done);
            }
            Ok(other) => return self.about_objects(&other, answer),
            Err(_) => return true,
        };
        let predicted = self.compound(&compound);
        let Some(answer) = answer else {
            return true;
        };
        match Response::from_bytes(answer) {
            Ok(response) => self.agrees(&predicted, &response),
            Err(_) => false,
        }
    }

    /// Whether the answer to a query is possible.
    #[must_use]
    pub fn read(&self, query: &[u8], answer: &[u8]) -> bool {
        let (Ok(query), Ok(Answer(answer))) =
            (Query::from_bytes(query), Answer::from_bytes(answer))
        else {
            return false;
        };
        let who = &query.credentials;
        match (&query.question, &answer) {
            (Question::Lookup(place), answer) => {
                let expected = self.find(who, place);
                match (expected, answer) {
                    (Ok(Some(id)), Ok(QueryResult::Entry { inode, parent, .. })) => {
                        id == inode.inode && self.shows(inode) && self.shows(parent)
                    }
                    (Ok(None), Err(Error::NotFound)) => true,
                    (Err(expected), Err(error)) => expected == *error,
                    _ => false,
                }
            }
            (Question::Attributes(id), Ok(QueryResult::Attributes(attributes))) => {
                attributes.inode == *id && self.shows(attributes)
            }
            (Question::Attributes(id), Err(error)) => {
                !self.inodes.contains_key(id) && *error == Error::Stale(*id)
            }
            (
                Question::Objects { .. }
                | Question::SparsePacks { .. }
                | Question::PackedSlices { .. },
                Ok(found),
            ) => self
                .shards
                .answers(&query.question, found, &self.live_slices()),
            (Question::Shares { .. } | Question::Unreferenced { .. }, Ok(found)) => {
                self.shows_capsules(found)
            }
            (Question::Directory { inode, .. }, Ok(QueryResult::Directory(page))) => {
                let Some(ModelKind::Directory { entries, .. }) = self.kind(*inode) else {
                    return false;
                };
                let listed: BTreeMap<_, _> = page
                    .entries
                    .iter()
                    .map(|entry| (entry.name.clone(), entry.inode.inode))
                    .collect();
                page.more || listed == *entries
            }
            (Question::Directory { inode, .. }, Err(error)) => match self.inodes.get(inode) {
                None => *error == Error::Stale(*inode),
                Some(row) if !matches!(row.kind, ModelKind::Directory { .. }) => {
                    *error == Error::NotDirectory
                }
                Some(row) => *error == Error::Denied && !row.allows(who, 4),
            },
            _ => false,
        }
    }

    /// The predicted result of a compound; if it fails nothing changes.
    pub fn compound(&mut self, compound: &Compound) -> Result<Vec<Vec<InodeId>>, Error> {
        let mut next = self.clone();
        next.trash.now = next.trash.now.saturating_add(1);
        for precondition in &compound.preconditions {
            next.check(precondition)?;
        }
        let steps = compound.steps.iter();
        let predicted = steps
            .map(|step| next.step_within_limits(&compound.credentials, step))
            .collect::<Result<Vec<_>, _>>()?;
        *self = next;
        Ok(predicted)
    }

    /// Whether a response is the model's result.
    #[must_use]
    pub fn agrees(
        &self,
        predicted: &Result<Vec<Vec<InodeId>>, Error>,
        response: &Response,
    ) -> bool {
        match (predicted, &response.0) {
            (Err(expected), Err(refusal)) => *expected == refusal.error,
            (Ok(predicted), Ok(Done::Compound(steps))) => {
                let ids = |step| shown(step).iter().map(|a| a.inode).collect::<Vec<_>>();
                let same_ids =
                    predicted
                        .iter()
                        .eq(steps.iter().map(ids).collect::<Vec<_>>().iter());
                // Later steps may have changed what earlier ones showed.
                let last = steps.last().map(shown).unwrap_or_default();
                same_ids && last.iter().all(|attributes| self.shows(attributes))
            }
            _ => false,
        }
    }

    /// The source of each byte of a file below `limit`, without zeros; and its size.
    #[must_use]
    pub fn bytes(&self, inode: InodeId) -> Option<(u64, BTreeMap<u64, ByteSource>)> {
        match self.kind(inode)? {
            ModelKind::File { size, bytes, .. } => Some((*size, bytes.clone())),
            _ => None,
        }
    }

    /// The slices that some byte of a file comes from, be it in the trash.
    fn live_slices(&self) -> BTreeSet<SliceId> {
        let mut live_slices = BTreeSet::new();
        let trashed = self.trash.removed.values().map(|(inode, _)| inode);
        for inode in self.inodes.values().chain(trashed) {
            if let ModelKind::File { bytes, .. } = &inode.kind {
                live_slices.extend(bytes.values().map(|(slice, _)| *slice));
            }
        }
        live_slices
    }

    /// All inodes that exist.
    pub fn inodes(&self) -> impl Iterator<Item = InodeId> + '_ {
        self.inodes.keys().copied()
    }

    /// Whether `attributes` are those that `stat` should show; a deleted inode has no links.
    #[must_use]
    pub fn shows(&self, attributes: &Attributes) -> bool {
        let Some(inode) = self.inodes.get(&attributes.inode) else {
            return attributes.links == 0;
        };
        let (size, parent) = match &inode.kind {
            ModelKind::File { size, .. } => (*size, None),
            ModelKind::Symlink { length, .. } => (*length, None),
            ModelKind::Special => (0, None),
            ModelKind::Directory { parent, .. } => (0, Some(*parent)),
        };
        let shown_parent = match attributes.detail {
            Detail::Directory { parent, .. } => Some(parent),
            _ => None,
        };
        (inode.mode, inode.uid, inode.gid, inode.links)
            == (
                attributes.mode.0,
                attributes.uid.0,
                attributes.gid.0,
                attributes.links,
            )
            && (size, parent) == (attributes.size, shown_parent)
            && inode.lists.access.is_some() == attributes.acl.access
            && inode.lists.default.is_some() == attributes.acl.default
            && inode.extended.len() == usize::from(attributes.extended.count)
    }

    fn kind(&self, inode: InodeId) -> Option<&ModelKind> {
        self.inodes.get(&inode).map(|inode| &inode.kind)
    }

    fn get(&self, inode: InodeId) -> Result<&Inode, Error> {
        self.inodes.get(&inode).ok_or(Error::Stale(inode))
    }

    fn get_mut(&mut self, inode: InodeId) -> Result<&mut Inode, Error> {
        self.inodes.get_mut(&inode).ok_or(Error::Stale(inode))
    }

    fn check(&self, precondition: &Precondition) -> Result<(), Error> {
        match precondition {
            Precondition::Absent(place) => match self.entry(place)? {
                None => Ok(()),
                Some(_) => Err(Error::Exists),
            },
            Precondition::Entry { place, inode } => match self.entry(place)? {
                None => Err(Error::NotFound),
                Some(found) if found == *inode => Ok(()),
                Some(_) => Err(Error::Changed),
            },
            // The model has no versions: only existence is predicted.
            Precondition::Unchanged { inode, .. } => self.get(*inode).map(|_| ()),
        }
    }

    fn step_within_limits(&mut self, who: &Credentials, step: &Step) -> StepResult {
        if !self.limits.are_any() {
            return self.step(who, step);
        }
        let before = self.usage();
        let predicted = self.step(who, step)?;
        self.limits.allow(&before, &self.usage())?;
        Ok(predicted)
    }

    fn step(&mut self, who: &Credentials, step: &Step) -> StepResult {
        match step {
            Step::Create(create) => self.create(who, create),
            Step::Link { inode, place } => self.link(who, *inode, place),
            Step::Unlink(remove) => self.unlink(who, remove),
            Step::RemoveDirectory(remove) => self.remove_directory(who, remove),
            Step::Rename(rename) => self.rename(who, rename),
            Step::SetAttributes(set) => self.set_attributes(who, set),
            Step::Commit(commit) => self.commit(commit),
            Step::Release { inode } => {
                let unlinked = self.get(*inode)?.links == 0;
                if !unlinked {
                    return Err(Error::Stale(*inode));
                }
                self.let_go(*inode)?;
                Ok(Vec::new())
            }
            Step::Restore(restore) => self.restore(who, restore),
            Step::Purge(inodes) => self.purge(who, inodes),
            Step::SetExtended(set) => self.set_extended(who, set),
            Step::SetAcl(set) => self.set_acl(who, set),
            Step::RemoveExtended(place) => self.remove_extended(who, place),
            // The model has no times.
            Step::Accessed(_) => Ok(Vec::new()),
            Step::BeginReseal { directory } => self.begin_reseal(who, *directory),
        }
    }

    fn set_attributes(&mut self, who: &Credentials, set: &SetAttributes) -> StepResult {
        let inode = self.get_mut(set.inode)?;
        let root = who.uid.0 == 0;
        let owner = root || who.uid.0 == inode.uid;
        if set.mode.is_some() && !owner {
            return Err(Error::NotPermitted);
        }
        if !root && set.uid.is_some_and(|uid| uid.0 != inode.uid || !owner) {
            return Err(Error::NotPermitted);
        }
        let joins = |gid: u32| owner && (gid == inode.gid || in_group(who, gid));
        if !root && set.gid.is_some_and(|gid| !joins(gid.0)) {
            return Err(Error::NotPermitted);
        }
        for time in [set.atime, set.mtime].into_iter().flatten() {
            match time {
                SetTime::To(_) if !owner => return Err(Error::NotPermitted),
                SetTime::Now if !owner && set.size.is_none() && !inode.allows(who, 2) => {
                    return Err(Error::Denied);
                }
                _ => {}
            }
        }
        let directory = matches!(inode.kind, ModelKind::Directory { .. });
        let stranger = !root && !in_group(who, inode.gid);
        inode.uid = set.uid.map_or(inode.uid, |uid| uid.0);
        inode.gid = set.gid.map_or(inode.gid, |gid| gid.0);
        if !directory && (set.uid.is_some() || set.gid.is_some()) {
            inode.lose_set_id(stranger);
            inode.extended.lose_capability();
        }
        if let Some(mode) = set.mode {
            let outsider = !root && !in_group(who, inode.gid);
            inode.mode = if outsider { mode.0 & !0o2000 } else { mode.0 };
        }
        if let Some(new) = set.size {
            if directory {
                return Err(Error::IsDirectory);
            }
            if !set.by_handle && !inode.allows(who, 2) {
                return Err(Error::Denied);
            }
            if !root && set.mode.is_none() {
                inode.lose_set_id(!in_group(who, inode.gid));
            }
            let ModelKind::File {
                size,
                inline,
                bytes,
            } = &mut inode.kind
            else {
                return Err(Error::WrongKind);
            };
            *size = new;
            *inline = (*inline).min(new);
            bytes.split_off(&new);
            inode.extended.lose_capability();
        }
        Ok(vec![set.inode])
    }

    /// Commits of a session with every right, under its own ids.
    fn commit(&mut self, commit: &Commit) -> StepResult {
        let burned = self.shards.burned(&commit.objects);
        let cloned = match &commit.content {
            NewContent::Clone(range) => Some(self.bytes_to_clone(commit.inode, range)),
            _ => None,
        };
        let inode = self.get_mut(commit.inode)?;
        let ModelKind::File {
            size,
            inline,
            bytes,
        } = &mut inode.kind
        else {
            return Err(match inode.kind {
                ModelKind::Directory { .. } => Error::IsDirectory,
                _ => Error::WrongKind,
            });
        };
        if let Some(burned) = burned {
            return Err(Error::ObjectUsed(burned));
        }
        match &commit.content {
            NewContent::Same => {}
            NewContent::Inline(new) => {
                bytes.clear();
                *inline = u64::from(new.length);
                *size = *inline;
            }
            NewContent::Extents(extents) => {
                let mut covered = 0;
                for extent in extents {
                    let end = extent.offset.saturating_add(u64::from(extent.length));
                    if extent.offset <= covered {
                        covered = end;
                    }
                    for (offset, place) in (extent.offset..end).zip(extent.slice_offset..) {
                        bytes.insert(offset, (extent.slice, place));
                    }
                    *size = (*size).max(end);
                }
                if *inline > 0 && covered < *inline {
                    return Err(Error::BadContent);
                }
                *inline = 0;
            }
            NewContent::Hole { offset, length } => {
                let end = offset.saturating_add(*length).min(*size);
                punch(inline, bytes, *offset..end)?;
            }
            NewContent::Clone(range) => {
                let new = cloned.unwrap_or(Err(Error::BadContent))?;
                let end = range.offset + range.length;
                punch(inline, bytes, range.offset..end.min(*size))?;
                if *inline > 0 && !new.is_empty() {
                    return Err(Error::BadContent);
                }
                bytes.extend(new);
                *size = (*size).max(end);
            }
        }
        if let Some(new) = commit.size {
            *size = new;
            *inline = (*inline).min(new);
            bytes.split_off(&new);
        }
        if !matches!(commit.content, NewContent::Same) {
            inode.extended.lose_capability();
        }
        self.shards.bring_in(&commit.objects, &commit.slices);
        let slices = commit.slices.iter();
        self.capsules.came_back(slices.map(|slice| slice.object));
        Ok(vec![commit.inode])
    }

    /// The sources of the bytes of a cloned run, by their new offsets.
    fn bytes_to_clone(
        &self,
        into: InodeId,
        range: &CloneRange,
    ) -> Result<BTreeMap<u64, ByteSource>, Error> {
        let ModelKind::File {
            size,
            inline,
            bytes,
        } = &self.get(range.source)?.kind
        else {
            return Err(Error::WrongKind);
        };
        let from = range.source_offset;
        let to = from.saturating_add(range.length);
        let end = range.offset.saturating_add(range.length);
        let apart = into != range.source || to <= range.offset || end <= from;
        if range.length == 0 || to > *size || *inline > 0 || !apart {
            return Err(Error::BadContent);
        }
        let moved = bytes
            .range(from..to)
            .map(|(at, source)| (at - from + range.offset, *source));
        Ok(moved.collect())
    }
}

/// Removes a run from a file; inline bytes are removed all together or not at all.
fn punch(
    inline: &mut u64,
    bytes: &mut BTreeMap<u64, ByteSource>,
    run: std::ops::Range<u64>,
) -> Result<(), Error> {
    if run.start < *inline && !run.is_empty() {
        if run.start > 0 || run.end < *inline {
            return Err(Error::BadContent);
        }
        *inline = 0;
    }
    bytes.retain(|at, _| !run.contains(at));
    Ok(())
}

impl Inode {
    fn allows(&self, who: &Credentials, wanted: u16) -> bool {
        if who.uid.0 == 0 {
            let runs = self.mode & 0o111 != 0 || matches!(self.kind, ModelKind::Directory { .. });
            return wanted & 1 == 0 || runs;
        }
        let of = (Uid(self.uid), Gid(self.gid), Mode(self.mode));
        let wanted = Access((wanted & 7) as u8);
        permits(of, self.lists.access.as_ref(), who, wanted)
    }

    fn lose_set_id(&mut self, by_stranger: bool) {
        self.mode &= !0o4000;
        if self.mode & 0o010 != 0 || by_stranger {
            self.mode &= !0o2000;
        }
    }
}

/// The inodes that a step's reply shows, in order.
fn shown(step: &StepDone) -> Vec<Attributes> {
    match step {
        StepDone::Created { inode, parent, .. } | StepDone::Linked { inode, parent, .. } => {
            vec![*inode, *parent]
        }
        StepDone::Removed { removed, parent } => vec![removed.inode, *parent],
        StepDone::Renamed {
            moved,
            replaced,
            exchanged,
            from_parent,
            to_parent,
            ..
        } => {
            let mut all = vec![*moved];
            all.extend(replaced.map(|removed| removed.inode));
            all.extend(*exchanged);
            all.extend([*from_parent, *to_parent]);
            all
        }
        StepDone::Set(inode) | StepDone::Committed(inode) => vec![*inode],
        StepDone::Released | StepDone::Accessed | StepDone::Purged { .. } => Vec::new(),
    }
}
