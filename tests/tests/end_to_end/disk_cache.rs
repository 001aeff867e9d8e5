//! The disk cache of a real mount: it survives a restart, serves while no cloud does, and its
//! content is unreadable without the key.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_gateway::keys::{HostKey, KeyFile};
use quorumfs_tests::harness::{Cluster, Needle, eventually, search};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::Duration;

const PLANTED: &[u8] = b"a needle that lies in the cache, sealed, and nowhere readable";

/// Configures a cache of the cluster's volume with these lines in its section.
fn configure_cache(cluster: &Cluster, section: &str) {
    let path = cluster.volume().join("quorumfs.toml");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("size_mib = 0"));
    fs::write(&path, text.replace("size_mib = 0", section)).unwrap();
}

/// The mount's status of its cache.
#[track_caller]
fn status(cluster: &Cluster) -> Value {
    let status = cluster.quorumfs().run_with(["status"]);
    status.records("mount")[0]["cache"].clone()
}

/// Bytes that are different everywhere, with the needle in them.
fn hay(length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length).map(|at| (at * at / 251) as u8).collect();
    for place in [0, length / 2, length - PLANTED.len()] {
        bytes[place..place + PLANTED.len()].copy_from_slice(PLANTED);
    }
    bytes
}

fn move_clouds(cluster: &Cluster, away: bool) {
    for index in 0..4 {
        let (here, there) = (
            cluster.cloud(index),
            cluster.directory().join(format!("away-{index}")),
        );
        let (from, to) = if away { (here, there) } else { (there, here) };
        fs::rename(from, to).unwrap();
    }
}

fn assert_unreadable(cluster: &Cluster, cache: &Path) {
    let state = cluster.volume();
    let key = KeyFile::load(&state.join("principal.key")).unwrap();
    let host = state.join("host.key");
    let (volume, principal) = (key.volume(), &key.principal);
    let host_key = HostKey::open_or_create(&host, volume, principal).unwrap();
    let secret = |kind, bytes: &[u8; 32]| Needle {
        kind,
        bytes: bytes.to_vec(),
    };
    let planted = Needle {
        kind: "content",
        bytes: PLANTED.to_vec(),
    };
    let secrets = [
        secret("cache key", host_key.cache().expose()),
        secret("signing key", principal.signing_secret().expose()),
        planted,
    ];
    let found = search(&[cache.to_path_buf(), state], &secrets);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn with_every_cloud_gone_a_mount_reads_from_its_disk_cache_and_the_disk_is_unreadable() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    configure_cache(&cluster, "size_mib = 64\nfree_space_floor_mib = 0");
    let point = cluster.mount_point();
    let mount = ["mount", point.to_str().unwrap(), "--background"];
    cluster.quorumfs().run_with(mount).ok();
    let (small, large) = (hay(40_000), hay(9 << 20));
    fs::write(point.join("small"), &small).unwrap();
    fs::write(point.join("large"), &large).unwrap();
    cluster.quorumfs().run_with(["umount"]).ok();

    // Another process, with empty memory, and with none of its pages in the kernel's cache. It
    // starts with the cached shares of the process before.
    move_clouds(&cluster, true);
    let kept = cluster.volume().join("clouds.shares");
    let aside = cluster.directory().join("aside");
    fs::rename(&kept, &aside).unwrap();
    let without = cluster.quorumfs().run_with(mount);
    without.fails(6, "the second lock", "quorumfs status");
    fs::write(&kept, "quorumfs kept shares, format 1\n").unwrap();
    let damaged = cluster.quorumfs().run_with(mount);
    damaged.fails(6, "the second lock", "quorumfs status");
    assert!(!kept.exists(), "an unusable file is left there");
    fs::rename(&aside, &kept).unwrap();
    cluster.quorumfs().run_with(mount).ok();
    // The content on disk is indexed in the background.
    eventually("the cache is indexed", Duration::from_secs(30), || {
        status(&cluster)["chunks"].as_u64() >= Some(37)
    });
    assert!(fs::read(point.join("small")).unwrap() == small);
    assert!(fs::read(point.join("large")).unwrap() == large);
    // Commands use the same shares.
    let listed = cluster.quorumfs().run_with(["ls", "/"]).ok();
    assert_eq!(listed.records("entry").len(), 2, "{listed:?}");
    let cache = status(&cluster);
    assert!(cache["hits"].as_u64().unwrap() >= 37, "{cache}");
    assert_eq!(
        (&cache["misses"], &cache["refused"], &cache["problem"]),
        (&Value::from(0), &Value::from(0), &Value::Null)
    );
    assert!(cache["bytes"].as_u64().unwrap() > 9 << 20);
    move_clouds(&cluster, false);
    cluster.quorumfs().run_with(["umount"]).ok();
    cluster.configure("[keys]\nkeep_cloud_secret = false\n");
    cluster.quorumfs().run_with(mount).ok();
    assert!(!kept.exists(), "it is cached against the configuration");
    cluster.quorumfs().run_with(["umount"]).ok();
    let directory = Path::new(cache["path"].as_str().unwrap()).to_path_buf();
    assert!(directory.starts_with(cluster.volume().join("cache")));
    assert_unreadable(&cluster, &directory);
}

#[test]
fn without_a_place_or_a_key_for_its_cache_a_mount_works_and_reports_it() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    configure_cache(
        &cluster,
        "size_mib = 64\nfree_space_floor_mib = 0\npath = \"quorumfs.toml\"",
    );
    let point = cluster.mount_point();
    let mount = ["mount", point.to_str().unwrap(), "--background"];
    let content = hay(1 << 20);
    cluster.quorumfs().run_with(mount).ok();
    fs::write(point.join("file"), &content).unwrap();
    let problem = status(&cluster)["problem"].clone();
    assert!(
        problem.as_str().unwrap().contains("cannot use"),
        "{problem}"
    );
    cluster.quorumfs().run_with(["umount"]).ok();

    fs::write(cluster.volume().join("host.key"), "something else").unwrap();
    cluster.quorumfs().run_with(mount).ok();
    assert!(fs::read(point.join("file")).unwrap() == content);
    let problem = status(&cluster)["problem"].clone();
    assert!(problem.as_str().unwrap().contains("host key"), "{problem}");
    cluster.quorumfs().run_with(["umount"]).ok();
}

#[test]
fn prefetched_content_is_read_while_every_cloud_is_gone() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    configure_cache(&cluster, "size_mib = 64\nfree_space_floor_mib = 0");
    let point = cluster.mount_point();
    let mount = ["mount", point.to_str().unwrap(), "--background"];
    cluster.quorumfs().run_with(mount).ok();
    let (large, other) = (hay(9 << 20), hay(3 << 20));
    fs::create_dir(point.join("below")).unwrap();
    fs::write(point.join("below/large"), &large).unwrap();
    fs::hard_link(point.join("below/large"), point.join("below/again")).unwrap();
    fs::write(point.join("other"), &other).unwrap();
    cluster.quorumfs().run_with(["umount"]).ok();
    fs::remove_dir_all(cluster.volume().join("cache")).unwrap();

    let warm = |path: &Path| cluster.quorumfs().args(["warmup"]).args([path]).run();
    warm(&point).fails(10, "is not mounted", "mount it first");
    cluster.quorumfs().run_with(mount).ok();
    warm(&cluster.volume()).fails(9, "is not in the mount", "name a path in there");
    warm(&point.join("nothing")).fails(9, "look at", "");
    let counted = |path: &Path| warm(path).ok().records("warmup").remove(0);
    let first = counted(&point.join("below"));
    assert_eq!(
        (&first["files"], &first["files_failed"]),
        (&1.into(), &0.into())
    );
    assert!(first["bytes_brought"].as_u64() >= Some(9 << 20), "{first}");
    let second = counted(&point.join("below"));
    assert_eq!(second["bytes_brought"], 0, "{second}");
    assert_eq!(second["bytes_present"], first["bytes_brought"]);
    move_clouds(&cluster, true);
    assert!(fs::read(point.join("below/again")).unwrap() == large);
    assert_eq!(status(&cluster)["misses"], 0, "{first}");
    let lacking = warm(&point.join("other"));
    assert!(lacking.code != Some(0), "{lacking:?}");
    move_clouds(&cluster, false);
    assert!(fs::read(point.join("other")).unwrap() == other);
    cluster.quorumfs().run_with(["umount"]).ok();

    // Content that exceeds the free space is left out, and reported.
    fs::remove_dir_all(cluster.volume().join("cache")).unwrap();
    let configuration = cluster.volume().join("quorumfs.toml");
    let text = fs::read_to_string(&configuration).unwrap();
    fs::write(
        &configuration,
        text.replace("size_mib = 64", "size_mib = 16"),
    )
    .unwrap();
    cluster.quorumfs().run_with(mount).ok();
    let partial = warm(&point);
    let counts = partial.records("warmup").remove(0);
    assert!(partial.code != Some(0), "{partial:?}");
    assert!(counts["bytes_left_out"].as_u64() > Some(0), "{counts}");
    cluster.quorumfs().run_with(["umount"]).ok();
}
