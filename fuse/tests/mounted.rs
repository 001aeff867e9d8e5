//! What applications see of a mounted volume: POSIX through the kernel, to four directories and back.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod common;

use common::World;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::process::Command;
use std::time::{Duration, Instant};

/// Bytes that look like nothing else.
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

#[test]
fn a_file_closed_is_there_after_a_restart() {
    let mut world = World::new();
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
    let mut world = World::new();
    fs::create_dir_all(world.path("a/b/c")).unwrap();
    for number in 0..50 {
        fs::write(world.path(&format!("a/b/f{number}")), format!("{number}")).unwrap();
    }
    symlink("b/f1", world.path("a/link")).unwrap();
    let list =
        |world: &World| world.run("sh", &["-c", "ls -lRi --time-style=full-iso a; cat a/link"]);
    let before = list(&world);
    world.remount();
    assert_eq!(list(&world), before);
}

#[test]
fn a_rename_carries_its_content() {
    let mut world = World::new();
    fs::write(world.path("config"), "old").unwrap();
    let mut file = File::create(world.path("config.new")).unwrap();
    file.write_all(&pattern(5000, 1)).unwrap();
    // Not closed, not synced: the rename commits what it carries.
    fs::rename(world.path("config.new"), world.path("config")).unwrap();
    world.crash();
    drop(file);
    world.mount();
    assert!(fs::read(world.path("config")).unwrap() == pattern(5000, 1));
}

#[test]
fn names_are_bytes() {
    let world = World::new();
    let names: [&[u8]; 4] = [b"plain", "ümläut ☃".as_bytes(), b"\xff\xfe", &[b'x'; 255]];
    for name in names {
        let path = world.path("").join(std::ffi::OsStr::from_bytes(name));
        fs::write(&path, name).unwrap();
        assert_eq!(fs::read(&path).unwrap(), name);
    }
    let mut found: Vec<_> = fs::read_dir(world.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    found.sort();
    assert_eq!(found.len(), names.len());
    assert!(
        names
            .iter()
            .all(|name| found.iter().any(|found| found.as_bytes() == *name))
    );
    let long = world.path(&"x".repeat(256));
    assert_eq!(
        fs::write(long, "").unwrap_err().raw_os_error(),
        Some(36),
        "ENAMETOOLONG"
    );
}

#[test]
fn renames_replace_refuse_and_exchange() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let world = World::new();
    fs::write(world.path("a"), "a").unwrap();
    fs::write(world.path("b"), "b").unwrap();
    let rename = |flags| renameat_with(CWD, world.path("a"), CWD, world.path("b"), flags);
    assert_eq!(
        rename(RenameFlags::NOREPLACE),
        Err(rustix::io::Errno::EXIST)
    );
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read_to_string(world.path("a")).unwrap(), "b");
    assert_eq!(fs::read_to_string(world.path("b")).unwrap(), "a");
    rename(RenameFlags::empty()).unwrap();
    assert_eq!(fs::read_to_string(world.path("b")).unwrap(), "b");
    assert!(!world.path("a").exists());
    fs::create_dir_all(world.path("d/e")).unwrap();
    let error = fs::rename(world.path("d"), world.path("d/e/f")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(22), "EINVAL: below itself");
    let error = fs::rename(world.path("b"), world.path("d")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(21), "EISDIR");
    fs::rename(world.path("d/e"), world.path("e")).unwrap();
    assert_eq!(fs::metadata(world.path("d")).unwrap().nlink(), 2);
    assert!(fs::remove_dir(world.path("e")).is_ok());
}

#[test]
fn an_unlinked_file_lives_until_it_is_closed() {
    let world = World::new();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(world.path("temporary"))
        .unwrap();
    file.write_all(&pattern(10_000, 3)).unwrap();
    fs::remove_file(world.path("temporary")).unwrap();
    assert!(!world.path("temporary").exists());
    file.write_all(b"more").unwrap();
    file.sync_all().unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut found = Vec::new();
    file.read_to_end(&mut found).unwrap();
    assert!(found[..10_000] == pattern(10_000, 3) && &found[10_000..] == b"more");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    drop(file);
    fs::write(world.path("temporary"), "new").unwrap();
    assert_eq!(fs::read_to_string(world.path("temporary")).unwrap(), "new");
}

#[test]
fn hard_links_share_their_content() {
    let mut world = World::new();
    fs::write(world.path("one"), pattern(3000, 1)).unwrap();
    fs::hard_link(world.path("one"), world.path("two")).unwrap();
    let mut file = OpenOptions::new()
        .append(true)
        .open(world.path("two"))
        .unwrap();
    file.write_all(b"tail").unwrap();
    drop(file);
    assert_eq!(fs::metadata(world.path("one")).unwrap().len(), 3004);
    assert_eq!(fs::metadata(world.path("one")).unwrap().nlink(), 2);
    world.remount();
    fs::remove_file(world.path("one")).unwrap();
    let found = fs::read(world.path("two")).unwrap();
    assert!(found[..3000] == pattern(3000, 1) && &found[3000..] == b"tail");
    assert_eq!(fs::metadata(world.path("two")).unwrap().nlink(), 1);
    assert!(fs::hard_link(world.path(""), world.path("three")).is_err());
}

#[test]
fn symlinks_are_followed_and_read() {
    let mut world = World::new();
    fs::create_dir(world.path("d")).unwrap();
    fs::write(world.path("d/file"), "content").unwrap();
    symlink("d", world.path("to-directory")).unwrap();
    symlink("missing", world.path("dangling")).unwrap();
    let long = "x/".repeat(2000);
    symlink(&long, world.path("long")).unwrap();
    world.remount();
    assert_eq!(
        fs::read_to_string(world.path("to-directory/file")).unwrap(),
        "content"
    );
    assert_eq!(
        fs::read(world.path("dangling")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        fs::read_link(world.path("long"))
            .unwrap()
            .as_os_str()
            .as_bytes(),
        long.as_bytes()
    );
    assert_eq!(
        fs::symlink_metadata(world.path("long")).unwrap().len(),
        4000
    );
}

#[test]
fn holes_are_zeros() {
    let mut world = World::new();
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
fn a_file_is_cut_and_extended() {
    let mut world = World::new();
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
    let mut world = World::new();
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
    let world = World::new();
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
    let mut world = World::new();
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
fn listing_goes_on_while_entries_are_deleted() {
    let mut world = World::new();
    fs::create_dir(world.path("many")).unwrap();
    for number in 0..2000 {
        File::create(world.path(&format!("many/{number}"))).unwrap();
    }
    world.remount();
    let count = || fs::read_dir(world.path("many")).unwrap().count();
    assert_eq!(count(), 2000);
    let mut seen = std::collections::BTreeSet::new();
    for (at, entry) in fs::read_dir(world.path("many")).unwrap().enumerate() {
        let entry = entry.unwrap();
        assert!(
            seen.insert(entry.file_name()),
            "{:?} twice",
            entry.file_name()
        );
        if at % 2 == 0 {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    assert_eq!(seen.len(), 2000, "nothing is missed");
    assert_eq!(count(), 1000);
    world.run("rm", &["-r", "many"]);
    assert!(!world.path("many").exists());
}

#[test]
fn permissions_are_enforced_for_other_users() {
    let world = World::new();
    fs::set_permissions(world.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(world.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(world.path("secret"), "secret").unwrap();
    fs::set_permissions(world.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(world.path("team"), "team").unwrap();
    std::os::unix::fs::chown(world.path("team"), Some(0), Some(4321)).unwrap();
    fs::set_permissions(world.path("team"), fs::Permissions::from_mode(0o640)).unwrap();
    let as_user = |groups: &str, script: &str| {
        let output = Command::new("setpriv")
            .args(["--reuid=1234", "--regid=1234", groups, "sh", "-c", script])
            .current_dir(world.path(""))
            .output()
            .unwrap();
        output.status.success()
    };
    assert!(!as_user("--clear-groups", "cat secret"));
    assert!(!as_user("--clear-groups", "cat team"));
    assert!(as_user("--groups=4321", "cat team"));
    assert!(!as_user("--groups=4321", "echo x >> team"));
    assert!(!as_user("--clear-groups", "chmod 644 secret"));
    assert!(as_user(
        "--clear-groups",
        "echo mine > mine && chmod 600 mine && rm mine"
    ));
    fs::create_dir(world.path("sticky")).unwrap();
    fs::set_permissions(world.path("sticky"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(world.path("sticky/roots"), "").unwrap();
    assert!(!as_user("--clear-groups", "rm -f sticky/roots"));
}

#[test]
fn a_read_only_file_is_written_by_who_created_it() {
    let world = World::new();
    fs::set_permissions(world.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(world.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = "use Fcntl; sysopen(my $f, 'object', O_CREAT|O_EXCL|O_WRONLY, 0444) or die;\
        syswrite($f, 'x' x 5000) == 5000 or die; truncate($f, 4000) or die; close($f) or die";
    let output = Command::new("setpriv")
        .args([
            "--reuid=1234",
            "--regid=1234",
            "--clear-groups",
            "perl",
            "-e",
            program,
        ])
        .current_dir(world.path(""))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let found = fs::metadata(world.path("object")).unwrap();
    assert_eq!(
        (found.len(), found.mode() & 0o777, found.uid()),
        (4000, 0o444, 1234)
    );
}

#[test]
fn a_mode_set_on_an_open_file_rides_with_its_commit() {
    let mut world = World::new();
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(world.path("file"))
        .unwrap();
    file.write_all_at(b"content", 0).unwrap();
    let (before, _) = world.embedded.counters();
    file.set_permissions(fs::Permissions::from_mode(0o755))
        .unwrap();
    file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000))
        .unwrap();
    assert_eq!(
        world.embedded.counters().0,
        before,
        "nothing is ordered yet"
    );
    assert_eq!(
        file.metadata().unwrap().mode() & 0o777,
        0o755,
        "and everybody sees it"
    );
    drop(file);
    assert_eq!(world.embedded.counters().0, before + 1);
    world.remount();
    let found = fs::metadata(world.path("file")).unwrap();
    assert_eq!((found.mode() & 0o777, found.mtime()), (0o755, 1_000_000));
}

#[test]
fn special_files_can_be_made() {
    let world = World::new();
    world.run("mkfifo", &["pipe"]);
    let said = world.run("sh", &["-c", "echo through > pipe & cat pipe"]);
    assert_eq!(said, "through\n");
    let _socket = std::os::unix::net::UnixListener::bind(world.path("socket")).unwrap();
    world.run("mknod", &["null", "c", "1", "3"]);
    assert_eq!(fs::metadata(world.path("null")).unwrap().rdev(), 259);
}

#[test]
fn statfs_shows_use() {
    let world = World::new();
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
fn what_is_written_is_committed_without_being_asked() {
    let world = World::new();
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
fn a_fenced_mount_answers_stale() {
    let mut world = World::new();
    let mut file = File::create(world.path("file")).unwrap();
    file.write_all(b"content").unwrap();
    let first = (
        world.mounted.take().unwrap(),
        world.file_system.take().unwrap(),
    );
    // Another gateway elsewhere takes the realm over.
    let place = world.directory.path().join("elsewhere");
    world.mount_at(&place);
    // The background commit may have met the fence already; the answer is the same.
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
    let mut world = World::new();
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
    let world = World::new();
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
    let seconds = started.elapsed().as_secs_f64();
    let after = world.embedded.counters();
    let operations = (after.0 - before.0) as f64 / 300.0;
    let queries = (after.1 - before.1) as f64 / 300.0;
    println!(
        "a file: {operations} operations, {queries} queries; {:.0} files/s",
        300.0 / seconds
    );
    // Create and commit; confirmations of further shards come in bulk.
    assert!(operations <= 2.5, "{operations} operations a file");
    assert!(queries <= 0.2, "{queries} queries a file");
}

#[test]
fn git_works_inside() {
    let mut world = World::new();
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
