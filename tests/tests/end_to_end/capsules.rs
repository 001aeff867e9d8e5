//! Capsules: links that are opened with every server of ours stopped, and any one cloud lying.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::people::{Guest, admit};
use super::provider_servers::Provider;
use quorumfs_backends::emulators::Server;
use quorumfs_gateway::vfs::RESCUE_DIRECTORY;
use quorumfs_tests::harness::{Cluster, binary};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The name of an entry in progress.
const IN_PROGRESS: &str = ".quorumfs-0123456789abcdef-0";

/// A volume over servers of three providers and a directory, with a folder in it.
struct SharedFolder {
    cluster: Cluster,
    providers: Vec<Provider>,
    disks: tempfile::TempDir,
    source: PathBuf,
}

/// How a run on a machine without anything of the volume ended.
struct Bare {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn large() -> Vec<u8> {
    (0..9_000_000_u32)
        .flat_map(|it| it.wrapping_mul(2_654_435_761).to_le_bytes())
        .take(9_000_000)
        .collect()
}

impl SharedFolder {
    fn new() -> Self {
        let disks = tempfile::tempdir().unwrap();
        let providers = Provider::three(disks.path());
        let mut cluster = Provider::with_a_directory(&providers, disks.path());
        cluster.start();
        let source = cluster.directory().join("Photos");
        fs::create_dir_all(source.join("2024")).unwrap();
        fs::write(source.join("large"), large()).unwrap();
        fs::write(source.join("small"), "hello").unwrap();
        fs::write(source.join("empty"), "").unwrap();
        fs::write(source.join("2024/script"), vec![b'#'; 70_000]).unwrap();
        let run = fs::Permissions::from_mode(0o755);
        fs::set_permissions(source.join("2024/script"), run).unwrap();
        symlink("../small", source.join("2024/link")).unwrap();
        // What was rescued is content; what is in progress is not.
        fs::create_dir(source.join(RESCUE_DIRECTORY)).unwrap();
        fs::write(source.join(RESCUE_DIRECTORY).join("old"), "saved").unwrap();
        fs::write(source.join(IN_PROGRESS), "keys of another").unwrap();
        symlink("/etc/passwd", source.join("outside")).unwrap();
        let put = cluster.quorumfs().args(["put"]).args([&source]);
        put.args(["/Photos"]).run().ok();
        Self {
            cluster,
            providers,
            disks,
            source,
        }
    }

    fn capsule(&self, arguments: &[&str]) -> Value {
        let share = self.cluster.quorumfs().args(["share"]).args(arguments);
        let shared = share.args(["--capsule"]).run().ok();
        shared.records("capsule")[0].clone()
    }

    /// A new directory, as of another machine.
    fn machine(&self, name: &str) -> PathBuf {
        let directory = self.disks.path().join(name);
        fs::create_dir(&directory).unwrap();
        directory
    }
}

/// Runs `open` without a state directory, a home or a variable.
fn open(at: &Path, arguments: &[&str]) -> Bare {
    let mut command = Command::new(binary());
    command.args(["open", "--local-clouds"]).args(arguments);
    command.current_dir(at);
    command.env_clear().env("HOME", "/nonexistent");
    let ended = command.output().unwrap();
    Bare {
        code: ended.status.code(),
        stdout: String::from_utf8(ended.stdout).unwrap(),
        stderr: String::from_utf8(ended.stderr).unwrap(),
    }
}

fn link_of(capsule: &Value) -> String {
    capsule["link"].as_str().unwrap().to_owned()
}

/// The objects of a server that keeps them as files.
fn objects_below(data: &Path) -> Vec<PathBuf> {
    let (mut waiting, mut objects) = (vec![data.to_path_buf()], Vec::new());
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                waiting.push(entry.path());
            } else if fs::read(entry.path()).unwrap().starts_with(b"QFSOBJCT") {
                objects.push(entry.path());
            }
        }
    }
    objects
}

/// Flips a bit in the middle of every object.
fn damage(data: &Path) -> usize {
    let objects = objects_below(data);
    for object in &objects {
        let mut bytes = fs::read(object).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(object, bytes).unwrap();
    }
    objects.len()
}

fn assert_there(source: &Path, opened: &Path) {
    for file in ["large", "small", "empty", "2024/script", "2024/link"] {
        let (expected, found) = (fs::read(source.join(file)), fs::read(opened.join(file)));
        assert!(expected.unwrap() == found.unwrap(), "{file} differs");
    }
    assert_eq!(
        fs::read_link(opened.join("2024/link")).unwrap(),
        Path::new("../small")
    );
    let rescued = opened.join(RESCUE_DIRECTORY).join("old");
    assert_eq!(fs::read(rescued).unwrap(), b"saved");
    for left_out in ["outside", IN_PROGRESS] {
        assert!(
            opened.join(left_out).symlink_metadata().is_err(),
            "{left_out}"
        );
    }
    let mode = |file: &str| {
        fs::metadata(opened.join(file))
            .unwrap()
            .permissions()
            .mode()
    };
    assert_eq!(mode("2024/script") & 0o100, 0o100);
    assert_eq!(mode("small") & 0o111, 0);
    let modified = |at: &Path| fs::metadata(at.join("large")).unwrap().modified().unwrap();
    assert_eq!(modified(source), modified(opened));
}

#[test]
fn a_capsule_is_opened_with_everything_of_ours_stopped_and_one_cloud_lying() {
    let mut shared = SharedFolder::new();
    let capsule = shared.capsule(&["/Photos", "--expires", "1h"]);
    assert_eq!(capsule["files"], 5);
    assert_eq!(capsule["left_out"], 1);
    let link = link_of(&capsule);
    // A file alone, and the link in a file.
    let file = shared.disks.path().join("small.qlink");
    let small = ["/Photos/small", "--file", file.to_str().unwrap()];
    assert_eq!(shared.capsule(&small)["link"], Value::Null);
    // A guest makes one of a file of its own, with its own credentials.
    let ann = Guest::new(&shared.cluster, "ann");
    let given = Provider::given_by(&shared.providers);
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    admit(
        &shared.cluster,
        &ann,
        "ann",
        &[&["--uid", "1001"][..], &given].concat(),
    );
    let note = shared.disks.path().join("note");
    fs::write(&note, vec![b'n'; 70_000]).unwrap();
    ann.quorumfs().args(["upload"]).args([&note]).run().ok();
    let anns = ann
        .run(&["share", "/Shared/note", "--capsule", "--expires", "1h"])
        .ok();
    let anns = link_of(&anns.records("capsule")[0]);
    // What is removed stays in the capsule.
    let run = shared.cluster.quorumfs();
    run.args(["rm", "--recursive", "/Photos"]).run().ok();
    shared.cluster.stop();

    let machine = shared.machine("first");
    let listed = open(&machine, &["--list", &link]);
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    assert!(
        listed.stdout.contains("Photos/2024/script  68.3 KiB"),
        "{}",
        listed.stdout
    );
    let opened = open(&machine, &[&link]);
    assert_eq!(opened.code, Some(0), "{}", opened.stderr);
    assert_there(&shared.source, &machine.join("Photos"));
    // Nothing is replaced.
    let again = open(&machine, &[&link]);
    assert_eq!(again.code, Some(9));
    assert!(
        again.stderr.contains("Photos is there already"),
        "{}",
        again.stderr
    );
    let opened = open(&machine, &[file.to_str().unwrap()]);
    assert_eq!(opened.code, Some(0), "{}", opened.stderr);
    assert_eq!(fs::read(machine.join("small")).unwrap(), b"hello");

    let opened = open(&machine, &[&anns]);
    assert_eq!(opened.code, Some(0), "{}", opened.stderr);
    assert_eq!(
        fs::read(machine.join("note")).unwrap(),
        fs::read(&note).unwrap()
    );

    // One cloud lies in every answer.
    assert!(damage(&shared.providers[0].data()) > 5);
    let machine = shared.machine("second");
    let opened = open(&machine, &[&link]);
    assert_eq!(opened.code, Some(0), "{}", opened.stderr);
    assert_there(&shared.source, &machine.join("Photos"));

    // A second one is away: that is one too many, and said so.
    shared.providers[1].stop();
    let machine = shared.machine("third");
    let opened = open(&machine, &[&link]);
    assert_eq!(opened.code, Some(6), "{}", opened.stderr);
    assert!(
        opened.stderr.contains("too few clouds"),
        "{}",
        opened.stderr
    );
    assert!(!opened.stderr.contains("ignature="), "{}", opened.stderr);
    assert!(!machine.join("Photos").exists());
}

#[test]
fn a_capsule_ends_when_it_expires_and_when_it_is_revoked() {
    let shared = SharedFolder::new();
    let short = link_of(&shared.capsule(&["/Photos/small", "--expires", "6s"]));
    let revoked = shared.capsule(&["/Photos"]);
    let machine = shared.machine("one");
    let opened = open(&machine, &[&short]);
    assert_eq!(opened.code, Some(0), "{}", opened.stderr);
    let link = link_of(&revoked);
    let listed = open(&machine, &["--list", &link]);
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);

    // Listed as what it is, and ended.
    let listed = shared.cluster.quorumfs().run_with(["share", "ls"]).ok();
    let shares = listed.records("share");
    let capsule = shares.iter().find(|it| it["id"] == revoked["id"]).unwrap();
    assert_eq!(capsule["capsule"], true);
    let id = revoked["id"].to_string();
    let ended = shared
        .cluster
        .quorumfs()
        .run_with(["share", "revoke", &id])
        .ok();
    assert_eq!(ended.records("ended")[0]["taken_back"], true);
    let machine = shared.machine("two");
    let opened = open(&machine, &[&link]);
    assert_eq!(opened.code, Some(9), "{}", opened.stderr);
    assert!(
        opened.stderr.contains("expired, or was revoked"),
        "{}",
        opened.stderr
    );

    std::thread::sleep(Duration::from_secs(6));
    let opened = open(&machine, &[&short]);
    assert_eq!(opened.code, Some(9), "{}", opened.stderr);
    assert!(
        opened.stderr.contains("expired, or was revoked"),
        "{}",
        opened.stderr
    );
    let listed = shared.cluster.quorumfs().run_with(["share", "ls"]).ok();
    assert!(listed.records("share").is_empty(), "{listed:?}");
    // What was shared is as it was.
    let read = shared.cluster.quorumfs().run_with(["cat", "/Photos/small"]);
    assert_eq!(read.ok().stdout, b"hello");
}

#[test]
fn what_a_capsule_leads_to_is_kept_from_the_collector_until_it_ends() {
    let disks = tempfile::tempdir().unwrap();
    let start = |name: &&str| Provider::start(name, Server::Versitygw, &disks.path().join(name));
    let providers: Vec<Provider> = ["a", "b", "c", "d"].iter().map(start).collect();
    let mut cluster = Cluster::prepare_with(|cluster| {
        let clouds: Vec<_> = providers.iter().map(|it| it.argument.clone()).collect();
        let trash = ["--trash", "off"];
        let create = cluster.create_over(&cluster.volume(), &clouds);
        create.args(Provider::given_by(&providers)).args(trash)
    });
    for (name, provider) in ["a", "b", "c", "d"].iter().zip(&providers) {
        let file = provider.credentials.as_ref().unwrap().to_str().unwrap();
        super::roles::configure(&cluster, name, "collector_credentials", file);
    }
    cluster.start();
    let objects = |provider: &Provider| objects_below(&provider.data()).len();
    let before: Vec<usize> = providers.iter().map(objects).collect();
    let file = cluster.directory().join("file");
    fs::write(&file, large()).unwrap();
    let put = cluster.quorumfs().args(["put"]).args([&file]);
    put.args(["/file"]).run().ok();
    let shared = cluster
        .quorumfs()
        .run_with(["share", "/file", "--capsule"])
        .ok();
    let capsule = shared.records("capsule")[0].clone();
    cluster.quorumfs().run_with(["rm", "/file"]).ok();
    let collect = || {
        let once = [
            "reconcile",
            "--once",
            "--only",
            "collection",
            "--grace",
            "0s",
        ];
        cluster.quorumfs().run_with(once).ok();
    };
    collect();
    let during = objects(&providers[0]);
    assert!(during > before[0], "the capsule needs them");
    let opened = open(disks.path(), &[&link_of(&capsule)]);
    assert_eq!(opened.code, Some(0), "{}", opened.stderr);
    assert!(fs::read(disks.path().join("file")).unwrap() == large());

    let id = capsule["id"].to_string();
    cluster.quorumfs().run_with(["share", "revoke", &id]).ok();
    collect();
    let left: Vec<usize> = providers.iter().map(objects).collect();
    assert_eq!(left, before, "nothing needs them any more");
}

#[test]
fn bad_links_and_places_are_refused_in_plain_words() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |link: &str, code, words: &str| {
        let opened = open(directory.path(), &[link]);
        assert_eq!(opened.code, Some(code), "{}", opened.stderr);
        assert!(opened.stderr.contains(words), "{}", opened.stderr);
    };
    refused("quorumfs-capsule-1:AAAA", 2, "cut short");
    refused("quorumfs-capsule-2:AAAA", 14, "newer version");
    fs::write(directory.path().join("text"), "hello").unwrap();
    refused("text", 2, "this is no link of a capsule");
    refused("missing", 1, "missing");

    // Directories sign nothing: said, with what does.
    let mut cluster = Cluster::prepare();
    cluster.start();
    let file = cluster.directory().join("file");
    fs::write(&file, vec![7; 5000]).unwrap();
    let put = cluster.quorumfs().args(["put"]).args([&file]);
    put.args(["/file"]).run().ok();
    let share = cluster.quorumfs().run_with(["share", "/file", "--capsule"]);
    share.fails(1, "quorumfs serve", "");
    let left = cluster.quorumfs().run_with(["ls", "/Shared"]).ok();
    assert!(left.records("entry").is_empty(), "{left:?}");
}
