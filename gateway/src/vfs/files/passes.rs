//! A listing of a directory whose names are resealed meanwhile.
//!
//! An entry's position follows from a hash of its name under the key of its generation, so it moves
//! once when its name is resealed, forward or back. A listing that goes on where it was would miss
//! what moves back, and show twice what moves forward.
//!
//! ```text
//!   listing begins   generation changes          end                     end
//!        │  all before is known by its     │ what was shown is        │
//!        │  old position: it was shown     │ remembered by its name   │
//!        ├──────────────────────────────►──┼────────────────────────►─┤
//!        │              first pass, behind the present position       │
//!        ├───────────────────────────────────────────────────────────►┤  further passes, over all
//! ```
//!
//! What is missed in a pass has moved in it, and moves at most once for each change of the
//! generation. So there are at most as many passes as changes, and one; a pass in which nothing
//! moved is the last.
//!
//! Invariants: an entry that is there from the beginning to the end of the listing is shown exactly
//! once, if it is not renamed. A directory that does not change its generation is listed as ever,
//! and nothing is remembered.
//!
//! Failure modes: *a process jumps to another position* (`seekdir`). The listing begins anew from
//! there; while names move, it may then miss some or show some twice. *A directory is large*. Each
//! name that is shown while names move takes 8 bytes, until the listing ends.

use crate::keys::{NameKeys, stand_in_cookie};
use crate::vfs::known::DirectoryEntry;
use quorumfs_metadata::attributes::NameGenerations;
use quorumfs_metadata::identity::{Cookie, RealmEpoch};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The passes of a listing.
#[derive(Debug, Default)]
pub(in crate::vfs) struct Passes {
    /// The generations when it began.
    since: Option<NameGenerations>,
    /// How it goes on since names are known to move.
    moving: Option<Moving>,
}

#[derive(Debug)]
struct Moving {
    /// Entries up to here, by their positions when the listing began, were shown before.
    shown_up_to: Cookie,
    /// Names that were shown since, hashed.
    shown: HashSet<u64>,
    /// What the last answer had; what was taken of it shows the next question.
    answered: Vec<(Cookie, u64)>,
    /// The last question, and where the answer began.
    asked: (Cookie, Cookie),
    /// The generations when this pass began, and the last that were seen.
    pass: NameGenerations,
    last: NameGenerations,
    /// How often an entry may have moved at most since the listing began.
    moves: u32,
    /// The passes that have ended.
    ended: u32,
}

impl Passes {
    /// The generation under whose keys [`Self::hides`] has to know the names.
    pub(in crate::vfs) fn generation(&self) -> Option<RealmEpoch> {
        let moving = self.moving.as_ref().and(self.since);
        moving.map(|since| since.current)
    }

    /// Where to go on for a question about what is behind `offset`.
    pub(in crate::vfs) fn resume(&mut self, offset: Cookie) -> Cookie {
        if offset == Cookie::START {
            *self = Self::default();
            return offset;
        }
        let Some(moving) = &mut self.moving else {
            return offset;
        };
        if offset == moving.asked.0 {
            // Nothing of the last answer was taken.
            moving.answered.clear();
            return moving.asked.1;
        }
        let taken = moving.answered.iter().position(|(at, _)| *at == offset);
        let Some(taken) = taken else {
            *self = Self::default();
            return offset;
        };
        let taken = moving.answered.drain(..).take(taken.saturating_add(1));
        moving.shown.extend(taken.map(|(_, hash)| hash));
        moving.asked = (offset, offset);
        offset
    }

    /// A page says which generations the names have, before anything behind `position` is shown.
    pub(in crate::vfs) fn saw(
        &mut self,
        now: NameGenerations,
        (offset, position): (Cookie, Cookie),
    ) {
        let since = *self.since.get_or_insert(now);
        if let Some(moving) = &mut self.moving {
            // Key epochs that were not seen may have come and gone as well.
            let more = now.current.0.saturating_sub(moving.last.current.0);
            moving.moves = moving.moves.saturating_add(more);
            moving.last = now;
            return;
        }
        if since == now && since.previous.is_none() {
            return;
        }
        self.moving = Some(Moving {
            // Names of two generations: what was shown follows from neither.
            shown_up_to: match since.previous {
                Some(_) => Cookie::PARENT,
                None => position.max(Cookie::PARENT),
            },
            shown: HashSet::new(),
            answered: Vec::new(),
            asked: (offset, position),
            pass: since,
            last: now,
            moves: now
                .current
                .0
                .saturating_sub(since.current.0)
                .saturating_add(u32::from(since.previous.is_some())),
            ended: 0,
        });
    }

    /// Whether an entry was shown before. The keys are those of [`Self::generation`].
    pub(in crate::vfs) fn hides(&self, keys: &NameKeys, entry: &DirectoryEntry) -> bool {
        let Some(moving) = &self.moving else {
            return false;
        };
        let before = match stand_in_cookie(&entry.name) {
            Some(_) => entry.cookie,
            None => keys.cookie(&entry.name),
        };
        before <= moving.shown_up_to || moving.shown.contains(&hash(&entry.name))
    }

    /// These entries are shown.
    pub(in crate::vfs) fn answer<'a>(&mut self, entries: impl Iterator<Item = &'a DirectoryEntry>) {
        if let Some(moving) = &mut self.moving {
            let hashed = entries.map(|entry| (entry.cookie, hash(&entry.name)));
            moving.answered = hashed.collect();
        }
    }

    /// Nothing is left behind the present position. Returns whether another pass begins, behind the
    /// entries of every directory.
    pub(in crate::vfs) fn begin_another(&mut self, now: NameGenerations) -> bool {
        let Some(moving) = &mut self.moving else {
            return false;
        };
        moving.ended = moving.ended.saturating_add(1);
        let nothing_moved = moving.pass == now && now.previous.is_none();
        if nothing_moved || moving.ended > moving.moves {
            return false;
        }
        moving.pass = now;
        moving.asked.1 = Cookie::PARENT;
        true
    }
}

fn hash(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{EpochSecret, RealmEpochKey};
    use proptest::prelude::*;
    use quorumfs_metadata::attributes::{FileType, PreviousNames};
    use quorumfs_metadata::identity::{InodeId, RealmId, VolumeId};
    use std::collections::BTreeMap;

    const VOLUME: VolumeId = quorumfs_bft::identity::ClusterId([1; 16]);

    fn keys(generation: u32) -> NameKeys {
        let secret = EpochSecret::from_secret(crate::keys::Secret::from_bytes([9; 32]));
        let (volume, epoch) = (VOLUME, RealmEpoch(generation));
        let key: RealmEpochKey = secret.realm_epoch_key(None, &volume, RealmId::ROOT, epoch);
        key.name_keys(InodeId(7))
    }

    /// A directory at the servers.
    struct Directory {
        entries: BTreeMap<Cookie, (u32, String)>,
        generations: NameGenerations,
        keys: Vec<NameKeys>,
    }

    impl Directory {
        fn new(names: usize) -> Self {
            let keys: Vec<_> = (0..4).map(keys).collect();
            let named = (0..names).map(|number| format!("name {number}"));
            let entries = named.map(|name| (keys[0].cookie(name.as_bytes()), (0, name)));
            Self {
                entries: entries.collect(),
                generations: NameGenerations {
                    current: RealmEpoch(0),
                    previous: None,
                },
                keys,
            }
        }

        /// Some names are resealed, the first of the old ones first; begins if there are none.
        fn reseal(&mut self, most: usize) {
            let current = self.generations.current.0;
            if self.generations.previous.is_none() {
                if current < 3 {
                    self.generations = NameGenerations {
                        current: RealmEpoch(current + 1),
                        previous: Some(PreviousNames {
                            realm: RealmId::ROOT,
                            epoch: RealmEpoch(current),
                        }),
                    };
                }
                return;
            }
            let old = self.entries.iter().filter(|(_, (it, _))| *it < current);
            let old: Vec<_> = old.map(|(at, _)| *at).take(most).collect();
            for at in old {
                let (_, name) = self.entries.remove(&at).unwrap();
                let at = self.keys[current as usize].cookie(name.as_bytes());
                self.entries.insert(at, (current, name));
            }
            if self.entries.values().all(|(it, _)| *it == current) {
                self.generations.previous = None;
            }
        }

        fn after(&self, position: Cookie, most: usize) -> (Vec<DirectoryEntry>, bool) {
            let behind = self.entries.range(Cookie(position.0 + 1)..);
            let page: Vec<_> = behind.clone().take(most).collect();
            let entries = page.iter().map(|(at, (_, name))| DirectoryEntry {
                inode: InodeId(1),
                file_type: FileType::File,
                cookie: **at,
                name: name.clone().into_bytes(),
            });
            (entries.collect(), behind.count() > most)
        }
    }

    /// As the file system answers a process.
    fn ask(
        directory: &Directory,
        passes: &mut Passes,
        offset: Cookie,
        page: usize,
    ) -> Vec<DirectoryEntry> {
        let mut position = passes.resume(offset).max(Cookie::PARENT);
        loop {
            passes.saw(directory.generations, (offset, position));
            let (entries, more) = directory.after(position, page);
            let keys = passes.generation().map(|it| &directory.keys[it.0 as usize]);
            let last = entries.last().map(|entry| entry.cookie);
            let shown: Vec<_> = entries
                .into_iter()
                .filter(|entry| keys.is_none_or(|keys| !passes.hides(keys, entry)))
                .collect();
            if !shown.is_empty() {
                passes.answer(shown.iter());
                return shown;
            }
            match last.filter(|_| more) {
                Some(last) => position = last,
                None if passes.begin_another(directory.generations) => position = Cookie::PARENT,
                None => return Vec::new(),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn each_name_is_shown_once_however_names_move_meanwhile(
            names in 1_usize..40,
            before in 0_usize..12,
            page in 1_usize..9,
            steps in proptest::collection::vec((0_usize..6, 0_usize..10), 0..80),
        ) {
            let mut directory = Directory::new(names);
            for _ in 0..before {
                directory.reseal(3);
            }
            let (mut passes, mut offset) = (Passes::default(), Cookie::START);
            let mut seen: Vec<String> = Vec::new();
            let mut steps = steps.into_iter();
            loop {
                let answer = ask(&directory, &mut passes, offset, page);
                // The kernel takes a part of the answer, perhaps nothing of it.
                let (moved, taken) = steps.next().unwrap_or((0, page));
                if answer.is_empty() {
                    break;
                }
                for entry in answer.iter().take(taken) {
                    seen.push(String::from_utf8(entry.name.clone()).unwrap());
                    offset = entry.cookie;
                }
                if moved > 0 {
                    directory.reseal(moved);
                }
            }
            let mut once = seen.clone();
            once.sort();
            once.dedup();
            prop_assert_eq!(once.len(), seen.len(), "shown twice");
            prop_assert_eq!(seen.len(), names, "missing");
        }
    }
}
