//! Asynchronous writes past the page cache (Linux AIO, `io_uring`), while readers use the page
//! cache.

use crate::common::MountedVolume;
use std::path::Path;
use std::process::Command;

#[test]
fn what_is_written_asynchronously_past_the_page_cache_is_seen_through_it() {
    let world = MountedVolume::new();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("asynchronous");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/asynchronous.c");
    let compiled = Command::new("cc")
        .args(["-O1", "-pthread", "-o"])
        .args([&program, &source])
        .status();
    assert!(compiled.unwrap().success());
    for interface in ["aio", "io_uring"] {
        let mut command = Command::new(&program);
        let ran = command.arg(world.path(interface)).arg(interface).output();
        let ran = ran.unwrap();
        assert!(ran.status.success(), "{interface}: {ran:?}");
    }
}
