//! A new volume: whose its root directory is, and what its creator is told to do next.

#![allow(clippy::unwrap_used)]

use quorumfs_tests::harness::{Cluster, mount_in_background};
use rustix::fs::{chown, lstat};
use rustix::process::{Gid, Uid};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// A user without any right of the superuser.
const USER: u32 = 1234;

#[test]
fn the_root_directory_belongs_to_the_volumes_creator_or_to_the_named_owner() {
    let mut cluster = Cluster::prepare_with(|cluster| {
        let clouds = cluster.directory().join("clouds");
        let create = cluster.create(&cluster.volume(), &clouds);
        create.args(["--owner", "1234:5678"])
    });
    cluster.start();
    let point = cluster.mount_point();
    let _process = mount_in_background(&cluster, &point, &[]);
    let root = fs::metadata(&point).unwrap();
    assert_eq!(
        (root.uid(), root.gid(), root.mode() & 0o777),
        (1234, 5678, 0o755)
    );
    let own = point.join("own");
    fs::write(&own, "by the superuser").unwrap();
    chown(&own, Some(Uid::from_raw(1234)), Some(Gid::from_raw(5678))).unwrap();
    assert_eq!(lstat(&own).unwrap().st_uid, 1234);
    cluster
        .quorumfs()
        .args(["umount"])
        .args([&point])
        .run()
        .ok();
    let state = cluster.directory().join("another");
    let clouds = cluster.directory().join("other clouds");
    let wrong = cluster
        .create(&state, &clouds)
        .args(["--owner", "me"])
        .run();
    wrong.fails(2, "two numbers are expected", "");
}

#[test]
fn a_user_creates_a_volume_and_writes_to_it() {
    let mut cluster = Cluster::prepare_with(|cluster| {
        let (user, group) = (Uid::from_raw(USER), Gid::from_raw(USER));
        chown(cluster.directory(), Some(user), Some(group)).unwrap();
        let clouds = cluster.directory().join("clouds");
        cluster.create(&cluster.volume(), &clouds).as_user(USER)
    });
    cluster.start();
    let (content, source) = (vec![7; 900_000], cluster.directory().join("source"));
    fs::write(&source, &content).unwrap();
    let quorumfs = || cluster.quorumfs().as_user(USER);
    quorumfs()
        .args(["put"])
        .args([&source])
        .run_with(["/copy"])
        .ok();
    let cat = quorumfs().run_with(["cat", "/copy"]).ok();
    assert!(cat.stdout == content);

    // The superuser mounts for all users.
    let point = cluster.mount_point();
    let _process = mount_in_background(&cluster, &point, &[]);
    let root = fs::metadata(&point).unwrap();
    assert_eq!(
        (root.uid(), root.gid(), root.mode() & 0o777),
        (USER, USER, 0o755)
    );
    let user = [format!("--reuid={USER}"), format!("--regid={USER}")];
    let wrote = Command::new("setpriv")
        .args(user)
        .args(["--clear-groups", "sh", "-c", "echo x >file"])
        .current_dir(&point)
        .output()
        .unwrap();
    assert!(wrote.status.success(), "{wrote:?}");
    for name in ["copy", "file"] {
        assert_eq!(
            fs::metadata(point.join(name)).unwrap().uid(),
            USER,
            "{name}"
        );
    }
    cluster.quorumfs().run_with(["umount"]).ok();
    cluster.stop();
}

#[test]
fn what_to_do_next_with_a_new_volume_names_its_state_directory() {
    let cluster = Cluster::prepare();
    let state = cluster.directory().join("another");
    let clouds = cluster.directory().join("elsewhere");
    let create = cluster.create(&state, &clouds).command();
    // The text for people.
    let arguments = create.get_args().filter(|it| *it != "--json");
    let mut create = Command::new(create.get_program());
    let made = create.args(arguments).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let text = String::from_utf8_lossy(&made.stdout);
    let next = format!("quorumfs mount --state {} DIR", state.display());
    assert!(text.contains(&next), "{text}");
}
