//! Stored data is unreadable: names and contents that were planted in a mount are searched for in
//! every byte of all clouds, all replicas and the gateway's own state.
//!
//! An empty search result proves nothing by itself, so the same planting and the same search are
//! repeated with a gateway that seals nothing, where every needle has to be found.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_bft::wire::limits::CHECKPOINT_INTERVAL;
use quorumfs_gateway::blocks::SEGMENT_BYTES;
use quorumfs_gateway::keys::Sealing;
use quorumfs_tests::harness::{Cluster, Gateway, Needle, NeedleHit, drop_caches, search};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SEGMENT: usize = SEGMENT_BYTES as usize;

/// The place in which a needle has to turn up when nothing is sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StoredOn {
    Clouds,
    Replicas,
}
use StoredOn::{Clouds, Replicas};

/// The needles: the kind, the place where it would be found, and the text.
const PLANTED: &[(&str, StoredOn, &str)] = &[
    (
        "directory",
        Replicas,
        "needle-one-is-the-name-of-a-directory",
    ),
    ("file", Replicas, "needle-two-is-the-name-of-a-file.txt"),
    ("link", Replicas, "needle-three-is-the-name-of-a-link"),
    ("target", Replicas, "needle-four-is-where-that-link-points"),
    ("renamed", Replicas, "needle-five-is-a-name-given-by-rename"),
    (
        "hard link",
        Replicas,
        "needle-six-is-a-second-name-of-a-file",
    ),
    (
        "not ASCII",
        Replicas,
        "Nadel-sieben-heißt-ein-Verzeichnis-größer",
    ),
    (
        "tiny",
        Replicas,
        "needle eight is all that a tiny file holds",
    ),
    ("inline", Replicas, "needle nine lies in a file of one KiB"),
    (
        "one segment",
        Clouds,
        "needle ten lies in a file of one segment",
    ),
    (
        "beginning",
        Clouds,
        "needle eleven begins a file of many segments",
    ),
    (
        "repeated",
        Clouds,
        "needle twelve is said over and over again. ",
    ),
    (
        "before a border",
        Clouds,
        "needle thirteen ends where a segment ends",
    ),
    (
        "behind a border",
        Clouds,
        "needle fourteen begins where a segment begins",
    ),
    ("end", Clouds, "needle fifteen ends a file of many slices"),
    (
        "appended",
        Clouds,
        "needle sixteen was added to what was there",
    ),
];

fn text(kind: &str) -> &'static str {
    let planted = PLANTED.iter().find(|(planted, _, _)| *planted == kind);
    planted.expect(kind).2
}

fn needles() -> Vec<Needle> {
    let planted = PLANTED.iter().map(|(kind, _, text)| Needle {
        kind,
        bytes: text.as_bytes().to_vec(),
    });
    planted.collect()
}

/// Has so many operations ordered that all earlier ones move from the journals to the databases.
fn cross_a_checkpoint(mount: &Path) {
    let many = mount.join("many directories");
    fs::create_dir(&many).unwrap();
    for number in 0..=CHECKPOINT_INTERVAL {
        fs::create_dir(many.join(number.to_string())).unwrap();
    }
}

/// Plants every needle below `mount` and returns each file with its expected content.
fn plant(mount: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let hay = |length: usize| (0..length).map(|i| (i * i % 251) as u8).collect::<Vec<_>>();
    let mut files = Vec::new();
    let mut write = |path: PathBuf, content: Vec<u8>| {
        fs::write(&path, &content).unwrap();
        files.push((path, content));
    };
    let directory = mount.join(text("directory"));
    let deep = directory.join(text("not ASCII"));
    fs::create_dir_all(&deep).unwrap();
    write(deep.join(text("file")), text("tiny").into());
    symlink(text("target"), deep.join(text("link"))).unwrap();

    let mut inline = hay(1024);
    inline[500..500 + text("inline").len()].copy_from_slice(text("inline").as_bytes());
    write(directory.join("inline"), inline);
    let mut one = hay(40_000);
    one[20_000..20_000 + text("one segment").len()].copy_from_slice(text("one segment").as_bytes());
    write(directory.join("one"), one);

    // Nine MiB: several slices, whose segments begin at multiples of their size.
    let mut many = hay(144 * SEGMENT);
    let mut put = |place: usize, kind: &str| {
        many[place..place + text(kind).len()].copy_from_slice(text(kind).as_bytes());
    };
    put(0, "beginning");
    put(
        3 * SEGMENT - text("before a border").len(),
        "before a border",
    );
    put(3 * SEGMENT, "behind a border");
    put(144 * SEGMENT - text("end").len(), "end");
    write(directory.join("many"), many);
    write(
        directory.join("repeated"),
        text("repeated").repeat(5_000).into(),
    );

    let mut grown = hay(2_000);
    write(directory.join("before"), grown.clone());
    grown.extend_from_slice(text("appended").as_bytes());
    let renamed = directory.join(text("renamed"));
    fs::rename(directory.join("before"), &renamed).unwrap();
    fs::hard_link(&renamed, directory.join(text("hard link"))).unwrap();
    let mut open = fs::File::options().append(true).open(&renamed).unwrap();
    std::io::Write::write_all(&mut open, text("appended").as_bytes()).unwrap();
    open.sync_all().unwrap();
    files.retain(|(path, _)| path.exists());
    files.push((renamed, grown));
    files
}

/// Checks that every planted name and content is there, as a user sees it.
fn assert_planted(mount: &Path, files: &[(PathBuf, Vec<u8>)]) {
    for (path, content) in files {
        assert!(fs::read(path).unwrap() == *content, "{}", path.display());
    }
    let deep = mount.join(text("directory")).join(text("not ASCII"));
    let target = fs::read_link(deep.join(text("link"))).unwrap();
    assert_eq!(target, Path::new(text("target")));
}

fn clouds(cluster: &Cluster) -> Vec<PathBuf> {
    (0..4).map(|index| cluster.cloud(index)).collect()
}

fn replicas(cluster: &Cluster) -> Vec<PathBuf> {
    let directories = (0..4).map(|number| cluster.replica(number));
    directories.collect()
}

/// Checks that there is something to search: shards on every cloud, a journal and a database of
/// every replica.
fn assert_searchable(cluster: &Cluster) {
    for replica in replicas(cluster) {
        let database = replica.join("data/state/state.redb");
        assert!(fs::metadata(database).unwrap().len() > 10_000);
        let segments = fs::read_dir(replica.join("data/journal")).unwrap();
        let lengths = segments.map(|entry| entry.unwrap().metadata().unwrap().len());
        assert!(lengths.sum::<u64>() > 1_000);
    }
    for cloud in clouds(cluster) {
        let objects = fs::read_dir(&cloud)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let full = objects.filter(|path| path.is_dir() && fs::read_dir(path).unwrap().count() > 0);
        assert!(full.count() >= 3, "{} is almost empty", cloud.display());
    }
}

fn kinds(found: &BTreeSet<NeedleHit>) -> BTreeSet<&'static str> {
    found.iter().map(|found| found.kind).collect()
}

#[test]
fn planted_content_is_unreadable_where_it_is_stored() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    let mount = ["mount", point.to_str().unwrap(), "--background"];
    cluster.quorumfs().run_with(mount).ok();
    let files = plant(&point);
    cluster.quorumfs().run_with(["umount"]).ok();

    // Through a second mount, so that reads come from clouds and replicas.
    drop_caches();
    cluster.quorumfs().run_with(mount).ok();
    assert_planted(&point, &files);
    let planted = cluster.committed();
    cross_a_checkpoint(&point);
    cluster.quorumfs().run_with(["umount"]).ok();
    cluster.flush(planted);
    cluster.stop();

    assert_searchable(&cluster);
    // Everything there is: clouds, replicas with their logs, the volume's state, the mount's log.
    let found = search(&[cluster.directory().to_path_buf()], &needles());
    assert!(found.is_empty(), "readable where it is stored: {found:#?}");
}

#[test]
fn the_same_search_finds_everything_where_nothing_is_sealed() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let deadline = Duration::from_secs(30);
    let gateway = Gateway::mount(&cluster, Sealing::Off, deadline);
    let files = plant(gateway.point());
    assert_planted(gateway.point(), &files);
    // The journals before a checkpoint truncates them, the databases after it.
    cluster.stop();
    let early = search(&replicas(&cluster), &needles());
    cluster.start();
    let planted = cluster.committed();
    cross_a_checkpoint(gateway.point());
    gateway.unmount();
    cluster.flush(planted);
    cluster.stop();

    assert_searchable(&cluster);
    let (in_clouds, in_replicas) = (
        search(&clouds(&cluster), &needles()),
        search(&replicas(&cluster), &needles()),
    );
    let expected = |place| -> BTreeSet<_> {
        let planted = PLANTED.iter().filter(|(_, planted, _)| *planted == place);
        planted.map(|(kind, _, _)| *kind).collect()
    };
    assert_eq!(kinds(&in_clouds), expected(Clouds), "{in_clouds:#?}");
    assert_eq!(kinds(&in_replicas), expected(Replicas), "{in_replicas:#?}");
    for (part, all) in [("/journal/", &early), ("/state/", &in_replicas)] {
        let there = all
            .iter()
            .filter(|found| found.path.to_string_lossy().contains(part));
        let there: BTreeSet<_> = there.map(|found| found.kind).collect();
        assert_eq!(there, expected(Replicas), "in {part}: {all:#?}");
    }
}
