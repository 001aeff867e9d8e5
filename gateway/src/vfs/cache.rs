//! What the gateway remembers of attributes and names, so that it need not ask again.
//!
//! A realm has one mount session, but commands beside it (`put`, `rm`) open sessions of their own,
//! so nothing is believed for longer than [`VALID_FOR`]: the same second for which the kernel
//! believes us. What this mount itself changes is entered at once.
//!
//! * Attributes are replaced only by a version at least as high, so that answers may overtake each
//!   other.
//! * An answer about a name is entered only if the directory was not changed by us since the
//!   question was asked ([`Stamp`]).
//! * A directory that was listed whole, or that we made, is *complete*: a name that is not known in
//!   it does not exist. That saves the question before every create.
//!
//! Memory is bounded: each map has two generations, and when the young one is full the old one
//! goes.

use quorumfs_metadata::attributes::{Attributes, Timestamp};
use quorumfs_metadata::identity::InodeId;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long anything is believed.
pub(crate) const VALID_FOR: Duration = Duration::from_secs(1);
/// Directories whose changes are counted apart from each other.
const STAMPS: usize = 256;

/// A map of bounded size whose entries expire.
#[derive(Debug)]
struct Generations<K, V> {
    young: HashMap<K, (V, Instant)>,
    old: HashMap<K, (V, Instant)>,
    most: usize,
}

impl<K: Eq + Hash + Clone, V: Clone> Generations<K, V> {
    fn new(most: usize) -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
            most,
        }
    }

    fn get(&self, key: &K, now: Instant) -> Option<&V> {
        let (value, until) = self.young.get(key).or_else(|| self.old.get(key))?;
        (now < *until).then_some(value)
    }

    /// Answers whether entries were pushed out to make room.
    fn insert(&mut self, key: K, value: V, until: Instant) -> bool {
        let full = self.young.len() >= self.most && !self.young.contains_key(&key);
        let mut pushed_out = false;
        if full {
            pushed_out = !self.old.is_empty();
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&key);
        self.young.insert(key, (value, until));
        pushed_out
    }

    fn remove(&mut self, key: &K) {
        self.young.remove(key);
        self.old.remove(key);
    }
}

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
pub(crate) struct Stamp(u64);

#[derive(Debug)]
struct Inner {
    attributes: Generations<InodeId, Attributes>,
    names: Generations<(InodeId, Vec<u8>), Known>,
    complete: Generations<InodeId, ()>,
    stamps: [u64; STAMPS],
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
    /// A name that was pushed out must not look absent: completeness ends with it.
    fn insert_name(&mut self, key: (InodeId, Vec<u8>), known: Known, until: Instant) {
        if self.names.insert(key, known, until) {
            self.complete = Generations::new(self.complete.most);
        }
    }
}

impl Cache {
    /// A cache of about twice `most` attributes and names.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            inner: Mutex::new(Inner {
                attributes: Generations::new(most),
                names: Generations::new(most),
                complete: Generations::new(most / 16 + 1),
                stamps: [0; STAMPS],
            }),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attributes that are still believed.
    pub(crate) fn attributes(&self, inode: InodeId) -> Option<Attributes> {
        self.inner().attributes.get(&inode, Instant::now()).copied()
    }

    /// Enters attributes that an answer brought.
    pub(crate) fn learn(&self, attributes: &Attributes) {
        let now = Instant::now();
        let mut inner = self.inner();
        let newer = inner
            .attributes
            .get(&attributes.inode, now)
            .is_none_or(|known| known.version <= attributes.version);
        if newer {
            let until = now.checked_add(VALID_FOR).unwrap_or(now);
            inner
                .attributes
                .insert(attributes.inode, *attributes, until);
        }
    }

    /// An inode was read, which the servers know.
    pub(crate) fn accessed(&self, inode: InodeId, time: Timestamp) {
        let mut inner = self.inner();
        let kept = &mut inner.attributes;
        for generation in [&mut kept.young, &mut kept.old] {
            if let Some((attributes, _)) = generation.get_mut(&inode) {
                attributes.atime = attributes.atime.max(time);
            }
        }
    }

    /// Forgets an inode's attributes.
    pub(crate) fn forget(&self, inode: InodeId) {
        self.inner().attributes.remove(&inode);
    }

    /// What is known about `name`.
    pub(crate) fn name(&self, directory: InodeId, name: &[u8]) -> Option<Known> {
        let now = Instant::now();
        let inner = self.inner();
        let key = (directory, name.to_vec());
        match inner.names.get(&key, now) {
            Some(known) => Some(*known),
            // Entries live at least as long as the completeness that they stand in.
            None => inner.complete.get(&directory, now).map(|()| Known::Absent),
        }
    }

    /// To be taken before a question about names of `directory` is asked.
    pub(crate) fn stamp(&self, directory: InodeId) -> Stamp {
        Stamp(
            self.inner()
                .stamps
                .get(slot(directory))
                .copied()
                .unwrap_or_default(),
        )
    }

    /// Enters what an answer said about `name`, unless we changed the directory meanwhile.
    pub(crate) fn learn_name(&self, stamp: Stamp, directory: InodeId, name: &[u8], known: Known) {
        let mut inner = self.inner();
        if inner.stamps.get(slot(directory)) == Some(&stamp.0) {
            let now = Instant::now();
            let until = now.checked_add(VALID_FOR).unwrap_or(now);
            inner.insert_name((directory, name.to_vec()), known, until);
        }
    }

    /// Enters a whole directory, as listed since `stamp` was taken.
    pub(crate) fn learn_directory<'n>(
        &self,
        stamp: Stamp,
        directory: InodeId,
        names: impl Iterator<Item = (&'n [u8], InodeId)>,
        asked: Instant,
    ) {
        let mut inner = self.inner();
        if inner.stamps.get(slot(directory)) != Some(&stamp.0) {
            return;
        }
        let until = asked.checked_add(VALID_FOR).unwrap_or(asked);
        let mut count = 0_usize;
        for (name, inode) in names {
            count = count.saturating_add(1);
            inner.insert_name((directory, name.to_vec()), Known::Entry(inode), until);
        }
        // Beyond this, entries would push each other out while they are believed complete.
        if count <= inner.names.most / 4 {
            inner.complete.insert(directory, (), until);
        }
    }

    /// We changed `name`: what is known now is `known`.
    pub(crate) fn change_name(&self, directory: InodeId, name: &[u8], known: Option<Known>) {
        let now = Instant::now();
        let mut inner = self.inner();
        if let Some(stamp) = inner.stamps.get_mut(slot(directory)) {
            *stamp = stamp.wrapping_add(1);
        }
        let key = (directory, name.to_vec());
        match known {
            Some(known) => {
                // Outlives any completeness that began before, or it would turn into an absence.
                let until = now.checked_add(VALID_FOR).unwrap_or(now);
                inner.insert_name(key, known, until);
            }
            None => {
                inner.names.remove(&key);
                inner.complete.remove(&directory);
            }
        }
    }

    /// We made `directory`: it is empty.
    pub(crate) fn made_directory(&self, directory: InodeId) {
        let now = Instant::now();
        let until = now.checked_add(VALID_FOR).unwrap_or(now);
        self.inner().complete.insert(directory, (), until);
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        let mut inner = self.inner();
        let most = inner.names.most;
        inner.attributes = Generations::new(most);
        inner.names = Generations::new(most);
        inner.complete = Generations::new(most / 16 + 1);
        for stamp in &mut inner.stamps {
            *stamp = stamp.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: InodeId = InodeId(5);

    #[test]
    fn an_answer_that_our_own_change_overtook_is_not_believed() {
        let cache = Cache::new(100);
        let stamp = cache.stamp(HERE);
        cache.change_name(HERE, b"a", Some(Known::Absent));
        cache.learn_name(stamp, HERE, b"a", Known::Entry(InodeId(9)));
        assert_eq!(cache.name(HERE, b"a"), Some(Known::Absent));
    }

    #[test]
    fn a_directory_that_we_made_has_no_other_names() {
        let cache = Cache::new(100);
        assert_eq!(cache.name(HERE, b"a"), None);
        cache.made_directory(HERE);
        assert_eq!(cache.name(HERE, b"a"), Some(Known::Absent));
        cache.change_name(HERE, b"a", Some(Known::Entry(InodeId(9))));
        assert_eq!(cache.name(HERE, b"a"), Some(Known::Entry(InodeId(9))));
        cache.change_name(HERE, b"a", None);
        assert_eq!(cache.name(HERE, b"a"), None, "unknown is not absent");
        assert_eq!(cache.name(HERE, b"b"), None);
    }

    #[test]
    fn a_name_that_was_pushed_out_does_not_look_absent() {
        let cache = Cache::new(16);
        cache.made_directory(HERE);
        cache.change_name(HERE, b"first", Some(Known::Entry(InodeId(9))));
        for number in 0..100_u64 {
            let name = number.to_string();
            cache.change_name(InodeId(6), name.as_bytes(), Some(Known::Absent));
        }
        assert_eq!(cache.name(HERE, b"first"), None);
    }

    #[test]
    fn nothing_is_believed_for_longer_than_its_time() {
        let mut map = Generations::new(2);
        let now = Instant::now();
        map.insert(1, "one", now + VALID_FOR);
        assert_eq!(map.get(&1, now), Some(&"one"));
        assert_eq!(map.get(&1, now + VALID_FOR), None);
    }

    #[test]
    fn memory_is_bounded_by_two_generations() {
        let mut map = Generations::new(10);
        let until = Instant::now() + VALID_FOR;
        for number in 0..1000 {
            map.insert(number, (), until);
            assert!(map.young.len() + map.old.len() <= 20);
        }
        assert!(map.get(&999, Instant::now()).is_some());
    }
}
