//! Cached attributes and names, which save queries.
//!
//! [`validity`](super::validity) decides how long they are valid. Changes by this mount are entered
//! at once.
//!
//! * Attributes are replaced only by a version at least as high, so that answers may overtake each
//!   other.
//! * An answer about a name is entered only if this mount has not changed the directory since the
//!   query ([`Stamp`]).
//! * A directory that was listed whole, or that this mount made, is *complete*: a name that is not
//!   cached does not exist in it. That saves the query before every create. A name with an expired
//!   entry is unknown, not absent.
//!
//! Memory is bounded: the oldest entries are evicted ([`SegmentedLru`]).

use super::coherence::Changed;
use super::owner::KnownMetadata;
use super::segmented_lru::SegmentedLru;
use super::validity::{QueryStamp, Validity};
use quorumfs_metadata::attributes::{Attributes, Timestamp};
use quorumfs_metadata::identity::{InodeId, LogPosition};
use tokio::time::Instant;

/// Directories whose changes are counted separately.
const STAMPS: usize = 256;
/// A file with more than this beyond its length is still being truncated.
const BLOCK_BYTES: u64 = 4096;

/// What is known about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vfs) enum Known {
    /// It leads to this inode.
    Entry(InodeId),
    /// There is no such name.
    Absent,
}

/// The state of a directory when a query about it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vfs) struct Stamp {
    changes: u64,
    pub(in crate::vfs) asked: QueryStamp,
}

#[derive(Debug)]
pub(super) struct CacheTables {
    attributes: SegmentedLru<InodeId, (Attributes, QueryStamp)>,
    names: SegmentedLru<(InodeId, Vec<u8>), (Known, QueryStamp)>,
    complete: SegmentedLru<InodeId, QueryStamp>,
    /// Entries up to which a directory may be complete.
    complete_max: usize,
    stamps: [u64; STAMPS],
    validity: Validity,
}

fn slot(directory: InodeId) -> usize {
    usize::try_from(directory.0 % STAMPS as u64).unwrap_or(0)
}

impl CacheTables {
    /// At most so many attributes and names.
    pub(super) fn new(most: usize) -> Self {
        Self {
            attributes: SegmentedLru::new(most),
            names: SegmentedLru::new(most),
            complete: SegmentedLru::new(most / 16 + 8),
            complete_max: most / 8,
            stamps: [0; STAMPS],
            validity: Validity::new(most / 16 + 8),
        }
    }

    /// Removes an inode's attributes.
    pub(super) fn forget(&mut self, inode: InodeId) {
        self.attributes.remove(&inode);
        self.validity.note_removal();
    }

    /// Removes the entry of `name`, whose state is unknown.
    pub(super) fn invalidate_name(&mut self, directory: InodeId, name: &[u8]) {
        self.count_change(directory);
        self.names.remove(&(directory, name.to_vec()));
        self.complete.remove(&directory);
    }

    /// Removes everything.
    pub(super) fn clear(&mut self) {
        self.attributes.clear();
        self.names.clear();
        self.complete.clear();
        self.validity.note_removal();
        for stamp in &mut self.stamps {
            *stamp = stamp.wrapping_add(1);
        }
    }

    /// An evicted name must not look absent: its directory is not complete any more.
    fn insert_name(&mut self, key: (InodeId, Vec<u8>), known: Known, asked: QueryStamp) {
        for (directory, _) in self.names.insert(key, (known, asked)) {
            self.complete.remove(&directory);
        }
    }

    fn changes(&self, directory: InodeId) -> u64 {
        let changes = self.stamps.get(slot(directory));
        changes.copied().unwrap_or_default()
    }

    fn count_change(&mut self, directory: InodeId) {
        if let Some(stamp) = self.stamps.get_mut(slot(directory)) {
            *stamp = stamp.wrapping_add(1);
        }
    }

    fn attributes(&self, inode: InodeId, now: Instant) -> Option<(Attributes, QueryStamp)> {
        let (attributes, asked) = self.attributes.get(&inode)?;
        let valid = self.validity.is_valid(inode, *asked, now);
        valid.then_some((*attributes, *asked))
    }

    fn name(&self, directory: InodeId, name: &[u8], now: Instant) -> Option<(Known, QueryStamp)> {
        let found = match self.names.get(&(directory, name.to_vec())) {
            Some(found) => *found,
            None => {
                let asked = self.complete.get(&directory)?;
                (Known::Absent, *asked)
            }
        };
        let valid = self.validity.is_valid(directory, found.1, now);
        valid.then_some(found)
    }
}

impl KnownMetadata {
    /// To be taken before a query or an operation of ours is sent.
    pub(in crate::vfs) fn query_stamp(&self) -> QueryStamp {
        self.tables().validity.query_stamp(Instant::now())
    }

    /// Whether an entry about `inode` with this stamp stays valid as long as it is confirmed.
    pub(in crate::vfs) fn is_revalidated(&self, inode: InodeId, asked: QueryStamp) -> bool {
        let inner = self.tables();
        inner.validity.is_revalidated(inode, asked, Instant::now())
    }

    /// Whether an entry about `inode` with this stamp can be used without another query.
    pub(in crate::vfs) fn is_usable(&self, inode: InodeId, asked: QueryStamp) -> bool {
        let inner = self.tables();
        inner.validity.is_usable(inode, asked, Instant::now())
    }

    /// Whether others are known to have changed `inode` after the query.
    pub(in crate::vfs) fn is_outdated(&self, inode: InodeId, asked: QueryStamp) -> bool {
        self.tables().validity.is_outdated(inode, asked)
    }

    /// Sets whether the servers are known to be out of reach.
    pub(super) fn set_servers_gone(&self, gone: bool) {
        self.tables().validity.set_servers_gone(gone);
    }

    /// For entries that need no confirmation.
    pub(in crate::vfs) fn unconfirmed(&self) -> QueryStamp {
        self.tables().validity.unconfirmed(Instant::now())
    }

    /// News arrived; see [`Validity::learn`].
    pub(super) fn learn_news(
        &self,
        position: LogPosition,
        changed: &Changed,
        complete: bool,
        sent: Instant,
    ) -> bool {
        let mut inner = self.tables();
        let times = (sent, Instant::now());
        inner
            .validity
            .learn_news(position, changed, complete, times)
    }

    /// Up to where news have arrived.
    pub(super) fn news_position(&self) -> Option<LogPosition> {
        self.tables().validity.position()
    }

    /// Nothing is confirmed any more.
    pub(super) fn end_validity(&self) {
        self.tables().validity.end();
    }

    /// Whether news arrived recently.
    pub(super) fn has_fresh_news(&self) -> bool {
        self.tables().validity.has_fresh_news(Instant::now())
    }

    /// Whether these attributes stay valid as long as they are confirmed.
    pub(super) fn attributes_are_revalidated(&self, attributes: &Attributes) -> bool {
        let now = Instant::now();
        let inner = self.tables();
        let known = inner.attributes(attributes.inode, now);
        known.is_some_and(|(known, asked)| {
            inner.validity.is_revalidated(known.inode, asked, now)
                && known.version == attributes.version
        })
    }

    /// Whether the entry of a name stays valid as long as it is confirmed.
    pub(super) fn name_is_revalidated(
        &self,
        directory: InodeId,
        name: &[u8],
        leads: Known,
    ) -> bool {
        let now = Instant::now();
        let inner = self.tables();
        let known = inner.name(directory, name, now);
        known.is_some_and(|(known, asked)| {
            inner.validity.is_revalidated(directory, asked, now) && known == leads
        })
    }

    /// Attributes that are still valid.
    pub(in crate::vfs) fn attributes(&self, inode: InodeId) -> Option<Attributes> {
        let found = self.tables().attributes(inode, Instant::now());
        found.map(|(attributes, _)| attributes)
    }

    /// The same, if what others have changed up to the last news is in them.
    pub(in crate::vfs) fn confirmed_attributes(&self, inode: InodeId) -> Option<Attributes> {
        let inner = self.tables();
        let (attributes, asked) = inner.attributes.get(&inode)?;
        let confirmed = inner.validity.is_revalidated(inode, *asked, Instant::now());
        confirmed.then_some(*attributes)
    }

    /// Enters attributes from an answer.
    pub(in crate::vfs) fn learn(&self, attributes: &Attributes, asked: QueryStamp) {
        let mut inner = self.tables();
        let known = inner.attributes.get(&attributes.inode);
        if known.is_none_or(|(known, _)| known.version <= attributes.version) {
            // The servers free the rest of a truncated long file piece by piece, and count no
            // change.
            let settled = attributes.allocated <= attributes.size.next_multiple_of(BLOCK_BYTES);
            let asked = if settled {
                inner.validity.entry_stamp(asked)
            } else {
                inner.validity.unconfirmed(Instant::now())
            };
            let gone = inner
                .attributes
                .insert(attributes.inode, (*attributes, asked));
            if !gone.is_empty() {
                inner.validity.note_removal();
            }
        }
    }

    /// An inode was read, and the servers have the time.
    pub(in crate::vfs) fn accessed(&self, inode: InodeId, time: Timestamp) {
        let mut inner = self.tables();
        if let Some((attributes, _)) = inner.attributes.get_mut(&inode) {
            attributes.atime = attributes.atime.max(time);
        }
    }

    /// What is known about `name`.
    pub(in crate::vfs) fn name(&self, directory: InodeId, name: &[u8]) -> Option<Known> {
        let found = self.tables().name(directory, name, Instant::now());
        found.map(|(known, _)| known)
    }

    /// To be taken before a query about names of `directory` is sent.
    pub(in crate::vfs) fn stamp(&self, directory: InodeId) -> Stamp {
        let inner = self.tables();
        Stamp {
            changes: inner.changes(directory),
            asked: inner.validity.query_stamp(Instant::now()),
        }
    }

    /// Whether an answer with this stamp about `directory` is still valid.
    pub(in crate::vfs) fn is_current(&self, directory: InodeId, stamp: Stamp) -> bool {
        let inner = self.tables();
        inner.changes(directory) == stamp.changes
            && inner
                .validity
                .is_valid(directory, stamp.asked, Instant::now())
    }

    /// Enters an answer about `name`, unless this mount changed the directory meanwhile.
    pub(in crate::vfs) fn learn_name(
        &self,
        stamp: Stamp,
        directory: InodeId,
        name: &[u8],
        known: Known,
    ) {
        let mut inner = self.tables();
        if inner.changes(directory) == stamp.changes {
            inner.insert_name((directory, name.to_vec()), known, stamp.asked);
        }
    }

    /// Enters a whole directory, as listed since `stamp` was taken.
    pub(in crate::vfs) fn learn_directory<'n>(
        &self,
        stamp: Stamp,
        directory: InodeId,
        names: impl Iterator<Item = (&'n [u8], InodeId)>,
    ) {
        let mut inner = self.tables();
        if inner.changes(directory) != stamp.changes {
            return;
        }
        let mut count = 0_usize;
        for (name, inode) in names {
            count = count.saturating_add(1);
            inner.insert_name((directory, name.to_vec()), Known::Entry(inode), stamp.asked);
        }
        // Beyond this, entries would evict each other while the directory counts as complete.
        if count <= inner.complete_max {
            inner.complete.insert(directory, stamp.asked);
        }
    }

    /// This mount changed names by one operation, before which the stamps were taken. If it
    /// overlapped with another operation of ours, the new entries are not confirmed: their order is
    /// unknown.
    pub(in crate::vfs) fn change_names(&self, changes: &[(Stamp, InodeId, &[u8], Known)]) {
        let mut inner = self.tables();
        let unconfirmed = inner.validity.unconfirmed(Instant::now());
        let alone = changes
            .iter()
            .all(|(stamp, directory, ..)| inner.changes(*directory) == stamp.changes);
        for (stamp, directory, name, known) in changes {
            inner.count_change(*directory);
            let asked = if alone { stamp.asked } else { unconfirmed };
            inner.insert_name((*directory, name.to_vec()), *known, asked);
        }
    }

    /// This mount moved a directory: of its names only `..` leads elsewhere, and no older listing
    /// shows that.
    pub(in crate::vfs) fn moved_directory(&self, directory: InodeId) {
        self.tables().count_change(directory);
    }

    /// This mount made `directory` by an operation before which `asked` was taken: it is empty.
    pub(in crate::vfs) fn made_directory(&self, directory: InodeId, asked: QueryStamp) {
        self.tables().complete.insert(directory, asked);
    }
}

#[cfg(test)]
mod tests {
    use super::super::coherence::tests::Scripted;
    use super::super::owner::Scope;
    use super::*;
    use std::sync::Arc;

    const HERE: InodeId = InodeId(5);

    fn known(most: usize) -> Arc<KnownMetadata> {
        KnownMetadata::new(most, Scripted::silent())
    }

    /// News up to 1 have arrived, with no change by others.
    fn confirm(cache: &KnownMetadata, sent: Instant) {
        let nothing = Changed::Inodes(Vec::new());
        assert!(cache.learn_news(LogPosition(1), &nothing, true, sent));
    }

    fn entered(cache: &KnownMetadata, directory: InodeId, name: &[u8], known: Known) {
        let stamp = cache.stamp(directory);
        cache.change_names(&[(stamp, directory, name, known)]);
    }

    #[test]
    fn an_answer_that_our_own_change_overtook_is_not_used() {
        let cache = known(100);
        let stamp = cache.stamp(HERE);
        entered(&cache, HERE, b"a", Known::Absent);
        cache.learn_name(stamp, HERE, b"a", Known::Entry(InodeId(9)));
        assert_eq!(cache.name(HERE, b"a"), Some(Known::Absent));
    }

    #[test]
    fn two_overlapping_changes_of_ours_are_not_confirmed() {
        let cache = known(100);
        confirm(&cache, Instant::now());
        let stamp = cache.stamp(HERE);
        let known = Known::Entry(InodeId(9));
        entered(&cache, HERE, b"a", known);
        assert!(cache.name_is_revalidated(HERE, b"a", known));
        cache.change_names(&[(stamp, HERE, b"b", known)]);
        assert_eq!(cache.name(HERE, b"b"), Some(known));
        assert!(!cache.name_is_revalidated(HERE, b"b", known));
    }

    #[test]
    fn a_directory_that_we_made_has_no_other_names() {
        let cache = known(100);
        assert_eq!(cache.name(HERE, b"a"), None);
        cache.made_directory(HERE, cache.query_stamp());
        assert_eq!(cache.name(HERE, b"a"), Some(Known::Absent));
        entered(&cache, HERE, b"a", Known::Entry(InodeId(9)));
        assert_eq!(cache.name(HERE, b"a"), Some(Known::Entry(InodeId(9))));
        cache.invalidate(Scope::Name(HERE, b"a"));
        assert_eq!(cache.name(HERE, b"a"), None, "unknown is not absent");
        assert_eq!(cache.name(HERE, b"b"), None);
    }

    #[test]
    fn an_evicted_name_does_not_look_absent() {
        let cache = known(16);
        cache.made_directory(HERE, cache.query_stamp());
        entered(&cache, HERE, b"first", Known::Entry(InodeId(9)));
        for number in 0..100_u64 {
            let name = number.to_string();
            entered(&cache, InodeId(6), name.as_bytes(), Known::Absent);
        }
        assert_eq!(cache.name(HERE, b"first"), None);
    }

    #[test]
    fn an_invalid_name_does_not_look_absent() {
        let cache = known(16);
        // No news have arrived yet: entries are stamped with no position.
        entered(&cache, HERE, b"a", Known::Entry(InodeId(9)));
        confirm(&cache, Instant::now());
        cache.made_directory(HERE, cache.query_stamp());
        let now = Instant::now() + super::super::validity::VALID_FOR;
        confirm(&cache, now);
        let inner = cache.tables();
        assert_eq!(inner.name(HERE, b"a", now), None);
        let absent = inner.name(HERE, b"b", now);
        assert_eq!(absent.map(|(known, _)| known), Some(Known::Absent));
    }
}
