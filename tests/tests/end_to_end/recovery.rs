//! The fire drill: a machine is lost, and the recovery kit opens the volume on another one.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use quorumfs_tests::harness::{Cluster, Quorumfs, mount_in_background};
use rustix::io::Errno;
use std::fs;
use std::path::Path;
use std::process::Command;

fn recover(kit: &Path, state: &Path) -> Quorumfs {
    Quorumfs::on(state)
        .args(["volume", "recover", "--kit"])
        .args([kit])
}

#[test]
fn the_kit_opens_the_volume_on_a_machine_that_never_had_it_and_replaces_a_replica() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let (content, written) = (vec![7; 900_000], cluster.directory().join("written"));
    fs::write(&written, &content).unwrap();
    let put = cluster.quorumfs().args(["put"]).args([&written]);
    put.args(["/"]).run().ok();
    cluster.quorumfs().run_with(["volume", "rekey"]).ok();
    // The page was printed; then the machine burns.
    let page = cluster.directory().join("printed");
    fs::rename(cluster.volume().join("recovery-kit.txt"), &page).unwrap();
    let genesis = cluster.directory().join("genesis of a replica");
    fs::copy(cluster.volume().join("volume.genesis"), &genesis).unwrap();
    fs::remove_dir_all(cluster.volume()).unwrap();

    let new = cluster.directory().join("new machine");
    let made = recover(&page, &new)
        .run()
        .ok()
        .records("recovered")
        .remove(0);
    assert_eq!(made["clouds"], serde_json::json!(["a", "b", "c", "d"]));
    let on = || Quorumfs::on(&new);
    let into = cluster.directory().join("had back");
    let get = on().args(["get", "/written"]).args([&into]);
    get.run().ok();
    assert!(fs::read(&into).unwrap() == content);
    let put = on().args(["put"]).args([&into]);
    put.args(["/again"]).run().ok();
    on().run_with(["volume", "rekey"]).ok();
    on().run_with(["status"]).ok();
    recover(&page, &new)
        .run()
        .fails(11, "there is a volume already", "--state");

    // A replica's machine burned as well: another takes its place.
    fs::create_dir_all(cluster.volume()).unwrap();
    fs::copy(&genesis, cluster.volume().join("volume.genesis")).unwrap();
    cluster.kill_one(3);
    let listed = on().run_with(["cluster", "status"]).records("replica");
    let out = listed.iter().find(|it| it["id"] == 3).unwrap();
    let out = out["key"].as_str().unwrap().to_owned();
    let number = cluster.prepare_another();
    cluster.start_with(number, &["--join"]);
    let replace = on().args(["cluster", "replace", &out]);
    replace.args([cluster.replica_argument(number)]).run().ok();
    let listed = on().run_with(["cluster", "status"]).records("replica");
    let voters = listed.iter().filter(|it| it["role"] == "voter");
    assert!(voters.map(|it| &it["key"]).all(|key| *key != *out));
    let again = cluster.directory().join("once more");
    let get = on().args(["get", "/again"]).args([&again]);
    get.run().ok();
    assert!(fs::read(&again).unwrap() == content);
}

#[test]
fn the_owners_key_is_replaced_with_the_kit_and_the_old_one_is_refused_everything() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let (content, written) = (vec![7; 900_000], cluster.directory().join("written"));
    fs::write(&written, &content).unwrap();
    let put = |on: Quorumfs, name: &str| on.args(["put"]).args([&written]).run_with([name]);
    put(cluster.quorumfs(), "/before").ok();
    // A mount leaves its host key.
    let (state, point) = (cluster.volume(), cluster.directory().join("point"));
    fs::create_dir(&point).unwrap();
    let _ = mount_in_background(&cluster, &point, &[]);
    cluster.quorumfs().run_with(["umount"]).ok();
    // The printed page, and a thief that has all of the machine's files, and mounts the volume.
    let page = cluster.directory().join("printed");
    fs::rename(state.join("recovery-kit.txt"), &page).unwrap();
    let stolen = cluster.directory().join("stolen");
    let copied = Command::new("cp")
        .arg("-a")
        .args([&state, &stolen])
        .status();
    assert!(copied.unwrap().success());
    let thief = || Quorumfs::on(&stolen);
    let mount = thief().args(["mount", "--background"]).args([&point]);
    mount.run().ok();
    assert!(fs::read(point.join("before")).unwrap() == content);

    let replace = |more: &[&str]| {
        let replace = cluster
            .quorumfs()
            .args(["volume", "rekey", "--replace-owner"]);
        replace.args(["--kit"]).args([&page]).args(more).run()
    };
    let tried = replace(&["--dry-run"]).ok().records("replaced").remove(0);
    // Without the host key the pending data in the journal would be lost: the command refuses.
    let (host_key, key) = (state.join("host.key"), state.join("principal.key"));
    let before = (fs::read(&host_key).unwrap(), fs::read(&key).unwrap());
    fs::write(&host_key, &before.0[..before.0.len() / 2]).unwrap();
    replace(&[]).fails(12, "host key", "the same command goes on");
    assert!(fs::read(&key).unwrap() == before.1 && host_key.exists());
    fs::write(&host_key, &before.0).unwrap();
    let done = replace(&[]).ok().records("replaced").remove(0);
    assert_eq!(tried["old"], done["old"]);
    assert_ne!(done["old"], done["new"]);
    assert_eq!(done["rekey"]["number"], 1);

    // The thief's mount is fenced, and no other request is answered either.
    let refused = fs::write(point.join("more"), &content).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::STALE.raw_os_error()));
    for command in [
        vec!["ls", "/"],
        vec!["get", "/before", "/dev/null"],
        vec!["volume", "rekey"],
        vec!["quota"],
    ] {
        let refused = thief().run_with(&command);
        refused.fails(12, "refuses a session", "do not know this key");
    }
    thief()
        .args(["umount", "--force"])
        .args([&point])
        .run()
        .ok();

    // The owner continues, with old and new content.
    put(cluster.quorumfs(), "/after").ok();
    let _process = mount_in_background(&cluster, &point, &[]);
    for name in ["before", "after"] {
        assert!(fs::read(point.join(name)).unwrap() == content, "{name}");
    }
    fs::write(point.join("mounted"), &content).unwrap();
    cluster.quorumfs().run_with(["umount"]).ok();
    // The new key may change the membership and the addresses of replicas.
    let place = cluster.replica_argument(0).split('@').nth(1).unwrap();
    cluster
        .quorumfs()
        .run_with(["cluster", "move", "0", place])
        .ok();
    let status = cluster.quorumfs().run_with(["cluster", "status"]).ok();
    let shown = status.records("cluster").remove(0);
    let administrators = shown["administrators"].as_array().unwrap();
    assert!(administrators.contains(&done["new"]), "{shown}");
    assert!(!administrators.contains(&done["old"]), "{shown}");
    thief().run_with(["cluster", "move", "1", place]).fails(
        12,
        "refuses a session",
        "do not know this key",
    );

    // The kit still opens everything, from the servers alone; and the key can be replaced again.
    let new = cluster.directory().join("new machine");
    recover(&page, &new).run().ok();
    for name in ["/before", "/after", "/mounted"] {
        let cat = Quorumfs::on(&new).run_with(["cat", name]).ok();
        assert!(cat.stdout == content, "{name}");
    }
    let again = replace(&[]).ok().records("replaced").remove(0);
    assert_eq!(
        (&again["old"], &again["rekey"]["number"]),
        (&done["new"], &2.into())
    );
    let cat = cluster.quorumfs().run_with(["cat", "/mounted"]).ok();
    assert!(cat.stdout == content);
    cluster.stop();
}

#[test]
fn a_faulty_kit_is_reported_and_nothing_is_created() {
    let cluster = Cluster::prepare();
    let kit = cluster.volume().join("recovery-kit.txt");
    let new = cluster.directory().join("new machine");
    let text = fs::read_to_string(&kit).unwrap();
    let page = cluster.directory().join("typed in");
    let attempt = |text: &str| {
        fs::write(&page, text).unwrap();
        recover(&page, &new).run()
    };
    let line = text.lines().find(|it| it.starts_with("recovery ")).unwrap();
    let slip = line.replacen(
        &line[20..21],
        if &line[20..21] == "0" { "1" } else { "0" },
        1,
    );
    attempt(&text.replace(line, &slip)).fails(12, "checksum does not match", "");
    attempt("a shopping list").fails(12, "quorumfs recovery kit", "");
    fs::write(&page, &text).unwrap();
    let strange = recover(&page, &new).args(["--cloud", "e=/somewhere"]).run();
    strange.fails(2, "no cloud `e`", "a, b, c, d");
    assert!(!new.join("quorumfs.toml").exists() && !new.join("principal.key").exists());
    let moved = cluster.directory().join("elsewhere");
    let named = format!("b={}", moved.display());
    recover(&page, &new).args(["--cloud", &named]).run().ok();
    let written = fs::read_to_string(new.join("quorumfs.toml")).unwrap();
    assert!(written.contains(&moved.display().to_string()), "{written}");
}
