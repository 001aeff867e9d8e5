//! Extents of files: holes, reservations, copies that move no bytes.

use super::pattern;
use crate::common::MountedVolume;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn open(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap()
}

/// Runs of data, found the way `cp` and `tar` find them.
fn data(file: &File) -> Vec<(u64, u64)> {
    let (mut runs, mut at) = (Vec::new(), 0);
    while let Ok(start) = seek(file, SeekFrom::Data(at)) {
        let end = seek(file, SeekFrom::Hole(start)).unwrap();
        runs.push((start, end));
        at = end;
    }
    runs
}

#[test]
fn a_reservation_moves_the_end_and_takes_no_space() {
    let mut world = MountedVolume::new();
    let file = open(&world.path("reserved"));
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 8 * MIB).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 0);
    fallocate(&file, FallocateFlags::empty(), MIB, 8 * MIB).unwrap();
    file.write_all_at(b"written", 2 * MIB).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 4 * MIB).unwrap();
    drop(file);
    world.remount();
    let file = open(&world.path("reserved"));
    let found = file.metadata().unwrap();
    assert_eq!(found.len(), 9 * MIB, "it never gets shorter");
    assert!(found.blocks() < 100, "not {} blocks", found.blocks());
    let mut bytes = fs::read(world.path("reserved")).unwrap();
    assert_eq!(bytes.drain(2 << 20..(2 << 20) + 7).as_slice(), b"written");
    assert!(bytes.iter().all(|byte| *byte == 0));
    for flags in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        let refused = fallocate(&file, flags, 0, MIB);
        assert_eq!(refused, Err(Errno::OPNOTSUPP));
    }
}

#[test]
fn a_reservation_that_changes_nothing_moves_mtime_all_the_same() {
    let mut world = MountedVolume::new();
    for length in [0, 500, 100_000] {
        let path = world.path(&format!("reserved{length}"));
        fs::write(&path, pattern(length, 3)).unwrap();
        let file = open(&path);
        let before = file.metadata().unwrap().modified().unwrap();
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, MIB).unwrap();
        let after = file.metadata().unwrap().modified().unwrap();
        assert!(after > before, "{length} bytes");
        drop(file);
        world.remount();
        let kept = fs::metadata(&path).unwrap();
        assert_eq!(kept.modified().unwrap(), after);
        assert_eq!(kept.len(), length as u64);
    }
}

#[test]
fn a_punched_hole_reads_as_zeros_and_gives_its_space_back() {
    let mut world = MountedVolume::new();
    for length in [500, 100_000, 12 << 20] {
        let path = world.path(&format!("punched{length}"));
        let mut expected = pattern(length, 3);
        fs::write(&path, &expected).unwrap();
        let file = open(&path);
        // Pending data, within the hole and next to it.
        file.write_all_at(b"dirty", length as u64 / 2).unwrap();
        file.write_all_at(b"dirty", 0).unwrap();
        expected[..5].copy_from_slice(b"dirty");
        let (from, to) = (length / 3, length - length / 5);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, flags, from as u64, (to - from) as u64).unwrap();
        expected[from..to].fill(0);
        // Beyond the end there is nothing to punch.
        fallocate(&file, flags, length as u64 + 5, MIB).unwrap();
        assert!(fs::read(&path).unwrap() == expected, "{length} before");
        drop(file);
        world.remount();
        assert!(fs::read(&path).unwrap() == expected, "{length} after");
        let blocks = fs::metadata(&path).unwrap().blocks() * 512;
        if length > 1024 {
            let left = (length - (to - from)) as u64;
            assert!(blocks.abs_diff(left) < 1024, "{blocks} of {left} bytes");
        }
    }
}

#[test]
fn zeroing_a_range_lets_the_file_grow_unless_told_not_to() {
    let world = MountedVolume::new();
    let file = open(&world.path("zeroed"));
    file.write_all_at(&pattern(100_000, 4), 0).unwrap();
    let keep = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, keep, 90_000, 50_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 100_000);
    fallocate(&file, FallocateFlags::ZERO_RANGE, 50_000, 100_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 150_000);
    let found = fs::read(world.path("zeroed")).unwrap();
    assert!(found[..50_000] == pattern(100_000, 4)[..50_000]);
    assert!(found[50_000..].iter().all(|byte| *byte == 0));
}

#[test]
fn data_and_holes_are_found_where_they_are() {
    let mut world = MountedVolume::new();
    let file = open(&world.path("sparse"));
    file.write_all_at(&pattern(1 << 20, 5), 3 * MIB).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(&pattern(4096, 6), 9 * MIB).unwrap();
    file.set_len(20 * MIB).unwrap();
    file.write_all_at(&pattern(4096, 7), 4 * MIB).unwrap();
    let runs = [(3 * MIB, 4 * MIB + 4096), (9 * MIB, 9 * MIB + 4096)];
    assert_eq!(data(&file), runs, "committed and pending");
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(0));
    assert_eq!(seek(&file, SeekFrom::Hole(10 * MIB)), Ok(10 * MIB));
    assert_eq!(seek(&file, SeekFrom::Data(10 * MIB)), Err(Errno::NXIO));
    assert_eq!(seek(&file, SeekFrom::Hole(20 * MIB)), Err(Errno::NXIO));
    drop(file);
    world.remount();
    let file = open(&world.path("sparse"));
    assert_eq!(data(&file), runs, "committed");
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, flags, 3 * MIB + 1000, 5000).unwrap();
    let (first, second) = (3 * MIB + 1000, 3 * MIB + 6000);
    assert_eq!(
        data(&file),
        [(3 * MIB, first), (second, runs[0].1), runs[1]],
        "a hole need not be aligned"
    );
}

#[test]
fn a_tiny_file_has_its_data_where_it_was_written() {
    let mut world = MountedVolume::new();
    let files = [("before", 130), ("after", 0)].map(|(name, at)| {
        let file = open(&world.path(name));
        file.write_all_at(b"x", at).unwrap();
        file.sync_all().unwrap();
        file.set_len(4000).unwrap();
        assert_eq!(data(&file), [(at, at + 1)], "{name}");
        file.sync_all().unwrap();
        assert_eq!(data(&file), [(at, at + 1)], "{name}, committed");
        (name, at)
    });
    world.remount();
    for (name, at) in files {
        let file = open(&world.path(name));
        assert_eq!(data(&file), [(at, at + 1)], "{name}, from the servers");
        let mut bytes = vec![1; 4000];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let mut expected = vec![0; 4000];
        expected[at as usize] = b'x';
        assert!(bytes == expected, "{name}");
        // What is written next to it joins it, and what is written apart does not.
        file.write_all_at(b"y", at + 1).unwrap();
        file.write_all_at(b"z", 900).unwrap();
        file.sync_all().unwrap();
        assert_eq!(data(&file), [(at, at + 2), (900, 901)], "{name}");
    }
}

fn copy(from: (&File, u64), to: (&File, u64), length: usize) -> rustix::io::Result<usize> {
    let (mut source, mut target) = (from.1, to.1);
    rustix::fs::copy_file_range(from.0, Some(&mut source), to.0, Some(&mut target), length)
}

#[test]
fn a_copied_range_moves_no_bytes_and_is_a_files_own() {
    let mut world = MountedVolume::new();
    let (length, odd) = (10_000_000_usize, 12_345_usize);
    let bytes = pattern(length, 8);
    fs::write(world.path("source"), &bytes).unwrap();
    let (source, target) = (open(&world.path("source")), open(&world.path("target")));
    target.write_all_at(&pattern(50_000, 9), 0).unwrap();
    target.sync_all().unwrap();
    let objects = || {
        let clouds = world.directory.path().join("clouds");
        let found = std::process::Command::new("find")
            .args([clouds.to_str().unwrap(), "-type", "f"])
            .output();
        String::from_utf8(found.unwrap().stdout)
            .unwrap()
            .lines()
            .count()
    };
    let before = objects();
    // Data of the source that is not committed yet is copied along.
    source.write_all_at(b"late", 4_000_000).unwrap();
    let copied = copy((&source, odd as u64), (&target, 777), length - odd);
    assert_eq!(copied, Ok(length - odd));
    // The last shards of the earlier writes may still arrive: four of them, and four of the late
    // one.
    assert!(
        objects() - before <= 8,
        "moving the bytes would take twelve"
    );
    let mut expected = bytes.clone();
    expected[4_000_000..4_000_004].copy_from_slice(b"late");
    let mut there = pattern(50_000, 9)[..777].to_vec();
    there.extend_from_slice(&expected[odd..]);
    assert!(fs::read(world.path("target")).unwrap() == there);
    // From here on they are independent.
    source.write_all_at(&[1; 100_000], 500_000).unwrap();
    target.write_all_at(&[2; 100_000], 3_000_000).unwrap();
    expected[500_000..600_000].fill(1);
    there[3_000_000..3_100_000].fill(2);
    drop((source, target));
    world.remount();
    assert!(fs::read(world.path("source")).unwrap() == expected);
    assert!(fs::read(world.path("target")).unwrap() == there);
    fs::remove_file(world.path("source")).unwrap();
    world.remount();
    assert!(fs::read(world.path("target")).unwrap() == there);
}

#[test]
fn a_copy_within_a_file_and_of_tiny_files_is_right_too() {
    let mut world = MountedVolume::new();
    let file = open(&world.path("within"));
    let mut bytes = pattern(300_000, 10);
    file.write_all_at(&bytes, 0).unwrap();
    assert_eq!(copy((&file, 1000), (&file, 250_000), 100_000), Ok(100_000));
    bytes.resize(350_000, 0);
    bytes.copy_within(1000..101_000, 250_000);
    assert_eq!(copy((&file, 0), (&file, 5000), 10_000), Err(Errno::INVAL));
    assert_eq!(copy((&file, 350_000), (&file, 400_000), 10), Ok(0));
    fs::write(world.path("tiny"), b"tiny").unwrap();
    let tiny = open(&world.path("tiny"));
    assert_eq!(copy((&tiny, 1), (&file, 0), 100), Ok(3));
    bytes[..3].copy_from_slice(b"iny");
    assert_eq!(copy((&file, 100), (&tiny, 2), 5), Ok(5));
    drop((file, tiny));
    world.remount();
    assert!(fs::read(world.path("within")).unwrap() == bytes);
    let tiny = fs::read(world.path("tiny")).unwrap();
    assert!(tiny[..2] == *b"ti" && tiny[2..] == bytes[100..105]);
}

#[test]
fn sixteen_tebibytes_with_holes_are_copied_cut_grown_and_punched_in_seconds() {
    const TIB: u64 = 1 << 40;
    let began = Instant::now();
    let mut world = MountedVolume::new();
    let huge = world.path("huge");
    let file = open(&huge);
    let pieces = [0, 8 * TIB + 12_345, 16 * TIB - 100_000];
    for (number, at) in (0_u64..).zip(pieces) {
        file.write_all_at(&pattern(100_000, number), at).unwrap();
    }
    let runs = pieces.map(|at| (at, at + 100_000));
    assert_eq!(data(&file), runs);
    drop(file);
    let copy = |how: &str, to: &str| {
        let (from, to) = (world.path("huge"), world.path(to));
        let paths = [from.to_str().unwrap(), to.to_str().unwrap()];
        world.run("cp", &[how, paths[0], paths[1]]);
    };
    copy("--sparse=auto", "cloned");
    // Without `copy_file_range`: it writes what it read, and looks for zeros.
    copy("--sparse=always", "written");
    world.remount();
    for name in ["huge", "cloned", "written"] {
        let file = open(&world.path(name));
        let found = file.metadata().unwrap();
        assert_eq!(found.len(), 16 * TIB, "{name}");
        assert!(found.blocks() < 2000, "{name}: {}", found.blocks());
        for (number, at) in (0_u64..).zip(pieces) {
            let mut bytes = vec![0; 100_000];
            file.read_exact_at(&mut bytes, at).unwrap();
            assert!(bytes == pattern(100_000, number), "{name} at {at}");
        }
    }
    let file = open(&huge);
    assert_eq!(data(&file), runs);
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, flags, 50_000, 12 * TIB).unwrap();
    assert_eq!(data(&file), [(0, 50_000), runs[2]]);
    file.set_len(TIB).unwrap();
    file.set_len(16 * TIB).unwrap();
    assert_eq!(data(&file), [(0, 50_000)], "truncated data stays away");
    let mut end = [1; 100];
    file.read_exact_at(&mut end, 16 * TIB - 100).unwrap();
    assert_eq!(end, [0; 100]);
    assert!(began.elapsed() < Duration::from_secs(60), "{began:?}");
}
