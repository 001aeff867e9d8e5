//! The command line as scripts see it: exit codes, streams, and the form of `--json`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

fn quorumfs(arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_quorumfs"))
        .args(arguments)
        .env("XDG_DATA_HOME", directory.path())
        .env_remove("QUORUMFS_STATE")
        .env_remove("QUORUMFS_LOG")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn help_is_grouped_and_lists_the_exit_codes() {
    let help = quorumfs(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    let help = text(&help.stdout);
    for heading in [
        "Try it:",
        "Set up:",
        "Use:",
        "Inspect:",
        "Exit codes:",
        "Examples:",
    ] {
        assert!(
            help.contains(&format!("\n{heading}\n")),
            "{heading} is missing in\n{help}"
        );
    }
    assert!(
        help.lines().all(|line| line.chars().count() <= 110),
        "{help}"
    );
}

/// The commands that a help lists: `  NAME  what it does`.
fn listed(help: &str) -> Vec<&str> {
    let commands = match help.split_once("\nCommands:\n") {
        Some((_, rest)) => rest.split("\n\n").next(),
        // The program's own help has its commands in groups.
        None if help.contains("\nTry it:\n") => help.split("\nFor every command:").next(),
        None => None,
    };
    let lines = commands.unwrap_or_default().lines();
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !["", "help"].contains(name)).collect()
}

#[test]
fn every_command_explains_itself() {
    let mut waiting = vec![Vec::new()];
    let mut seen = 0;
    while let Some(path) = waiting.pop() {
        let words: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let help = quorumfs(&words);
        assert_eq!(help.status.code(), Some(0), "{path:?}");
        let help = text(&help.stdout);
        let usage = format!("Usage: quorumfs {}", path.join(" "));
        assert!(help.contains(&usage), "{path:?}:\n{help}");
        let first = help.lines().next().unwrap_or_default();
        assert!(!first.is_empty() && !first.starts_with("Usage:"), "{help}");
        for name in listed(&help) {
            seen += 1;
            waiting.push([&path[..], &[name.to_string()]].concat());
        }
    }
    assert!(seen > 50, "only {seen} commands were found");
}

#[test]
fn what_is_not_understood_is_a_usage_error_in_the_wanted_language() {
    let said = quorumfs(&["mout"]);
    assert_eq!(said.status.code(), Some(2));
    assert!(
        text(&said.stderr).contains("mount"),
        "no suggestion: {}",
        text(&said.stderr)
    );
    assert!(said.stdout.is_empty());

    let said = quorumfs(&["--json", "mout"]);
    assert_eq!(said.status.code(), Some(2));
    let record: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(
        (&record["v"], &record["type"], &record["code"]),
        (&1.into(), &"error".into(), &2.into())
    );
}

#[test]
fn a_failure_has_a_message_a_hint_and_a_code() {
    let said = quorumfs(&["ls"]);
    assert_eq!(said.status.code(), Some(10));
    let stderr = text(&said.stderr);
    assert!(
        stderr.starts_with("error: there is no volume at "),
        "{stderr}"
    );
    assert!(
        stderr.contains("\n hint: make one with `quorumfs volume create`"),
        "{stderr}"
    );

    let said = quorumfs(&["ls", "--json"]);
    assert_eq!(said.status.code(), Some(10));
    assert!(said.stderr.is_empty(), "{}", text(&said.stderr));
    let record: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(
        (&record["type"], &record["code"]),
        (&"error".into(), &10.into())
    );
    assert!(record["hint"].as_str().unwrap().contains("volume create"));
}

#[test]
fn a_log_filter_that_is_none_is_a_usage_error() {
    let said = quorumfs(&["ls", "--log", "a=b=c"]);
    assert_eq!(said.status.code(), Some(2), "{}", text(&said.stderr));
}

#[test]
fn what_is_made_in_a_state_directory_is_its_owners_and_one_that_others_may_write_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("replica");
    let named = state.to_str().unwrap();
    // The umask of a user who gives every right to others.
    let run = |arguments: &[&str]| {
        Command::new("/bin/sh")
            .args(["-c", "umask 000; exec \"$0\" \"$@\""])
            .arg(env!("CARGO_BIN_EXE_quorumfs"))
            .args(arguments)
            .args(["--json", "--state", named])
            .output()
            .unwrap()
    };
    let made = run(&["replica", "init", "--listen", "127.0.0.1:7000"]);
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    let mut waiting = vec![state.clone()];
    let mut files = 0;
    while let Some(path) = waiting.pop() {
        let found = fs::metadata(&path).unwrap();
        let mode = found.permissions().mode() & 0o7777;
        assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
        files += u32::from(found.is_file());
        if found.is_dir() {
            waiting.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
    assert!(
        files >= 3,
        "key, configuration and format at least: {files}"
    );
    fs::set_permissions(&state, Permissions::from_mode(0o770)).unwrap();
    for command in [&["replica", "run"][..], &["status"], &["mount", "/mnt"]] {
        let refused = run(command);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let said = text(&refused.stdout);
        assert!(said.contains(&format!("chmod 700 {named}")), "{said}");
    }
}
