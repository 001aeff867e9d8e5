//! Programs that share files, each on another of three mounts, shortly: a test for each scene. The
//! program `together` plays them at any length.

#![allow(clippy::unwrap_used)]

use quorumfs_tests::together::{Scene, SceneSizes, TogetherPlan, run};
use serde_json::Value;
use std::time::Duration;

/// Plays one scene in small size; returns a figure of it by its name.
#[track_caller]
fn play(scene: Scene) -> impl Fn(&str) -> u64 {
    let plan = TogetherPlan {
        program: env!("CARGO_BIN_EXE_together").into(),
        scenes: vec![scene],
        sizes: SceneSizes {
            transactions: 150,
            lines: 100,
            tail_lines: 60,
            sections: 30,
            sources: 12,
            turns: 6,
            copies: 3,
        },
        seed: 3,
        within: Duration::from_secs(240),
        directory: None,
    };
    let (mut figures, mut wrong) = (Value::Null, String::new());
    run(&plan, |_, outcome| match outcome {
        Ok(report) => {
            println!("{}", report.sentence);
            figures = Value::Object(report.figures.clone());
        }
        Err(error) => wrong = format!("{error:#}"),
    });
    assert_eq!(wrong, "", "{scene}");
    move |name| figures.pointer(name).and_then(Value::as_u64).unwrap()
}

#[test]
fn transactions_of_processes_on_three_mounts_are_there_once_each() {
    let figure = play(Scene::Sqlite);
    assert_eq!(figure("/transactions"), 150);
    assert!(figure("/handovers") > 10);
}

#[test]
fn lines_that_three_mounts_append_are_whole_and_none_is_lost() {
    let figure = play(Scene::Appenders);
    assert_eq!(figure("/lines"), 400);
    assert!(figure("/writer_changes") > 4);
}

#[test]
fn a_reader_on_another_mount_sees_each_line_soon_whole_and_in_order() {
    assert_eq!(play(Scene::Tail)("/lines"), 60);
}

#[test]
fn locks_exclude_processes_on_other_mounts_and_end_with_their_owners() {
    let figure = play(Scene::Locks);
    for kind in ["fcntl", "ofd", "flock"] {
        assert_eq!(figure(&format!("/{kind}/sections")), 90);
        assert!(figure(&format!("/{kind}/handovers")) > 5);
    }
}

#[test]
fn two_mounts_build_one_project_and_rebuild_what_a_header_asks_for() {
    assert_eq!(play(Scene::Make)("/sources"), 12);
}

#[test]
fn a_git_repository_stays_sound_on_two_mounts_in_turns_and_at_the_same_time() {
    let figure = play(Scene::Git);
    assert_eq!(figure("/turns"), 6);
    assert!(figure("/committed") >= 3);
}

#[test]
fn a_copy_of_a_tree_that_another_mount_changes_has_nothing_that_was_never_there() {
    let figure = play(Scene::Rsync);
    assert!(figure("/renames") > 0 && figure("/replacements") > 0);
}
