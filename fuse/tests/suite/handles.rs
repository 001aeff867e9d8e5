//! File handles as file servers and backups use them (`name_to_handle_at(2)`).

use crate::common::MountedVolume;
use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn what_the_kernel_has_forgotten_is_opened_by_its_handle() {
    let world = MountedVolume::new();
    fs::create_dir_all(world.path("a/b")).unwrap();
    fs::write(world.path("a/b/file"), "by its handle").unwrap();
    fs::write(world.path("removed"), "gone").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("handles");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/handles.c");
    let compiled = Command::new("cc")
        .args(["-O1", "-o"])
        .args([&program, &source])
        .status();
    assert!(compiled.unwrap().success());
    let mut run = Command::new(&program);
    let run = run.arg(world.path("")).arg(world.path("a/b/file"));
    let ran = run
        .arg(world.path("a/b"))
        .arg(world.path("removed"))
        .output();
    let ran = ran.unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let place = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(place.trim_end(), world.path("a/b").to_str().unwrap());
}
