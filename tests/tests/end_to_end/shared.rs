//! Files that one person of a volume shares with another: over real replicas, clouds and mounts.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::people::{Guest, admit, assert_errno, started};
use quorumfs_tests::harness::{Cluster, Finished, eventually, require_fuse};
use rustix::fs::{Gid, Uid, chown, getxattr};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SEEN_WITHIN: Duration = Duration::from_secs(10);
/// A mount looks every 40 seconds.
const TAKEN_BACK_WITHIN: Duration = Duration::from_secs(100);
const ALICE: u32 = 1002;
const BOB: u32 = 1003;

/// The owner's mount, and two people; `alice` is a directory of Alice's in the root.
struct Home {
    cluster: Cluster,
    owner: PathBuf,
    alice: Guest,
    bob: Guest,
}

impl Home {
    fn new() -> Self {
        require_fuse();
        let cluster = started();
        let owner = cluster.mount_point();
        let mount = cluster.quorumfs().args(["mount", "--background"]);
        mount.args([&owner]).run().ok();
        let (alice, bob) = (Guest::new(&cluster, "alice"), Guest::new(&cluster, "bob"));
        admit(&cluster, &alice, "alice", &["--uid", "1002"]);
        admit(&cluster, &bob, "bob", &["--uid", "1003"]);
        let home = Self {
            cluster,
            owner,
            alice,
            bob,
        };
        home.give(&home.owner.join("alice"), 0o700);
        home
    }

    /// Makes a directory of Alice's.
    fn give(&self, directory: &Path, mode: u32) {
        fs::create_dir(directory).unwrap();
        fs::set_permissions(directory, fs::Permissions::from_mode(mode)).unwrap();
        self.own(directory, ALICE);
    }

    fn own(&self, path: &Path, uid: u32) {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
        chown(path, Some(uid), Some(gid)).unwrap();
    }

    /// The rights of Bob's entry in a list, as the owner's mount shows it.
    fn entry(&self, path: &str, list: &str) -> Option<u8> {
        let mut bytes = [0_u8; 4096];
        let path = self.owner.join(path);
        let length = getxattr(&path, format!("system.posix_acl_{list}"), &mut bytes).ok()?;
        let entries = bytes[4..length].chunks(8);
        let mut of_bob = entries.filter(|it| it[0] == 2 && it[4..] == BOB.to_le_bytes());
        of_bob.next().map(|it| it[2])
    }

    fn alice(&self, arguments: &[&str]) -> Finished {
        self.alice.run(&[&["share"], arguments].concat())
    }

    fn end(mut self) {
        for guest in [&mut self.alice, &mut self.bob] {
            if fs::metadata(guest.point.join("alice")).is_ok() {
                guest.unmount();
            }
        }
        self.cluster.quorumfs().run_with(["umount"]).ok();
    }
}

fn listed(guest: &Guest) -> Vec<Value> {
    guest.run(&["share", "ls"]).ok().records("share")
}

fn names(directory: &Path) -> Vec<String> {
    let listed = fs::read_dir(directory).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = listed
        .map(|entry| name(entry).into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_directory_is_shared_is_shown_is_written_and_is_taken_back() {
    let mut home = Home::new();
    home.alice.mount();
    home.bob.mount();
    let photos = home.alice.point.join("alice/Photos");
    fs::create_dir_all(photos.join("2024/may")).unwrap();
    fs::write(photos.join("2024/may/a.jpg"), "a picture").unwrap();
    for (path, mode) in [("", 0o700), ("2024", 0o700), ("2024/may/a.jpg", 0o600)] {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(photos.join(path), mode).unwrap();
    }
    let (alices, bobs) = (
        home.alice.point.join("alice/Photos/2024"),
        home.bob.point.join("alice/Photos/2024"),
    );
    let shown = home.bob.point.join("Shared with me");
    assert_errno(fs::read(bobs.join("may/a.jpg")), Errno::ACCESS);
    assert!(!names(&home.bob.point).contains(&"Shared with me".into()));

    // To read.
    let shared = home.alice(&["/alice/Photos/2024", "--to", "bob", "--read-only"]);
    let shared = shared.ok();
    let share = shared.records("share").remove(0);
    let id = share["id"].as_u64().unwrap();
    assert_eq!(
        (&share["with"], &share["role"]),
        (&"bob".into(), &"read".into())
    );
    assert_eq!(shared.records("summary")[0]["done"], 3, "{shared:?}");
    let read = || fs::read_to_string(bobs.join("may/a.jpg"));
    eventually("bob reads it", SEEN_WITHIN, || read().is_ok());
    assert_eq!(read().unwrap(), "a picture");
    assert_errno(fs::write(bobs.join("may/a.jpg"), "b"), Errno::ACCESS);
    assert_errno(File::create(bobs.join("new")), Errno::ACCESS);
    let entries = |path: &str| (home.entry(path, "access"), home.entry(path, "default"));
    assert_eq!(entries("alice"), (Some(1), None));
    assert_eq!(entries("alice/Photos"), (Some(1), None));
    assert_eq!(entries("alice/Photos/2024"), (Some(5), Some(5)));
    assert_eq!(entries("alice/Photos/2024/may/a.jpg"), (Some(4), None));
    assert_errno(
        fs::read_dir(home.bob.point.join("alice"))
            .unwrap()
            .next()
            .unwrap(),
        Errno::ACCESS,
    );

    // Bob is shown it, and nothing there can be changed; Alice is not.
    eventually("it is shown", SEEN_WITHIN, || {
        names(&home.bob.point).contains(&"Shared with me".into())
    });
    assert!(!names(&home.alice.point).contains(&"Shared with me".into()));
    assert_eq!(names(&shown), ["2024"]);
    let link = shown.join("2024");
    assert_eq!(
        fs::read_link(&link).unwrap(),
        Path::new("../alice/Photos/2024")
    );
    assert_eq!(
        fs::read_to_string(link.join("may/a.jpg")).unwrap(),
        "a picture"
    );
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let found = fs::metadata(&shown).unwrap();
    assert_eq!((found.mode() & 0o777, found.nlink()), (0o555, 2));
    assert_eq!(fs::metadata(shown.join("..")).unwrap().ino(), 1);
    assert_errno(File::create(shown.join("x")), Errno::ROFS);
    assert_errno(fs::remove_file(&link), Errno::ROFS);
    assert_errno(fs::remove_dir(&shown), Errno::ROFS);
    assert_errno(
        fs::rename(&shown, home.bob.point.join("other")),
        Errno::ROFS,
    );
    let mode = fs::Permissions::from_mode(0o777);
    assert_errno(fs::set_permissions(&shown, mode), Errno::ROFS);
    let entries_of = home.bob.run(&["ls", "/Shared with me"]).ok();
    assert_eq!(
        entries_of.records("entry")[0]["name"],
        "2024",
        "{entries_of:?}"
    );

    // To write: the same share.
    let again = home.alice(&["/alice/Photos/2024", "--to", "bob"]).ok();
    assert_eq!(again.records("share")[0]["id"], id);
    eventually("bob writes it", SEEN_WITHIN, || {
        fs::write(bobs.join("may/a.jpg"), "bob's").is_ok()
    });
    fs::create_dir(bobs.join("june")).unwrap();
    fs::write(bobs.join("june/b.jpg"), "bob's new").unwrap();
    fs::write(alices.join("june/c.jpg"), "alice's new").unwrap();
    let both = |name: &str| {
        let mine = fs::read_to_string(alices.join("june").join(name));
        mine.is_ok() && fs::read_to_string(bobs.join("june").join(name)).is_ok()
    };
    eventually("both read what is new", SEEN_WITHIN, || {
        both("b.jpg") && both("c.jpg")
    });
    let of_bob = listed(&home.bob);
    assert_eq!(of_bob.len(), 1);
    assert_eq!(
        (&of_bob[0]["with_me"], &of_bob[0]["by"]),
        (&true.into(), &"alice".into())
    );

    // A renamed thing is found where its directory can be listed.
    fs::rename(photos.join("2024"), photos.join("2025")).unwrap();
    assert_eq!(listed(&home.alice)[0]["moved"], true);
    fs::rename(photos.join("2025"), photos.join("2024")).unwrap();

    // Taken back, on mounts that run.
    let ids = id.to_string();
    home.bob
        .run(&["share", "revoke", &ids])
        .fails(9, "another user's", "");
    let ended = home.alice(&["revoke", &ids]);
    // What is Bob's stays Bob's.
    assert_eq!(ended.code, Some(0), "{ended:?}");
    eventually("bob cannot read it", SEEN_WITHIN, || read().is_err());
    assert_errno(read(), Errno::ACCESS);
    for path in [
        "alice",
        "alice/Photos",
        "alice/Photos/2024",
        "alice/Photos/2024/may/a.jpg",
    ] {
        assert_eq!(entries(path), (None, None), "{path}");
    }
    let mode = fs::metadata(home.owner.join("alice/Photos/2024"))
        .unwrap()
        .mode();
    assert_eq!(mode & 0o777, 0o700, "as it was");
    eventually("it is not shown", SEEN_WITHIN, || {
        !names(&home.bob.point).contains(&"Shared with me".into())
    });
    assert_eq!(listed(&home.alice), Vec::<Value>::new());
    home.alice(&["revoke", &ids])
        .fails(2, "no share", "share ls");
    home.end();
}

#[test]
fn what_cannot_be_shared_is_refused_before_anything_is_changed() {
    let mut home = Home::new();
    home.alice.mount();
    let own = home.alice.point.join("alice");
    fs::write(own.join("file"), "alice's").unwrap();
    symlink("file", own.join("link")).unwrap();
    fs::create_dir(home.owner.join("closed")).unwrap();
    fs::set_permissions(home.owner.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    home.give(&home.owner.join("closed/deep"), 0o755);
    fs::write(home.owner.join("roots"), "").unwrap();
    fs::write(home.owner.join("bobs"), "").unwrap();
    home.own(&home.owner.join("bobs"), BOB);
    let eve = Guest::new(&home.cluster, "eve");
    admit(
        &home.cluster,
        &eve,
        "eve",
        &["--role", "read", "--expires", "1d"],
    );
    let carl = Guest::new(&home.cluster, "carl");
    admit(&home.cluster, &carl, "carl", &["--expires", "3s"]);
    let dan = Guest::new(&home.cluster, "dan");
    admit(&home.cluster, &dan, "dan", &[]);
    let remove = ["people", "remove", "dan"];
    home.cluster.quorumfs().run_with(remove).ok();
    std::thread::sleep(Duration::from_secs(4));

    let share = |path: &str, name: &str| home.alice(&[path, "--to", name]);
    share("/alice/file", "nemo").fails(2, "called \"nemo\"", "people ls");
    share("/alice/file", "alice").fails(2, "whose key", "another person");
    share("/alice/file", "owner").fails(2, "every user", "nothing to share");
    share("/alice/file", "eve").fails(2, "may only read", "--read-only");
    share("/alice/file", "carl").fails(2, "is over", "people invite");
    share("/alice/file", "dan").fails(2, "was removed", "people ls");
    share("/alice/none", "bob").fails(9, "no such file", "");
    share("/alice/link", "bob").fails(9, "symbolic link", "what it leads to");
    share("/roots", "bob").fails(9, "belongs to user 0", "its owner");
    share("/bobs", "bob").fails(9, "\"bob\"'s own", "nothing to share");
    home.alice(&["/alice/file", "--to", "bob", "--expires", "0s"])
        .fails(2, "over already", "from now on");
    home.alice(&["ls", "--all"])
        .fails(2, "only administrators", "--all");
    home.alice(&["revoke", "77"])
        .fails(2, "no share 77", "share ls");
    home.alice(&["/alice/file"]).fails(2, "", "");
    // Of the directory that is in the way, not even Alice can see anything.
    let closed = share("/closed/deep", "bob");
    assert_eq!(closed.code, Some(9), "{closed:?}");
    fs::set_permissions(home.owner.join("closed"), fs::Permissions::from_mode(0o710)).unwrap();
    chown(home.owner.join("closed"), None, Some(Gid::from_raw(ALICE))).unwrap();
    eventually("alice gets there", SEEN_WITHIN, || {
        let closed = share("/closed/deep", "bob");
        let text = format!("{closed:?}");
        closed.code == Some(9)
            && text.contains("/closed belongs to user 0")
            && text.contains("setfacl -m u:1003:x")
    });
    assert_eq!(listed(&home.alice), Vec::<Value>::new());
    for path in ["alice", "alice/file", "closed", "closed/deep"] {
        assert_eq!(home.entry(path, "access"), None, "{path}");
    }

    // A reader can be shared with to read, and a directory whose list lets it pass is no obstacle.
    home.alice(&["/alice/file", "--to", "eve", "--read-only"])
        .ok();
    eve.run(&["cat", "/alice/file"]).ok();
    eve.run(&["share", "ls"]).ok();
    let eves = eve.run(&["share", "/alice/file", "--to", "bob"]);
    eves.fails(2, "you may only read", "an administrator");
    home.end();
}

#[test]
fn a_share_ends_by_itself_and_its_access_is_taken_back() {
    let mut home = Home::new();
    home.alice.mount();
    let own = home.alice.point.join("alice");
    for name in ["first", "second"] {
        fs::write(own.join(name), name).unwrap();
        fs::set_permissions(own.join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    // By the next command.
    let share = |name: &str, time: &str| {
        let path = format!("/alice/{name}");
        home.alice(&[&path, "--to", "bob", "--read-only", "--expires", time])
            .ok()
    };
    share("first", "6s");
    home.bob.run(&["cat", "/alice/first"]).ok();
    std::thread::sleep(Duration::from_secs(7));
    let ls = home.alice(&["ls"]).ok();
    // The mount may have been faster.
    for known in ls.records("share") {
        assert_eq!(known["ended"], true, "{ls:?}");
        assert_eq!(ls.records("ended")[0]["taken_back"], true, "{ls:?}");
    }
    home.bob.run(&["cat", "/alice/first"]).fails(9, "", "");
    assert_eq!(home.entry("alice/first", "access"), None);
    // By the mount that runs.
    share("second", "6s");
    home.bob.run(&["cat", "/alice/second"]).ok();
    eventually("the mount takes it back", TAKEN_BACK_WITHIN, || {
        home.entry("alice/second", "access").is_none() && home.entry("alice", "access").is_none()
    });
    home.bob.run(&["cat", "/alice/second"]).fails(9, "", "");
    assert_eq!(listed(&home.alice), Vec::<Value>::new());
    // A person that is removed has no share any more, and the lists are taken back too.
    home.alice(&["/alice/first", "--to", "bob"]).ok();
    let remove = ["people", "remove", "bob"];
    home.cluster.quorumfs().run_with(remove).ok();
    // By this command, or by the mount before it.
    home.alice(&["ls"]).ok();
    eventually("its lists are taken back", SEEN_WITHIN, || {
        home.entry("alice/first", "access").is_none()
    });
    assert_eq!(listed(&home.alice), Vec::<Value>::new());
    home.end();
}

/// Starts a command of Alice's, kills it once `begun`, and returns whether it was not done yet.
fn killed(home: &Home, arguments: &[&str], begun: impl Fn() -> bool) -> bool {
    let command = home.alice.quorumfs().args(["share"]).args(arguments);
    let mut command = command.command();
    command.stdout(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let since = Instant::now();
    while !begun() && since.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(2));
    }
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    let _ = kill_process(pid, Signal::KILL);
    child.wait().unwrap().code().is_none()
}

#[test]
fn a_share_that_was_killed_goes_on_and_so_does_its_end() {
    let mut home = Home::new();
    home.alice.mount();
    let tree = home.alice.point.join("alice/tree");
    for directory in 0..20 {
        let directory = tree.join(directory.to_string());
        fs::create_dir_all(&directory).unwrap();
        for file in 0..40 {
            File::create(directory.join(file.to_string())).unwrap();
        }
    }
    let all: Vec<String> = (0..20)
        .flat_map(|directory| (0..40).map(move |file| format!("alice/tree/{directory}/{file}")))
        .collect();
    let count = || {
        let with = all
            .iter()
            .filter(|path| home.entry(path, "access").is_some());
        with.count()
    };
    let arguments = ["/alice/tree", "--to", "bob", "--read-only"];
    let was_cut = killed(&home, &arguments, || {
        home.entry("alice/tree", "access").is_some()
    });
    let before = count();
    println!("killed: {was_cut}, {before} of {} set", all.len());
    let listed_before = listed(&home.alice);
    assert_eq!(listed_before.len(), 1, "its row was ordered first");
    let again = home.alice(&arguments).ok();
    assert_eq!(again.records("share")[0]["id"], listed_before[0]["id"]);
    eventually("all are set", SEEN_WITHIN, || count() == all.len());
    let summary = again.records("summary").remove(0);
    let of = |key: &str| summary[key].as_u64().unwrap();
    assert_eq!(of("done") + of("skipped"), 821, "{summary}");
    assert!(!was_cut || of("skipped") > 0, "it goes on: {summary}");

    let id = listed_before[0]["id"].as_u64().unwrap().to_string();
    let was_cut = killed(&home, &["revoke", &id], || {
        home.entry("alice/tree", "access").is_none()
    });
    println!("killed: {was_cut}, {} of {} left", count(), all.len());
    if was_cut {
        home.alice(&["revoke", &id]).ok();
    }
    eventually("all are taken back", SEEN_WITHIN, || count() == 0);
    assert_eq!(home.entry("alice", "access"), None);
    assert_eq!(listed(&home.alice), Vec::<Value>::new());
    home.end();
}

#[test]
fn links_are_not_followed_and_what_is_anothers_is_reported() {
    let mut home = Home::new();
    home.alice.mount();
    let own = home.alice.point.join("alice");
    fs::create_dir_all(own.join("tree/sub")).unwrap();
    fs::create_dir(own.join("outside")).unwrap();
    for path in ["tree/sub/file", "outside/secret", "outside/several"] {
        fs::write(own.join(path), path).unwrap();
        fs::set_permissions(own.join(path), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let closed = fs::Permissions::from_mode(0o700);
    fs::set_permissions(own.join("tree"), closed).unwrap();
    symlink("../outside/secret", own.join("tree/file-out")).unwrap();
    symlink("../outside", own.join("tree/directory-out")).unwrap();
    fs::hard_link(own.join("outside/several"), own.join("tree/several")).unwrap();
    let foreign = home.owner.join("alice/tree/foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("inside"), "").unwrap();
    fs::write(home.owner.join("alice/tree/bobs"), "").unwrap();
    home.own(&home.owner.join("alice/tree/bobs"), BOB);
    std::thread::sleep(Duration::from_secs(2));

    let shared = home.alice(&["/alice/tree", "--to", "bob"]);
    assert_eq!(shared.code, Some(3), "{shared:?}");
    let failed = shared.records("failed");
    assert_eq!(failed.len(), 1, "{shared:?}");
    assert_eq!(failed[0]["path"], "/alice/tree/foreign");
    assert!(
        failed[0]["message"]
            .as_str()
            .unwrap()
            .contains("belongs to user 0")
    );
    let entry = |path: &str| home.entry(&format!("alice/{path}"), "access");
    assert_eq!(entry("tree/sub/file"), Some(6));
    for path in [
        "outside",
        "outside/secret",
        "tree/foreign",
        "tree/foreign/inside",
        "tree/bobs",
    ] {
        assert_eq!(entry(path), None, "{path}");
    }
    // A hard link is another name of the same file.
    assert_eq!(entry("outside/several"), Some(6));
    // A smaller share in it stays when the larger one ends.
    home.alice(&["/alice/tree/sub", "--to", "bob", "--read-only"])
        .ok();
    assert_eq!(entry("tree/sub/file"), Some(6), "both count");
    let all = listed(&home.alice);
    let id = all[0]["id"].as_u64().unwrap().to_string();
    let ended = home.alice(&["revoke", &id]);
    assert!([Some(0), Some(3)].contains(&ended.code), "{ended:?}");
    assert_eq!(entry("tree/sub/file"), Some(4));
    assert_eq!(entry("tree"), Some(1), "the smaller share needs it");
    assert_eq!(entry("tree/several"), None);
    // The superuser sees all shares, and ends one.
    let id = listed(&home.alice)[0]["id"].as_u64().unwrap().to_string();
    let owner = |arguments: &[&str]| home.cluster.quorumfs().args(["share"]).args(arguments);
    assert_eq!(owner(&["ls", "--all"]).run().ok().records("share").len(), 1);
    owner(&["revoke", &id]).run().ok();
    assert_eq!((entry("tree/sub/file"), entry("tree")), (None, None));
    home.end();
}
