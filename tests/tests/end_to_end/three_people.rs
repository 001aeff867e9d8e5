//! Three people, each with a state directory and a key of its own, over servers of three providers
//! and a directory: no secret is handed over, and each has credentials that were sealed for it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::people::{Guest, admit};
use super::provider_servers::Provider;
use quorumfs_tests::harness::require_fuse;
use rustix::fs::{Gid, Uid, chown};
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn three_people_work_over_three_providers_without_a_shared_secret() {
    require_fuse();
    let disks = tempfile::tempdir().unwrap();
    let providers = Provider::three(disks.path());
    let given = Provider::given_by(&providers);
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    assert_eq!(given.len(), 4, "two of the servers ask for credentials");
    let mut cluster = Provider::with_a_directory(&providers, disks.path());
    cluster.start();

    // Each is invited and lists the volume, with nothing but a line and a file.
    let file = cluster.directory().join("file");
    fs::write(&file, "for all").unwrap();
    let put = cluster.quorumfs().args(["put"]).args([&file]);
    put.args(["/all"]).run().ok();
    let people = ["ann", "ben", "eve"].map(|name| Guest::new(&cluster, name));
    for (guest, (name, uid)) in
        people
            .iter()
            .zip([("ann", "1001"), ("ben", "1002"), ("eve", "1003")])
    {
        admit(
            &cluster,
            guest,
            name,
            &[&["--uid", uid][..], &given].concat(),
        );
        let listed = guest.run(&["ls", "/"]).ok();
        assert_eq!(listed.records("entry")[0]["name"], "all", "{name}");
        assert_eq!(guest.run(&["cat", "/all"]).ok().stdout, b"for all");
    }
    let [ann, ben, eve] = &people;

    // Ann's own directory, which no other one can enter.
    let point = cluster.mount_point();
    let mount = cluster.quorumfs().args(["mount", "--background"]);
    mount.args([&point]).run().ok();
    let home = point.join("ann");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    chown(&home, Some(Uid::from_raw(1001)), Some(Gid::from_raw(1001))).unwrap();
    cluster.quorumfs().run_with(["umount"]).ok();
    let large: Vec<u8> = (0..300_000_u32).map(|it| (it % 251) as u8).collect();
    fs::write(&file, &large).unwrap();
    let put = ann.quorumfs().args(["put"]).args([&file]);
    put.args(["/ann/report"]).run().ok();
    ben.run(&["cat", "/ann/report"]).fails(9, "", "");

    // Shared, read, not written, and taken back.
    let shared = ann.run(&["share", "/ann/report", "--to", "ben", "--read-only"]);
    let id = shared.ok().records("share")[0]["id"].as_u64().unwrap();
    let read = ben.run(&["cat", "/ann/report"]).ok();
    assert!(read.stdout == large, "ben reads something else");
    fs::write(&file, "by ben").unwrap();
    let over = ben.quorumfs().args(["put"]).args([&file]);
    assert_ne!(over.args(["/ann/report"]).run().code, Some(0));
    eve.run(&["cat", "/ann/report"]).fails(9, "", "");
    ann.run(&["share", "revoke", &id.to_string()]).ok();
    ben.run(&["cat", "/ann/report"]).fails(9, "", "");

    // One is removed: it is refused, and the others go on under keys that it has not.
    cluster
        .quorumfs()
        .run_with(["people", "remove", "eve"])
        .ok();
    eve.run(&["ls", "/"]).fails(12, "", "it was removed");
    for guest in [ann, ben] {
        assert_eq!(guest.run(&["cat", "/all"]).ok().stdout, b"for all");
    }
}
