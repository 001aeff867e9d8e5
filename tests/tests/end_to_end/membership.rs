//! Changing the membership of the metadata replicas on the command line while files are written.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use quorumfs_tests::harness::{Cluster, Quorumfs, binary, eventually};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

fn content(number: usize) -> Vec<u8> {
    format!("the content of file {number}\n")
        .repeat(number + 1)
        .into_bytes()
}

/// Puts one small file.
#[track_caller]
fn put(state: &Path, number: usize) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, content(number)).unwrap();
    let command = Quorumfs::on(state).args(["put"]).args([&path]);
    command.args([format!("/file-{number}")]).run().ok();
}

#[track_caller]
fn assert_holds(state: &Path, files: usize) {
    for number in 0..files {
        let name = format!("/file-{number}");
        let read = Quorumfs::on(state).run_with(["cat", &name]).ok();
        assert!(read.stdout == content(number), "{name} came back changed");
    }
}

fn members(state: &Path) -> Vec<Value> {
    let status = Quorumfs::on(state).run_with(["cluster", "status"]);
    status.records("replica")
}

fn of<'a>(members: &'a [Value], replica: &str) -> Option<&'a Value> {
    let key = replica.split('@').next().unwrap();
    members.iter().find(|it| it["key"] == key)
}

fn all_vote(state: &Path) -> bool {
    let status = Quorumfs::on(state).run_with(["cluster", "status"]);
    let voters = status.records("replica");
    let mut voters = voters.iter().filter(|it| it["role"] == "voter");
    status.code == Some(0) && voters.all(|it| it["state"] == "voting")
}

/// Puts files one after the other until it is stopped; returns their number.
fn write_until(stop: &AtomicBool, state: &Path) -> usize {
    let mut files = 0;
    while !stop.load(Ordering::Relaxed) {
        put(state, files);
        files += 1;
    }
    files
}

#[test]
fn a_replica_is_replaced_while_files_are_written_and_the_old_one_switched_off() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let (state, stop) = (cluster.volume(), AtomicBool::new(false));
    let files = thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&stop, &state));
        let new = cluster.prepare_another();
        let genesis = cluster.volume().join("volume.genesis");
        Quorumfs::on(&cluster.replica(new))
            .args(["replica", "run", "--genesis"])
            .args([genesis])
            .run()
            .fails(15, "not one of those that this volume began with", "--join");
        cluster.start_with(new, &["--join"]);
        let (old, place) = (cluster.replicas[1].clone(), cluster.replicas[new].clone());
        let replaced = cluster
            .quorumfs()
            .run_with(["cluster", "replace", "1", &place])
            .ok();
        let changes = replaced.records("change");
        let kinds: Vec<_> = changes.iter().map(|it| it["change"].as_str()).collect();
        assert_eq!(kinds, [Some("admitted"), Some("replaced")]);
        // Repeated, the command does nothing.
        let again = ["cluster", "replace", &old, &place];
        let again = cluster.quorumfs().run_with(again).ok();
        assert!(again.records("change").is_empty());
        let now = members(&state);
        assert_eq!(of(&now, &place).unwrap()["role"], "voter");
        assert_eq!(of(&now, &place).unwrap()["id"], 1);
        assert_eq!(of(&now, &old).unwrap()["role"], "retired");
        eventually("the old one is dispensable", PATIENCE, || {
            of(&members(&state), &old).is_some_and(|it| it["dispensable"] == true)
        });
        cluster.stop_one(1);
        eventually("all four vote", PATIENCE, || all_vote(&state));
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    assert!(files > 0, "nothing was written meanwhile");
    // One more may fail, even one whose address the configuration names.
    cluster.stop_one(0);
    put(&state, files);
    assert_holds(&state, files + 1);
    // A stopped member rejoins the current membership epoch; a retired one gets no vote.
    cluster.start_with(0, &[]);
    cluster.start_with(1, &[]);
    eventually("all four vote again", PATIENCE, || all_vote(&state));
    let back = ["cluster", "replace", "2", &cluster.replicas[1]];
    let refused = cluster.quorumfs().run_with(back);
    refused.fails(2, "was retired", "never accepted again");
}

#[test]
fn a_replica_without_its_disk_gets_another_and_votes_again() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let state = cluster.volume();
    put(&state, 0);
    cluster.stop_one(2);
    let data = cluster.replica(2).join("data");
    let again = ["replica", "init", "--again"];
    let on = |cluster: &Cluster| Quorumfs::on(&cluster.replica(2));
    on(&cluster)
        .run_with(again)
        .fails(11, "there is a disk already", "move it away");
    fs::remove_dir_all(&data).unwrap();
    on(&cluster)
        .run_with(["replica", "run"])
        .fails(10, "data", "replica init --again");
    on(&cluster).run_with(again).ok();
    // If the configuration is lost, it is written again from the address, and the disk stays as it
    // is.
    fs::remove_file(cluster.replica(2).join("replica.toml")).unwrap();
    on(&cluster)
        .run_with(again)
        .fails(10, "no replica.toml", "--listen");
    let address = cluster.replicas[2].split('@').nth(1).unwrap();
    let listening = on(&cluster).args(again).args(["--listen", address]);
    assert!(listening.run().ok().records("replica")[0]["incarnation"].is_null());
    put(&state, 1);
    cluster.start_with(2, &[]);
    eventually("all vote again", PATIENCE, || all_vote(&state));
    // Now it is needed.
    cluster.stop_one(0);
    put(&state, 2);
    assert_holds(&state, 3);
}

#[test]
fn replicas_are_added_and_removed_and_numbers_that_cannot_work_are_refused() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let state = cluster.volume();
    let new = cluster.prepare_another();
    let place = cluster.replicas[new].clone();
    let add = ["cluster", "add", &place];
    let too_many = cluster.quorumfs().args(add).args(["--failures", "2"]).run();
    too_many.fails(2, "with 5 voters", "--failures");
    assert_eq!(members(&state).len(), 4, "something was changed");
    // It does not run, so it cannot catch up.
    let waited = cluster.quorumfs().args(add).args(["--within", "2"]).run();
    waited.fails(1, "does not vote after 2 s", "repeat the command");
    assert_eq!(of(&members(&state), &place).unwrap()["role"], "learner");
    cluster.start_with(new, &["--join"]);
    cluster.quorumfs().run_with(add).ok();
    eventually("five vote", PATIENCE, || {
        all_vote(&state) && members(&state).len() == 5
    });
    put(&state, 0);
    let changes = |arguments: &[&str], kind| {
        let done = cluster.quorumfs().args(["cluster"]).args(arguments);
        done.run().ok().records(kind).len()
    };
    assert_eq!(changes(&["add", &place], "unchanged"), 1, "it votes");
    let key = |number: usize| cluster.replicas[number].split('@').next().unwrap();
    let by_number = cluster.quorumfs().run_with(["cluster", "remove", "0"]);
    by_number.fails(2, "may mean another replica", key(0));
    assert_eq!(changes(&["remove", &key(0)[..8]], "change"), 1);
    assert_eq!(
        changes(&["remove", key(0)], "unchanged"),
        1,
        "a repeated command"
    );
    put(&state, 1);
    let removed = cluster.quorumfs().run_with(["cluster", "remove", key(1)]);
    removed.fails(2, "with 3 voters", "nothing was changed");
    let alone = cluster.quorumfs().run_with(["cluster", "entrust", key(1)]);
    alone.fails(2, "lacks your own key", "add ");
    assert_holds(&state, 2);
}

#[test]
fn a_second_process_with_a_replicas_key_ends_and_the_first_goes_on_voting() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let state = cluster.volume();
    put(&state, 0);
    // A copy of the directory, as in a backup, started on another port.
    cluster.stop_one(3);
    let copy = cluster.directory().join("copy");
    let copied = Command::new("cp")
        .arg("-a")
        .args([&cluster.replica(3), &copy])
        .status();
    assert!(copied.unwrap().success());
    cluster.start_with(3, &[]);
    eventually("all vote", PATIENCE, || all_vote(&state));
    let configuration = copy.join("replica.toml");
    let text = fs::read_to_string(&configuration).unwrap();
    let listen = text.lines().find(|line| line.starts_with("listen"));
    let text = text.replacen(listen.unwrap(), "listen = \"127.0.0.1:0\"", 1);
    fs::write(&configuration, text).unwrap();
    let view = || {
        let status = cluster.quorumfs().run_with(["status"]).ok();
        status.records("summary")[0]["view"].as_u64()
    };
    let before = view();
    let second = Quorumfs::on(&copy).args(["replica", "run"]).run();
    second.fails(
        11,
        "another process with its key",
        "no two processes may share a key",
    );
    assert_eq!(view(), before, "no view change");
    put(&state, 1);
    eventually("all vote", PATIENCE, || all_vote(&state));
    assert_holds(&state, 2);
    cluster.stop();
}

#[test]
fn status_reports_no_answer_if_replicas_do_not_reach_each_other() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let state = cluster.volume();
    put(&state, 0);
    cluster.stop();
    // One has a new address that only this volume's users know; another stays down.
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let moved = format!("\"{}\"", socket.local_addr().unwrap());
    drop(socket);
    let place = cluster.replica_argument(0).split('@').nth(1).unwrap();
    let place = format!("\"{place}\"");
    for file in [
        cluster.replica(0).join("replica.toml"),
        state.join("quorumfs.toml"),
    ] {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(&place), "{text}");
        fs::write(&file, text.replace(&place, &moved)).unwrap();
    }
    cluster.start_some(0..3);
    let status = cluster.quorumfs().run_with(["status"]);
    let summary = status.records("summary")[0].clone();
    assert_eq!(summary["health"], "no answer", "{summary}");
    assert!(summary["trial_failed"].is_string(), "{summary}");
    assert_eq!(status.code, Some(5));
    cluster.stop();
}

/// Gives a stopped replica another port to listen on; returns the port.
fn move_listener(cluster: &Cluster, number: usize) -> u16 {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let file = cluster.replica(number).join("replica.toml");
    let text = fs::read_to_string(&file).unwrap();
    let listen = text
        .lines()
        .find(|line| line.starts_with("listen"))
        .unwrap();
    let text = text.replace(listen, &format!("listen = \"0.0.0.0:{port}\""));
    fs::write(&file, text).unwrap();
    port
}

#[test]
fn a_replica_that_was_moved_is_found_by_its_name_and_nothing_else_has_to_be_changed() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let state = cluster.volume();
    put(&state, 0);
    cluster.stop_one(2);
    let port = move_listener(&cluster, 2);
    let key = cluster
        .replica_argument(2)
        .split('@')
        .next()
        .unwrap()
        .to_owned();
    let to = |replica: &str, place: &str| {
        cluster
            .quorumfs()
            .run_with(["cluster", "move", replica, place])
    };
    let place = format!("localhost:{port}");
    to(&key[..8], "0.0.0.0:7000").fails(2, "only for listening", "name the machine");
    to("99", &place).fails(2, "", "cluster status");
    let moved = to(&key[..8], &place).ok();
    assert_eq!(moved.records("change")[0]["change"], "moved");
    assert_eq!(to(&key[..8], &place).ok().records("unchanged").len(), 1);
    cluster.start_with(2, &[]);
    eventually("all vote", PATIENCE, || all_vote(&state));
    assert_eq!(of(&members(&state), &key).unwrap()["address"], place);
    // Now it is needed: the others alone are too few.
    cluster.kill_one(3);
    put(&state, 1);
    assert_holds(&state, 2);
    cluster.stop();
}

#[test]
fn a_replica_may_listen_everywhere_and_be_reached_by_a_name() {
    let directory = tempfile::tempdir().unwrap();
    let init = |more: &[&str]| {
        let state = directory.path().join("replica");
        let init = Quorumfs::on(&state).args(["replica", "init", "--listen"]);
        init.args(more).run()
    };
    init(&["0.0.0.0:7000"]).fails(2, "only for listening", "--address HOST:PORT");
    let wrong = ["0.0.0.0:7000", "--address", "192.0.2.300:7000"];
    init(&wrong).fails(2, "is not HOST:PORT", "");
    let made = init(&["0.0.0.0:7000", "--address", "replica.example:7000"]).ok();
    let made = made.records("replica").remove(0);
    assert_eq!(made["address"], "replica.example:7000");
    let written = fs::read_to_string(directory.path().join("replica/replica.toml")).unwrap();
    assert!(
        written.contains("0.0.0.0:7000") && !written.contains("replica ="),
        "{written}"
    );
}

/// The number of the replica that leads, and its key.
fn leader(state: &Path) -> Option<(u64, String)> {
    let status = Quorumfs::on(state).run_with(["status"]);
    let summary = status.records("summary").into_iter().next()?;
    let number = summary["leader"].as_u64()?;
    let replicas = status.records("replica");
    let leads = replicas.iter().find(|it| it["id"] == number)?;
    Some((number, leads["key"].as_str()?.to_owned()))
}

#[test]
fn a_leader_that_came_back_leads_at_once_if_that_is_asked_for() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let state = cluster.volume();
    put(&state, 0);
    let (number, first) = leader(&state).unwrap();
    assert_eq!(number, 0);
    let lead = |more: &[&str]| {
        let lead = Quorumfs::on(&state).args(["cluster", "lead"]);
        lead.args(more).run()
    };
    assert_eq!(lead(&["0"]).ok().records("unchanged").len(), 1);

    cluster.kill_one(0);
    put(&state, 1);
    let (number, _) = leader(&state).unwrap();
    assert_ne!(number, 0);
    let (silent, hint) = ("replica 0 does not answer: everyone would wait", "--force");
    lead(&["0"]).fails(4, silent, hint);

    cluster.start_some(0..1);
    let up_to_date = "the first replica is up to date";
    eventually(up_to_date, PATIENCE, || all_vote(&state));
    let mut status = Command::new(binary());
    let status = status.arg("--state").arg(&state).arg("status").output();
    let status = String::from_utf8(status.unwrap().stdout).unwrap();
    let returns = "Replica 0 is the first to lead: it leads again when";
    assert!(status.contains(returns), "{status}");
    assert_eq!(lead(&["0"]).ok().records("change").len(), 1);
    let leads = Some((0, first));
    eventually("it leads", PATIENCE, || leader(&state) == leads);
    assert_holds(&state, 2);

    // One that is down leads only by force, and the others go on without it.
    cluster.kill_one(2);
    lead(&["2"]).fails(4, "replica 2 does not answer", hint);
    lead(&["2", "--force"]).ok();
    put(&state, 2);
    assert_holds(&state, 3);
}
