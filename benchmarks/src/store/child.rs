//! The process that is measured, and the process that opens what a killed one left.

use super::candidate::Candidate;
use super::workload::Workload;
use crate::arguments::StoreArguments;
use anyhow::{Context as _, bail};
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Batches between two durable roots.
const BATCHES_OF_A_ROOT: u64 = 256;
const GETS: u32 = 100_000;
const SCANS: u32 = 2_000;
/// Longer than the parent waits before the kill.
const WRITE_ON: Duration = Duration::from_secs(60);

pub(super) fn run(arguments: &StoreArguments) -> anyhow::Result<()> {
    let (Some(engine), Some(layout), Some(leaf_bytes), Some(directory)) = (
        arguments.engines.first(),
        arguments.layouts.first(),
        arguments.leaf_bytes.first(),
        &arguments.place.directory,
    ) else {
        bail!("an argument is missing");
    };
    let begun = Instant::now();
    let mut candidate = Candidate::open(*engine, *layout, *leaf_bytes, directory)?;
    if arguments.reopen {
        let rows = candidate.scan(b"I", b"J", 100)?;
        if rows == 0 {
            bail!("no row was found after the kill");
        }
        let reopen_ms = begun.elapsed().as_secs_f64() * 1e3;
        println!("{}", json!({ "reopen_ms": reopen_ms }));
        return Ok(());
    }
    let mut workload = Workload::new();
    let load = phase(&mut candidate, &mut workload, true, arguments.rows)?;
    let change = phase(&mut candidate, &mut workload, false, arguments.changes)?;
    let disk_mib = mebibytes(disk_bytes(directory)?);

    let begun = Instant::now();
    for _ in 0..GETS {
        candidate.get(&workload.any_key())?;
    }
    let gets_per_second = f64::from(GETS) / begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let mut scanned = 0;
    for _ in 0..SCANS {
        let (from, to) = workload.any_directory();
        scanned += candidate.scan(&from, &to, 200)?;
    }
    let scanned_rows_per_second = scanned as f64 / begun.elapsed().as_secs_f64();
    let mut roots = [load.roots, change.roots.clone()].concat();
    let result = json!({
        "engine": engine.to_string(),
        "layout": layout.to_string(),
        "leaf_bytes": leaf_bytes,
        "load_rows_per_second": load.rows_per_second,
        "change_rows_per_second": change.rows_per_second,
        "batch_p99_ms": percentile(&mut [load.batches, change.batches].concat(), 99),
        "root_p50_ms": percentile(&mut roots, 50),
        "root_max_ms": percentile(&mut roots, 100),
        "load_amplification": load.amplification,
        "change_amplification": change.amplification,
        "rss_peak_mib": mebibytes(1_024 * proc_number("/proc/self/status", "VmHWM:")?),
        "disk_mib": disk_mib,
        "gets_per_second": gets_per_second,
        "scanned_rows_per_second": scanned_rows_per_second,
    });
    println!("{result}");
    std::io::stdout().flush()?;
    let begun = Instant::now();
    while begun.elapsed() < WRITE_ON {
        phase(&mut candidate, &mut workload, false, 10_000)?;
    }
    Ok(())
}

struct PhaseTimes {
    rows_per_second: f64,
    amplification: f64,
    batches: Vec<f64>,
    roots: Vec<f64>,
}

fn phase(
    candidate: &mut Candidate,
    workload: &mut Workload,
    loads: bool,
    rows: u64,
) -> anyhow::Result<PhaseTimes> {
    let (mut batches, mut roots) = (Vec::new(), Vec::new());
    let (mut written, mut logical) = (0, 0);
    let bytes_before = proc_number("/proc/self/io", "write_bytes:")?;
    let mut busy = Duration::ZERO;
    while written < rows {
        let writes = workload.batch(loads);
        written += writes.len() as u64;
        for (key, value) in &writes {
            logical += key.len() + value.as_ref().map_or(0, bytes::Bytes::len);
        }
        let begun = Instant::now();
        candidate.batch(&writes)?;
        if (batches.len() as u64 + 1).is_multiple_of(BATCHES_OF_A_ROOT) || written >= rows {
            let begun = Instant::now();
            candidate.flush()?;
            roots.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        busy += begun.elapsed();
        batches.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    // Writes that a thread of the database finishes later belong to this phase.
    if rows > 50_000 {
        std::thread::sleep(Duration::from_secs(2));
    }
    let bytes = proc_number("/proc/self/io", "write_bytes:")? - bytes_before;
    Ok(PhaseTimes {
        rows_per_second: written as f64 / busy.as_secs_f64(),
        amplification: bytes as f64 / logical as f64,
        batches,
        roots,
    })
}

fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len() * percent / 100).min(values.len().saturating_sub(1));
    values.get(index).copied().unwrap_or(f64::NAN)
}

fn mebibytes(bytes: u64) -> u64 {
    bytes >> 20
}

/// The number after `name` in a file of /proc.
fn proc_number(path: &str, name: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number
        .context("a counter of the kernel is missing")?
        .parse()?)
}

fn disk_bytes(directory: &Path) -> anyhow::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let Ok(metadata) = entry.metadata() else {
            continue; // removed in between
        };
        sum += if metadata.is_dir() {
            disk_bytes(&entry.path())?
        } else {
            metadata.blocks() * 512
        };
    }
    Ok(sum)
}
