//! Single operations: the latency of each, compared with the disk's.

use super::WorkloadPlaces;
use crate::failure::{BenchFailure, BenchResult};
use crate::median::median;
use serde::Serialize;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

const OPERATIONS: u32 = 200;
/// The time of an ordered operation in addition to three fdatasync calls of the machine.
const BUDGET_MS: f64 = 1.0;
const SYNCS: f64 = 3.0;

/// Medians in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct Latencies {
    mkdir_ms: f64,
    create_ms: f64,
    rename_ms: f64,
    unlink_ms: f64,
    /// Of 4 KiB that were appended to a local file.
    fdatasync_ms: f64,
    mkdir_budget_ms: f64,
    /// The budget divided by the actual time.
    mkdir_ratio: f64,
}

impl Latencies {
    pub(super) fn text(&self) -> String {
        format!(
            "\n  mkdir              {:9.2} ms       budget {:.2}: {:.2}\
             \n  create, rename, unlink  {:.2}, {:.2}, {:.2} ms; fdatasync {:.2} ms",
            self.mkdir_ms,
            self.mkdir_budget_ms,
            self.mkdir_ratio,
            self.create_ms,
            self.rename_ms,
            self.unlink_ms,
            self.fdatasync_ms
        )
    }
}

fn each(path: &Path, mut work: impl FnMut(u32) -> std::io::Result<()>) -> BenchResult<f64> {
    let mut times = Vec::new();
    for number in 0..OPERATIONS {
        let began = Instant::now();
        work(number).map_err(|error| BenchFailure::file("work in", path, &error))?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(&mut times))
}

pub(super) fn measure(places: &WorkloadPlaces) -> BenchResult<Latencies> {
    let root = places.ours.join("latency");
    fs::create_dir(&root).map_err(|error| BenchFailure::file("create", &root, &error))?;
    let local = places.local.join("synced");
    let file = File::create(&local);
    let mut file = file.map_err(|error| BenchFailure::file("create", &local, &error))?;
    let block = [0x5a; 4096];
    let fdatasync_ms = each(&local, |_| {
        file.write_all(&block)?;
        file.sync_data()
    })?;
    let name = |kind: &str, number: u32| root.join(format!("{kind}{number}"));
    let mkdir_ms = each(&root, |number| fs::create_dir(name("d", number)))?;
    let create_ms = each(&root, |number| File::create(name("f", number)).map(drop))?;
    let rename_ms = each(&root, |number| {
        fs::rename(name("f", number), name("g", number))
    })?;
    let unlink_ms = each(&root, |number| fs::remove_file(name("g", number)))?;
    let mkdir_budget_ms = BUDGET_MS + SYNCS * fdatasync_ms;
    Ok(Latencies {
        mkdir_ms,
        create_ms,
        rename_ms,
        unlink_ms,
        fdatasync_ms,
        mkdir_budget_ms,
        mkdir_ratio: mkdir_budget_ms / mkdir_ms,
    })
}
