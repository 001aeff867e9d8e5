//! What the kernel shows after another client's changes.

use super::soon;
use crate::common::MountedVolume;
use quorumfs_gateway::vfs::Caller;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

#[test]
fn a_change_by_another_client_invalidates_the_kernel_cache() {
    let world = MountedVolume::new();
    fs::create_dir(world.path("d")).unwrap();
    for number in 0..200 {
        fs::write(world.path(&format!("d/f{number}")), "content").unwrap();
    }
    let look = || {
        for number in 0..200 {
            let found = fs::metadata(world.path(&format!("d/f{number}")));
            assert_eq!(found.unwrap().permissions().mode() & 0o777, 0o644);
        }
        assert!(!world.path("d/new").exists());
        let listed = fs::read_dir(world.path("d")).unwrap().count();
        assert_eq!(listed, 200);
    };
    look();
    // Long enough that answers valid for a second are asked for again, and cached for longer.
    std::thread::sleep(Duration::from_millis(1200));
    look();
    let before = world.file_system.as_ref().unwrap().status().queries;
    look();
    let asked = world.file_system.as_ref().unwrap().status().queries - before;
    assert!(asked < 5, "{asked} questions");

    let other = world.other_client();
    let root = Caller::user(0, 0, vec![]);
    world.runtime.block_on(async {
        let top = other.lookup(&root, other.root(), b"d").await;
        let directory = top.unwrap().unwrap().inode;
        let file = other.lookup(&root, directory, b"f7").await;
        let change = quorumfs_gateway::vfs::AttributeChange {
            mode: Some(0o600),
            ..Default::default()
        };
        let file = file.unwrap().unwrap().inode;
        other.setattr(&root, file, None, change).await.unwrap();
        other
            .mknod(&root, directory, b"new", 0o100_600, 0)
            .await
            .unwrap();
        other.unlink(&root, directory, b"f8").await.unwrap();
    });
    soon("a mode", || {
        let found = fs::metadata(world.path("d/f7")).unwrap();
        found.permissions().mode() & 0o777 == 0o600
    });
    soon("a new name", || world.path("d/new").exists());
    soon("a removed name", || !world.path("d/f8").exists());
    soon("a listing", || {
        let listed = fs::read_dir(world.path("d")).unwrap();
        let names: Vec<_> = listed.map(|entry| entry.unwrap().file_name()).collect();
        names.iter().any(|name| name == "new") && names.iter().all(|name| name != "f8")
    });
}
