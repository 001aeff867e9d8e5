//! `together`: programs that share files, each on another of three mounts of one volume.
//!
//! ```text
//! cargo run --release -p quorumfs-tests --bin together -- --scene locks --scene sqlite
//! ```
//!
//! It prints a sentence for each scene, or a JSON line with `--json`, and ends with exit code 0
//! only if nothing was wrong. It mounts, and needs what a mount needs; some scenes need python3,
//! make, cc or git.

use clap::{Parser, Subcommand};
use quorumfs_tests::together::{PlayerTask, Scene, SceneSizes, TogetherPlan, run, work};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Plays programs that share files over several mounts.
#[derive(Parser)]
struct TogetherArguments {
    /// Only this scene; may be repeated.
    #[arg(long, value_enum)]
    scene: Vec<Scene>,
    #[command(flatten)]
    sizes: SceneSizes,
    /// Decides lengths, pauses and the like.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seconds one scene may take.
    #[arg(long, default_value_t = 600)]
    within: u64,
    /// Prints JSON lines.
    #[arg(long)]
    json: bool,
    /// Uses a local directory as if it were three mounts, to test the scenes.
    #[arg(long, hide = true)]
    directory: Option<PathBuf>,
    #[command(subcommand)]
    part: Option<TogetherCommand>,
}

#[derive(Subcommand)]
enum TogetherCommand {
    /// A process of a scene; the program starts these itself.
    #[command(hide = true)]
    Player {
        #[command(subcommand)]
        task: PlayerTask,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = TogetherArguments::parse();
    if let Some(TogetherCommand::Player { task }) = &arguments.part {
        return Ok(match work(task) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        });
    }
    let plan = TogetherPlan {
        program: std::env::current_exe()?,
        scenes: match arguments.scene.is_empty() {
            true => Scene::ALL.to_vec(),
            false => arguments.scene,
        },
        sizes: arguments.sizes,
        seed: arguments.seed,
        within: Duration::from_secs(arguments.within),
        directory: arguments.directory,
    };
    let sound = run(&plan, |scene, outcome| match outcome {
        Ok(report) if arguments.json => match serde_json::to_string(report) {
            Ok(line) => println!("{line}"),
            Err(error) => eprintln!("{scene}: {error}"),
        },
        Ok(report) => println!("{scene} ({} s): {}", report.seconds, report.sentence),
        Err(error) => {
            if arguments.json {
                let message = format!("{error:#}");
                let error = json!({
                    "v": 1, "type": "error", "code": 1, "scene": scene, "message": message,
                });
                println!("{error}");
            }
            eprintln!("{scene}: wrong: {error:#}");
        }
    });
    Ok(match sound {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
