//! A mounted volume as applications see it: POSIX through the kernel, to four directories and back.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod acls;
mod asynchronous;
mod common;
mod contents;
mod extended;
mod extents;
mod handles;
mod locks;
mod mounting;
mod names;
mod offsets;
mod other_client;
mod permissions;
mod quota;
mod times;

use common::MountedVolume;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;
use std::time::{Duration, Instant};

/// Distinctive bytes.
fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// Waits until a condition holds, within a time limit.
fn soon(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(4), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_file_closed_is_there_after_a_restart() {
    let mut world = MountedVolume::new();
    for length in [0, 1, 1023, 1024, 1025, 65_535, 65_536, 300_000, 9 << 20] {
        fs::write(
            world.path(&format!("f{length}")),
            pattern(length, length as u64),
        )
        .unwrap();
    }
    for again in 0..2 {
        for length in [0, 1, 1023, 1024, 1025, 65_535, 65_536, 300_000, 9 << 20] {
            let found = fs::read(world.path(&format!("f{length}"))).unwrap();
            assert!(
                found == pattern(length, length as u64),
                "{length} bytes, time {again}"
            );
        }
        world.remount();
    }
}

#[test]
fn a_tree_looks_the_same_after_a_restart() {
    let mut world = MountedVolume::new();
    fs::create_dir_all(world.path("a/b/c")).unwrap();
    for number in 0..50 {
        fs::write(world.path(&format!("a/b/f{number}")), format!("{number}")).unwrap();
    }
    symlink("b/f1", world.path("a/link")).unwrap();
    let list = |world: &MountedVolume| {
        world.run("sh", &["-c", "ls -lRi --time-style=full-iso a; cat a/link"])
    };
    let before = list(&world);
    world.remount();
    assert_eq!(list(&world), before);
}

#[test]
fn statfs_shows_use() {
    let world = MountedVolume::new();
    let used = || -> u64 {
        world
            .run("df", &["-B1", "--output=used", "."])
            .lines()
            .nth(1)
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    };
    let before = used();
    fs::write(world.path("file"), pattern(1 << 20, 1)).unwrap();
    assert_eq!(used() - before, 1 << 20);
}

#[test]
fn statfs_shows_what_the_clouds_have_room_for() {
    const MIB: u64 = 1 << 20;
    let world = MountedVolume::with_clouds_of(24 * MIB);
    let free = || {
        let found = rustix::fs::statvfs(world.path("")).unwrap();
        assert_eq!(found.f_bfree, found.f_bavail);
        found.f_bavail * found.f_frsize
    };
    // Four of 24 MiB, of which any two must suffice to read.
    let room = free();
    assert!((46 * MIB..=48 * MIB).contains(&room), "{room}");
    let write = |number: u64| {
        let mut file = File::create(world.path(&format!("f{number}"))).unwrap();
        file.write_all(&pattern(MIB as usize, number))?;
        file.sync_all()
    };
    let mut written = 0;
    let error = loop {
        match write(written) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        let left = room.saturating_sub(written * MIB);
        // The last shards of a file come after its fsync; each has a header.
        assert!(free() <= left + 2 * MIB, "{} {left}", free());
        assert!(free() + 3 * MIB >= left, "{} {left}", free());
    };
    assert_eq!(error.raw_os_error(), Some(28), "ENOSPC");
    assert!(room < (written + 3) * MIB, "{room} {written}");
}

#[test]
fn reading_moves_the_time_of_access_and_not_ctime() {
    let mut world = MountedVolume::new();
    let path = world.path("file");
    fs::write(&path, "content").unwrap();
    let times = || {
        let found = fs::metadata(world.path("file")).unwrap();
        let atime = (found.atime(), found.atime_nsec());
        let mtime = (found.mtime(), found.mtime_nsec());
        (atime, mtime, (found.ctime(), found.ctime_nsec()))
    };
    let (before, mtime, ctime) = times();
    assert!(before <= mtime);
    assert_eq!(fs::read(&path).unwrap(), b"content");
    let (after, ..) = times();
    assert!(after > before && after > mtime && after > ctime);
    for _ in 0..2 {
        assert_eq!(fs::read(world.path("file")).unwrap(), b"content");
        let found = fs::metadata(world.path("file")).unwrap();
        assert_eq!((found.atime(), found.atime_nsec()), after, "once is enough");
        assert_eq!((found.mtime(), found.mtime_nsec()), mtime);
        assert_eq!((found.ctime(), found.ctime_nsec()), ctime);
        world.remount();
    }
}

#[test]
fn a_fenced_mount_answers_stale() {
    let mut world = MountedVolume::new();
    let mut file = File::create(world.path("file")).unwrap();
    file.write_all(b"content").unwrap();
    let first = (
        world.mounted.take().unwrap(),
        world.file_system.take().unwrap(),
    );
    // Another gateway elsewhere takes over the realm.
    let place = world.directory.path().join("elsewhere");
    world.mount_at(&place);
    // The background commit may have been refused already; the answer is the same.
    assert_eq!(
        file.sync_all().unwrap_err().raw_os_error(),
        Some(116),
        "ESTALE"
    );
    assert!(fs::File::create(world.path("other")).is_err());
    assert!(first.1.status().fenced);
    fs::write(place.join("file2"), "new").unwrap();
    drop(file);
    world.runtime.block_on(first.0.detach()).unwrap();
}

#[test]
fn a_tree_is_copied_and_removed_by_the_usual_tools() {
    let mut world = MountedVolume::new();
    let source = world.directory.path().join("source");
    for number in 0..100 {
        let directory = source
            .join(format!("d{}", number % 7))
            .join(format!("e{}", number % 3));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join(format!("f{number}"));
        fs::write(&path, pattern(number * number * 10, number as u64)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600 + number as u32 % 8)).unwrap();
    }
    symlink("d1/e1", source.join("link")).unwrap();
    world.run("cp", &["-a", source.to_str().unwrap(), "copy"]);
    world.remount();
    world.run(
        "diff",
        &["-r", "--no-dereference", source.to_str().unwrap(), "copy"],
    );
    let list = |place: &str| {
        let list = world.run("find", &[place, "-printf", "%P %y %m %T@ %U:%G %l\n"]);
        let mut lines: Vec<_> = list.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let (copied, original) = (list("copy"), list(source.to_str().unwrap()));
    assert_eq!(copied.len(), original.len());
    for (copied, original) in copied.iter().zip(&original) {
        assert_eq!(copied, original);
    }
    world.run("rm", &["-rf", "copy"]);
    assert_eq!(fs::read_dir(world.path("")).unwrap().count(), 0);
}

#[test]
fn a_copied_file_costs_two_ordered_operations() {
    let world = MountedVolume::new();
    let source = world.directory.path().join("source");
    fs::create_dir(&source).unwrap();
    for number in 0..300_u64 {
        let path = source.join(format!("f{number}"));
        fs::write(
            &path,
            pattern(usize::try_from(number * 40).unwrap(), number),
        )
        .unwrap();
    }
    let before = world.embedded.counters();
    let started = Instant::now();
    world.run("cp", &["-a", source.to_str().unwrap(), "copy"]);
    let elapsed = started.elapsed();
    let after = world.embedded.counters();
    let ordered = after.0 - before.0;
    let operations = ordered as f64 / 300.0;
    let queries = (after.1 - before.1) as f64 / 300.0;
    println!(
        "a file: {operations} operations, {queries} queries; {:.0} files/s",
        300.0 / elapsed.as_secs_f64()
    );
    // Create and commit. Confirmations of further shards come in bulk, one in 20 ms at the most, so
    // their number depends on how busy the machine is.
    let confirmations = elapsed.as_millis() as u64 / 20;
    let allowed = 630 + confirmations;
    assert!(ordered <= allowed, "{operations} operations a file");
    assert!(queries <= 0.2, "{queries} queries a file");
}

#[test]
fn git_works_inside() {
    let mut world = MountedVolume::new();
    let origin = world.directory.path().join("origin");
    fs::create_dir(&origin).unwrap();
    let git = |directory: &std::path::Path, arguments: &[&str]| {
        let output = Command::new("git")
            .args([
                "-c",
                "user.name=A",
                "-c",
                "user.email=a@b",
                "-c",
                "gc.auto=0",
            ])
            .args(["-c", "safe.directory=*"])
            .args(arguments)
            .current_dir(directory)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "git {arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    git(&origin, &["init", "-q", "-b", "main"]);
    for number in 0..40 {
        fs::write(
            origin.join(format!("file{number}")),
            pattern(number * 300, number as u64),
        )
        .unwrap();
        git(&origin, &["add", "."]);
        git(
            &origin,
            &["commit", "-q", "-m", &format!("Commit {number}")],
        );
    }
    git(
        &world.path(""),
        &[
            "clone",
            "-q",
            "--no-local",
            origin.to_str().unwrap(),
            "clone",
        ],
    );
    let clone = world.path("clone");
    assert_eq!(git(&clone, &["status", "--porcelain"]), "");
    fs::write(clone.join("new"), "new").unwrap();
    git(&clone, &["add", "new"]);
    git(&clone, &["commit", "-q", "-m", "New"]);
    git(&clone, &["gc", "-q"]);
    git(&clone, &["fsck", "--full"]);
    world.remount();
    assert_eq!(git(&clone, &["status", "--porcelain"]), "");
    assert_eq!(git(&clone, &["log", "--oneline"]).lines().count(), 41);
}
