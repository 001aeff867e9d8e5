//! What the gateway remembers of attributes and names, so that it need not ask again.
//!
//! For how long it is believed is `belief`'s to say. What this mount itself changes is entered at
//! once.
//!
//! * Attributes are replaced only by a version at least as high, so that answers may overtake each
//!   other.
//! * An answer about a name is entered only if the directory was not changed by us since the
//!   question was asked ([`Stamp`]).
//! * A directory that was listed whole, or that we made, is *complete*: a name that is not known in
//!   it does not exist. That saves the question before every create. A name of which we know
//!   something that we do not believe any more is unknown, and not absent.
//!
//! Memory is bounded: what was entered longest ago goes ([`Generations`]).

use super::belief::{Asked, Belief};
use super::generations::Generations;
use quorumfs_metadata::attributes::{Attributes, Timestamp};
use quorumfs_metadata::identity::InodeId;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// Directories whose changes are counted apart from each other.
const STAMPS: usize = 256;
/// More than this, and a file takes more than it is long.
const BLOCK_BYTES: u64 = 4096;

/// What is known about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It leads to this inode.
    Entry(InodeId),
    /// There is no such name.
    Absent,
}

/// The state of a directory when a question about it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    changes: u64,
    pub(crate) asked: Asked,
}

#[derive(Debug)]
struct Inner {
    attributes: Generations<InodeId, (Attributes, Asked)>,
    names: Generations<(InodeId, Vec<u8>), (Known, Asked)>,
    complete: Generations<InodeId, Asked>,
    /// Entries that one directory may have for all of them to be kept.
    complete_max: usize,
    stamps: [u64; STAMPS],
    belief: Belief,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Cache {
    inner: Mutex<Inner>,
}

fn slot(directory: InodeId) -> usize {
    usize::try_from(directory.0 % STAMPS as u64).unwrap_or(0)
}

impl Inner {
    /// A name that was pushed out must not look absent: its directory is not complete any more.
    fn insert_name(&mut self, key: (InodeId, Vec<u8>), known: Known, asked: Asked) {
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

    fn attributes(&self, inode: InodeId, now: Instant) -> Option<(Attributes, Asked)> {
        let (attributes, asked) = self.attributes.get(&inode)?;
        let believed = self.belief.holds(*asked, now);
        believed.then_some((*attributes, *asked))
    }

    fn name(&self, directory: InodeId, name: &[u8], now: Instant) -> Option<(Known, Asked)> {
        let found = match self.names.get(&(directory, name.to_vec())) {
            Some(found) => *found,
            None => {
                let asked = self.complete.get(&directory)?;
                (Known::Absent, *asked)
            }
        };
        self.belief.holds(found.1, now).then_some(found)
    }
}

impl Cache {
    /// A cache of at most so many attributes and names.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            inner: Mutex::new(Inner {
                attributes: Generations::new(most),
                names: Generations::new(most),
                complete: Generations::new(most / 16 + 8),
                complete_max: most / 8,
                stamps: [0; STAMPS],
                belief: Belief::default(),
            }),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be taken before a question is sent, or an operation of ours.
    pub(crate) fn ask(&self) -> Asked {
        self.inner().belief.ask(Instant::now())
    }

    /// Whether what was learned then is believed as long as it is confirmed.
    pub(crate) fn keeps(&self, asked: Asked) -> bool {
        self.inner().belief.is_kept(asked, Instant::now())
    }

    /// Whether what was learned then need not be asked for again.
    pub(crate) fn is_settled(&self, asked: Asked) -> bool {
        self.inner().belief.is_settled(asked, Instant::now())
    }

    /// Whether the servers can be asked, as far as is known.
    pub(crate) fn servers_are(&self, gone: bool) {
        self.inner().belief.servers_are(gone);
    }

    /// For what is not worth being confirmed.
    pub(crate) fn unasked(&self) -> Asked {
        self.inner().belief.unasked(Instant::now())
    }

    /// The count of others' changes was heard: answers whether there were any.
    pub(crate) fn hear(&self, others: u64, sent: Instant) -> bool {
        self.inner().belief.hear(others, sent)
    }

    /// Nothing is confirmed any more.
    pub(crate) fn end_belief(&self) {
        self.inner().belief.end();
    }

    /// Whether the count of others' changes was heard a moment ago.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.inner().belief.is_confirmed(Instant::now())
    }

    /// Whether attributes like these are believed for as long as they are confirmed.
    pub(crate) fn keeps_attributes(&self, attributes: &Attributes) -> bool {
        let now = Instant::now();
        let inner = self.inner();
        let known = inner.attributes(attributes.inode, now);
        known.is_some_and(|(known, asked)| {
            inner.belief.is_kept(asked, now) && known.version == attributes.version
        })
    }

    /// Whether what is known of a name is believed for as long as it is confirmed.
    pub(crate) fn keeps_name(&self, directory: InodeId, name: &[u8], leads: Known) -> bool {
        let now = Instant::now();
        let inner = self.inner();
        let known = inner.name(directory, name, now);
        known.is_some_and(|(known, asked)| inner.belief.is_kept(asked, now) && known == leads)
    }

    /// Attributes that are still believed.
    pub(crate) fn attributes(&self, inode: InodeId) -> Option<Attributes> {
        let found = self.inner().attributes(inode, Instant::now());
        found.map(|(attributes, _)| attributes)
    }

    /// Enters attributes that an answer brought.
    pub(crate) fn learn(&self, attributes: &Attributes, asked: Asked) {
        let mut inner = self.inner();
        let known = inner.attributes.get(&attributes.inode);
        if known.is_none_or(|(known, _)| known.version <= attributes.version) {
            // The servers free what a long file was cut by piece by piece, and nobody is told.
            let settled = attributes.allocated <= attributes.size.next_multiple_of(BLOCK_BYTES);
            let asked = if settled {
                inner.belief.entered(asked)
            } else {
                inner.belief.unasked(Instant::now())
            };
            let gone = inner
                .attributes
                .insert(attributes.inode, (*attributes, asked));
            if !gone.is_empty() {
                inner.belief.forget();
            }
        }
    }

    /// An inode was read, which the servers know.
    pub(crate) fn accessed(&self, inode: InodeId, time: Timestamp) {
        let mut inner = self.inner();
        if let Some((attributes, _)) = inner.attributes.get_mut(&inode) {
            attributes.atime = attributes.atime.max(time);
        }
    }

    /// Forgets an inode's attributes.
    pub(crate) fn forget(&self, inode: InodeId) {
        let mut inner = self.inner();
        inner.attributes.remove(&inode);
        inner.belief.forget();
    }

    /// What is known about `name`.
    pub(crate) fn name(&self, directory: InodeId, name: &[u8]) -> Option<Known> {
        let found = self.inner().name(directory, name, Instant::now());
        found.map(|(known, _)| known)
    }

    /// To be taken before a question about names of `directory` is asked.
    pub(crate) fn stamp(&self, directory: InodeId) -> Stamp {
        let inner = self.inner();
        Stamp {
            changes: inner.changes(directory),
            asked: inner.belief.ask(Instant::now()),
        }
    }

    /// Whether what was learned of `directory` then is still so, as far as we know.
    pub(crate) fn stands(&self, directory: InodeId, stamp: Stamp) -> bool {
        let inner = self.inner();
        inner.changes(directory) == stamp.changes && inner.belief.holds(stamp.asked, Instant::now())
    }

    /// Enters what an answer said about `name`, unless we changed the directory meanwhile.
    pub(crate) fn learn_name(&self, stamp: Stamp, directory: InodeId, name: &[u8], known: Known) {
        let mut inner = self.inner();
        if inner.changes(directory) == stamp.changes {
            inner.insert_name((directory, name.to_vec()), known, stamp.asked);
        }
    }

    /// Enters a whole directory, as listed since `stamp` was taken.
    pub(crate) fn learn_directory<'n>(
        &self,
        stamp: Stamp,
        directory: InodeId,
        names: impl Iterator<Item = (&'n [u8], InodeId)>,
    ) {
        let mut inner = self.inner();
        if inner.changes(directory) != stamp.changes {
            return;
        }
        let mut count = 0_usize;
        for (name, inode) in names {
            count = count.saturating_add(1);
            inner.insert_name((directory, name.to_vec()), Known::Entry(inode), stamp.asked);
        }
        // Beyond this, entries would push each other out while they are believed complete.
        if count <= inner.complete_max {
            inner.complete.insert(directory, stamp.asked);
        }
    }

    /// We changed names by one operation, before which the stamps were taken. What is known now
    /// lasts no longer than anything that is not confirmed if something else that we did overlapped
    /// with it: who knows which came first.
    pub(crate) fn change_names(&self, changes: &[(Stamp, InodeId, &[u8], Known)]) {
        let mut inner = self.inner();
        let unasked = inner.belief.unasked(Instant::now());
        let alone = changes
            .iter()
            .all(|(stamp, directory, ..)| inner.changes(*directory) == stamp.changes);
        for (stamp, directory, name, known) in changes {
            inner.count_change(*directory);
            let asked = if alone { stamp.asked } else { unasked };
            inner.insert_name((*directory, name.to_vec()), *known, asked);
        }
    }

    /// We moved a directory: of its names only `..` leads elsewhere, and no listing from before
    /// shows that.
    pub(crate) fn moved_directory(&self, directory: InodeId) {
        self.inner().count_change(directory);
    }

    /// Nothing is certain about `name` any more.
    pub(crate) fn doubt_name(&self, directory: InodeId, name: &[u8]) {
        let mut inner = self.inner();
        inner.count_change(directory);
        inner.names.remove(&(directory, name.to_vec()));
        inner.complete.remove(&directory);
    }

    /// We made `directory` by an operation before which `asked` was taken: it is empty.
    pub(crate) fn made_directory(&self, directory: InodeId, asked: Asked) {
        self.inner().complete.insert(directory, asked);
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        let mut inner = self.inner();
        inner.attributes.clear();
        inner.names.clear();
        inner.complete.clear();
        inner.belief.forget();
        for stamp in &mut inner.stamps {
            *stamp = stamp.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: InodeId = InodeId(5);

    fn entered(cache: &Cache, directory: InodeId, name: &[u8], known: Known) {
        let stamp = cache.stamp(directory);
        cache.change_names(&[(stamp, directory, name, known)]);
    }

    #[test]
    fn an_answer_that_our_own_change_overtook_is_not_believed() {
        let cache = Cache::new(100);
        let stamp = cache.stamp(HERE);
        entered(&cache, HERE, b"a", Known::Absent);
        cache.learn_name(stamp, HERE, b"a", Known::Entry(InodeId(9)));
        assert_eq!(cache.name(HERE, b"a"), Some(Known::Absent));
    }

    #[test]
    fn two_changes_of_ours_that_overlapped_are_not_confirmed() {
        let cache = Cache::new(100);
        cache.hear(1, Instant::now());
        let stamp = cache.stamp(HERE);
        let known = Known::Entry(InodeId(9));
        entered(&cache, HERE, b"a", known);
        assert!(cache.keeps_name(HERE, b"a", known));
        cache.change_names(&[(stamp, HERE, b"b", known)]);
        assert_eq!(cache.name(HERE, b"b"), Some(known));
        assert!(!cache.keeps_name(HERE, b"b", known));
    }

    #[test]
    fn a_directory_that_we_made_has_no_other_names() {
        let cache = Cache::new(100);
        assert_eq!(cache.name(HERE, b"a"), None);
        cache.made_directory(HERE, cache.ask());
        assert_eq!(cache.name(HERE, b"a"), Some(Known::Absent));
        entered(&cache, HERE, b"a", Known::Entry(InodeId(9)));
        assert_eq!(cache.name(HERE, b"a"), Some(Known::Entry(InodeId(9))));
        cache.doubt_name(HERE, b"a");
        assert_eq!(cache.name(HERE, b"a"), None, "unknown is not absent");
        assert_eq!(cache.name(HERE, b"b"), None);
    }

    #[test]
    fn a_name_that_was_pushed_out_does_not_look_absent() {
        let cache = Cache::new(16);
        cache.made_directory(HERE, cache.ask());
        entered(&cache, HERE, b"first", Known::Entry(InodeId(9)));
        for number in 0..100_u64 {
            let name = number.to_string();
            entered(&cache, InodeId(6), name.as_bytes(), Known::Absent);
        }
        assert_eq!(cache.name(HERE, b"first"), None);
    }

    #[test]
    fn a_name_that_is_not_believed_any_more_does_not_look_absent() {
        let cache = Cache::new(16);
        // Nothing was heard yet: what is entered now belongs to no round.
        entered(&cache, HERE, b"a", Known::Entry(InodeId(9)));
        cache.hear(1, Instant::now());
        cache.made_directory(HERE, cache.ask());
        let now = Instant::now() + crate::vfs::belief::VALID_FOR;
        cache.hear(1, now);
        let inner = cache.inner();
        assert_eq!(inner.name(HERE, b"a", now), None);
        let absent = inner.name(HERE, b"b", now);
        assert_eq!(absent.map(|(known, _)| known), Some(Known::Absent));
    }
}
