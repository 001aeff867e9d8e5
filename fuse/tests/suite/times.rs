//! Setting times.

use crate::common::MountedVolume;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

#[test]
fn times_that_are_set_are_kept_to_the_nanosecond_whatever_the_inode_is() {
    let mut world = MountedVolume::new();
    let times = [
        (0, 0),
        (0, 1),
        (1_700_000_000, 123_456_789),
        (1 << 31, 999_999_999),
        (1 << 32, 123_456_789),
        (1 << 34, 123_456_789),
        (1 << 62, 123_456_789),
        (i64::MAX, 0),
        (-1, 0),
        (i64::from(i32::MIN) - 1, 0),
        (-1 << 40, 0),
        (-1, 123_456_789),
        (-2_000_000_000, 1),
        (i64::MIN, 0),
        (i64::MIN + 1, 999_999_999),
    ];
    let kinds = ["file", "directory", "link", "pipe"];
    let path = |world: &MountedVolume, kind, number| world.path(&format!("{kind}{number}"));
    // Each time as the time of access, and the one after it as the time of modification.
    let pairs = || times.iter().zip(times.iter().cycle().skip(1)).enumerate();
    let spec = |time: (i64, i64)| Timespec {
        tv_sec: time.0,
        tv_nsec: time.1,
    };
    for (number, (accessed, modified)) in pairs() {
        fs::write(path(&world, "file", number), "content").unwrap();
        fs::create_dir(path(&world, "directory", number)).unwrap();
        symlink("file0", path(&world, "link", number)).unwrap();
        world.run("mkfifo", &[&format!("pipe{number}")]);
        for kind in kinds {
            let times = Timestamps {
                last_access: spec(*accessed),
                last_modification: spec(*modified),
            };
            let (path, flags) = (path(&world, kind, number), AtFlags::SYMLINK_NOFOLLOW);
            utimensat(CWD, path, &times, flags).unwrap();
        }
    }
    for again in 0..2 {
        for (number, (accessed, modified)) in pairs() {
            for kind in kinds {
                let found = fs::symlink_metadata(path(&world, kind, number)).unwrap();
                let shown = (found.atime(), found.atime_nsec());
                assert_eq!(shown, *accessed, "{kind}, time {again}");
                let shown = (found.mtime(), found.mtime_nsec());
                assert_eq!(shown, *modified, "{kind}, time {again}");
            }
        }
        world.remount();
    }
}
