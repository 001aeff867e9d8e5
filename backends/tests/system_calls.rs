//! Durability is an order of system calls, so these tests watch the system calls.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::path::PathBuf;
use std::process::Command;

/// Cargo builds examples with the tests and puts them next to the tests' directory.
fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let directory = test.parent().unwrap().parent().unwrap().join("examples");
    let path = directory.join("put_one");
    assert!(
        path.exists(),
        "{} was not built: run the tests with cargo test",
        path.display()
    );
    path
}

fn trace(directory: &std::path::Path) -> Vec<String> {
    let log = directory.join("trace");
    let calls = "trace=openat,write,pwrite64,writev,fsync,fdatasync,link,linkat,unlink,close";
    let status = Command::new("strace")
        .args(["-f", "-y", "-s", "200", "-e", calls, "-o"])
        .arg(&log)
        .arg(example())
        .arg(directory.join("cloud"))
        .status()
        .expect("strace is missing: scripts/setup installs it");
    assert!(
        status.success(),
        "the example failed under strace: {status}"
    );
    let text = std::fs::read_to_string(log).unwrap();
    text.lines()
        .filter(|line| !line.contains("= -1 "))
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_local_object_is_written_synced_linked_and_its_directory_synced() {
    let place = tempfile::TempDir::new().unwrap();
    let lines = trace(place.path());
    let position = |what: &str, test: &dyn Fn(&str) -> bool| {
        let found = lines.iter().position(|line| test(line));
        found.unwrap_or_else(|| panic!("no {what} in the trace:\n{}", lines.join("\n")))
    };
    let written = position("write of the body", &|line| {
        line.contains("write(") && line.contains("to be found in the trace")
    });
    // strace -y shows the file behind the descriptor: fd</path/incoming/…>
    let file = lines[written].split(['<', '>']).nth(1).unwrap().to_owned();
    assert!(file.contains("/incoming/"), "{file}");
    let synced = position("sync of the body", &|line| {
        (line.contains("fdatasync(") || line.contains("fsync(")) && line.contains(&file)
    });
    // System calls use open directories: no part of the path is resolved again.
    let (_, temporary) = file.rsplit_once('/').unwrap();
    let linked = position("link", &|line| {
        let from = format!("/cloud/incoming>, \"{temporary}\"");
        line.contains("linkat(")
            && line.contains(&from)
            && line.contains("/cloud/ab>, \"0123456789\"")
    });
    let directory_synced = position("sync of the object's directory", &|line| {
        line.contains("fsync(") && line.contains("cloud/ab>")
    });
    assert!(
        written < synced && synced < linked && linked < directory_synced,
        "written {written}, synced {synced}, linked {linked}, directory {directory_synced}:\n{}",
        lines.join("\n")
    );
}

#[test]
fn a_new_cloud_has_its_directories_synced_before_its_marker_says_so() {
    let place = tempfile::TempDir::new().unwrap();
    let lines = trace(place.path());
    let linked = lines
        .iter()
        .position(|l| l.contains("linkat(") && l.contains("/cloud>, \"quorumfs.cloud\""))
        .expect("the marker was linked");
    let synced = |range: &[String]| {
        range
            .iter()
            .any(|l| l.contains("fsync(") && l.contains("/cloud>"))
    };
    assert!(synced(&lines[..linked]), "{}", lines.join("\n"));
    assert!(synced(&lines[linked..]), "{}", lines.join("\n"));
}
