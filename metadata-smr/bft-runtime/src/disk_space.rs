//! Free space on a replica's disk: the reserve, the reports of a shortage, and the start on a full
//! disk.
//!
//! ```text
//!  usable space ≥ 5/4 of the floor   "has room" is reported in the order
//!               < the floor          "nearly full" is reported; with enough such reports the
//!                                    service refuses what grows (`membership::Command::Disk`)
//!  free space   < a half of the reserve   the reserve is removed
//!               0                    the replica stops; after a restart, it removes the reserve
//! ```
//!
//! Usable space is the free space of the disk and, below the floor, most of the space that removed
//! rows have left in the database's file: the file does not shrink, and the next rows go there. A
//! half of the floor has to be free all the same, because the journal and committed batches go
//! elsewhere.
//!
//! The *reserve* is a file with allocated space and no content. A replica whose disk is full cannot
//! even open its database to have rows removed from it; removing the reserve frees enough for that.
//! It is made again when there is enough space above the floor, under another name until its space
//! is allocated.
//!
//! The file `has-room` exists while the order knows of no shortage here. It is removed before a
//! shortage is reported, which works on a full disk too, and created after the order has noted that
//! there is space. So a process that starts without it reports how its disk is, and a process that
//! starts with it need not.
//!
//! What always holds: only these files are touched. Unknown free space counts as enough, for a
//! replica that is wrong about its disk must not stop a cluster that has space.

use crate::limits;
use crate::store::ReusableSpace;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The length of the reserve: more than the journal's segment and a flush, which follow a start.
pub(crate) const RESERVE_BYTES: u64 = 48 << 20;

/// The required usable space, depending on whether the disk was reported nearly full: the space has
/// to rise a quarter above the floor, so that reports do not flicker.
const fn needed(floor: u64, was: bool) -> u64 {
    match was {
        true => floor.saturating_add(floor / 4),
        false => floor,
    }
}

/// Whether a disk with so much free space, and so much within the database, is nearly full.
const fn is_short((free, within): (u64, u64), floor: u64, was: bool) -> bool {
    let most_of_it = within - within / 4;
    free < floor / 2 || free.saturating_add(most_of_it) < needed(floor, was)
}

/// A replica's disk.
#[derive(Clone, Debug)]
pub(crate) struct DiskSpace {
    directory: PathBuf,
    floor: u64,
    /// The reusable space in its database, once that is open.
    spare: Arc<OnceLock<ReusableSpace>>,
    /// The reusable space that was found, and until when the figure counts.
    within: Option<(u64, Instant)>,
}

impl DiskSpace {
    /// The disk below `directory` with a floor of free space; with 0 nothing is reported.
    pub(crate) fn new(directory: &Path, floor: u64) -> Self {
        Self {
            directory: directory.to_owned(),
            floor,
            spare: Arc::default(),
            within: None,
        }
    }

    /// The same disk with its database, as soon as that is set.
    pub(crate) fn with(self, spare: Arc<OnceLock<ReusableSpace>>) -> Self {
        Self { spare, ..self }
    }

    fn reserve(&self) -> PathBuf {
        self.directory.join("reserve")
    }

    fn space_marker(&self) -> PathBuf {
        self.directory.join("has-room")
    }

    fn free(&self) -> Option<u64> {
        let found = statvfs(&self.directory).ok()?;
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Removes the reserve if nearly nothing else is free.
    pub(crate) fn release_reserve(&self) {
        let nothing_free = self.free().is_some_and(|free| free < RESERVE_BYTES / 2);
        if !nothing_free {
            return;
        }
        match fs::remove_file(self.reserve()) {
            Ok(()) => tracing::warn!(
                directory = %self.directory.display(),
                "the disk is full: the reserve is removed, so that files can be removed; free some"
            ),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, "the disk is full, and the reserve remains"),
        }
    }

    /// Makes the reserve, if it does not exist and leaves the floor free.
    fn make_reserve(&self) {
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
        // A partly allocated file would be taken for the whole reserve.
        let draft = path.with_extension("draft");
        let _ = fs::remove_file(&draft);
        if let Err(error) = take(&draft).and_then(|()| fs::rename(&draft, &path)) {
            tracing::warn!(%error, "the reserve for a full disk cannot be made");
            let _ = fs::remove_file(&draft);
        }
    }

    /// What an earlier process reported: that there is space, or nothing.
    pub(crate) fn reported_before(&self) -> Option<bool> {
        let nothing_to_say = self.floor == 0;
        (nothing_to_say || self.space_marker().exists()).then_some(false)
    }

    /// Checks the disk: removes the reserve or makes it, and returns whether the disk is nearly
    /// full. It may have to read the whole database for that.
    pub(crate) fn check(&mut self, was: Option<bool>) -> bool {
        self.release_reserve();
        let was = was.unwrap_or(false);
        let Some(free) = self.free().filter(|free| *free < needed(self.floor, was)) else {
            self.make_reserve();
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
        let within = self.spare.get().and_then(ReusableSpace::bytes).unwrap_or(0);
        let took = now.elapsed().saturating_mul(20);
        let until = Instant::now() + took.max(limits::REUSABLE_SPACE_VALID_FOR);
        self.within = Some((within, until));
        within
    }

    /// A shortage is about to be reported.
    pub(crate) fn before_shortage_report(&self) {
        match fs::remove_file(self.space_marker()) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(%error, "a restart may not report this disk's shortage of space");
            }
            _ => {}
        }
    }

    /// Free space was reported.
    pub(crate) fn after_space_report(&self) {
        if let Err(error) = File::create(self.space_marker()) {
            tracing::warn!(%error, "the next start reports again that this disk has free space");
        }
    }
}

/// Allocates the space without writing to it.
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
    fn reusable_space_in_the_database_counts_while_a_half_of_the_floor_is_free() {
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
    fn the_reserve_stays_while_space_is_free_and_reports_are_remembered() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut disk_space = DiskSpace::new(directory.path(), 1);
        assert_eq!(disk_space.reported_before(), None);
        assert!(!disk_space.check(None));
        let length = || fs::metadata(directory.path().join("reserve")).map(|it| it.len());
        assert_eq!(length().ok(), Some(RESERVE_BYTES));
        disk_space.release_reserve();
        assert_eq!(length().ok(), Some(RESERVE_BYTES), "there is free space");
        disk_space.after_space_report();
        assert_eq!(disk_space.reported_before(), Some(false));
        disk_space.before_shortage_report();
        disk_space.before_shortage_report();
        assert_eq!(disk_space.reported_before(), None);
        let mut full = DiskSpace::new(directory.path(), u64::MAX / 2);
        fs::remove_file(directory.path().join("reserve")).expect("there");
        assert!(full.check(Some(false)));
        full.make_reserve();
        assert!(length().is_err(), "it would not leave the floor free");
    }
}
