//! `trash`: what a mount removed is listed, restored as it was, and deleted for good.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_tests::harness::{
    Cluster, Finished, eventually, mount_in_background, noise, require_fuse,
};
use rustix::fs::XattrFlags;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

const SIZES: [usize; 7] = [0, 10, 700, 5_000, 60_000, 300_000, 1_200_000];
/// The exit code for a path that is in the way.
const PATH: i32 = 9;
/// Files of a directory that is restored in several attempts.
const MANY: usize = 150;

/// What is compared of a file.
#[derive(Debug, PartialEq)]
struct Seen {
    content: Vec<u8>,
    mode: u32,
    modified: (i64, i64),
    note: Vec<u8>,
}

fn make_tree(tree: &Path) {
    let sub = tree.join("sub");
    fs::create_dir_all(&sub).unwrap();
    for (number, size) in SIZES.into_iter().enumerate() {
        for (seed, directory) in [(1, tree), (100, sub.as_path())] {
            let path = directory.join(format!("file{size}"));
            fs::write(&path, noise(seed + number as u64, size)).unwrap();
            let mode = fs::Permissions::from_mode(0o600 + number as u32 % 4 * 0o11);
            fs::set_permissions(&path, mode).unwrap();
            let note = format!("note of {size}");
            rustix::fs::setxattr(&path, "user.note", note.as_bytes(), XattrFlags::empty()).unwrap();
            let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + size as u64);
            let file = File::options().append(true).open(&path).unwrap();
            file.set_modified(then).unwrap();
        }
    }
    symlink("../file10", sub.join("link")).unwrap();
    fs::hard_link(sub.join("file700"), tree.join("name2")).unwrap();
}

fn see(path: &Path) -> Seen {
    let found = fs::symlink_metadata(path).unwrap();
    let mut note = vec![0; 100];
    let length = rustix::fs::getxattr(path, "user.note", &mut note[..]).unwrap();
    note.truncate(length);
    Seen {
        content: fs::read(path).unwrap(),
        mode: found.mode(),
        modified: (found.mtime(), found.mtime_nsec()),
        note,
    }
}

/// Every regular file below `tree`, by its path there.
fn see_tree(tree: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut seen = BTreeMap::new();
    let mut waiting = vec![tree.to_path_buf()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            if kind.is_dir() {
                waiting.push(path);
            } else if kind.is_file() {
                let name = path.strip_prefix(tree).unwrap().to_path_buf();
                seen.insert(name, see(&path));
            }
        }
    }
    seen
}

fn trash(cluster: &Cluster, arguments: &[&str]) -> Finished {
    cluster.quorumfs().args(["trash"]).args(arguments).run()
}

fn listed(cluster: &Cluster) -> Vec<Value> {
    trash(cluster, &["ls"]).ok().records("trashed")
}

fn paths(items: &[Value]) -> Vec<&str> {
    items
        .iter()
        .map(|it| it["path"].as_str().unwrap())
        .collect()
}

/// Waits until what was made before is old enough to be kept when it is removed. Files that are
/// made now and removed one after the other show when: and a database's journals are among them.
fn grow_old(cluster: &Cluster, point: &Path) {
    const PROBES: usize = 100;
    for number in 0..PROBES {
        fs::write(point.join(format!("probe{number}")), "probe").unwrap();
    }
    let mut probes = (0..PROBES).map(|number| point.join(format!("probe{number}")));
    eventually("files grow old", Duration::from_secs(120), || {
        let journal = point.join("data.db-journal");
        fs::write(&journal, noise(5, 9000)).unwrap();
        fs::remove_file(&journal).unwrap();
        fs::remove_file(probes.next().expect("a probe is left")).unwrap();
        std::thread::sleep(Duration::from_millis(900));
        !listed(cluster).is_empty()
    });
    let items = listed(cluster);
    assert!(paths(&items)[0].starts_with("/probe"), "{items:?}");
}

/// Stored bytes on all clouds.
fn stored(cluster: &Cluster) -> u64 {
    let mut bytes = 0;
    let mut waiting: Vec<_> = (0..4).map(|number| cluster.cloud(number)).collect();
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap().is_dir() {
                true => waiting.push(entry.path()),
                false => bytes += entry.metadata().unwrap().len(),
            }
        }
    }
    bytes
}

/// Removes a directory of many files, restores it by commands that are killed, and then by one that
/// is not.
fn restore_and_kill(cluster: &Cluster, many: &Path) {
    fs::remove_dir_all(many).unwrap();
    eventually("all are in the trash", Duration::from_secs(60), || {
        let items = listed(cluster);
        let ours = paths(&items);
        ours.iter().filter(|path| path.starts_with("/many")).count() == MANY + 1
    });
    let arguments = ["trash", "restore", "/many"];
    let mut command = cluster.quorumfs().args(arguments).command();
    let mut killed = command.stdout(Stdio::null()).spawn().unwrap();
    eventually("a part is back", Duration::from_secs(60), || {
        fs::read_dir(many).is_ok_and(|entries| entries.count() > 0)
    });
    killed.kill().unwrap();
    killed.wait().unwrap();
    let again = cluster.quorumfs().args(arguments).run();
    // It may have been done before it was killed.
    assert!([Some(0), Some(PATH)].contains(&again.code), "{again:?}");
    eventually("all are back", Duration::from_secs(20), || {
        fs::read_dir(many).unwrap().count() == MANY
    });
    for number in 0..MANY {
        let found = fs::read_to_string(many.join(format!("file{number}"))).unwrap();
        assert_eq!(found, format!("content {number}"));
    }
    let left = listed(cluster);
    assert!(!paths(&left).iter().any(|path| path.starts_with("/many")));
}

#[test]
fn a_tree_that_a_mount_removed_is_restored_as_it_was_and_deleted_for_good() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    let _mount = mount_in_background(&cluster, &point, &[]);
    let tree = point.join("tree");
    make_tree(&tree);
    let before = see_tree(&tree);
    let many = point.join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..MANY {
        fs::write(
            many.join(format!("file{number}")),
            format!("content {number}"),
        )
        .unwrap();
    }
    grow_old(&cluster, &point);

    fs::remove_dir_all(&tree).unwrap();
    // Two files have three names.
    let entries = 2 * SIZES.len() + 3;
    eventually("all is in the trash", Duration::from_secs(60), || {
        let items = listed(&cluster);
        let ours = paths(&items);
        ours.iter().filter(|path| path.starts_with("/tree")).count() == entries
    });
    let items = listed(&cluster);
    assert!(
        !paths(&items).iter().any(|path| path.contains("journal")),
        "{items:?}"
    );
    let large = items
        .iter()
        .find(|it| it["path"] == "/tree/sub/file1200000");
    let large = large.unwrap();
    assert_eq!(
        (&large["size"], &large["kind"]),
        (&1_200_000.into(), &"file".into())
    );
    assert_eq!(&large["removed_by"], &rustix::process::geteuid().as_raw());

    trash(&cluster, &["restore", "/tree"]).ok();
    eventually("the mount sees it", Duration::from_secs(20), || {
        tree.join("sub/link").is_symlink()
    });
    let mut after = see_tree(&tree);
    // Of a file with several names the one that was removed last comes back.
    let kept = ["name2", "sub/file700"].map(|name| tree.join(name));
    let kept: Vec<_> = kept.iter().filter(|path| path.exists()).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!(fs::metadata(kept[0]).unwrap().nlink(), 1);
    let restored = after.remove(kept[0].strip_prefix(&tree).unwrap()).unwrap();
    assert_eq!(restored, before[Path::new("name2")]);
    for (path, seen) in &after {
        assert_eq!(Some(seen), before.get(path), "{}", path.display());
    }
    assert_eq!(after.len() + 2, before.len());
    assert_eq!(
        fs::read_link(tree.join("sub/link")).unwrap(),
        Path::new("../file10")
    );
    let again = trash(&cluster, &["restore", "/tree"]);
    again.fails(PATH, "/tree is not in the trash", "trash ls");

    restore_and_kill(&cluster, &many);

    // One file of the tree comes back with the directories above it, but not into another's place.
    fs::remove_dir_all(&tree).unwrap();
    let one = ["restore", "/tree/sub/file5000"];
    eventually(
        "the directory is in the trash",
        Duration::from_secs(60),
        || paths(&listed(&cluster)).contains(&"/tree"),
    );
    trash(&cluster, &one).ok();
    let file = tree.join("sub/file5000");
    eventually("the mount sees it", Duration::from_secs(20), || {
        file.exists()
    });
    assert_eq!(see(&file), before[Path::new("sub/file5000")]);
    assert!(!tree.join("file10").exists());
    fs::write(tree.join("sub/file10"), "another").unwrap();
    let taken = trash(&cluster, &["restore", "/tree/sub/file10"]);
    taken.fails(PATH, "the name is taken", "--to");
    fs::create_dir(point.join("elsewhere")).unwrap();
    trash(
        &cluster,
        &["restore", "/tree/sub/file10", "--to", "/elsewhere"],
    )
    .ok();
    let there = point.join("elsewhere/file10");
    eventually("the mount sees it", Duration::from_secs(20), || {
        there.exists()
    });
    assert_eq!(see(&there), before[Path::new("sub/file10")]);

    // What does not fit the volume's limit together with the trash makes room: the oldest.
    let items = listed(&cluster);
    let newest = items.last().unwrap()["id"].clone();
    let volume = cluster.quorumfs().run_with(["quota"]).ok();
    let volume = volume.records("quota_volume").remove(0);
    let files = volume["files"].as_u64().unwrap() + 3;
    let limit = ["quota", "set", "--files", &files.to_string()];
    cluster.quorumfs().run_with(limit).ok();
    eventually("the oldest goes", Duration::from_secs(60), || {
        listed(&cluster).len() <= 3
    });
    assert_eq!(listed(&cluster).last().unwrap()["id"], newest);
    fs::write(point.join("fits"), "it").unwrap();
    cluster
        .quorumfs()
        .run_with(["quota", "set", "--no-limit"])
        .ok();

    // For good: the clouds' bytes go.
    fs::remove_dir_all(&tree).unwrap();
    fs::remove_file(&there).unwrap();
    let refused = trash(&cluster, &["empty"]);
    refused.fails(2, "cannot be restored", "--yes");
    cluster.quorumfs().run_with(["umount"]).ok();
    let full = stored(&cluster);
    let status = cluster.quorumfs().run_with(["status"]).records("trash");
    assert!(status[0]["files"].as_u64().unwrap() > 0, "{status:?}");
    trash(&cluster, &["empty", "--yes"]).ok();
    assert_eq!(listed(&cluster), Vec::<Value>::new());
    for _ in 0..2 {
        let once = ["reconcile", "--once", "--grace", "0s"];
        cluster.quorumfs().run_with(once).ok();
    }
    let empty = stored(&cluster);
    assert!(empty < full / 2, "{full} bytes before, {empty} after");
    println!("{full} bytes with the trash, {empty} without");
    cluster.stop();
}

#[test]
fn without_a_trash_nothing_is_kept_and_its_age_can_be_set_later() {
    let mut cluster = Cluster::prepare_with(|cluster| {
        let clouds = cluster.directory().join("clouds");
        let create = cluster.create(&cluster.volume(), &clouds);
        create.args(["--trash", "off"])
    });
    cluster.start();
    let summary = || trash(&cluster, &["ls"]).ok().records("summary").remove(0);
    assert_eq!(summary()["kept_seconds"], 0);
    trash(&cluster, &["keep", "30"]).ok();
    assert_eq!(summary()["kept_seconds"], 30 * 24 * 3600);
    for wrong in [
        &["keep", "0"][..],
        &["keep", "soon"],
        &["restore"],
        &["restore", "id:x"],
        &["empty", "--older-than", "1w", "--yes"],
    ] {
        let refused = trash(&cluster, wrong);
        assert_eq!(refused.code, Some(2), "{wrong:?}: {}", refused.stderr);
    }
    let nothing = trash(&cluster, &["restore", "/absent"]);
    nothing.fails(PATH, "/absent is not in the trash", "trash ls");
    let nothing = trash(&cluster, &["restore", "id:4711"]);
    nothing.fails(PATH, "id:4711 is not in the trash", "trash ls");
    cluster.stop();
}
