//! Faults outside of the program, one test each: the message says what failed, where, and what to
//! do; the exit code gives the kind; nothing is lost, and nothing panics.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_tests::harness::{Cluster, Demo, Quorumfs, binary, is_mounted};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn a_directory_without_a_volume_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let nothing = Quorumfs::on(directory.path());
    nothing
        .run_with(["ls"])
        .fails(10, "there is no volume", "volume create");
    let nothing = Quorumfs::on(directory.path());
    nothing
        .run_with(["replica", "run"])
        .fails(10, "there is no replica", "replica init");
}

#[test]
fn an_unknown_key_in_a_configuration_is_named_with_its_line() {
    let cluster = Cluster::prepare();
    let volume = cluster.volume();
    let path = volume.join("quorumfs.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replacen("[volume]", "[volume]\ngenesys = \"x\"", 1),
    )
    .unwrap();
    let line = text.lines().position(|line| line == "[volume]").unwrap() + 2;
    let message = format!("quorumfs.toml, line {line}: unknown key `genesys`");
    Quorumfs::on(&volume)
        .run_with(["ls"])
        .fails(2, &message, "did you mean `genesis`?");

    let replica = cluster.replica(0);
    let path = replica.join("replica.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("durabilty = \"os\"\n{text}")).unwrap();
    let message = "replica.toml, line 1: unknown key `durabilty`";
    Quorumfs::on(&replica)
        .run_with(["replica", "run"])
        .fails(2, message, "Known here:");
}

#[test]
fn a_volume_whose_replicas_are_down_is_out_of_reach_and_not_gone() {
    let cluster = Cluster::prepare();
    let volume = cluster.volume();
    Quorumfs::on(&volume)
        .run_with(["ls"])
        .fails(5, "too few", "quorumfs status");
    let status = Quorumfs::on(&volume).run_with(["status"]);
    assert_eq!(status.code, Some(5), "{status:?}");
    let down = status.records("replica");
    assert!(
        down.iter().all(|replica| replica["answers"] == false),
        "{down:?}"
    );
    assert_eq!(down.len(), 4);
}

#[test]
fn existing_state_is_never_overwritten() {
    let cluster = Cluster::prepare();
    let volume = cluster.volume();
    let before = fs::read(volume.join("principal.key")).unwrap();
    let arguments = [
        "volume",
        "create",
        "--replica",
        "00@127.0.0.1:1",
        "--cloud",
        "a=b",
    ];
    Quorumfs::on(&volume)
        .run_with(arguments)
        .fails(11, "there is a volume already", "--state");
    assert_eq!(fs::read(volume.join("principal.key")).unwrap(), before);
    let replica = Quorumfs::on(&cluster.replica(0));
    let again = replica.run_with(["replica", "init", "--listen", "127.0.0.1:1"]);
    again.fails(11, "there is a replica already", "--again");
}

#[test]
fn a_missing_path_is_reported() {
    let demo = Demo::start();
    demo.quorumfs()
        .run_with(["cat", "/none"])
        .fails(9, "/none", "");
    demo.quorumfs()
        .run_with(["ls", "/none"])
        .fails(9, "/none", "");

    // Existing files are printed all the same, and nothing else among them.
    fs::write(demo.mount().join("there"), "no line end").unwrap();
    let mut cat = Command::new(binary());
    cat.arg("--state").arg(demo.state());
    let cat = cat.args(["cat", "/none", "/there"]).output().unwrap();
    assert_eq!(cat.status.code(), Some(3));
    assert_eq!(String::from_utf8_lossy(&cat.stdout), "no line end");
    let complaint = String::from_utf8_lossy(&cat.stderr).into_owned();
    assert!(
        complaint.contains("/none: no such file or directory in the volume"),
        "{complaint}"
    );
}

#[test]
fn the_key_of_another_volume_opens_nothing() {
    let cluster = Cluster::prepare();
    let other = Cluster::prepare();
    let volume = cluster.volume();
    fs::copy(
        other.volume().join("principal.key"),
        volume.join("principal.key"),
    )
    .unwrap();
    Quorumfs::on(&volume)
        .run_with(["ls"])
        .fails(12, "another volume", "");
}

#[test]
fn a_key_that_is_no_members_opens_nothing() {
    use quorumfs_gateway::keys::{KeyFile, Principal};
    let cluster = Cluster::prepare();
    let volume = cluster.volume();
    let path = volume.join("principal.key");
    let root = KeyFile::load(&path).unwrap().root;
    fs::remove_file(&path).unwrap();
    KeyFile {
        principal: Principal::random().unwrap(),
        root,
    }
    .save(&path)
    .unwrap();
    Quorumfs::on(&volume)
        .run_with(["ls"])
        .fails(12, "not a member", "");
}

#[test]
fn a_missing_key_is_reported() {
    let cluster = Cluster::prepare();
    let path = cluster.volume().join("principal.key");
    fs::remove_file(&path).unwrap();
    let message = format!("cannot read the key file {}", path.display());
    let ls = cluster.quorumfs().run_with(["ls"]);
    ls.fails(12, &message, "restore the key");

    let path = cluster.replica(0).join("replica.key");
    fs::remove_file(&path).unwrap();
    let message = format!("the key file {}", path.display());
    let run = Quorumfs::on(&cluster.replica(0)).run_with(["replica", "run"]);
    run.fails(12, &message, "restore the key");
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let cluster = Cluster::prepare();
    let volume = cluster.volume();
    let path = volume.join("principal.key");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    Quorumfs::on(&volume)
        .run_with(["ls"])
        .fails(12, "mode 0644", "chmod 600");
}

#[test]
fn a_replica_refuses_the_genesis_of_another_cluster() {
    let cluster = Cluster::prepare();
    let other = Cluster::prepare();
    let replica = cluster.replica(0);
    let theirs = other.volume().join("volume.genesis");
    let run = |genesis: &Path| {
        Quorumfs::on(&replica)
            .args(["replica", "run", "--genesis"])
            .args([genesis])
            .run()
    };
    run(&theirs).fails(
        15,
        "not one of those that this volume began with",
        "genesis",
    );
    assert!(
        !replica.join("volume.genesis").exists(),
        "another cluster's genesis was stored"
    );
    fs::copy(
        cluster.volume().join("volume.genesis"),
        replica.join("volume.genesis"),
    )
    .unwrap();
    run(&theirs).fails(15, "another cluster", "without --genesis");
}

#[test]
fn the_replicas_and_clouds_of_another_cluster_are_not_taken_for_ours() {
    let demo = Demo::start();
    let cluster = Cluster::prepare();
    let volume = cluster.volume();
    let ours = fs::read_to_string(volume.join("quorumfs.toml")).unwrap();
    let theirs = fs::read_to_string(demo.state().join("quorumfs.toml")).unwrap();

    // Their configuration as it is: other keys than the genesis names.
    fs::write(volume.join("quorumfs.toml"), &theirs).unwrap();
    Quorumfs::on(&volume)
        .run_with(["ls"])
        .fails(15, "another key", "configuration");

    // Our keys at their addresses: servers there cannot prove that they have our keys.
    let lines = |text: &str, key: &str| -> Vec<String> {
        let found = text.lines().filter(|line| line.starts_with(key));
        found.map(str::to_string).collect()
    };
    let mut mixed = ours.clone();
    for (our, their) in lines(&ours, "address")
        .iter()
        .zip(lines(&theirs, "address"))
    {
        mixed = mixed.replace(our, &their);
    }
    fs::write(volume.join("quorumfs.toml"), &mixed).unwrap();
    Quorumfs::on(&volume)
        .run_with(["ls"])
        .fails(5, "too few", "quorumfs status");

    // One of their clouds in the place of one of ours: it is detected, and not written to.
    let cloud = format!("{:?}", demo.cloud(0).display().to_string());
    let first = lines(&ours, "location").remove(0);
    fs::write(
        volume.join("quorumfs.toml"),
        ours.replace(&first, &format!("location = {cloud}")),
    )
    .unwrap();
    let status = Quorumfs::on(&volume).run_with(["status"]);
    let problem = status.records("cloud")[0]["problem"]
        .as_str()
        .unwrap()
        .to_string();
    assert!(
        problem.contains("another") || problem.contains("expected"),
        "{problem}"
    );
}

#[test]
fn a_mount_point_that_is_occupied_is_left_alone() {
    let demo = Demo::start();
    let directory = tempfile::tempdir().unwrap();
    let full = directory.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("file"), "mine").unwrap();
    let second = directory.path().join("second");
    fs::create_dir(&second).unwrap();
    let mount = |point: &Path| demo.quorumfs().args(["mount"]).args([point]).run();

    // The demo's mount locks its state directory; a copy of its configuration has no lock.
    mount(&second).fails(11, "another mount is running", "--state");
    let copy = directory.path().join("state");
    fs::create_dir(&copy).unwrap();
    for name in ["quorumfs.toml", "volume.genesis", "principal.key"] {
        fs::copy(demo.state().join(name), copy.join(name)).unwrap();
    }
    let mount = |point: &Path| {
        let takeover = ["mount", "--exclusive", "--takeover"];
        Quorumfs::on(&copy).args(takeover).args([point]).run()
    };
    Quorumfs::on(&copy)
        .args(["mount", "--exclusive"])
        .args([&second])
        .run()
        .fails(11, "mounted already", "--takeover");
    // If a mount fails for a reason on this side, the running mount does not lose the volume.
    mount(&full).fails(11, "not empty", "empty directory");
    mount(&demo.mount()).fails(11, "already mounted", "another directory");
    mount(&full.join("file")).fails(11, "not a directory", "empty directory");
    mount(&directory.path().join("none")).fails(2, "does not exist", "mkdir");
    assert_eq!(fs::read(full.join("file")).unwrap(), b"mine");
    // And the demo's mount goes on.
    fs::write(demo.mount().join("still"), "here").unwrap();
    assert_eq!(fs::read(demo.mount().join("still")).unwrap(), b"here");
}

#[test]
fn a_relative_mount_point_starts_at_the_working_directory() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    let here = |arguments: &[&str]| {
        let mut command = cluster.quorumfs().args(arguments).command();
        let status = command
            .current_dir(cluster.directory())
            .stdout(Stdio::null());
        status.status().unwrap()
    };
    assert!(here(&["mount", "mnt", "--background"]).success());
    assert!(is_mounted(&point));
    std::os::unix::fs::symlink(&point, cluster.directory().join("link")).unwrap();
    assert!(here(&["umount", "link"]).success());
    assert!(!is_mounted(&point));
    cluster.stop();
}

#[test]
fn clouds_that_are_too_few_are_counted() {
    let cluster = Cluster::prepare();
    let directory = tempfile::tempdir().unwrap();
    let mut create = Quorumfs::on(&directory.path().join("state")).args(["volume", "create"]);
    for replica in &cluster.replicas {
        create = create.args(["--replica", replica]);
    }
    for name in ["a", "b", "c"] {
        let cloud = format!("{name}={}", directory.path().join(name).display());
        create = create.args(["--cloud", &cloud]);
    }
    create.run().fails(2, "cannot work together", "at least 4");
    let made = fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(
        made, 1,
        "only the state directory, which is empty, may be there"
    );
}

#[test]
fn a_quota_is_shown_and_a_full_one_is_reported_with_a_hint() {
    let demo = Demo::start();
    let quota = |arguments: &[&str]| {
        let all = [&["quota"], arguments].concat();
        demo.quorumfs().run_with(all)
    };
    quota(&["set"]).fails(2, "required", "--help");
    quota(&["set", "--bytes", "1GB"]).fails(2, "--bytes", "--help");
    quota(&["set", "--uid", "0", "--bytes", "1GiB"]).fails(2, "--uid", "--help");
    let set = quota(&["set", "--bytes", "1MiB", "--files", "100"]).ok();
    assert_eq!(set.records("quota_set")[0]["bytes_limit"], 1 << 20);
    quota(&["set", "--uid", "1234", "--files", "7"]).ok();
    fs::write(demo.mount().join("most"), vec![1; 1_000_000]).unwrap();
    let shown = quota(&[]).ok();
    let volume = &shown.records("quota_volume")[0];
    assert_eq!(
        (&volume["bytes"], &volume["bytes_limit"]),
        (&(1_000_000 + 2 * 512).into(), &(1 << 20).into())
    );
    let users = shown.records("quota_user");
    let user = users.iter().find(|user| user["uid"] == 1234).unwrap();
    assert_eq!(
        (&user["files_limit"], &user["own_limit"]),
        (&7.into(), &true.into())
    );
    let status = demo.status();
    let mount = &status.records("mount")[0];
    assert_eq!(mount["quota"]["bytes"], 1_000_000 + 2 * 512, "{mount}");

    let large = demo.state().join("large");
    fs::write(&large, vec![2; 100_000]).unwrap();
    let put = || {
        demo.quorumfs()
            .args(["put"])
            .args([&large])
            .run_with(["/large"])
    };
    put().fails(8, "the realm's quota leaves", "quota set");
    let mut other = fs::File::create(demo.mount().join("other")).unwrap();
    let written = other.write_all(&vec![2; 100_000]);
    let full = written.and_then(|()| other.sync_all()).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(28), "ENOSPC");
    drop(other);
    quota(&["set", "--no-limit"]).ok();
    put().ok();
}
