//! Writes past the page cache that do not wait for their end (Linux AIO), beside readers through
//! it.

use crate::common::World;
use std::path::Path;
use std::process::Command;

#[test]
fn what_is_written_asynchronously_past_the_page_cache_is_seen_through_it() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("asynchronous");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/asynchronous.c");
    let compiled = Command::new("cc")
        .args(["-O1", "-pthread", "-o"])
        .args([&program, &source])
        .status();
    assert!(compiled.unwrap().success());
    let ran = Command::new(&program).arg(world.path("file")).output();
    let ran = ran.unwrap();
    assert!(ran.status.success(), "{ran:?}");
}
