//! Several people in a volume, each with a machine and a key of its own: invited by a line and a
//! file, both public; bounded by what they were granted; refused once they are removed.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use quorumfs_tests::harness::{Cluster, Finished, Quorumfs, eventually, require_fuse};
use rustix::fs::{Gid, Uid, chown};
use rustix::io::Errno;
use serde_json::Value;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const SEEN_WITHIN: Duration = Duration::from_secs(5);

/// A person's machine: a state directory and a mount point.
pub(super) struct Guest {
    pub(super) state: PathBuf,
    pub(super) point: PathBuf,
    mounted: bool,
}

impl Guest {
    pub(super) fn new(cluster: &Cluster, name: &str) -> Self {
        let below = |kind: &str| cluster.directory().join(format!("{kind}-{name}"));
        fs::create_dir(below("mnt")).unwrap();
        Self {
            state: below("state"),
            point: below("mnt"),
            mounted: false,
        }
    }

    pub(super) fn quorumfs(&self) -> Quorumfs {
        Quorumfs::on(&self.state)
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Finished {
        self.quorumfs().run_with(arguments)
    }

    /// The line for the administrator, and the fingerprint of its keys.
    fn asks(&self) -> (String, String) {
        let asked = self.run(&["join"]).ok().records("join").remove(0);
        let text = |key: &str| asked[key].as_str().unwrap().to_owned();
        (text("line"), text("fingerprint"))
    }

    fn joins(&self, card: &Path) -> Value {
        let joined = self.quorumfs().args(["join"]).args([card]).run().ok();
        joined.records("joined").remove(0)
    }

    pub(super) fn mount(&mut self) {
        let mount = self.quorumfs().args(["mount", "--background"]);
        mount.args([&self.point]).run().ok();
        self.mounted = true;
    }

    pub(super) fn unmount(&mut self) {
        self.run(&["umount"]).ok();
        self.mounted = false;
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if self.mounted {
            let _ = self.run(&["umount", "--force"]);
        }
    }
}

pub(super) fn started() -> Cluster {
    let mut cluster = Cluster::prepare();
    cluster.start();
    cluster
}

/// The owner admits a guest, which joins; returns the file that it was given.
pub(super) fn admit(cluster: &Cluster, guest: &Guest, name: &str, how: &[&str]) -> PathBuf {
    let (line, fingerprint) = guest.asks();
    let card = cluster.directory().join(format!("{name}.volume"));
    let invite = cluster.quorumfs().args(["people", "invite", name, "--yes"]);
    let invite = invite.args(["--line", &line]).args(how).args(["--file"]);
    let invited = invite.args([&card]).run().ok().records("invited").remove(0);
    assert_eq!(invited["fingerprint"], fingerprint);
    let joined = guest.joins(&card);
    assert_eq!(joined["fingerprint"], invited["volume_fingerprint"]);
    assert_eq!(joined["name"], name);
    card
}

fn people(quorumfs: Quorumfs) -> Vec<Value> {
    let listed = quorumfs.run_with(["people", "ls"]).ok();
    listed.records("person")
}

fn person(cluster: &Cluster, name: &str) -> Value {
    let mut all = people(cluster.quorumfs()).into_iter();
    all.find(|it| it["name"] == name).unwrap()
}

#[track_caller]
pub(super) fn assert_errno<T: std::fmt::Debug>(result: io::Result<T>, errno: Errno) {
    let error = result.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()), "{error}");
}

#[test]
fn a_guest_acts_as_one_user_of_the_volume_whatever_number_its_machine_has_for_it() {
    require_fuse();
    let cluster = started();
    let owner = cluster.mount_point();
    let file = cluster.directory().join("file");
    fs::write(&file, "the owner's").unwrap();
    cluster
        .quorumfs()
        .args(["put"])
        .args([&file])
        .args(["/"])
        .run()
        .ok();

    let mut bob = Guest::new(&cluster, "bob");
    admit(&cluster, &bob, "bob", &["--uid", "1003"]);
    // Without a mount: it reads what others may read, and writes nowhere.
    let read = bob.run(&["cat", "/file"]).ok();
    assert_eq!(read.stdout, b"the owner's");
    let put = bob.quorumfs().args(["put"]).args([&file]).args(["/other"]);
    put.run().fails(9, "Permission denied", "");
    assert_eq!(people(bob.quorumfs()).len(), 3);

    let mount = cluster.quorumfs().args(["mount", "--background"]);
    mount.args([&owner]).run().ok();
    fs::create_dir(owner.join("all")).unwrap();
    fs::set_permissions(owner.join("all"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::create_dir(owner.join("none")).unwrap();
    fs::set_permissions(owner.join("none"), fs::Permissions::from_mode(0o700)).unwrap();
    bob.mount();
    // This process is root, on both machines. On bob's, root is bob.
    fs::write(bob.point.join("all/bobs"), "bob's").unwrap();
    let (here, there) = (bob.point.join("all/bobs"), owner.join("all/bobs"));
    let shown = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (found.uid(), found.gid())
    };
    assert_eq!(shown(&here), (0, 0));
    assert_eq!(shown(&there), (1003, 1003));
    assert_eq!(shown(&bob.point.join("file")), (1003, 1003));
    assert_eq!(shown(&owner.join("file")), (0, 0));
    assert_errno(File::create(bob.point.join("new")), Errno::ACCESS);
    // Its kernel lets root in, and the replicas do not list.
    let listed = fs::read_dir(bob.point.join("none")).unwrap().next();
    assert_errno(listed.unwrap(), Errno::ACCESS);
    assert_errno(fs::write(bob.point.join("file"), "bob's"), Errno::ACCESS);
    // It gives nothing away, and takes nothing.
    let to_root = chown(&here, Some(Uid::from_raw(1003)), None);
    assert_eq!(to_root, Err(Errno::PERM));
    let mine = chown(bob.point.join("file"), Some(Uid::ROOT), None);
    assert_eq!(mine, Err(Errno::PERM));
    assert_eq!(chown(&here, Some(Uid::ROOT), Some(Gid::ROOT)), Ok(()));
    // A file of the user with the number that bob's machine has for bob is not bob's.
    chown(owner.join("file"), Some(Uid::from_raw(1004)), None).unwrap();
    eventually("the new owner is seen", SEEN_WITHIN, || {
        shown(&bob.point.join("file")).0 == 1004
    });
    let listed = cluster
        .quorumfs()
        .run_with(["mounts"])
        .ok()
        .records("mount");
    let names: Vec<_> = listed
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["owner", "bob"]);

    // It may become another user, and has to mount again for that.
    let set = ["people", "set", "bob", "--uid", "1007"];
    cluster.quorumfs().run_with(set).ok();
    assert_errno(fs::write(bob.point.join("all/more"), ""), Errno::STALE);
    bob.run(&["ls", "/"]).ok();
    bob.unmount();
    bob.mount();
    fs::write(bob.point.join("all/more"), "").unwrap();
    assert_eq!(shown(&owner.join("all/more")).0, 1007);

    // A group that both are in.
    let group = ["people", "group", "2000", "team"];
    cluster.quorumfs().run_with(group).ok();
    let set = ["people", "set", "bob", "--group", "team"];
    cluster.quorumfs().run_with(set).ok();
    assert_eq!(person(&cluster, "bob")["groups"][0], "team");
    chown(owner.join("none"), None, Some(Gid::from_raw(2000))).unwrap();
    fs::set_permissions(owner.join("none"), fs::Permissions::from_mode(0o770)).unwrap();
    bob.unmount();
    bob.mount();
    assert_eq!(
        shown(&bob.point.join("none")).1,
        0,
        "as a group of bob's machine"
    );
    fs::write(bob.point.join("none/teams"), "team's").unwrap();
    assert_eq!(
        fs::read_to_string(owner.join("none/teams")).unwrap(),
        "team's"
    );
    // And that bob leaves.
    let leave = ["people", "set", "bob", "--no-groups"];
    cluster.quorumfs().run_with(leave).ok();
    assert_eq!(
        person(&cluster, "bob")["groups"].as_array().unwrap().len(),
        0
    );
    bob.unmount();
    cluster.quorumfs().run_with(["umount"]).ok();
}

#[test]
fn a_reader_reads_and_keeps_none_out_and_a_removed_person_is_refused() {
    require_fuse();
    let cluster = started();
    let file = cluster.directory().join("file");
    fs::write(&file, "first").unwrap();
    let put = || cluster.quorumfs().args(["put"]).args([&file]).args(["/"]);
    put().run().ok();
    let mut eve = Guest::new(&cluster, "eve");
    admit(&cluster, &eve, "eve", &["--role", "read"]);
    assert_eq!(person(&cluster, "eve")["role"], "read");

    let refused = eve
        .quorumfs()
        .args(["mount", "--exclusive"])
        .args([&eve.point]);
    refused.run().fails(2, "you may only read", "--exclusive");
    eve.mount();
    assert_eq!(fs::read_to_string(eve.point.join("file")).unwrap(), "first");
    assert_errno(fs::write(eve.point.join("file"), "eve's"), Errno::ROFS);
    assert_errno(fs::remove_file(eve.point.join("file")), Errno::ROFS);
    let mine = eve
        .quorumfs()
        .args(["put"])
        .args([&file])
        .args(["/other"])
        .run();
    assert_ne!(mine.code, Some(0));
    // A writer comes and goes meanwhile.
    fs::write(&file, "second").unwrap();
    put().run().ok();
    eventually("what was written is read", SEEN_WITHIN, || {
        fs::read_to_string(eve.point.join("file")).is_ok_and(|it| it == "second")
    });

    let before = cluster.quorumfs().run_with(["volume", "epochs"]).ok();
    let removed = cluster
        .quorumfs()
        .run_with(["people", "remove", "eve"])
        .ok();
    let removed = removed.records("removed").remove(0);
    let epoch = removed["rekey"]["number"].as_u64().unwrap();
    assert_eq!(epoch, before.records("epoch").len() as u64);
    let clouds = removed["clouds"].as_array().unwrap();
    assert_eq!(clouds.len(), 4, "what is to be revoked where");
    // All names are under the new key: there is one file, in the root.
    assert_eq!(removed["names"]["names"], 1);
    assert_eq!(removed["names"]["left"], 0);
    let after = cluster.quorumfs().run_with(["volume", "epochs"]).ok();
    assert_eq!(after.records("names")[0]["directories"], 0);
    assert_errno(fs::read(eve.point.join("file")), Errno::STALE);
    eve.run(&["ls", "/"]).fails(12, "", "it was removed");
    assert_eq!(people(cluster.quorumfs()).len(), 2);
    // Its key can be admitted again, by the same administrator.
    cluster
        .quorumfs()
        .run_with(["people", "remove", "eve"])
        .fails(2, "eve", "people ls");
    let _ = eve.run(&["umount"]);
    eve.mounted = false;
}

#[test]
fn an_administrator_that_was_admitted_admits_others_and_is_dismissed_like_them() {
    let cluster = started();
    let (ann, bob, carl) = (
        Guest::new(&cluster, "ann"),
        Guest::new(&cluster, "bob"),
        Guest::new(&cluster, "carl"),
    );
    admit(&cluster, &ann, "ann", &["--role", "administer"]);
    // Ann admits bob, begins new keys, and bob's machine follows the chain of signatures.
    let (line, _) = bob.asks();
    let card = cluster.directory().join("bob.volume");
    let invite = ann.quorumfs().args(["people", "invite", "bob", "--yes"]);
    let invite = invite.args(["--line", &line, "--file"]).args([&card]);
    invite.run().ok();
    assert_eq!(bob.joins(&card)["role"], "write");
    bob.run(&["ls", "/"]).ok();
    assert_eq!(person(&cluster, "bob")["admitted_by"], "ann");
    ann.run(&["volume", "rekey"]).ok();
    bob.run(&["ls", "/"]).ok();
    cluster.quorumfs().run_with(["ls", "/"]).ok();
    // The owner, the kit's principal and oneself cannot be removed, nor by one without the right.
    ann.run(&["people", "remove", "owner"])
        .fails(2, "when the volume was made", "recovery kit");
    ann.run(&["people", "remove", "recovery"])
        .fails(2, "when the volume was made", "");
    ann.run(&["people", "remove", "ann"])
        .fails(2, "whose key", "another administrator");
    let refused = bob.run(&["people", "remove", "ann"]);
    assert_ne!(refused.code, Some(0));
    let (line, _) = carl.asks();
    let mine = cluster.directory().join("carl.volume");
    let invite = bob.quorumfs().args(["people", "invite", "carl", "--yes"]);
    let refused = invite.args(["--line", &line, "--file"]).args([&mine]).run();
    assert_ne!(refused.code, Some(0));
    assert!(!mine.exists(), "no file for one who is not admitted");

    cluster
        .quorumfs()
        .run_with(["people", "remove", "ann"])
        .ok();
    assert_eq!(ann.run(&["people", "ls"]).code, Some(12));
    // Whom ann admitted stays, and opens what is sealed from now on.
    bob.run(&["ls", "/"]).ok();
    assert_eq!(people(bob.quorumfs()).len(), 3);
    // A backup is opened by the kit, although ann has signed some of what leads to it.
    cluster.quorumfs().run_with(["volume", "backup"]).ok();
    // Another machine of the kit's starts from nothing.
    let kit = cluster.volume().join("recovery-kit.txt");
    let kits = cluster.directory().join("state-kit");
    let recover = Quorumfs::on(&kits).args(["volume", "recover", "--kit"]);
    recover.args([kit]).run().ok();
    Quorumfs::on(&kits).run_with(["ls", "/"]).ok();
}

#[test]
fn lines_and_files_that_are_not_what_they_should_be_are_refused_with_the_reason() {
    let cluster = started();
    let (bob, carl) = (Guest::new(&cluster, "bob"), Guest::new(&cluster, "carl"));
    let invite = |name: &str, line: &str| {
        let invite = cluster
            .quorumfs()
            .args(["people", "invite", name, "--yes", "--line", line]);
        let card = cluster.directory().join(format!("{name}.volume"));
        invite.args(["--file"]).args([card]).run()
    };
    let (line, fingerprint) = bob.asks();
    // Asked again it shows the same keys.
    assert_eq!(bob.asks(), (line.clone(), fingerprint));
    invite("bob", "hello").fails(2, "qfs-join-1:", "the whole line");
    invite("bob", &line[..line.len() - 3]).fails(2, "incomplete", "the whole line");
    let flipped = line.replace(&line[20..21], if &line[20..21] == "A" { "B" } else { "A" });
    invite("bob", &flipped).fails(2, "changed", "the whole line");
    invite("", &line).fails(2, "a name has 1", "");
    invite("owner", &line).fails(2, "someone has already", "people ls");
    let unknown = [
        "people", "invite", "bob", "--yes", "--group", "team", "--line", &line,
    ];
    cluster
        .quorumfs()
        .run_with(unknown)
        .fails(2, "no group \"team\"", "people group");
    // Without a terminal there is no one to compare.
    let unasked = cluster
        .quorumfs()
        .args(["people", "invite", "bob", "--line", &line]);
    unasked.run().fails(2, "no terminal", "--yes");

    // What a `join` that was interrupted has left is no obstacle.
    for name in ["volume.genesis", "quorumfs.toml", "volume.people"] {
        fs::write(bob.state.join(name), "cut short").unwrap();
    }
    let card = admit(&cluster, &bob, "bob", &[]);
    bob.run(&["ls", "/"]).ok();
    invite("bob2", &line).fails(2, "already, as \"bob\"", "");
    // Under the same name its file is made again, and never over another one.
    invite("bob", &line).fails(2, "is there already", "--file");
    fs::remove_file(&card).unwrap();
    invite("bob", &line).ok();
    bob.run(&["join"]).fails(11, "", "");
    // A file that was made for another, or before one's own admission.
    let _ = carl.asks();
    let joins = |guest: &Guest, card: &Path| guest.quorumfs().args(["join"]).args([card]).run();
    joins(&carl, &card).fails(12, "not a member", "made for another guest");
    let text = fs::read_to_string(&card).unwrap();
    let broken = cluster.directory().join("broken.volume");
    for place in ["people ", "genesis ", "clouds "] {
        let at = text.find(&format!("\n{place}")).unwrap() + 16;
        let mut bytes = text.clone().into_bytes();
        bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
        fs::write(&broken, bytes).unwrap();
        joins(&carl, &broken).fails(12, "checksum", "");
    }
    // The places of the clouds are under the signature too.
    let moved = text.lines().filter(|line| !line.starts_with("clouds "));
    fs::write(&broken, moved.collect::<Vec<_>>().join("\n")).unwrap();
    joins(&carl, &broken).fails(12, "changed after it was made", "");
    let stranger = Guest::new(&cluster, "stranger");
    joins(&stranger, &card).fails(2, "no key of a guest", "quorumfs join");
    joins(&carl, Path::new("/nowhere")).fails(1, "/nowhere", "");
    assert!(!carl.state.join("principal.key").exists());
    // A place for a cloud that the volume has not.
    let card = cluster.directory().join("carl.volume");
    invite("carl", &carl.asks().0).ok();
    let moves = carl.quorumfs().args(["join", "--cloud", "other=/nowhere"]);
    moves
        .args([&card])
        .run()
        .fails(2, "no cloud `other`", "its clouds are");
    assert!(!carl.state.join("principal.key").exists());
    joins(&carl, &card).ok();
}

#[test]
fn an_admission_ends_by_itself() {
    let cluster = started();
    let bob = Guest::new(&cluster, "bob");
    admit(&cluster, &bob, "bob", &["--expires", "8s"]);
    assert!(person(&cluster, "bob")["expires"].as_u64().is_some());
    bob.run(&["ls", "/"]).ok();
    eventually("it has ended", Duration::from_secs(30), || {
        bob.run(&["ls", "/"]).code == Some(12)
    });
    // It is shown as what it was. New keys can begin, another may have its name and not its files,
    // and it can be invited again.
    assert_eq!(person(&cluster, "bob")["member"], false);
    let uid = person(&cluster, "bob")["uid"].as_u64().unwrap();
    let set = ["people", "set", "bob", "--forever"];
    cluster
        .quorumfs()
        .run_with(set)
        .fails(2, "is over", "again");
    cluster
        .quorumfs()
        .run_with(["people", "remove", "bob"])
        .ok();
    let other = Guest::new(&cluster, "other");
    let (line, _) = other.asks();
    let card = cluster.directory().join("other.volume");
    let invite = cluster
        .quorumfs()
        .args(["people", "invite", "bob", "--yes"]);
    let invite = invite.args(["--line", &line, "--file"]).args([card]);
    let invited = invite.run().ok().records("invited").remove(0);
    assert_eq!(invited["uid"], uid + 1);
}

#[test]
fn credentials_are_handed_over_sealed_and_only_their_person_has_them() {
    let cluster = started();
    let bob = Guest::new(&cluster, "bob");
    let eve = Guest::new(&cluster, "eve");
    let file = cluster.directory().join("credentials");
    let secret = "planted-secret-of-a-cloud";
    fs::write(&file, secret).unwrap();
    let given = |cloud: &str| format!("{cloud}={}", file.display());
    let card = admit(&cluster, &bob, "bob", &["--cloud-credentials", &given("b")]);
    assert!(!fs::read_to_string(card).unwrap().contains(secret));
    let opened = |guest: &Guest, cloud: u8| {
        let path = guest.state.join("given").join(cloud.to_string());
        let mode = fs::metadata(&path).ok()?.permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::read_to_string(path).ok()
    };
    assert_eq!(opened(&bob, 1).as_deref(), Some(secret));
    assert_eq!(person(&cluster, "bob")["credentials"][0], "b");

    admit(&cluster, &eve, "eve", &[]);
    let credentials = |arguments: &[&str]| {
        let command = cluster.quorumfs().args(["people", "credentials"]);
        command.args(arguments).run()
    };
    fs::write(&file, "newer").unwrap();
    credentials(&["bob", &given("b"), &given("d")]).ok();
    bob.run(&["ls", "/"]).ok();
    eve.run(&["ls", "/"]).ok();
    assert_eq!(opened(&bob, 1).as_deref(), Some("newer"));
    assert_eq!(opened(&bob, 3).as_deref(), Some("newer"));
    assert_eq!(opened(&eve, 1), None);
    credentials(&["bob", "--without", "b"]).ok();
    bob.run(&["ls", "/"]).ok();
    assert_eq!(opened(&bob, 1), None);
    assert_eq!(opened(&bob, 3).as_deref(), Some("newer"));

    credentials(&["bob", &given("z")]).fails(2, "no cloud `z`", "a, b, c, d");
    credentials(&["bob", "b"]).fails(2, "not CLOUD=FILE", "");
    credentials(&["bob", "b=/nowhere"]).fails(1, "/nowhere", "");
    credentials(&["carl", &given("b")]).fails(2, "called \"carl\"", "people ls");
    fs::write(&file, vec![b'x'; 20_000]).unwrap();
    credentials(&["bob", &given("b")]).fails(2, "20000 bytes", "");
}
