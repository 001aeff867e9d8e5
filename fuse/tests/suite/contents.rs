//! Content that is written, truncated, mapped and read back.

use super::pattern;
use crate::common::MountedVolume;
use rustix::fs::SeekFrom;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

#[test]
fn holes_are_zeros() {
    let mut world = MountedVolume::new();
    let file = File::create(world.path("sparse")).unwrap();
    file.write_all_at(b"begin", 0).unwrap();
    file.write_all_at(b"end", 50 << 20).unwrap();
    drop(file);
    let size = (50 << 20) + 3;
    for _ in 0..2 {
        let found = fs::read(world.path("sparse")).unwrap();
        assert_eq!(found.len(), size);
        assert!(&found[..5] == b"begin" && &found[size - 3..] == b"end");
        assert!(found[5..50 << 20].iter().all(|byte| *byte == 0));
        world.remount();
    }
    let blocks = fs::metadata(world.path("sparse")).unwrap().blocks();
    assert!(blocks < 1000, "a hole takes no space, not {blocks} blocks");
}

#[test]
fn what_stat_says_a_file_takes_agrees_with_where_it_has_content() {
    let mut world = MountedVolume::new();
    let lengths = [1_usize, 511, 512, 700, 1024, 1025, 5000, 300_000];
    let path = |world: &MountedVolume, length: usize| world.path(&format!("f{length}"));
    for length in lengths {
        fs::write(path(&world, length), pattern(length, 3)).unwrap();
    }
    // Pending, committed, and as another mount sees it: `tar -S` takes fewer blocks for holes.
    for _ in 0..2 {
        for length in lengths {
            let file = File::open(path(&world, length)).unwrap();
            let (found, length) = (file.metadata().unwrap(), length as u64);
            assert!(
                found.blocks() * 512 >= length,
                "{length}: {}",
                found.blocks()
            );
            assert!(
                found.blocks() * 512 < length + 4096,
                "{length}: {}",
                found.blocks()
            );
            assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(0)), Ok(0));
            assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)), Ok(length));
        }
        world.remount();
    }
    let sparse = File::create(world.path("sparse")).unwrap();
    sparse.write_all_at(b"one", 64 << 20).unwrap();
    let blocks = sparse.metadata().unwrap().blocks();
    assert!(
        (1..8192).contains(&blocks),
        "pending data counts, and holes do not: {blocks}"
    );
}

#[test]
fn a_file_is_cut_and_extended() {
    let mut world = MountedVolume::new();
    for length in [500_usize, 100_000] {
        let path = world.path(&format!("f{length}"));
        fs::write(&path, pattern(length, 7)).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(length as u64 / 2).unwrap();
        file.set_len(length as u64 * 2).unwrap();
        file.write_all_at(b"x", length as u64 * 2 - 1).unwrap();
    }
    for _ in 0..2 {
        for length in [500_usize, 100_000] {
            let found = fs::read(world.path(&format!("f{length}"))).unwrap();
            assert_eq!(found.len(), length * 2);
            assert!(found[..length / 2] == pattern(length, 7)[..length / 2]);
            assert!(
                found[length / 2..length * 2 - 1]
                    .iter()
                    .all(|byte| *byte == 0)
            );
            assert_eq!(found[length * 2 - 1], b'x');
        }
        world.remount();
    }
}

#[test]
fn appends_follow_each_other() {
    let mut world = MountedVolume::new();
    for round in 0..20 {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(world.path("log"))
            .unwrap();
        for line in 0..10 {
            writeln!(file, "round {round} line {line} {}", "x".repeat(40)).unwrap();
        }
    }
    world.remount();
    let log = fs::read_to_string(world.path("log")).unwrap();
    let expected: String = (0..200)
        .map(|at| format!("round {} line {} {}\n", at / 10, at % 10, "x".repeat(40)))
        .collect();
    assert!(log == expected);
}

#[test]
fn a_read_sees_the_last_write() {
    let world = MountedVolume::new();
    let writer = File::create(world.path("shared")).unwrap();
    let reader = File::open(world.path("shared")).unwrap();
    for number in 0..200_u64 {
        writer
            .write_all_at(&number.to_be_bytes(), number % 7 * 8)
            .unwrap();
        let mut found = [0; 8];
        reader.read_exact_at(&mut found, number % 7 * 8).unwrap();
        assert_eq!(u64::from_be_bytes(found), number);
    }
    assert_eq!(reader.metadata().unwrap().len(), 56);
}

#[test]
fn a_mapped_file_reads_and_writes() {
    let mut world = MountedVolume::new();
    fs::write(world.path("mapped"), pattern(100_000, 9)).unwrap();
    let program = "import mmap,sys\n\
        f=open('mapped','r+b'); m=mmap.mmap(f.fileno(),0)\n\
        assert len(m)==100000; m[50000:50005]=b'hello'; m.flush(); m.close(); f.close()\n";
    world.run("python3", &["-c", program]);
    world.remount();
    let mut expected = pattern(100_000, 9);
    expected[50_000..50_005].copy_from_slice(b"hello");
    assert!(fs::read(world.path("mapped")).unwrap() == expected);
}

#[test]
fn what_is_written_is_committed_without_being_asked() {
    let world = MountedVolume::new();
    let mut file = File::create(world.path("log")).unwrap();
    file.write_all(&pattern(5000, 1)).unwrap();
    let file_system = world.file_system.as_ref().unwrap();
    assert_eq!(file_system.status().dirty_files, 1);
    let patience = Instant::now() + Duration::from_secs(20);
    while file_system.status().dirty_files > 0 {
        assert!(Instant::now() < patience, "{file_system:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_huge_file_is_sparse_and_no_file_goes_beyond_the_last_offset() {
    let mut world = MountedVolume::new();
    let file = File::create(world.path("huge")).unwrap();
    let size = 16 << 40;
    file.set_len(size).unwrap();
    file.write_all_at(b"middle", size / 2).unwrap();
    file.write_all_at(b"end", size - 3).unwrap();
    let last = File::create(world.path("last")).unwrap();
    let most = i64::MAX as u64;
    last.write_all_at(b"x", most - 5000).unwrap();
    let refused = last.write_all_at(b"x", most).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(22), "EINVAL, as Linux has it");
    last.set_len(most).unwrap();
    drop((file, last));
    world.remount();
    let file = File::open(world.path("huge")).unwrap();
    let found = file.metadata().unwrap();
    assert!(found.len() == size && found.blocks() < 1000, "{found:?}");
    let read = |file: &File, at, length| {
        let mut bytes = vec![1; length];
        file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    };
    assert_eq!(read(&file, size - 3, 3), b"end");
    assert_eq!(read(&file, size / 2 - 2, 10), b"\0\0middle\0\0");
    assert_eq!(read(&file, size / 3, 5), [0; 5]);
    let last = File::open(world.path("last")).unwrap();
    assert_eq!(last.metadata().unwrap().len(), most);
    assert_eq!(read(&last, most - 5001, 3), b"\0x\0");
}

#[test]
fn direct_io_goes_around_the_kernels_pages() {
    use std::os::unix::fs::OpenOptionsExt;
    const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut world = MountedVolume::new();
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(O_DIRECT);
    let direct = options.create_new(true).open(world.path("f")).unwrap();
    let mut expected = pattern(3 << 20, 11);
    direct.write_all_at(&expected, 0).unwrap();
    let paged = OpenOptions::new()
        .read(true)
        .write(true)
        .open(world.path("f"));
    let paged = paged.unwrap();
    let read = |file: &File| {
        let mut bytes = vec![0; 3 << 20];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    assert!(read(&paged) == expected);
    direct.write_all_at(b"direct", 1_000_001).unwrap();
    expected[1_000_001..1_000_007].copy_from_slice(b"direct");
    assert!(
        read(&paged) == expected,
        "pages that are written around are read anew"
    );
    paged.write_all_at(b"paged", 2_000_003).unwrap();
    expected[2_000_003..2_000_008].copy_from_slice(b"paged");
    assert!(read(&direct) == expected);
    drop((direct, paged));
    world.remount();
    assert!(fs::read(world.path("f")).unwrap() == expected);
}

#[test]
fn what_a_file_shows_once_it_is_written_stays_when_it_is_committed() {
    // git compares what it saw of a file before closing it with what it sees later.
    let mut world = MountedVolume::new();
    let times = |found: std::io::Result<fs::Metadata>| {
        let found = found.unwrap();
        let (modified, changed) = (found.mtime_nsec(), found.ctime_nsec());
        (found.mtime(), modified, found.ctime(), changed)
    };
    for (name, length) in [("inline", 100), ("slices", 200_000), ("group", 9_000_000)] {
        let path = world.path(name);
        let mut file = File::create(&path).unwrap();
        let made = times(file.metadata());
        std::thread::sleep(Duration::from_millis(20));
        file.write_all(&pattern(length, 3)).unwrap();
        let written = times(file.metadata());
        assert!((written.2, written.3) > (made.2, made.3), "{name}");
        std::thread::sleep(Duration::from_millis(20));
        file.sync_all().unwrap();
        assert_eq!(times(file.metadata()), written, "{name}: synced");
        drop(file);
        assert_eq!(times(fs::metadata(&path)), written, "{name}: closed");
    }
    let before = ["inline", "slices", "group"].map(|name| times(fs::metadata(world.path(name))));
    world.remount();
    let after = ["inline", "slices", "group"].map(|name| times(fs::metadata(world.path(name))));
    assert_eq!(after, before);
}

#[test]
fn a_write_that_is_to_be_synced_returns_once_it_is_committed() {
    use std::os::unix::fs::OpenOptionsExt;
    const DSYNC: i32 = 0o10_000;
    const SYNC: i32 = 0o4_010_000;
    const DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;
    let world = MountedVolume::new();
    let waiting = || world.file_system.as_ref().unwrap().status().dirty_bytes;
    for (number, length) in [100, 5000, 3 << 20].into_iter().enumerate() {
        for flags in [DSYNC, SYNC, SYNC | DIRECT] {
            let path = world.path(&format!("f{number}-{flags:o}"));
            let mut options = OpenOptions::new();
            options.write(true).create_new(true);
            let later = options.open(&path).unwrap();
            later.write_all_at(&pattern(length, 1), 0).unwrap();
            assert!(waiting() > 0, "no flush was requested yet");
            drop(later);
            options.create_new(false).custom_flags(flags);
            let at_once = options.open(&path).unwrap();
            for turn in 0..3 {
                at_once.write_all_at(&pattern(length, turn), turn).unwrap();
                assert_eq!(waiting(), 0, "{flags:o}, {length} bytes, turn {turn}");
            }
        }
    }
}
