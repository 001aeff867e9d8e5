//! Full disks; missing, read-only and garbage clouds; damaged logs: faults within the redundancy
//! are tolerated and shown, faults beyond it are reported, and nothing is lost.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_tests::harness::{
    Cluster, Demo, Private, Quorumfs, eventually, flip_byte, noise, require_private_mounts,
    run_in_view_of,
};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MIB: usize = 1 << 20;

/// Puts `content` into the volume as `/name`.
#[track_caller]
fn put(state: &Path, name: &str, content: &[u8]) -> quorumfs_tests::harness::Finished {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    fs::write(&path, content).unwrap();
    Quorumfs::on(state)
        .args(["put"])
        .args([&path])
        .args([format!("/{name}")])
        .run()
}

#[track_caller]
fn assert_holds(state: &Path, name: &str, content: &[u8]) {
    let read = Quorumfs::on(state)
        .run_with(["cat", &format!("/{name}")])
        .ok();
    assert!(read.stdout == content, "/{name} came back changed");
}

/// Waits until every object is on all of its clouds.
fn settle(demo: &Demo) {
    eventually("every object is complete", Duration::from_secs(60), || {
        let status = demo.status();
        status
            .records("mount")
            .first()
            .is_some_and(|mount| mount["completion_queue"] == 0)
    });
}

fn objects(cloud: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for group in fs::read_dir(cloud)
        .unwrap()
        .map(|entry| entry.unwrap().path())
    {
        if group.is_dir() && group.file_name().unwrap().len() == 2 {
            found.extend(
                fs::read_dir(group)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
    assert!(!found.is_empty(), "no objects in {}", cloud.display());
    found
}

#[test]
fn a_cloud_that_is_missing_or_read_only_is_tolerated_and_shown() {
    let demo = Demo::start();
    let content = noise(1, 3 * MIB);
    put(demo.state(), "before", &content).ok();
    settle(&demo);

    let (cloud, away) = (demo.cloud(1), demo.cloud(1).with_extension("away"));
    fs::rename(&cloud, &away).unwrap();
    let status = demo.status();
    assert_eq!(status.code, Some(4), "{status:?}");
    let problem = status.records("cloud")[1]["problem"]
        .as_str()
        .unwrap()
        .to_string();
    assert!(
        problem.contains("does not exist") && problem.contains("check that"),
        "{problem}"
    );
    assert_holds(demo.state(), "before", &content);
    put(demo.state(), "during", &content).ok();
    assert!(!cloud.exists(), "a missing cloud was created");
    fs::rename(&away, &cloud).unwrap();
    eventually(
        "the missed objects are completed",
        Duration::from_secs(90),
        || objects(&cloud).len() == objects(&demo.cloud(0)).len(),
    );

    fs::set_permissions(&cloud, fs::Permissions::from_mode(0o500)).unwrap();
    let status = demo.status();
    assert_eq!(status.code, Some(4), "{status:?}");
    let problem = status.records("cloud")[1]["problem"]
        .as_str()
        .unwrap()
        .to_string();
    assert!(problem.contains("make the cloud writable"), "{problem}");
    put(demo.state(), "readonly", &content).ok();
    assert_holds(demo.state(), "readonly", &content);
    fs::set_permissions(&cloud, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(demo.status().code, Some(0));
}

#[test]
fn with_too_few_clouds_nothing_is_acknowledged_and_nothing_is_lost() {
    let demo = Demo::start();
    let content = noise(2, 2 * MIB);
    put(demo.state(), "before", &content).ok();
    settle(&demo);
    for index in [0, 1] {
        let cloud = demo.cloud(index);
        fs::rename(&cloud, cloud.with_extension("away")).unwrap();
    }
    assert_eq!(demo.status().code, Some(6));
    put(demo.state(), "during", &content).fails(6, "2 of the 3 clouds", "status");
    // Any two of four suffice to read complete objects.
    assert_holds(demo.state(), "before", &content);
    for index in [0, 1] {
        let cloud = demo.cloud(index);
        fs::rename(cloud.with_extension("away"), &cloud).unwrap();
    }
    put(demo.state(), "after", &content).ok();
    assert_holds(demo.state(), "after", &content);
    assert_holds(demo.state(), "before", &content);
}

#[test]
fn a_cloud_full_of_garbage_is_refused_and_replaced() {
    let demo = Demo::start();
    let content = noise(3, 5 * MIB);
    put(demo.state(), "file", &content).ok();
    settle(&demo);
    for (index, object) in objects(&demo.cloud(0)).into_iter().enumerate() {
        let length = fs::metadata(&object).unwrap().len() as usize;
        fs::remove_file(&object).unwrap();
        let rubbish = match index % 3 {
            0 => noise(index as u64, length),
            1 => noise(index as u64, length / 2),
            _ => Vec::new(),
        };
        fs::write(&object, rubbish).unwrap();
    }
    fs::write(demo.cloud(0).join("what is this"), "not an object").unwrap();
    fs::create_dir(demo.cloud(0).join("zz")).unwrap();
    // Through the mount, so that its counters show it.
    let file = fs::File::open(demo.mount().join("file")).unwrap();
    // Small pieces are read from a single cloud, from the end to the beginning: for the whole file,
    // the reader might choose faster clouds.
    for offset in (0..5 * MIB).rev().step_by(MIB / 2) {
        let mut piece = [0; 512];
        let offset = offset - offset % 4096;
        file.read_exact_at(&mut piece, offset as u64).unwrap();
        assert!(piece == content[offset..][..512], "garbage came through");
    }
    let read = fs::read(demo.mount().join("file")).unwrap();
    assert!(read == content, "garbage came through");
    let status = demo.status();
    let mount = status.records("mount").remove(0);
    let counted = |key: &str| mount[key].as_u64().unwrap();
    assert!(counted("shards_refused") > 0, "{mount}");
    assert!(counted("shards_replaced") > 0, "{mount}");
    assert_eq!(counted("files_lost"), 0, "{mount}");
    let clouds = status.records("cloud");
    assert_eq!(
        clouds[0]["shards_refused"].as_u64(),
        Some(counted("shards_refused")),
        "{clouds:?}"
    );
    assert!(
        clouds[0]["last_error"].is_string(),
        "the cloud's fault is not reported: {clouds:?}"
    );
    for cloud in &clouds[1..] {
        assert_eq!(
            cloud["shards_refused"], 0,
            "an honest cloud is blamed: {clouds:?}"
        );
    }
}

#[test]
fn an_object_of_a_newer_format_is_refused() {
    let demo = Demo::start();
    let content = noise(4, MIB);
    put(demo.state(), "file", &content).ok();
    settle(&demo);
    // As a newer version would write it: the magic, a higher format, and unknown content.
    let renew = |cloud: &Path| {
        for object in objects(cloud) {
            let mut bytes = fs::read(&object).unwrap();
            bytes[8..10].copy_from_slice(&99_u16.to_be_bytes());
            let rest = noise(bytes.len() as u64, bytes.len() - 83);
            bytes[83..].copy_from_slice(&rest);
            fs::remove_file(&object).unwrap();
            fs::write(&object, bytes).unwrap();
        }
    };
    renew(&demo.cloud(0));
    assert_holds(demo.state(), "file", &content);
    for index in 1..4 {
        renew(&demo.cloud(index));
    }
    let cat = demo.quorumfs().run_with(["cat", "/file"]);
    cat.fails(14, "format 99", "newer");
}

#[test]
fn a_replica_whose_journal_is_damaged_reports_it_and_rejoins() {
    let mut demo = Demo::start();
    put(demo.state(), "before", &noise(5, MIB)).ok();
    demo.stop();
    let journal = demo.replica(2).join("data/journal");
    let mut segments: Vec<_> = fs::read_dir(&journal)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "journal"))
        .collect();
    segments.sort();
    // In the first record, after the header's page and the record's header: not a torn tail.
    flip_byte(segments.last().unwrap(), 4096 + 48);
    demo.restart();
    eventually(
        "the replica votes again, in the next membership epoch",
        Duration::from_secs(60),
        || {
            let status = demo.status();
            let replicas = status.records("replica");
            let votes = |replica: &serde_json::Value| replica["state"] == "voting";
            status.code == Some(0) && replicas.len() == 4 && replicas.iter().all(votes)
        },
    );
    assert_holds(demo.state(), "before", &noise(5, MIB));
    put(demo.state(), "after", &noise(6, MIB)).ok();
    // It executes new operations.
    eventually("the replica catches up", Duration::from_secs(60), || {
        let replicas = demo.status().records("replica");
        let at = |number: usize| replicas[number]["committed"].as_u64();
        replicas.len() == 4 && at(2).is_some() && at(2) >= at(0)
    });
    let log = demo.log("replica-2");
    let message = log.lines().find(|line| line.contains("journal is lost"));
    let message = message.unwrap_or_else(|| panic!("the loss of the journal is not logged: {log}"));
    for words in ["replicas/2/data", "reason=", "keep those running"] {
        assert!(
            message.contains(words),
            "the message lacks `{words}`: {message}"
        );
    }
}

#[test]
fn without_the_kernels_device_nothing_is_mounted() {
    require_private_mounts();
    let mut demo = Demo::start();
    demo.stop();
    // A /dev with the devices that every program needs, and no others.
    let (point, devices) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let here = devices.path().display();
    let private = Private {
        script: format!(
            "for name in null zero urandom; do \
               touch '{here}'/$name; mount --bind /dev/$name '{here}'/$name; \
             done; mount --rbind '{here}' /dev"
        ),
    };
    let mount = ["mount", point.path().to_str().unwrap()];
    for command in [&["demo"][..], &mount, &[mount[0], mount[1], "--background"]] {
        demo.quorumfs()
            .args(command)
            .in_private(&private)
            .run()
            .fails(7, "/dev/fuse is missing", "modprobe fuse");
    }
}

/// Mounts a small disk over a directory, with the directory's content.
pub(crate) fn small_disk(directory: &Path, mib: usize) -> Private {
    let path = directory.display();
    Private {
        script: format!(
            "cp -a '{path}' '{path}.copy'; mount -t tmpfs -o size={mib}m none '{path}'; \
             cp -a '{path}.copy/.' '{path}/'; rm -r '{path}.copy'"
        ),
    }
}

#[test]
fn a_replica_whose_disk_is_full_stops_and_the_others_go_on() {
    require_private_mounts();
    let mut demo = Demo::start();
    put(demo.state(), "before", b"small").ok();
    demo.stop();
    without_reserve(&demo.replica(3));
    let disk = small_disk(&demo.replica(3), 96);
    demo.restart_in(&disk);
    // Another program takes the rest.
    demo.inside(&format!(
        "head -c 200m /dev/zero > '{}/hog'",
        demo.replica(3).display()
    ));
    let many: Vec<_> = (0..40).map(|number| noise(number, 900)).collect();
    for (number, content) in many.iter().enumerate() {
        put(demo.state(), &format!("file-{number}"), content).ok();
    }
    eventually(
        "the full replica logs why it stopped",
        Duration::from_secs(60),
        || demo.logs().contains("o space"),
    );
    assert_eq!(demo.status().code, Some(4));
    assert_holds(demo.state(), "before", b"small");
    for (number, content) in many.iter().enumerate() {
        assert_holds(demo.state(), &format!("file-{number}"), content);
    }
    demo.inside(&format!("rm '{}/hog'", demo.replica(3).display()));
    eventually(
        "with free space it restarts and votes",
        Duration::from_secs(90),
        || demo.status().code == Some(0),
    );
}

/// Removes the replica's reserve for a full disk (`full_disks` shows how it uses it).
fn without_reserve(replica: &Path) {
    let configuration = replica.join("replica.toml");
    let text = fs::read_to_string(&configuration).unwrap();
    fs::write(&configuration, format!("free_space_floor_mib = 0\n{text}")).unwrap();
    let _ = fs::remove_file(replica.join("data/reserve"));
}

/// Fills the disk of a directory, as another program on the same disk would.
pub(crate) fn fill(directory: &Path) -> String {
    format!("head -c 1G /dev/zero > '{}/hog'", directory.display())
}

#[test]
fn a_replica_reports_a_full_disk_at_its_start_and_while_it_runs() {
    require_private_mounts();
    let mut cluster = Cluster::prepare();
    without_reserve(&cluster.replica(3));
    cluster.start();
    cluster.stop();
    let data = cluster.replica(3).join("data");
    let disk = small_disk(&data, 16);
    let run = Quorumfs::on(&cluster.replica(3)).args(["replica", "run"]);
    let full = Private {
        script: format!("{}; {} || true", disk.script, fill(&data)),
    };
    run.in_private(&full)
        .run()
        .fails(8, "no space is left", "free some");

    let run = Quorumfs::on(&cluster.replica(3)).args(["replica", "run"]);
    let replica = run.in_private(&disk).start();
    cluster.start_some(0..3);
    run_in_view_of(replica.id(), &fill(&data));
    // Each is one record of the journal.
    for number in 0..40 {
        put(
            &cluster.volume(),
            &format!("file-{number}"),
            &noise(number, 900),
        )
        .ok();
    }
    let ended = replica.wait();
    let place = format!("replica 3 in {} stopped", cluster.replica(3).display());
    ended
        .fails(8, &place, "the others go on")
        .fails(8, "no space is left", "mend the cause");
    cluster.stop();
}

/// A stopped demo with these lines in its configuration, and a disk of this size that its mounts
/// are to have in the place of this directory.
fn with_small_disk(section: &str, directory: &str, mib: usize) -> (Demo, Private, PathBuf) {
    require_private_mounts();
    let mut demo = Demo::start();
    demo.stop();
    let path = demo.state().join("quorumfs.toml");
    let text = fs::read_to_string(&path).unwrap();
    let start = text.find("[cache]").unwrap();
    let end = start + text[start..].find("[[replica]]").unwrap();
    let text = format!("{}{section}\n{}", &text[..start], &text[end..]);
    fs::write(&path, text).unwrap();
    let place = demo.state().join(directory);
    fs::create_dir_all(&place).unwrap();
    let disk = small_disk(&place, mib);
    (demo, disk, place)
}

/// Writes and syncs files through the demo's mount, in its mount namespace.
fn write_files(demo: &Demo, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let path = demo.mount_inside().join(format!("file-{number}"));
        fs::write(&path, noise(number, 4 * MIB)).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
    }
}

#[track_caller]
fn assert_files(demo: &Demo, count: u64) {
    for number in 0..count {
        let path = demo.mount_inside().join(format!("file-{number}"));
        assert!(fs::read(path).unwrap() == noise(number, 4 * MIB));
    }
}

#[test]
fn a_cache_whose_disk_is_full_is_bypassed() {
    let section = "[cache]\nsize_mib = 64\nfree_space_floor_mib = 0\n";
    let (mut demo, disk, place) = with_small_disk(section, "cache", 24);
    let cache = |demo: &Demo| demo.status().ok().records("mount")[0]["cache"].clone();
    demo.restart_in(&disk);
    write_files(&demo, 0..2);
    eventually(
        "there is something in the cache",
        Duration::from_secs(20),
        || cache(&demo)["chunks"].as_u64() > Some(0),
    );
    // Another program takes the rest, and there is more to cache than free space.
    demo.inside(&fill(&place));
    write_files(&demo, 2..10);
    assert_files(&demo, 10);
    let found = cache(&demo);
    assert!(found["bytes"].as_u64().unwrap() <= 24 << 20, "{found}");
    demo.stop();

    // The same holds where there never was free space.
    let full = Private {
        script: format!("{}; {} || true", disk.script, fill(&place)),
    };
    demo.restart_in(&full);
    assert_files(&demo, 10);
    write_files(&demo, 10..12);
    assert_files(&demo, 12);
    eventually("the cache refused content", Duration::from_secs(20), || {
        cache(&demo)["refused"].as_u64() > Some(0)
    });
    assert_eq!(cache(&demo)["chunks"], 0);
    let mount = demo.status().records("mount").remove(0);
    assert_eq!(mount["files_lost"], 0, "{mount}");
    demo.stop();
}

#[test]
fn a_journal_whose_disk_is_full_is_bypassed_and_nothing_is_lost() {
    let section = "tier = \"local\"\n\
        [journal]\nsize_mib = 64\nfree_space_floor_mib = 0\n\
        [cache]\nsize_mib = 0\n";
    let (mut demo, disk, place) = with_small_disk(section, "journal", 24);
    let waiting = |demo: &Demo| demo.status().ok().records("mount")[0]["waiting"].clone();
    demo.restart_in(&disk);
    write_files(&demo, 0..2);
    assert!(waiting(&demo)["journal_broken"].is_null());
    demo.inside(&fill(&place));
    write_files(&demo, 2..10);
    let found = waiting(&demo);
    let broken = found["journal_broken"].as_str().unwrap_or_default();
    assert!(broken.contains("No space left"), "{found}");
    assert_files(&demo, 10);
    eventually("pending data is committed", Duration::from_secs(30), || {
        waiting(&demo)["bytes"] == 0
    });
    demo.stop();
    demo.restart();
    for number in 0..10 {
        assert_holds(
            demo.state(),
            &format!("file-{number}"),
            &noise(number, 4 * MIB),
        );
    }
    demo.stop();
}

#[test]
fn a_journal_whose_disk_is_below_its_floor_is_bypassed() {
    // The floor is 1 GiB, which this disk never has.
    let section = "tier = \"local\"\n[journal]\nsize_mib = 64\n[cache]\nsize_mib = 0\n";
    let (mut demo, disk, _) = with_small_disk(section, "journal", 24);
    demo.restart_in(&disk);
    write_files(&demo, 0..10);
    let found = demo.status().ok().records("mount")[0]["waiting"].clone();
    assert_eq!(found["journal_disk_full"], true, "{found}");
    assert!(found["journal_broken"].is_null(), "{found}");
    let log = demo.log("gateway");
    let warnings = log.matches("too little is free on the journal's disk");
    assert_eq!(warnings.count(), 1, "{log}");
    assert_files(&demo, 10);
    demo.stop();
}

#[test]
fn a_volume_that_failed_for_lack_of_space_can_be_created_with_space() {
    require_private_mounts();
    let cluster = Cluster::prepare();
    let directory = tempfile::tempdir().unwrap();
    let (state, clouds) = (
        directory.path().join("state"),
        directory.path().join("clouds"),
    );
    let create = cluster.create(&state, &clouds);
    // Inodes for the directories of some clouds, each of 258; then for none.
    let disk = |inodes: u32| {
        let place = directory.path().display();
        format!("mount -t tmpfs -o nr_inodes={inodes} none '{place}'")
    };
    let short = Private { script: disk(600) };
    let missing = ["No space left", "free space"];
    create
        .clone()
        .in_private(&short)
        .run()
        .fails(8, missing[0], missing[1]);

    let attempt = create.command();
    let attempt = std::iter::once(attempt.get_program()).chain(attempt.get_args());
    let attempt: Vec<_> = attempt
        .map(|word| format!("'{}'", word.display()))
        .collect();
    let place = directory.path().display();
    let then_roomy = Private {
        script: format!(
            "{}; if {} >/dev/null; then exit 99; fi; mount -o remount,nr_inodes=9999 '{place}'",
            disk(600),
            attempt.join(" ")
        ),
    };
    create.clone().in_private(&then_roomy).run().ok();
}

#[test]
fn a_full_cloud_is_shown_and_two_full_clouds_are_an_error_that_loses_nothing() {
    require_private_mounts();
    let mut demo = Demo::start();
    demo.stop();
    let (first, second) = (
        small_disk(&demo.cloud(0), 6),
        small_disk(&demo.cloud(1), 18),
    );
    demo.restart_in(&Private {
        script: format!("{}; {}", first.script, second.script),
    });
    let mount = demo.mount_inside();
    let mut kept = Vec::new();
    // 2 MiB on each cloud: the first is full after two files, the second after eight.
    let full = (0..20).find_map(|number| {
        let (path, content) = (mount.join(format!("file-{number}")), noise(number, 4 * MIB));
        let written = fs::write(&path, &content)
            .and_then(|()| fs::File::open(&path))
            .and_then(|file| file.sync_all());
        match written {
            Ok(()) => {
                kept.push((path, content));
                None
            }
            Err(error) => Some(error),
        }
    });
    let error = full.expect("two full clouds went unnoticed");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error:?}");
    assert!(
        kept.len() >= 5,
        "one full cloud is an error already: {} files",
        kept.len()
    );
    for (path, content) in &kept {
        assert!(fs::read(path).unwrap() == *content, "{}", path.display());
    }
    let logs = demo.logs();
    assert!(logs.contains("free space or raise the quota"), "{logs}");
    let status = demo.status();
    assert_eq!(status.code, Some(8), "{status:?}");
    assert_eq!(status.records("summary")[0]["health"], "no writes");
    // What failed is still in the mount's memory.
    let umount = demo.quorumfs().run_with(["umount"]);
    umount.fails(8, "written data could not be committed", "");
    assert!(fs::read(&kept[0].0).unwrap() == kept[0].1);
}
