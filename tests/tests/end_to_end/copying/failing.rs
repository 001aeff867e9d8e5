//! Copies that fail. Two of four clouds are at fault, more than a write tolerates: the old content
//! stays under its name, and a new name does not exist.

use super::proxy::{CloudProxy, Trouble};
use super::{cluster, get, names, put, set_mode};
use crate::faults::{fill, small_disk};
use crate::roles::s3::S3;
use quorumfs_tests::harness::{Cluster, Private, require_private_mounts};
use std::fs;
use std::path::Path;

/// Faults of a directory that is a cloud, and the exit code for each path.
const FAULTS: [(&str, i64); 5] = [
    ("gone", 6),
    ("read-only", 6),
    ("a file", 6),
    ("foreign", 6),
    ("full", 8),
];
/// What the two providers do at a time.
const TROUBLES: [[Trouble; 2]; 4] = [
    [Trouble::Status(500), Trouble::Status(503)],
    [Trouble::Reset, Trouble::Garbage],
    [Trouble::Status(403), Trouble::Status(403)],
    [Trouble::Silence, Trouble::Silence],
];

/// Begins a fault; `foreign` is a cloud of another volume.
fn begin(fault: &str, cloud: &Path, foreign: &Path) {
    let away = || fs::rename(cloud, cloud.with_extension("away")).unwrap();
    match fault {
        "gone" => away(),
        "a file" => {
            away();
            fs::write(cloud, "a file").unwrap();
        }
        "foreign" => {
            away();
            fs::rename(foreign, cloud).unwrap();
        }
        "read-only" => set_mode(cloud, 0o555),
        // Its disk is full only in the mount namespace of the copying command.
        _ => {}
    }
}

fn end(fault: &str, cloud: &Path, foreign: &Path) {
    let back = || fs::rename(cloud.with_extension("away"), cloud).unwrap();
    match fault {
        "gone" => back(),
        "a file" => {
            fs::remove_file(cloud).unwrap();
            back();
        }
        "foreign" => {
            fs::rename(cloud, foreign).unwrap();
            back();
        }
        "read-only" => set_mode(cloud, 0o755),
        _ => {}
    }
}

/// Puts the directory on a small disk, and fills that.
fn full(directory: &Path) -> String {
    let disk = small_disk(directory, 16);
    format!("{}; {} || true", disk.script, fill(directory))
}

#[test]
fn a_copy_that_fails_leaves_the_old_content() {
    require_private_mounts();
    let cluster = cluster();
    let others = cluster.directory().join("others");
    let other_volume = cluster.directory().join("other");
    cluster.create(&other_volume, &others).run().ok();
    let clouds = [(0, "a"), (1, "b")];
    let clouds = clouds.map(|(index, name)| (cluster.cloud(index), others.join(name)));

    let place = tempfile::tempdir().unwrap();
    let (small, large) = (vec![1; 300_000], vec![1; 5 << 20]);
    let (new_small, new_large) = (vec![2; 300_000], vec![2; 5 << 20]);
    let (tree, fresh) = (place.path().join("tree"), place.path().join("fresh"));
    fs::create_dir(&tree).unwrap();
    let write = |small: &[u8], large: &[u8]| {
        fs::write(tree.join("small"), small).unwrap();
        fs::write(tree.join("large"), large).unwrap();
    };
    write(&small, &large);
    put(&cluster, &[], &tree, "/").ok();
    write(&new_small, &new_large);
    fs::write(&fresh, &new_small).unwrap();
    let both = ["put", tree.to_str().unwrap(), fresh.to_str().unwrap(), "/"];
    for (fault, code) in FAULTS {
        for (cloud, foreign) in &clouds {
            begin(fault, cloud, foreign);
        }
        let mut quorumfs = cluster.quorumfs();
        if fault == "full" {
            let script = clouds.each_ref().map(|(cloud, _)| full(cloud)).join("; ");
            quorumfs = quorumfs.in_private(&Private { script });
        }
        let failed = quorumfs.run_with(both);
        for (cloud, foreign) in &clouds {
            end(fault, cloud, foreign);
        }
        // Only the directory, which existed, counts as copied.
        assert_eq!(failed.code, Some(3), "{fault}: {failed:?}");
        let paths = failed.records("failed");
        let codes: Vec<_> = paths.iter().map(|it| it["code"].as_i64()).collect();
        assert_eq!(codes, [Some(code); 3], "{fault}: {failed:?}");
        assert_eq!(names(&cluster, "/"), ["tree"], "{fault}");
        assert_eq!(names(&cluster, "/tree"), ["large", "small"], "{fault}");
        let out = place.path().join(fault);
        get(&cluster, &[], "/tree", &out).ok();
        assert!(fs::read(out.join("small")).unwrap() == small, "{fault}");
        assert!(fs::read(out.join("large")).unwrap() == large, "{fault}");
    }
    cluster.quorumfs().run_with(both).ok();
    assert_eq!(names(&cluster, "/"), ["fresh", "tree"]);
    assert_eq!(names(&cluster, "/tree"), ["large", "small"]);
}

/// A cluster with a bucket behind each proxy, and two directories.
fn cluster_behind(s3: &S3, proxies: &[CloudProxy; 2]) -> Cluster {
    let mut cluster = Cluster::prepare_with(|cluster| {
        let directory = |index| cluster.cloud(index).display().to_string();
        let behind = |proxy: &CloudProxy, bucket: &str| {
            s3.bucket(bucket);
            let (server, proxy) = (s3.address().to_string(), proxy.address().to_string());
            s3.location(bucket).replace(&server, &proxy)
        };
        let clouds = [
            format!("a={}", behind(&proxies[0], "first-bucket")),
            format!("b={}", behind(&proxies[1], "second-bucket")),
            format!("c={}", directory(2)),
            format!("d={}", directory(3)),
        ];
        let mut create = cluster.create_over(&cluster.volume(), &clouds);
        for name in ["a", "b"] {
            let credentials = format!("{name}={}", s3.root_file().display());
            let domain = format!("{name}=owner-{name}");
            create = create
                .args(["--cloud-credentials", &credentials])
                .args(["--cloud-domain", &domain]);
        }
        create
    });
    cluster.start();
    cluster
}

#[test]
fn a_copy_that_two_providers_fail_leaves_the_old_content() {
    let s3 = S3::start();
    let proxies = [0, 1].map(|_| CloudProxy::before(s3.address()));
    let cluster = cluster_behind(&s3, &proxies);
    let place = tempfile::tempdir().unwrap();
    let (source, old, new) = (
        place.path().join("source"),
        vec![1; 300_000],
        vec![2; 3 << 20],
    );
    fs::write(&source, &old).unwrap();
    put(&cluster, &[], &source, "/old").ok();
    fs::write(&source, &new).unwrap();
    let cat = |name: &str| cluster.quorumfs().run_with(["cat", name]).ok().stdout;
    for troubles in TROUBLES {
        println!("{troubles:?}");
        for (proxy, trouble) in proxies.iter().zip(troubles) {
            proxy.get_into(trouble);
        }
        // At the same time, since each waits for the providers.
        let puts = ["/old", "/new"].map(|target| {
            let put = cluster.quorumfs().args(["put"]).args([&source]);
            put.args([target]).start()
        });
        for put in puts {
            let failed = put.wait();
            failed.fails(6, "of the 3 clouds that a write needs", "quorumfs status");
        }
        proxies.iter().for_each(CloudProxy::recover);
        assert!(cat("/old") == old, "{troubles:?}");
        assert_eq!(names(&cluster, "/"), ["old"], "{troubles:?}");
    }
    for target in ["/old", "/new"] {
        put(&cluster, &[], &source, target).ok();
        assert!(cat(target) == new, "{target}");
    }
    assert_eq!(names(&cluster, "/"), ["new", "old"]);
}
