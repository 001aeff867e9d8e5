//! Common programs run inside a mount: git and cargo.
//!
//! They exercise a file system in many ways: git renames lock files, links objects, maps packs into
//! memory and compares times; cargo writes from many processes, locks, executes files that it has
//! just written and relies on modification times.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_tests::harness::{Demo, drop_caches};
use std::path::Path;
use std::process::Command;

/// Runs a program in a directory, without this machine's settings, and returns its output.
#[track_caller]
fn run(directory: &Path, program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_AUTHOR_NAME", "A")
        .env("GIT_AUTHOR_EMAIL", "a@example.invalid")
        .env("GIT_COMMITTER_NAME", "A")
        .env("GIT_COMMITTER_EMAIL", "a@example.invalid")
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    let code = output.status;
    assert!(
        code.success(),
        "{program} {arguments:?}: {code}\n{text}\n{complaints}"
    );
    text
}

/// A repository with a hundred files in a dozen commits.
fn repository(directory: &Path) {
    std::fs::create_dir(directory).unwrap();
    run(
        directory,
        "git",
        &["init", "--quiet", "--initial-branch=main"],
    );
    for commit in 0..12 {
        for file in 0..10 {
            let path = directory.join(format!("part-{file}/file-{}", commit * file % 17));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = format!("line {commit} {file}\n").repeat(200 + 31 * file);
            std::fs::write(path, text).unwrap();
        }
        run(directory, "git", &["add", "--all"]);
        run(
            directory,
            "git",
            &["commit", "--quiet", "-m", &format!("Change {commit}")],
        );
    }
}

#[test]
fn git_clones_and_collects_and_cargo_builds() {
    let mut demo = Demo::start();
    let elsewhere = tempfile::tempdir().unwrap();
    let origin = elsewhere.path().join("origin");
    repository(&origin);

    let mount = demo.mount();
    run(
        &mount,
        "git",
        &[
            "clone",
            "--quiet",
            "--no-local",
            origin.to_str().unwrap(),
            "clone",
        ],
    );
    let clone = mount.join("clone");
    assert_eq!(run(&clone, "git", &["status", "--porcelain"]), "");
    std::fs::write(clone.join("part-1/file-0"), "changed\n").unwrap();
    std::fs::write(clone.join("new"), "new\n").unwrap();
    let status = run(&clone, "git", &["status", "--porcelain"]);
    assert_eq!(status, " M part-1/file-0\n?? new\n");
    run(&clone, "git", &["add", "--all"]);
    run(
        &clone,
        "git",
        &["commit", "--quiet", "-m", "Change it here"],
    );
    run(&clone, "git", &["gc", "--quiet", "--prune=now"]);
    run(&clone, "git", &["fsck", "--full", "--strict"]);
    let head = run(&clone, "git", &["rev-parse", "HEAD"]);

    let package = mount.join("small");
    std::fs::create_dir_all(package.join("src")).unwrap();
    let manifest = "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
    std::fs::write(package.join("Cargo.toml"), manifest).unwrap();
    let main = "fn main() { println!(\"built on {} clouds\", small::clouds()); }\n";
    std::fs::write(package.join("src/main.rs"), main).unwrap();
    let lib = "//! Small.\n/// How many.\npub fn clouds() -> u8 { 4 }\n";
    std::fs::write(package.join("src/lib.rs"), lib).unwrap();
    run(&package, "cargo", &["build", "--offline", "--quiet"]);
    let output = run(&package, "target/debug/small", &[]);
    assert_eq!(output, "built on 4 clouds\n");

    demo.stop();
    drop_caches();
    demo.restart();
    assert_eq!(run(&clone, "git", &["rev-parse", "HEAD"]), head);
    assert_eq!(run(&clone, "git", &["status", "--porcelain"]), "");
    run(&clone, "git", &["fsck", "--full", "--strict"]);
    assert_eq!(
        run(&package, "target/debug/small", &[]),
        "built on 4 clouds\n"
    );
    // Nothing changed, so that nothing is built again: the times are as they were.
    let again = Command::new("cargo")
        .args(["build", "--offline"])
        .current_dir(&package)
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(
        text.contains("Finished") && !text.contains("Compiling"),
        "{text}"
    );
    demo.stop();
}
