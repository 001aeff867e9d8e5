//! What the kernel shows of what is changed beside the mount.

use super::soon;
use crate::common::World;
use quorumfs_gateway::vfs::Caller;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

#[test]
fn what_the_kernel_keeps_for_long_is_taken_back_when_somebody_else_changes_something() {
    let world = World::new();
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
    // Long enough for what was believed for a second to be asked for again, and kept.
    std::thread::sleep(Duration::from_millis(1200));
    look();
    let before = world.file_system.as_ref().unwrap().status().queries;
    look();
    let asked = world.file_system.as_ref().unwrap().status().queries - before;
    assert!(asked < 5, "{asked} questions");

    let beside = world.beside();
    let root = Caller::user(0, 0, vec![]);
    world.runtime.block_on(async {
        let top = beside.lookup(&root, beside.root(), b"d").await;
        let directory = top.unwrap().unwrap().inode;
        let file = beside.lookup(&root, directory, b"f7").await;
        let change = quorumfs_gateway::vfs::AttributeChange {
            mode: Some(0o600),
            ..Default::default()
        };
        let file = file.unwrap().unwrap().inode;
        beside.setattr(&root, file, None, change).await.unwrap();
        beside
            .mknod(&root, directory, b"new", 0o100_600, 0)
            .await
            .unwrap();
        beside.unlink(&root, directory, b"f8").await.unwrap();
    });
    soon("a mode", || {
        let found = fs::metadata(world.path("d/f7")).unwrap();
        found.permissions().mode() & 0o777 == 0o600
    });
    soon("a new name", || world.path("d/new").exists());
    soon("a name that went", || !world.path("d/f8").exists());
    soon("a listing", || {
        let listed = fs::read_dir(world.path("d")).unwrap();
        let names: Vec<_> = listed.map(|entry| entry.unwrap().file_name()).collect();
        names.iter().any(|name| name == "new") && names.iter().all(|name| name != "f8")
    });
}
