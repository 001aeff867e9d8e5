//! Providers come and go: a cloud is replaced while it is dead or lies and the volume is in use;
//! nothing is lost, and no more is read than rebuilding needs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_backends::emulators::{Emulator, Server};
use quorumfs_backends::location::Location;
use quorumfs_tests::harness::{
    Cluster, Finished, Quorumfs, eventually, flip_byte, mount_in_background, noise, require_fuse,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const FILES: usize = 20;
/// Two of them do not fit one object.
const LENGTH: usize = 2_500_000;
const MOVED_WITHIN: Duration = Duration::from_secs(120);
/// k of the volumes here.
const DATA: f64 = 2.0;

fn content(number: usize) -> Vec<u8> {
    noise(number as u64 + 1, LENGTH)
}

/// Puts a tree of files.
fn fill(cluster: &Cluster) {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..FILES {
        fs::write(tree.join(number.to_string()), content(number)).unwrap();
    }
    let put = cluster.quorumfs().args(["put"]).args([&tree]);
    put.args(["/"]).run().ok();
}

#[track_caller]
fn assert_whole_in(quorumfs: Quorumfs) {
    let directory = tempfile::tempdir().unwrap();
    let into = directory.path().join("tree");
    quorumfs.args(["get", "/tree"]).args([&into]).run().ok();
    for number in 0..FILES {
        let found = fs::read(into.join(number.to_string())).unwrap();
        assert!(found == content(number), "/tree/{number}");
    }
}

#[track_caller]
fn assert_clean(cluster: &Cluster) {
    let scrubbed = cluster.quorumfs().run_with(["scrub", "--full"]);
    assert_eq!(scrubbed.code, Some(0), "{scrubbed:?}");
}

fn cloud(cluster: &Cluster, arguments: &[&str]) -> Finished {
    cluster.quorumfs().args(["cloud"]).run_with(arguments)
}

/// The state of each cloud, by name.
fn states(cluster: &Cluster) -> Vec<(String, String)> {
    let listed = cloud(cluster, &["ls"]).ok().records("cloud");
    let text = |it: &Value, key: &str| it[key].as_str().unwrap().to_owned();
    let state = |it: &Value| (text(it, "name"), text(it, "state"));
    listed.iter().map(state).collect()
}

#[track_caller]
fn assert_state(cluster: &Cluster, name: &str, state: &str) {
    let states = states(cluster);
    let expected = (name.to_owned(), state.to_owned());
    assert!(states.contains(&expected), "{states:?}");
}

/// Adds a directory as a cloud.
fn add_directory(cluster: &Cluster, name: &str) -> PathBuf {
    let place = cluster.directory().join("clouds").join(name);
    let added = cloud(cluster, &["add", name, place.to_str().unwrap()]);
    let line = added.ok().records("added").remove(0);
    assert_eq!(line["name"], name);
    place
}

/// The reads for each moved object, printed.
fn reads_per_object(what: &str, finished: &Finished) -> f64 {
    let drained = finished.records("drain");
    let last = drained.last().unwrap();
    assert_eq!(last["finished"], true, "{last}");
    // Each round counts for itself.
    let sum = |key: &str| {
        drained
            .iter()
            .map(|it| it[key].as_f64().unwrap())
            .sum::<f64>()
    };
    let (objects, reads) = (sum("objects"), sum("shards_read"));
    let reads = reads / objects;
    println!(
        "{what}: {objects} objects, {} shards moved, {reads:.3} reads for each object",
        last["shards_moved"]
    );
    reads
}

/// The number of objects in a directory that stands for a cloud.
fn stored(place: &Path) -> usize {
    let groups = fs::read_dir(place).unwrap().map(|it| it.unwrap().path());
    let groups = groups.filter(|it| it.is_dir() && it.file_name().unwrap().len() == 2);
    groups
        .map(|group| fs::read_dir(group).unwrap().count())
        .sum()
}

fn damage(place: &Path) {
    for group in fs::read_dir(place).unwrap().map(|it| it.unwrap().path()) {
        if !group.is_dir() || group.file_name().unwrap().len() != 2 {
            continue;
        }
        for object in fs::read_dir(group).unwrap() {
            let path = object.unwrap().path();
            let length = fs::metadata(&path).unwrap().len();
            flip_byte(&path, length / 2);
        }
    }
}

#[test]
fn a_dead_provider_is_replaced_under_load_and_a_mount_moves_its_data() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.start();
    fill(&cluster);
    let point = cluster.mount_point();
    let _mount = mount_in_background(&cluster, &point, &[]);
    let stop = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut written = 0;
            while !stop.load(Ordering::Relaxed) {
                let path = point.join(format!("during-{written}"));
                fs::write(&path, noise(1000 + written, 50_000)).unwrap();
                let old = written as usize % FILES;
                let read = fs::read(point.join("tree").join(old.to_string())).unwrap();
                assert!(read == content(old), "/tree/{old}");
                written += 1;
            }
            written
        });
        let dead = cluster.cloud(0);
        fs::rename(&dead, cluster.directory().join("gone")).unwrap();
        add_directory(&cluster, "e");
        let replaced = cloud(&cluster, &["replace", "a", "e"]).ok();
        assert_eq!(replaced.records("replaced")[0]["key_epoch"], 1);
        assert_state(&cluster, "e", "active");
        eventually("the mount moves the data", MOVED_WITHIN, || {
            states(&cluster).contains(&("a".to_owned(), "retired".to_owned()))
        });
        stop.store(true, Ordering::Relaxed);
        load.join().unwrap()
    });
    println!("{written} files were written meanwhile");
    cluster.quorumfs().args(["umount"]).run().ok();
    assert_clean(&cluster);
    assert_whole_in(cluster.quorumfs());
    let directory = tempfile::tempdir().unwrap();
    for number in 0..written {
        let name = format!("during-{number}");
        let into = directory.path().join(&name);
        let get = cluster.quorumfs().args(["get", &format!("/{name}")]);
        get.args([&into]).run().ok();
        assert!(
            fs::read(&into).unwrap() == noise(1000 + number, 50_000),
            "{name}"
        );
    }
    let status = cluster.quorumfs().run_with(["status"]).ok();
    assert_eq!(status.records("summary")[0]["health"], "good");
}

#[test]
fn a_lying_provider_costs_k_reads_an_object_and_another_machine_follows() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    fill(&cluster);
    // Another machine of the same owner, which never hears of a change but from the servers.
    let other = cluster.directory().join("other");
    copy(&cluster.volume(), &other);
    damage(&cluster.cloud(1));
    add_directory(&cluster, "e");
    let replaced = cloud(&cluster, &["replace", "b", "e", "--wait"]).ok();
    let reads = reads_per_object("lying", &replaced);
    assert!(reads <= DATA * 1.05, "{reads}");
    assert_state(&cluster, "b", "retired");
    fs::remove_dir_all(cluster.cloud(1)).unwrap();
    assert_clean(&cluster);
    assert_whole_in(Quorumfs::on(&other));
    let listed = Quorumfs::on(&other).run_with(["cloud", "ls"]).ok();
    let listed = listed.records("cloud");
    let e = listed.iter().find(|it| it["name"] == "e").unwrap();
    assert_eq!(
        (&e["state"], &e["configured"]),
        (&"active".into(), &false.into())
    );

    // And the other way: what is well gives its shards for one read each.
    add_directory(&cluster, "f");
    let replaced = cloud(&cluster, &["drain", "c", "--wait"]).ok();
    assert_eq!(replaced.records("replaced")[0]["new"], "f");
    let reads = reads_per_object("well", &replaced);
    assert!(reads <= 1.05, "{reads}");
    assert_clean(&cluster);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    let permissions = fs::metadata(from).unwrap().permissions();
    fs::set_permissions(to, permissions).unwrap();
    for file in ["quorumfs.toml", "volume.genesis", "principal.key"] {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
}

#[test]
fn a_replacement_that_is_killed_goes_on_and_is_reversed() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    fill(&cluster);
    let new = add_directory(&cluster, "e");
    let slowly = ["cloud", "replace", "d", "e", "--wait", "--rate", "1"];
    let mut moving = cluster.quorumfs().args(slowly).command().spawn().unwrap();
    eventually("some shards are put", MOVED_WITHIN, || stored(&new) >= 4);
    let pid = Pid::from_raw(i32::try_from(moving.id()).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    moving.wait().unwrap();
    assert_state(&cluster, "d", "draining");
    assert_whole_in(cluster.quorumfs());
    // The same again finishes it, once the job of the killed process is over.
    let again = cloud(&cluster, &["replace", "d", "e", "--wait"]).ok();
    assert_eq!(again.records("replaced")[0]["ordered"], false);
    assert_state(&cluster, "d", "retired");
    assert_clean(&cluster);
    // Back again, and elsewhere before that is done.
    add_directory(&cluster, "f");
    cloud(&cluster, &["replace", "e", "d"]).ok();
    cloud(&cluster, &["replace", "d", "f", "--wait"]).ok();
    for (name, state) in [("d", "retired"), ("e", "retired"), ("f", "active")] {
        assert_state(&cluster, name, state);
    }
    fs::remove_dir_all(cluster.cloud(3)).unwrap();
    assert_clean(&cluster);
    assert_whole_in(cluster.quorumfs());
}

#[test]
fn what_cannot_work_is_refused_before_anything_changes() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let place = cluster.directory().join("clouds/e");
    let place = place.to_str().unwrap();
    cloud(&cluster, &["replace", "a", "e"]).fails(2, "no cloud `e`", "cloud add");
    cloud(&cluster, &["drain", "a"]).fails(2, "no spare", "cloud add");
    cloud(&cluster, &["replace", "a", "b"]).fails(2, "active already", "");
    let used = cluster.cloud(0);
    let used = cloud(&cluster, &["add", "e", used.to_str().unwrap()]);
    assert_ne!(used.code, Some(0), "{used:?}");
    cloud(&cluster, &["add", "a", place]).fails(11, "has or had a cloud `a`", "another name");
    cloud(&cluster, &["add", "e", place, "--domain", "same"]).ok();
    cloud(&cluster, &["add", "e", place, "--domain", "same"]).ok();
    let other = format!("{place}-2");
    cloud(&cluster, &["add", "f", &other, "--domain", "same"]).ok();
    cloud(&cluster, &["replace", "a", "e"]).ok();
    cloud(&cluster, &["replace", "b", "f"]).fails(2, "fail together", "");
    cloud(&cluster, &["replace", "a", "e"]).ok();
    let unreachable = cluster.directory().join("away");
    fs::rename(place, &unreachable).unwrap();
    fs::rename(&unreachable, place).unwrap();
    let listed: Vec<_> = states(&cluster)
        .into_iter()
        .map(|(_, state)| state)
        .collect();
    assert_eq!(
        listed[1..],
        ["active", "active", "active", "active", "spare"]
    );
}

/// Servers of the providers' protocols, with the runtime that their processes belong to.
struct Providers {
    runtime: tokio::runtime::Runtime,
    _directory: tempfile::TempDir,
    servers: Vec<Emulator>,
}

impl Providers {
    fn start(kinds: &[Server]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mut servers = Vec::new();
        for (number, kind) in kinds.iter().enumerate() {
            let own = directory.path().join(number.to_string());
            fs::create_dir(&own).unwrap();
            servers.push(runtime.block_on(Emulator::start(*kind, &own)).unwrap());
        }
        Self {
            runtime,
            _directory: directory,
            servers,
        }
    }

    /// A new container of a server: its location, and its file of credentials.
    fn container(&self, number: usize, name: &str) -> (String, Option<PathBuf>) {
        let server = &self.servers[number];
        let (text, credentials) = (server.location(name, ""), server.credentials());
        let location: Location = text.parse().unwrap();
        let created = location.create_container(credentials.as_deref());
        self.runtime.block_on(created).unwrap();
        (text, credentials)
    }

    fn stop(&mut self, number: usize) {
        let server = &mut self.servers[number];
        self.runtime.block_on(server.stop());
    }
}

impl Drop for Providers {
    fn drop(&mut self) {
        for number in 0..self.servers.len() {
            self.stop(number);
        }
    }
}

/// Changes the bytes of all shards of a bucket, which are files.
fn lie(data: &Path, bucket: &str) -> usize {
    let mut changed = 0;
    let mut waiting = vec![data.to_path_buf()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap().map(|it| it.unwrap()) {
            let path = entry.path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                waiting.push(path);
            } else if name.len() == 32 && path.to_string_lossy().contains(bucket) {
                let length = entry.metadata().unwrap().len();
                flip_byte(&path, length / 2);
                changed += 1;
            }
        }
    }
    changed
}

#[test]
fn over_the_providers_protocols_a_dead_one_and_a_lying_one_are_replaced() {
    let kinds = [
        Server::Versitygw,
        Server::Azurite,
        Server::FakeGcs,
        Server::Versitygw,
    ];
    let mut providers = Providers::start(&kinds);
    let mut cluster = Cluster::prepare_with(|cluster| {
        let mut clouds = Vec::new();
        let mut more = Vec::new();
        for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
            let (location, credentials) = providers.container(number, "first-one");
            clouds.push(format!("{name}={location}"));
            more.push(format!("--cloud-domain={name}=owner-{name}"));
            if let Some(file) = credentials {
                more.push(format!("--cloud-credentials={name}={}", file.display()));
            }
        }
        clouds.push(format!("d={}", cluster.cloud(3).display()));
        cluster.create_over(&cluster.volume(), &clouds).args(more)
    });
    cluster.start();
    fill(&cluster);
    let add = |name: &str, number: usize| {
        let (location, credentials) = providers.container(number, "another-one");
        let domain = format!("owner-{name}");
        let mut add = cluster.quorumfs().args(["cloud", "add", name, &location]);
        add = add.args(["--domain", &domain]);
        if let Some(file) = credentials {
            add = add.args(["--credentials".as_ref(), file.as_os_str()]);
        }
        add.run().ok();
    };
    // Azurite dies; a bucket of the other S3 service takes its place, while files are written.
    add("e", 3);
    add("f", 2);
    providers.stop(1);
    let stop = AtomicBool::new(false);
    let directory = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                let path = directory.path().join(format!("during-{number}"));
                fs::write(&path, noise(1000 + number, 50_000)).unwrap();
                let put = cluster.quorumfs().args(["put"]).args([&path]);
                put.args(["/"]).run().ok();
                number += 1;
            }
            number
        });
        let replaced = cloud(&cluster, &["replace", "b", "e", "--wait"]).ok();
        stop.store(true, Ordering::Relaxed);
        println!("{} files were put meanwhile", load.join().unwrap());
        let reads = reads_per_object("dead Azurite", &replaced);
        assert!(reads <= DATA * 1.05, "{reads}");
    });
    // The first S3 service changes all bytes.
    let changed = lie(&providers.servers[0].data(), "first-one");
    assert!(changed >= FILES, "{changed}");
    let replaced = cloud(&cluster, &["replace", "a", "f", "--wait"]).ok();
    let reads = reads_per_object("lying S3 service", &replaced);
    assert!(reads <= DATA * 1.05, "{reads}");
    for name in ["a", "b"] {
        assert_state(&cluster, name, "retired");
    }
    providers.stop(0);
    assert_clean(&cluster);
    assert_whole_in(cluster.quorumfs());
    for entry in fs::read_dir(directory.path()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let into = tempfile::tempdir().unwrap();
        let into = into.path().join(&name);
        let get = cluster.quorumfs().args(["get", &format!("/{name}")]);
        get.args([&into]).run().ok();
        assert!(
            fs::read(&into).unwrap() == fs::read(&path).unwrap(),
            "{name}"
        );
    }
}
