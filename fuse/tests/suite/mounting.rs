//! Mounting where it does not work: what, where, what to do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::World;
use quorumfs_fuse::{MountConfig, MountError, mount};
use std::path::Path;

fn refused(world: &World, place: &Path) -> MountError {
    let fs = world.file_system.clone().unwrap();
    let config = MountConfig::new(place.to_owned());
    world
        .runtime
        .block_on(async { mount(fs, config).await.map(drop).unwrap_err() })
}

#[test]
fn an_occupied_mount_point_is_refused() {
    let world = World::new();
    let error = refused(&world, &world.path(""));
    assert!(matches!(error, MountError::Occupied { .. }), "{error}");
    assert!(error.to_string().contains("umount"), "{error}");
}

#[test]
fn a_missing_mount_point_is_refused() {
    let world = World::new();
    let error = refused(&world, &world.directory.path().join("nowhere"));
    assert!(matches!(error, MountError::Missing { .. }), "{error}");
    assert!(error.to_string().contains("mkdir -p"), "{error}");
}

#[test]
fn a_mount_point_that_is_a_file_is_refused() {
    let world = World::new();
    let place = world.directory.path().join("file");
    std::fs::write(&place, "").unwrap();
    let error = refused(&world, &place);
    assert!(matches!(error, MountError::NotADirectory { .. }), "{error}");
}

#[test]
fn a_mount_point_with_files_in_it_is_refused() {
    let world = World::new();
    let place = world.directory.path().join("full");
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("file"), "").unwrap();
    let error = refused(&world, &place);
    assert!(matches!(error, MountError::NotEmpty { .. }), "{error}");
}

#[test]
fn a_busy_mount_stays_and_is_unmounted_later() {
    let mut world = World::new();
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
    // The kernel tells of the close a moment later.
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while let Err(error) = world.runtime.block_on(mounted.unmount()) {
        assert!(std::time::Instant::now() < patience, "{error}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(!world.path("file").exists());
}

#[test]
fn an_unmount_from_outside_ends_the_wait() {
    let mut world = World::new();
    let mounted = world.mounted.take().unwrap();
    let status = std::process::Command::new("umount")
        .arg(world.path(""))
        .status()
        .unwrap();
    assert!(status.success());
    world.runtime.block_on(mounted.wait());
}
