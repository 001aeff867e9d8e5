//! Mounts that fail: the error says what, where and what to do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::MountedVolume;
use quorumfs_fuse::{MountConfig, MountError, mount};
use std::path::Path;

fn refused(world: &MountedVolume, place: &Path) -> MountError {
    let fs = world.file_system.clone().unwrap();
    let config = MountConfig::new(place.to_owned());
    world
        .runtime
        .block_on(async { mount(fs, config).await.map(drop).unwrap_err() })
}

/// Unmounts from outside, as a person does.
fn umount(world: &MountedVolume, options: &[&str]) {
    let mut command = std::process::Command::new("umount");
    let status = command.args(options).arg(world.path("")).status();
    assert!(status.unwrap().success());
}

#[test]
fn an_occupied_mount_point_is_refused() {
    let world = MountedVolume::new();
    let error = refused(&world, &world.path(""));
    assert!(matches!(error, MountError::Occupied { .. }), "{error}");
    assert!(error.to_string().contains("umount"), "{error}");
}

#[test]
fn a_missing_mount_point_is_refused() {
    let world = MountedVolume::new();
    let error = refused(&world, &world.directory.path().join("nowhere"));
    assert!(matches!(error, MountError::Missing { .. }), "{error}");
    assert!(error.to_string().contains("mkdir -p"), "{error}");
}

#[test]
fn a_mount_point_that_is_a_file_is_refused() {
    let world = MountedVolume::new();
    let place = world.directory.path().join("file");
    std::fs::write(&place, "").unwrap();
    let error = refused(&world, &place);
    assert!(matches!(error, MountError::NotADirectory { .. }), "{error}");
}

#[test]
fn a_mount_point_with_files_in_it_is_refused() {
    let world = MountedVolume::new();
    let place = world.directory.path().join("full");
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("file"), "").unwrap();
    let error = refused(&world, &place);
    assert!(matches!(error, MountError::NotEmpty { .. }), "{error}");
}

#[test]
fn a_busy_mount_stays_and_is_unmounted_later() {
    let mut world = MountedVolume::new();
    std::fs::write(world.path("file"), "content").unwrap();
    let open = std::fs::File::open(world.path("file")).unwrap();
    let mounted = world.mounted.take().unwrap();
    let error = world.runtime.block_on(mounted.unmount()).unwrap_err();
    assert!(matches!(error, MountError::Busy { .. }), "{error}");
    assert_eq!(
        std::fs::read_to_string(world.path("file")).unwrap(),
        "content"
    );
    drop(open);
    // The kernel reports the close a moment later.
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while let Err(error) = world.runtime.block_on(mounted.unmount()) {
        assert!(std::time::Instant::now() < patience, "{error}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(!world.path("file").exists());
}

/// A process with its own mount tree, in which everything stays mounted that is mounted now.
struct Elsewhere(std::process::Child);

impl Elsewhere {
    fn begin() -> Self {
        let child = std::process::Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sleep", "100"])
            .spawn()
            .unwrap();
        let itself = Self(child);
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let comm = format!("/proc/{}/comm", itself.0.id());
        while std::fs::read_to_string(&comm).unwrap().trim() != "sleep" {
            assert!(std::time::Instant::now() < patience, "it does not begin");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        itself
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_mount_that_another_tree_holds_ends_all_the_same_and_the_holder_is_named() {
    let mut world = MountedVolume::new();
    std::fs::write(world.path("file"), "content").unwrap();
    let elsewhere = Elsewhere::begin();
    let mounted = world.mounted.take().unwrap();
    let holders = world.runtime.block_on(mounted.unmount()).unwrap();
    assert_eq!(holders.len(), 1, "{holders:?}");
    let holder = holders.first().unwrap();
    assert_eq!(
        (holder.pid, holder.name.as_str()),
        (elsewhere.0.id(), "sleep")
    );
    assert!(holder.place == world.path("") || world.path("").starts_with(&holder.place));
    world.runtime.block_on(mounted.wait());
}

#[test]
fn an_unmount_from_outside_ends_the_wait_although_another_tree_holds_it() {
    let mut world = MountedVolume::new();
    let elsewhere = Elsewhere::begin();
    let mounted = world.mounted.take().unwrap();
    umount(&world, &[]);
    let waited = async {
        let wait = mounted.wait();
        tokio::time::timeout(std::time::Duration::from_secs(30), wait).await
    };
    world.runtime.block_on(waited).expect("it ends");
    drop(elsewhere);
}

#[test]
fn what_is_open_goes_on_after_a_lazy_unmount() {
    use std::io::Write;
    let mut world = MountedVolume::new();
    let mut open = std::fs::File::create(world.path("file")).unwrap();
    let mounted = world.mounted.take().unwrap();
    umount(&world, &["--lazy"]);
    let waited = async {
        let wait = mounted.wait();
        tokio::time::timeout(std::time::Duration::from_secs(6), wait).await
    };
    world.runtime.block_on(waited).expect_err("it is open");
    open.write_all(b"late").unwrap();
    drop(open);
    world.runtime.block_on(mounted.wait());
}

#[test]
fn an_unmount_from_outside_ends_the_wait() {
    let mut world = MountedVolume::new();
    let mounted = world.mounted.take().unwrap();
    umount(&world, &[]);
    world.runtime.block_on(mounted.wait());
}
