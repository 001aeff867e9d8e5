//! Several machines of one person: each with a key of its own, added with one paste, with what the
//! person has and no more, and gone with the person or alone.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::people::{Guest, admit, started};
use super::provider_servers::Provider;
use quorumfs_tests::harness::{Cluster, Finished, Quorumfs, require_fuse};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdout, Stdio};

/// `join --as-me` on the machine that has the volume, after it has printed its line.
struct Inviting {
    child: Child,
    stdout: BufReader<ChildStdout>,
    line: String,
}

impl Inviting {
    fn start(quorumfs: Quorumfs, options: &[&str]) -> Self {
        let command = quorumfs.args(["join", "--as-me"]).args(options);
        let mut command = command.command();
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut record = String::new();
        stdout.read_line(&mut record).unwrap();
        let record: Value = serde_json::from_str(&record).unwrap();
        assert_eq!(record["type"], "machine_line", "{record}");
        let line = record["line"].as_str().unwrap().to_owned();
        Self {
            child,
            stdout,
            line,
        }
    }

    fn interrupt(&self) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
    }

    fn ends(mut self) -> Finished {
        let mut stdout = Vec::new();
        self.stdout.read_to_end(&mut stdout).unwrap();
        let mut stderr = String::new();
        let mut errors = self.child.stderr.take().unwrap();
        errors.read_to_string(&mut stderr).unwrap();
        Finished {
            code: self.child.wait().unwrap().code(),
            stdout,
            stderr,
        }
    }
}

impl Drop for Inviting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Adds a machine of a name; returns what both sides say.
#[track_caller]
fn add(from: Quorumfs, to: &Guest, name: &str) -> (Value, Value) {
    let inviting = Inviting::start(from, &["--yes"]);
    let joined = to.run(&["join", "--as-me", &inviting.line, "--name", name]);
    let joined = joined.ok();
    let added = inviting.ends().ok();
    let answered = joined.records("answered").remove(0);
    let (joined, added) = (
        joined.records("joined").remove(0),
        added.records("machine").remove(0),
    );
    assert_eq!(added["fingerprint"], answered["fingerprint"]);
    assert_eq!(added["volume_fingerprint"], joined["fingerprint"]);
    assert_eq!(added["name"], joined["name"]);
    (added, joined)
}

fn names(quorumfs: Quorumfs) -> Vec<String> {
    let listed = quorumfs.run_with(["people", "ls"]).ok().records("person");
    let mut names: Vec<_> = listed
        .iter()
        .map(|it| {
            format!(
                "{} {}",
                it["name"].as_str().unwrap(),
                it["role"].as_str().unwrap()
            )
        })
        .collect();
    names.sort();
    names
}

fn puts(guest: &Guest, cluster: &Cluster, to: &str) -> Finished {
    let file = cluster.directory().join("file");
    fs::write(&file, "content").unwrap();
    let put = guest.quorumfs().args(["put"]).args([&file]);
    put.args([to]).run()
}

#[test]
fn another_machine_of_a_person_needs_one_paste_and_has_what_the_person_has() {
    require_fuse();
    let disks = tempfile::tempdir().unwrap();
    let providers = Provider::three(disks.path());
    let given = Provider::given_by(&providers);
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    let mut cluster = Provider::with_a_directory(&providers, disks.path());
    cluster.start();
    let [bob, laptop, tablet] = ["bob", "laptop", "tablet"].map(|name| Guest::new(&cluster, name));
    let all = fs::Permissions::from_mode(0o777);
    let point = cluster.mount_point();
    let mount = cluster.quorumfs().args(["mount", "--background"]);
    mount.args([&point]).run().ok();
    fs::set_permissions(&point, all).unwrap();
    cluster.quorumfs().run_with(["umount"]).ok();
    admit(
        &cluster,
        &bob,
        "bob",
        &[&["--uid", "1003"][..], &given].concat(),
    );
    puts(&bob, &cluster, "/first").ok();

    // The credentials of the clouds come along: the machine needs nothing but the line.
    let (added, joined) = add(bob.quorumfs(), &laptop, "laptop");
    assert_eq!(joined["name"], "bob@laptop");
    assert_eq!(added["given"].as_array().unwrap().len(), 2, "{added}");
    assert_eq!(added["given"], joined["given"]);
    assert_eq!(laptop.run(&["cat", "/first"]).ok().stdout, b"content");
    puts(&laptop, &cluster, "/second").ok();
    let stat = cluster.quorumfs().run_with(["ls", "/"]).ok();
    let entries = stat.records("entry");
    assert!(entries.iter().all(|it| it["uid"] == 1003), "{entries:?}");
    // It adds another one, and the name is the person's still.
    let (_, joined) = add(laptop.quorumfs(), &tablet, "laptop");
    assert_eq!(joined["name"], "bob@laptop-2");

    // All of them follow the person.
    let set = [
        "people", "set", "bob", "--role", "read", "--rename", "robert",
    ];
    cluster.quorumfs().run_with(set).ok();
    for name in ["robert read", "robert@laptop read", "robert@laptop-2 read"] {
        let listed = names(cluster.quorumfs());
        assert!(listed.iter().any(|it| it == name), "{listed:?}");
    }
    for guest in [&bob, &laptop, &tablet] {
        guest.run(&["cat", "/first"]).ok();
        assert_ne!(puts(guest, &cluster, "/third").code, Some(0));
    }
    let alone = ["people", "set", "robert@laptop", "--role", "write"];
    let alone = cluster.quorumfs().run_with(alone);
    alone.fails(2, "is a machine of \"robert\"", "all machines follow");

    // One is lost: the person removes it alone, and the rest goes on.
    let removed = laptop.run(&["people", "remove", "robert@laptop-2"]);
    assert_eq!(removed.ok().records("removed").len(), 1);
    tablet.run(&["ls", "/"]).fails(12, "", "it was removed");
    for guest in [&bob, &laptop] {
        guest.run(&["cat", "/first"]).ok();
    }
    // The first one, by an administrator, with new keys.
    let first = ["people", "remove", "robert", "--this-machine-only"];
    cluster.quorumfs().run_with(first).ok();
    bob.run(&["ls", "/"]).fails(12, "", "it was removed");
    assert_eq!(laptop.run(&["cat", "/second"]).ok().stdout, b"content");
    // The person is there by its name still, and goes with all that is left.
    let phone = Guest::new(&cluster, "phone");
    add(laptop.quorumfs(), &phone, "phone");
    let whole = ["people", "remove", "robert"];
    cluster.quorumfs().run_with(whole).ok();
    phone.run(&["ls", "/"]).fails(12, "", "it was removed");
    laptop.run(&["ls", "/"]).fails(12, "", "it was removed");
}

#[test]
fn a_dismissed_persons_machines_go_with_it_and_an_owners_administer() {
    let cluster = started();
    let [bob, laptop, owners] = ["bob", "laptop", "owners"].map(|name| Guest::new(&cluster, name));
    admit(&cluster, &bob, "bob", &[]);
    add(bob.quorumfs(), &laptop, "laptop");
    // A machine of the owner does what the owner does.
    let (_, joined) = add(cluster.quorumfs(), &owners, "desk");
    assert_eq!(joined["name"], "owner@desk");
    assert_eq!(joined["role"], "administer");
    owners.run(&["people", "remove", "bob"]).ok();
    for guest in [&bob, &laptop] {
        guest.run(&["ls", "/"]).fails(12, "", "it was removed");
    }
    let owner = owners.run(&["people", "remove", "owner"]);
    owner.fails(2, "was there when the volume was made", "");
    owners.run(&["volume", "rekey"]).ok();
    cluster.quorumfs().run_with(["ls", "/"]).ok();
}

#[test]
fn a_line_is_valid_once_and_in_time() {
    let cluster = started();
    let [one, other, third] = ["one", "other", "third"].map(|name| Guest::new(&cluster, name));
    let as_me = |guest: &Guest, line: &str| guest.run(&["join", "--as-me", line]);

    // No line, half a line, another kind of line; a name that is none.
    as_me(&one, "nothing").fails(2, "qfs-machine-1:", "copy the whole line");
    as_me(&one, "qfs-join-1:AAAA").fails(2, "qfs-machine-1:", "copy the whole line");
    let inviting = Inviting::start(cluster.quorumfs(), &[]);
    let line = inviting.line.clone();
    as_me(&one, &line[..line.len() - 9]).fails(2, "incomplete", "copy the whole line");
    let named = one.run(&["join", "--as-me", &line, "--name", "my laptop"]);
    named.fails(2, "a machine's name", "");
    // Where a volume is, nothing is overwritten.
    let here = cluster.quorumfs().run_with(["join", "--as-me", &line]);
    here.fails(11, "there is a volume already", "nothing was changed");
    // Revoked.
    inviting.interrupt();
    inviting.ends().fails(1, "interrupted", "");
    as_me(&one, &line).fails(12, "no longer valid", "another line");

    // Without a terminal and without --yes, nothing is added, and the fingerprint is said.
    let inviting = Inviting::start(cluster.quorumfs(), &[]);
    let line = inviting.line.clone();
    let refused = as_me(&one, &line).fails(12, "no longer valid", "another line");
    let fingerprint = refused.records("answered")[0]["fingerprint"].clone();
    let asked = inviting.ends();
    asked.fails(2, fingerprint.as_str().unwrap(), "--yes");

    // Another line of the same person ends the first one.
    let first = Inviting::start(cluster.quorumfs(), &["--yes"]);
    let second = Inviting::start(cluster.quorumfs(), &["--yes"]);
    as_me(&other, &first.line).fails(12, "no longer valid", "another line");
    first
        .ends()
        .fails(1, "another line was made", "for another line");
    as_me(&other, &second.line).ok();
    let line = second.line.clone();
    second.ends().ok();
    // The line was used: the second one that has it is told so.
    as_me(&third, &line).fails(12, "another machine has answered", "say no");
    assert_eq!(names(other.quorumfs()).len(), 3);
    other.run(&["ls", "/"]).ok();
}
