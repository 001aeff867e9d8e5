//! Room on a replica's disk: what is kept free, what is said when it is not, and what a replica
//! comes up with on a disk that is full.
//!
//! ```text
//!  room         ≥ 5/4 of the floor   "has room" is said in the order
//!               < the floor          "nearly full" is said; enough of these, and the service
//!                                    refuses what grows (`membership::Command::Disk`)
//!  free space   < a half of the reserve   the reserve is removed
//!               0                    the replica stops; started again, it removes the reserve
//! ```
//!
//! Room is what is free on the disk and, below the floor, most of what rows that were removed have
//! left in the database's file: that does not shrink, and the next rows go there. A half of the
//! floor has to be free all the same, for the journal and committed batches go elsewhere.
//!
//! The *reserve* is a file with room and without content. A replica whose disk is full cannot even
//! open its database to have rows removed from it; what the reserve gives back is enough for that.
//! It is made again when there is room above the floor, under another name until it has its room.
//!
//! The file `has-room` says that the order knows of no shortage here. It is removed before a
//! shortage is said, which works on a full disk too, and made after the order has noted that there
//! is room. So a process that begins without it says how its disk is, and one that begins with it
//! need not.
//!
//! What always holds: only these files are touched. What cannot be found out counts as room,
//! for a replica that is wrong about its disk must not stop a cluster that has room.

use crate::limits;
use crate::store::Spare;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// How long the reserve is: more than the journal's segment, and a flush, that follow a start.
pub(crate) const RESERVE_BYTES: u64 = 48 << 20;

/// What has to be there, for a disk that was or was not said to be nearly full: the room has to
/// rise a quarter above the floor, so that nothing flickers.
const fn needed(floor: u64, was: bool) -> u64 {
    match was {
        true => floor.saturating_add(floor / 4),
        false => floor,
    }
}

/// Whether a disk is nearly full of which so much is free, and so much within the database.
const fn is_short((free, within): (u64, u64), floor: u64, was: bool) -> bool {
    let most_of_it = within - within / 4;
    free < floor / 2 || free.saturating_add(most_of_it) < needed(floor, was)
}

/// A replica's disk.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    directory: PathBuf,
    floor: u64,
    /// The database on it, once it is open.
    spare: Arc<OnceLock<Spare>>,
    /// What was found of that, and until when it counts.
    within: Option<(u64, Instant)>,
}

impl Room {
    /// The disk below `directory`, of which so many bytes are to stay free; of 0 nothing is said.
    pub(crate) fn new(directory: &Path, floor: u64) -> Self {
        Self {
            directory: directory.to_owned(),
            floor,
            spare: Arc::default(),
            within: None,
        }
    }

    /// The same disk with the database on it, as soon as that is set.
    pub(crate) fn with(self, spare: Arc<OnceLock<Spare>>) -> Self {
        Self { spare, ..self }
    }

    fn reserve(&self) -> PathBuf {
        self.directory.join("reserve")
    }

    fn has_room(&self) -> PathBuf {
        self.directory.join("has-room")
    }

    fn free(&self) -> Option<u64> {
        let found = statvfs(&self.directory).ok()?;
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Gives the reserve back if nearly nothing else is free.
    pub(crate) fn make_way(&self) {
        let nothing_free = self.free().is_some_and(|free| free < RESERVE_BYTES / 2);
        if !nothing_free {
            return;
        }
        match fs::remove_file(self.reserve()) {
            Ok(()) => tracing::warn!(
                directory = %self.directory.display(),
                "the disk is full: the reserve is given back, so that something can be removed"
            ),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, "the disk is full, and the reserve stays"),
        }
    }

    /// Makes the reserve, if it is not there and leaves the floor free.
    fn set_aside(&self) {
        let path = self.reserve();
        let roomy = self.free().is_some_and(|free| {
            free >= self
                .floor
                .saturating_add(self.floor / 4)
                .saturating_add(RESERVE_BYTES)
        });
        if self.floor == 0 || !roomy || path.symlink_metadata().is_ok() {
            return;
        }
        // A part of it would be taken for all of it.
        let draft = path.with_extension("draft");
        let _ = fs::remove_file(&draft);
        if let Err(error) = take(&draft).and_then(|()| fs::rename(&draft, &path)) {
            tracing::warn!(%error, "no reserve is made for when the disk is full");
            let _ = fs::remove_file(&draft);
        }
    }

    /// What the order knows, as far as an earlier process told: that there is room, or nothing.
    pub(crate) fn said_before(&self) -> Option<bool> {
        let nothing_to_say = self.floor == 0;
        (nothing_to_say || self.has_room().exists()).then_some(false)
    }

    /// Looks at the disk: gives the reserve back or makes it, and says whether the disk is nearly
    /// full. It may have to read the whole database for that.
    pub(crate) fn look(&mut self, was: Option<bool>) -> bool {
        self.make_way();
        let was = was.unwrap_or(false);
        let Some(free) = self.free().filter(|free| *free < needed(self.floor, was)) else {
            self.set_aside();
            return false;
        };
        is_short((free, self.within()), self.floor, was)
    }

    fn within(&mut self) -> u64 {
        let now = Instant::now();
        if let Some((within, until)) = self.within
            && now < until
        {
            return within;
        }
        let within = self.spare.get().and_then(Spare::bytes).unwrap_or(0);
        let took = now.elapsed().saturating_mul(20);
        let until = Instant::now() + took.max(limits::ROOM_WITHIN_COUNTS);
        self.within = Some((within, until));
        within
    }

    /// It will be said that the disk is nearly full.
    pub(crate) fn saying_short(&self) {
        match fs::remove_file(self.has_room()) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(%error, "what is said about this disk may be forgotten");
            }
            _ => {}
        }
    }

    /// It was said that there is room.
    pub(crate) fn said_room(&self) {
        if let Err(error) = File::create(self.has_room()) {
            tracing::warn!(%error, "that there is room is said again after the next start");
        }
    }
}

/// Takes the room without writing to it.
fn take(path: &Path) -> std::io::Result<()> {
    let file = File::create_new(path)?;
    fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_begins_below_the_floor_and_ends_a_quarter_above_it() {
        for (free, was, short) in [
            (100, false, false),
            (99, false, true),
            (124, true, true),
            (125, true, false),
            (0, false, true),
        ] {
            assert_eq!(is_short((free, 0), 100, was), short, "{free} {was}");
        }
        for was in [false, true] {
            assert!(!is_short((0, 0), 0, was), "no floor");
        }
    }

    #[test]
    fn room_within_the_database_counts_while_a_half_of_the_floor_is_free() {
        for (free, within, was, short) in [
            (60, 52, false, true),
            (60, 53, false, false),
            (60, 85, true, true),
            (60, 86, true, false),
            (50, 1_000, true, false),
            (49, 1_000, true, true),
        ] {
            let found = is_short((free, within), 100, was);
            assert_eq!(found, short, "{free} {within} {was}");
        }
    }

    #[test]
    fn the_reserve_stays_while_there_is_room_and_what_was_said_is_known() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut room = Room::new(directory.path(), 1);
        assert_eq!(room.said_before(), None);
        assert!(!room.look(None));
        let length = || fs::metadata(directory.path().join("reserve")).map(|it| it.len());
        assert_eq!(length().ok(), Some(RESERVE_BYTES));
        room.make_way();
        assert_eq!(length().ok(), Some(RESERVE_BYTES), "there is room");
        room.said_room();
        assert_eq!(room.said_before(), Some(false));
        room.saying_short();
        room.saying_short();
        assert_eq!(room.said_before(), None);
        let mut full = Room::new(directory.path(), u64::MAX / 2);
        fs::remove_file(directory.path().join("reserve")).expect("there");
        assert!(full.look(Some(false)));
        full.set_aside();
        assert!(length().is_err(), "it would not leave the floor free");
    }
}
