//! `put` and `get`, compared with `cp -a` and rsync, over trees of other authors: no existing data
//! is lost, nothing is written outside the target, and no right is given away.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod failing;
mod proxy;

use quorumfs_tests::harness::{Cluster, Finished, mount_in_background};
use rustix::fs::{Timespec, Timestamps, UTIME_OMIT, XattrFlags};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const OTHER_USER: u32 = 65_534;

fn cluster() -> Cluster {
    let mut cluster = Cluster::prepare();
    cluster.start();
    cluster
}

fn put(cluster: &Cluster, options: &[&str], source: &Path, target: &str) -> Finished {
    let put = cluster.quorumfs().args(["put"]).args(options);
    put.args([source]).args([target]).run()
}

fn get(cluster: &Cluster, options: &[&str], source: &str, target: &Path) -> Finished {
    let get = cluster.quorumfs().args(["get"]).args(options);
    get.args([source]).args([target]).run()
}

#[track_caller]
fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Seconds and nanoseconds of the last change.
#[track_caller]
fn modified(path: &Path) -> (i64, i64) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.mtime(), found.mtime_nsec())
}

fn set_modified(path: &Path, seconds: i64, nanos: i64) {
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: seconds,
            tv_nsec: nanos,
        },
    };
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags).unwrap();
}

/// Names in a directory of the volume.
#[track_caller]
fn names(cluster: &Cluster, path: &str) -> Vec<String> {
    let listed = cluster.quorumfs().run_with(["ls", path]).ok();
    let entries = listed.records("entry");
    let name = |entry: &serde_json::Value| entry["name"].as_str().unwrap().to_owned();
    entries.iter().map(name).collect()
}

#[track_caller]
fn skipped(finished: &Finished) -> u64 {
    finished.records("summary")[0]["skipped"].as_u64().unwrap()
}

#[test]
fn a_copy_gives_away_no_right_that_its_author_chose() {
    let cluster = cluster();
    let place = tempfile::tempdir().unwrap();
    let tree = place.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let tool = tree.join("tool");
    fs::write(&tool, "#!/bin/sh\n").unwrap();
    let bin = tree.join("bin");
    fs::create_dir(&bin).unwrap();
    for path in [&tool, &bin] {
        chown(path, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    }
    set_mode(&tool, 0o6777);
    set_mode(&bin, 0o7777);
    // Without the owner, no set-id bit is copied, neither in nor out.
    put(&cluster, &[], &tree, "/").ok();
    put(&cluster, &["--archive"], &tree, "/kept").ok();
    for source in ["/tree", "/kept"] {
        let out = place
            .path()
            .join(source.trim_start_matches('/'))
            .join("out");
        fs::create_dir_all(out.parent().unwrap()).unwrap();
        get(&cluster, &[], source, &out).ok();
        for name in ["tool", "bin"] {
            let found = fs::metadata(out.join(name)).unwrap();
            assert_eq!(found.mode() & 0o7000, 0, "{source} {name}");
            assert_eq!(found.uid(), 0);
            assert_eq!(found.mode() & 0o022, 0, "the umask counts");
        }
        let whole = out.with_file_name("whole");
        get(&cluster, &["--archive"], source, &whole).ok();
        let found = fs::metadata(whole.join("tool")).unwrap();
        let (expected, owner) = match source {
            "/kept" => (0o6777, OTHER_USER),
            _ => (0o755, 0),
        };
        assert_eq!((found.mode() & 0o7777, found.uid()), (expected, owner));
    }
}

#[test]
fn no_link_below_the_target_is_followed() {
    let cluster = cluster();
    let place = tempfile::tempdir().unwrap();
    let (victim, tree, out) = (
        place.path().join("victim"),
        place.path().join("tree"),
        place.path().join("out"),
    );
    for directory in [&victim, &tree, &out] {
        fs::create_dir(directory).unwrap();
    }
    fs::write(victim.join("file"), "the victim's").unwrap();
    symlink(&victim, tree.join("sub")).unwrap();
    symlink(victim.join("file"), tree.join("file")).unwrap();
    put(&cluster, &[], &tree, "/").ok();
    get(&cluster, &[], "/tree", &out).ok();
    assert_eq!(fs::read_link(out.join("tree/sub")).unwrap(), victim);
    // Repeated: links are replaced by equal ones.
    get(&cluster, &[], "/tree", &out).ok();

    cluster.quorumfs().run_with(["rm", "-r", "/tree"]).ok();
    for link in ["sub", "file"] {
        fs::remove_file(tree.join(link)).unwrap();
    }
    fs::create_dir(tree.join("sub")).unwrap();
    fs::write(tree.join("sub/authorized_keys"), "the thief's").unwrap();
    fs::write(tree.join("file"), "the thief's").unwrap();
    put(&cluster, &[], &tree, "/").ok();
    let finished = get(&cluster, &[], "/tree", &out);
    assert_eq!(finished.code, Some(3), "{finished:?}");
    let message = finished.records("failed")[0]["message"].to_string();
    assert!(
        message.contains("is in the way of a directory"),
        "{message}"
    );
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 1);
    let content = fs::read(victim.join("file")).unwrap();
    assert_eq!(content, b"the victim's");
    // The link was replaced, not followed.
    assert!(
        fs::symlink_metadata(out.join("tree/file"))
            .unwrap()
            .is_file()
    );
}

#[test]
fn a_repeated_copy_transfers_only_changes() {
    let cluster = cluster();
    let place = tempfile::tempdir().unwrap();
    let (tree, out) = (place.path().join("tree"), place.path().join("out"));
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::create_dir(&out).unwrap();
    fs::write(tree.join("same"), "same").unwrap();
    fs::write(tree.join("sub/changed"), "before").unwrap();
    symlink("same", tree.join("link")).unwrap();
    for expected in [0, 3] {
        let finished = put(&cluster, &[], &tree, "/").ok();
        assert_eq!(skipped(&finished), expected, "{finished:?}");
    }
    for expected in [0, 2] {
        let finished = get(&cluster, &[], "/tree", &out).ok();
        assert_eq!(skipped(&finished), expected, "{finished:?}");
    }
    fs::write(tree.join("sub/changed"), "behind").unwrap();
    set_modified(&tree.join("sub/changed"), 1_000_000_000, 5);
    assert_eq!(skipped(&put(&cluster, &[], &tree, "/").ok()), 2);
    assert_eq!(skipped(&get(&cluster, &[], "/tree", &out).ok()), 1);
    let changed = out.join("tree/sub/changed");
    assert_eq!(fs::read(&changed).unwrap(), b"behind");
    assert_eq!(modified(&changed), (1_000_000_000, 5));
    // The same size and the same time: only an explicit option copies it.
    fs::write(&changed, "BEHIND").unwrap();
    set_modified(&changed, 1_000_000_000, 5);
    get(&cluster, &[], "/tree", &out).ok();
    assert_eq!(fs::read(&changed).unwrap(), b"BEHIND");
    get(&cluster, &["--all"], "/tree", &out).ok();
    assert_eq!(fs::read(&changed).unwrap(), b"behind");
}

#[test]
fn holes_times_and_long_names_survive_both_ways() {
    let cluster = cluster();
    let place = tempfile::tempdir().unwrap();
    let (tree, out) = (place.path().join("tree"), place.path().join("out"));
    fs::create_dir_all(tree.join("directory")).unwrap();
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    sparse.write_all_at(b"far", 200 << 20).unwrap();
    sparse.set_len(300 << 20).unwrap();
    let hole = fs::File::create(tree.join("hole")).unwrap();
    hole.set_len(5 << 20).unwrap();
    let long = "n".repeat(255);
    fs::write(tree.join(&long), "long").unwrap();
    let strange = OsStr::from_bytes(b"not\xffutf\n8");
    fs::write(tree.join(strange), "strange").unwrap();
    symlink("nowhere", tree.join("link")).unwrap();
    let times = [
        ("sparse", -86_400 * 365, 7),
        (long.as_str(), 4_000_000_000, 999_999_999),
        ("link", 86_400, 3),
        ("directory", 1_234_567_890, 1),
    ];
    for (name, seconds, nanos) in times {
        set_modified(&tree.join(name), seconds, nanos);
    }
    set_modified(&tree, 1_000, 0);
    put(&cluster, &["--archive"], &tree, "/").ok();
    get(&cluster, &["--archive"], "/tree", &out).ok();
    for (name, seconds, nanos) in times {
        assert_eq!(modified(&out.join(name)), (seconds, nanos), "{name}");
    }
    assert_eq!(modified(&out), (1_000, 0));
    for (name, length) in [("sparse", 300 << 20), ("hole", 5 << 20)] {
        let found = fs::metadata(out.join(name)).unwrap();
        assert_eq!(found.len(), length);
        assert!(
            found.blocks() < 256,
            "{name} takes {} blocks",
            found.blocks()
        );
    }
    let mut far = [0; 3];
    let copied = fs::File::open(out.join("sparse")).unwrap();
    copied.read_exact_at(&mut far, 200 << 20).unwrap();
    assert_eq!(&far, b"far");
    assert_eq!(fs::read(out.join(strange)).unwrap(), b"strange");
    assert_eq!(
        fs::read_link(out.join("link")).unwrap(),
        Path::new("nowhere")
    );
}

#[test]
fn an_archive_keeps_owners_attributes_and_hard_links() {
    let cluster = cluster();
    let place = tempfile::tempdir().unwrap();
    let (tree, out) = (place.path().join("tree"), place.path().join("out"));
    fs::create_dir_all(tree.join("sub")).unwrap();
    let first = tree.join("first");
    fs::write(&first, "content").unwrap();
    fs::hard_link(&first, tree.join("sub/second")).unwrap();
    let value = b"a value\0with a zero";
    rustix::fs::setxattr(&first, "user.note", value, XattrFlags::empty()).unwrap();
    chown(&first, Some(1_234), Some(4_321)).unwrap();
    set_mode(&first, 0o640);
    set_mode(&tree.join("sub"), 0o2711);
    let linked = |out: &Path| {
        let of = |name: &str| fs::metadata(out.join(name)).unwrap();
        of("first").ino() == of("sub/second").ino()
    };
    for _ in 0..2 {
        put(&cluster, &["--archive"], &tree, "/").ok();
        get(&cluster, &["--archive"], "/tree", &out).ok();
        let found = fs::metadata(out.join("first")).unwrap();
        let owner_and_mode = (found.uid(), found.gid(), found.mode() & 0o7777);
        assert_eq!(owner_and_mode, (1_234, 4_321, 0o640));
        assert_eq!(mode(&out.join("sub")), 0o2711);
        assert!(linked(&out));
        let mut found = [0; 64];
        let path = out.join("first");
        let length = rustix::fs::getxattr(&path, "user.note", &mut found[..]).unwrap();
        assert_eq!(&found[..length], value);
    }
    let plain = place.path().join("plain");
    get(&cluster, &[], "/tree", &plain).ok();
    assert!(!linked(&plain));
    assert_eq!(fs::metadata(plain.join("first")).unwrap().uid(), 0);
}

#[test]
fn existing_files_keep_their_rights_and_new_directories_their_group() {
    let cluster = cluster();
    let place = tempfile::tempdir().unwrap();
    let (tree, out) = (place.path().join("tree"), place.path().join("out"));
    fs::create_dir_all(tree.join("closed")).unwrap();
    fs::write(tree.join("closed/file"), "before").unwrap();
    set_mode(&tree.join("closed"), 0o555);
    fs::create_dir(&out).unwrap();
    set_mode(&out, 0o2770);
    put(&cluster, &[], &tree, "/").ok();
    get(&cluster, &[], "/", &out).ok();
    assert_eq!(mode(&out), 0o2770, "the user's own directory");
    assert_eq!(mode(&out.join("tree")) & 0o2000, 0o2000);
    assert_eq!(mode(&out.join("tree/closed")) & 0o777, 0o555);
    set_mode(&out.join("tree"), 0o700);
    set_mode(&out.join("tree/closed/file"), 0o600);
    fs::write(tree.join("closed/file"), "afterwards").unwrap();
    put(&cluster, &[], &tree, "/").ok();
    get(&cluster, &[], "/", &out).ok();
    assert_eq!(mode(&out.join("tree")), 0o700);
    assert_eq!(mode(&out.join("tree/closed")) & 0o777, 0o555);
    assert_eq!(mode(&out.join("tree/closed/file")), 0o600);
    let content = fs::read(out.join("tree/closed/file")).unwrap();
    assert_eq!(content, b"afterwards");
}

#[test]
fn access_control_lists_of_a_directory_give_an_archive_no_rights_that_its_source_lacks() {
    let cluster = cluster();
    let place = tempfile::tempdir().unwrap();
    let (tree, out) = (place.path().join("tree"), place.path().join("out"));
    for directory in [&tree, &out] {
        fs::create_dir(directory).unwrap();
    }
    fs::write(tree.join("file"), "content").unwrap();
    set_mode(&tree.join("file"), 0o660);
    // user::rwx, user:1234:rwx, group::r-x, mask::rwx, other::r-x, as the kernel stores lists.
    let entries = [
        (1_u16, 7_u16, u32::MAX),
        (2, 7, 1234),
        (4, 5, u32::MAX),
        (16, 7, u32::MAX),
    ];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, whom) in entries.into_iter().chain([(32, 5, u32::MAX)]) {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(whom.to_le_bytes());
    }
    let default = "system.posix_acl_default";
    rustix::fs::setxattr(&out, default, &list, XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(&tree, default, &list, XattrFlags::empty()).unwrap();
    put(&cluster, &["--archive"], &tree, "/").ok();
    // A second time, into a directory that has the list by now.
    put(&cluster, &["--archive", "--all"], &tree, "/").ok();
    get(&cluster, &["--archive"], "/tree", &out).ok();
    let mut value = [0; 256];
    let access = "system.posix_acl_access";
    let file = out.join("tree/file");
    let found = rustix::fs::getxattr(&file, access, &mut value[..]);
    assert_eq!(
        found,
        Err(rustix::io::Errno::NODATA),
        "user 1234 may read it"
    );
    assert_eq!(mode(&file), 0o660);
    let found = rustix::fs::getxattr(out.join("tree"), default, &mut value[..]).unwrap();
    assert_eq!(value[..found], list);
}

#[test]
fn sources_of_one_name_are_refused_and_streams_are_copied() {
    let cluster = cluster();
    let place = tempfile::tempdir().unwrap();
    for directory in ["one", "two"] {
        fs::create_dir(place.path().join(directory)).unwrap();
        fs::write(place.path().join(directory).join("name"), directory).unwrap();
    }
    let sources = ["one/name", "two/name"].map(|it| place.path().join(it));
    let both = cluster.quorumfs().args(["put"]).args(&sources).args(["/"]);
    both.run().fails(2, "the same name", "one after the other");
    assert_eq!(names(&cluster, "/"), Vec::<String>::new());

    let mut command = cluster.quorumfs().args(["put", "-", "/stream"]).command();
    command.stdin(Stdio::from(fs::File::open(&sources[0]).unwrap()));
    assert!(command.status().unwrap().success());
    let get = cluster.quorumfs().run_with(["get", "/stream", "-"]);
    assert_eq!(get.stdout, b"one");
    let into = cluster.quorumfs().run_with(["put", "-", "/"]);
    into.fails(2, "standard input has no name", "as the target");
}

#[test]
fn no_part_of_a_volume_is_copied_onto_itself() {
    let cluster = cluster();
    let point = cluster.mount_point();
    let _mount = mount_in_background(&cluster, &point, &[]);
    fs::create_dir_all(point.join("tree/sub")).unwrap();
    fs::write(point.join("tree/file"), "content").unwrap();
    let itself = "cannot be copied into itself";
    for (source, target) in [("tree", "/tree/sub"), ("tree", "/tree"), ("", "/tree")] {
        put(&cluster, &[], &point.join(source), target).fails(9, itself, "next to itself");
    }
    put(&cluster, &[], &point.join("tree"), "/").fails(9, itself, "next to itself");
    let same = put(&cluster, &[], &point.join("tree/file"), "/tree");
    same.fails(9, "are one file", "nothing to copy");
    for (source, target) in [("/tree", "tree/sub"), ("/tree", "tree"), ("/", "backup")] {
        get(&cluster, &[], source, &point.join(target)).fails(9, itself, "next to itself");
    }
    let same = get(&cluster, &[], "/tree/file", &point.join("tree"));
    same.fails(9, "are one file", "nothing to copy");
    assert_eq!(fs::read(point.join("tree/file")).unwrap(), b"content");
    put(&cluster, &[], &point.join("tree"), "/copy").ok();
    cluster.quorumfs().run_with(["umount"]).ok();
    assert_eq!(names(&cluster, "/"), ["copy", "tree"]);
    assert_eq!(names(&cluster, "/copy"), ["file", "sub"]);
}

/// Checks that the content under a name is one of these.
#[track_caller]
fn assert_one_of(cluster: &Cluster, name: &str, any: &[Option<&[u8]>]) {
    let found = cluster.quorumfs().run_with(["ls", "/"]).ok();
    let there = found.records("entry").iter().any(|it| it["name"] == name);
    let content = there.then(|| {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("out");
        get(cluster, &[], &format!("/{name}"), &out).ok();
        fs::read(out).unwrap()
    });
    let lengths = content.as_ref().map(Vec::len);
    assert!(
        any.contains(&content.as_deref()),
        "{name}: {lengths:?} bytes"
    );
}

#[test]
fn a_copy_that_is_killed_leaves_the_old_content_or_all_of_the_new() {
    let cluster = cluster();
    let place = tempfile::tempdir().unwrap();
    let content = |number: u8| vec![number; 3 << 20];
    let source = place.path().join("file");
    fs::write(&source, content(0)).unwrap();
    put(&cluster, &[], &source, "/old").ok();
    let began = Instant::now();
    put(&cluster, &[], &source, "/new").ok();
    let whole = began.elapsed();
    cluster.quorumfs().run_with(["rm", "/new"]).ok();

    let mut last = content(0);
    for round in 1..=50_u8 {
        fs::write(&source, content(round)).unwrap();
        let name = if round % 2 == 0 { "old" } else { "new" };
        let put = cluster.quorumfs().args(["put", "--all"]).args([&source]);
        let mut put = put.args([format!("/{name}")]).command();
        let mut put = put.stdout(Stdio::null()).spawn().unwrap();
        // At any time from the start until after the end.
        std::thread::sleep(whole.mul_f64(f64::from(round) / 45.0));
        put.kill().unwrap();
        put.wait().unwrap();
        let copied = content(round);
        if name == "old" {
            assert_one_of(&cluster, "old", &[Some(&last), Some(&copied)]);
            // A complete copy, so that the next round knows the old content.
            let put = cluster.quorumfs().args(["put", "--all"]).args([&source]);
            put.args(["/old"]).run().ok();
            last = copied;
        } else {
            assert_one_of(&cluster, "new", &[None, Some(&copied)]);
            let _ = cluster.quorumfs().run_with(["rm", "/new"]);
        }
    }
    put(&cluster, &[], &source, "/last").ok();
    assert_eq!(
        names(&cluster, "/"),
        ["last", "old"],
        "no other name is left"
    );
}

#[test]
fn a_copy_that_is_stopped_reports_it_and_leaves_nothing_behind() {
    let cluster = cluster();
    let place = tempfile::tempdir().unwrap();
    let tree = place.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..40 {
        fs::write(tree.join(format!("{number:02}")), vec![number; 2 << 20]).unwrap();
    }
    let put = cluster.quorumfs().args(["put"]).args([&tree]).args(["/"]);
    let running = put.start();
    let begun = || !names(&cluster, "/").is_empty();
    quorumfs_tests::harness::eventually("it has begun", Duration::from_secs(60), begun);
    let process = rustix::process::Pid::from_raw(running.id().cast_signed()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    let finished = running.wait();
    finished.fails(130, "stopped; Copied", "run it again");
    let left = names(&cluster, "/tree");
    assert!(left.iter().all(|name| name.len() == 2), "{left:?}");
    assert!(left.len() < 40);
    cluster
        .quorumfs()
        .args(["put"])
        .args([&tree])
        .args(["/"])
        .run()
        .ok();
    assert_eq!(names(&cluster, "/tree").len(), 40);
}
