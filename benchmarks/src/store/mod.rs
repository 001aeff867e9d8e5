//! `quorumfs-bench store`: compares databases, and ways in which leaves hold rows.
//!
//! Runs the metadata's access pattern (see [`workload`]) over each candidate, each in a process of
//! its own: load 10^6 rows, change and remove some, read points and ranges, then write on until it
//! is killed with SIGKILL; another process opens what is left, and the time until its first row is
//! read is the reopen time. The output has:
//!
//! * rows/s and the 99th percentile of a batch, durable roots included;
//! * bytes written by the process (`write_bytes` in /proc/self/io: what reached the block layer)
//!   divided by the bytes of the rows that were put: the write amplification;
//! * the peak of resident memory, the disk taken, reads per second, the reopen time.
//!
//! The machine is rarely idle and the medium is usually shared: compare within one run.

mod candidate;
mod child;
#[cfg(feature = "fjall")]
mod fjall;
mod workload;

pub(crate) use candidate::{Engine, Layout};

use crate::arguments::StoreArguments;
use crate::failure::BenchFailure;
use crate::output::{Printer, print};
use anyhow::{Context as _, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Runs the command.
pub(crate) fn run(arguments: &StoreArguments, output: Printer) -> anyhow::Result<()> {
    if arguments.child || arguments.reopen {
        return child::run(arguments);
    }
    let base = arguments.place.make()?;
    if !output.is_json() {
        print(&HEADINGS.join(" | "))?;
        print(&HEADINGS.map(|_| "---").join(" | "))?;
    }
    for engine in &arguments.engines {
        for layout in &arguments.layouts {
            for leaf_bytes in &arguments.leaf_bytes {
                let directory = base.path().join(format!("{engine}-{layout}-{leaf_bytes}"));
                let result = measure(arguments, *engine, *layout, *leaf_bytes, &directory)?;
                print(&match output.is_json() {
                    true => result.to_string(),
                    false => line(&result),
                })?;
                let removed = std::fs::remove_dir_all(&directory);
                removed.map_err(|error| BenchFailure::file("remove", &directory, &error))?;
            }
        }
    }
    Ok(())
}

const HEADINGS: [&str; 13] = [
    "engine",
    "layout",
    "leaf bytes",
    "load rows/s",
    "change rows/s",
    "batch p99 ms",
    "root p50/max ms",
    "write amplification load/change",
    "peak RSS MiB",
    "disk MiB",
    "gets/s",
    "scanned rows/s",
    "reopen ms",
];

fn line(result: &Value) -> String {
    let text = |key: &str| match result.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => match number.as_f64() {
            Some(value) if number.is_f64() && value < 100.0 => format!("{value:.1}"),
            Some(value) => format!("{value:.0}"),
            None => number.to_string(),
        },
        _ => "?".to_owned(),
    };
    let pair = |left, right| format!("{} / {}", text(left), text(right));
    [
        text("engine"),
        text("layout"),
        text("leaf_bytes"),
        text("load_rows_per_second"),
        text("change_rows_per_second"),
        text("batch_p99_ms"),
        pair("root_p50_ms", "root_max_ms"),
        pair("load_amplification", "change_amplification"),
        text("rss_peak_mib"),
        text("disk_mib"),
        text("gets_per_second"),
        text("scanned_rows_per_second"),
        text("reopen_ms"),
    ]
    .join(" | ")
}

/// Starts a process that is measured, kills it while it writes, and opens what it left.
fn measure(
    arguments: &StoreArguments,
    engine: Engine,
    layout: Layout,
    leaf_bytes: u64,
    directory: &Path,
) -> anyhow::Result<Value> {
    let start = |role: &str| {
        Command::new(std::env::current_exe()?)
            .args(["store", role])
            .args(["--rows", &arguments.rows.to_string()])
            .args(["--changes", &arguments.changes.to_string()])
            .args(["--engines", &engine.to_string()])
            .args(["--layouts", &layout.to_string()])
            .args(["--leaf-bytes", &leaf_bytes.to_string()])
            .arg("--directory")
            .arg(directory)
            .stdout(Stdio::piped())
            .spawn()
    };
    let mut child = start("--child")?;
    let first = first_line(&mut child);
    std::thread::sleep(Duration::from_secs(3));
    child.kill()?;
    child.wait()?;
    let mut result: Value = serde_json::from_str(&first?)?;
    let mut child = start("--reopen")?;
    let reopened = first_line(&mut child);
    child.wait()?;
    let reopened: Value = serde_json::from_str(&reopened?)?;
    if let (Some(all), Some(more)) = (result.as_object_mut(), reopened.as_object()) {
        all.extend(more.clone());
    }
    Ok(result)
}

fn first_line(child: &mut Child) -> anyhow::Result<String> {
    let output = child.stdout.take().context("the child has no output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    if line.is_empty() {
        bail!("the child ended without a result");
    }
    Ok(line)
}
