//! The highest offset, and requests for no bytes.

use super::pattern;
use crate::common::MountedVolume;
use rustix::fs::{FallocateFlags, copy_file_range, fallocate, ftruncate};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// The most bytes that a file has.
const MOST: u64 = i64::MAX as u64;
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE;
const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).unwrap()
}

fn length(file: &File) -> u64 {
    file.metadata().unwrap().len()
}

fn errno<T: std::fmt::Debug>(outcome: std::io::Result<T>) -> Errno {
    Errno::from_io_error(&outcome.unwrap_err()).unwrap()
}

#[test]
fn ranges_that_reach_beyond_the_last_offset_are_refused_as_everywhere_on_linux() {
    let mut world = MountedVolume::new();
    let content = pattern(100_000, 1);
    for (number, flags) in [FallocateFlags::empty(), KEEP, PUNCH, ZERO, ZERO | KEEP]
        .into_iter()
        .enumerate()
    {
        let path = world.path(&format!("f{number}"));
        fs::write(&path, &content).unwrap();
        let file = open(&path);
        for (from, length) in [(MOST - 5, 10), (MOST, 1), (1, MOST)] {
            let refused = fallocate(&file, flags, from, length);
            assert_eq!(refused, Err(Errno::FBIG), "{flags:?} {from} {length}");
        }
        for (from, length) in [(0, 0), (50, 0), (MOST + 1, 10), (0, MOST + 1)] {
            let refused = fallocate(&file, flags, from, length);
            assert_eq!(refused, Err(Errno::INVAL), "{flags:?} {from} {length}");
        }
        assert_eq!(length(&file), 100_000);
        assert!(fs::read(&path).unwrap() == content);
        // The very last bytes are as good as any.
        fallocate(&file, flags, MOST - 10, 10).unwrap();
        let grows = flags.is_empty() || flags == ZERO;
        let expected = if grows { MOST } else { 100_000 };
        assert_eq!(length(&file), expected, "{flags:?}");
        drop(file);
        world.remount();
        let file = open(&path);
        assert_eq!(length(&file), expected, "{flags:?}");
        let mut found = vec![0; content.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == content, "{flags:?}");
    }
    let file = open(&world.path("f0"));
    fallocate(&file, PUNCH, 10, MOST - 10).unwrap();
    let mut found = [1; 20];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found[..10] == content[..10] && found[10..] == [0; 10]);
    fallocate(&file, ZERO, 0, MOST).unwrap();
    assert_eq!(
        (length(&file), file.metadata().unwrap().blocks()),
        (MOST, 0)
    );
}

#[test]
fn reads_and_writes_go_to_the_last_byte_and_not_beyond() {
    let mut world = MountedVolume::new();
    let path = world.path("file");
    let file = open(&path);
    file.set_len(MOST).unwrap();
    assert_eq!(ftruncate(&file, MOST + 1), Err(Errno::INVAL));
    let mut bytes = [1; 10];
    for (from, to) in [(MOST - 5, 10), (MOST, 1)] {
        assert_eq!(errno(file.write_at(&bytes[..to], from)), Errno::INVAL);
        assert_eq!(errno(file.read_at(&mut bytes[..to], from)), Errno::INVAL);
    }
    assert_eq!(file.write_at(b"", MOST).unwrap(), 0);
    assert_eq!(file.read_at(&mut [], MOST).unwrap(), 0);
    assert_eq!(file.write_at(b"01234", MOST - 5).unwrap(), 5);
    // A page away, and in another chunk.
    assert_eq!(file.write_at(b"56789", MOST - 5000).unwrap(), 5);
    assert_eq!(file.write_at(b"abcde", MOST - (9 << 20)).unwrap(), 5);
    let append = || OpenOptions::new().append(true).open(&path);
    assert_eq!(errno(append().unwrap().write(b"x")), Errno::FBIG);
    drop(file);
    world.remount();
    let file = open(&path);
    assert_eq!(length(&file), MOST);
    for (expected, before) in [(b"01234", 5), (b"56789", 5000), (b"abcde", 9 << 20)] {
        let mut found = [0; 5];
        file.read_exact_at(&mut found, MOST - before).unwrap();
        assert_eq!(&found, expected);
    }
    file.set_len(MOST - 2).unwrap();
    let written = append().unwrap().write(b"vwxyz").unwrap();
    assert_eq!(written, 2, "as much as fits");
    assert_eq!(errno(append().unwrap().write(b"xyz")), Errno::FBIG);
    drop(file);
    world.remount();
    let mut found = [0; 5];
    let file = open(&path);
    file.read_exact_at(&mut found, MOST - 5).unwrap();
    assert_eq!((length(&file), &found), (MOST, b"012vw"));
}

#[test]
fn a_copied_range_ends_at_the_last_offset() {
    let mut world = MountedVolume::new();
    let content = pattern(200_000, 2);
    fs::write(world.path("source"), &content).unwrap();
    let (source, target) = (open(&world.path("source")), open(&world.path("target")));
    let copy = |mut from: u64, mut to: u64, length: usize| {
        copy_file_range(&source, Some(&mut from), &target, Some(&mut to), length)
    };
    assert_eq!(copy(0, MOST, 1), Err(Errno::FBIG));
    assert_eq!(copy(0, MOST + 1, 1), Err(Errno::INVAL));
    assert_eq!(copy(MOST - 5, 0, 10), Ok(0), "nothing is there");
    assert_eq!(copy(MOST, 0, 1), Ok(0));
    assert_eq!(copy(0, 0, 0), Ok(0));
    assert_eq!(length(&target), 0);
    assert_eq!(copy(0, MOST - 100_000, 150_000), Ok(100_000));
    assert_eq!(copy(7, MOST - 5, 10), Ok(5));
    drop((source, target));
    world.remount();
    let target = open(&world.path("target"));
    assert_eq!(length(&target), MOST);
    let mut found = vec![0; 100_000];
    target.read_exact_at(&mut found, MOST - 100_000).unwrap();
    assert!(found[..99_995] == content[..99_995] && found[99_995..] == content[7..12]);
}

#[test]
fn who_reads_or_writes_nothing_changes_nothing() {
    let world = MountedVolume::new();
    for length in [0, 100, 100_000] {
        let path = world.path(&format!("f{length}"));
        let content = pattern(length, 3);
        fs::write(&path, &content).unwrap();
        let shown = || {
            let found = fs::metadata(&path).unwrap();
            let (modified, changed) = (found.mtime_nsec(), found.ctime_nsec());
            (found.len(), found.mtime(), modified, found.ctime(), changed)
        };
        let before = shown();
        let file = open(&path);
        for at in [0, 50, 1 << 20] {
            assert_eq!(file.read_at(&mut [], at).unwrap(), 0);
            assert_eq!(file.write_at(b"", at).unwrap(), 0);
        }
        let mut append = OpenOptions::new().append(true).open(&path).unwrap();
        assert_eq!(append.write(b"").unwrap(), 0);
        file.sync_all().unwrap();
        drop((file, append));
        assert_eq!(shown(), before);
        assert!(fs::read(&path).unwrap() == content);
    }
}
