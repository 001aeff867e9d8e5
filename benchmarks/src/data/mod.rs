//! `quorumfs-bench data`: blocks and small files over clouds of stated latency and bandwidth.
//!
//! The file system runs in this process, from its calls down to the clouds, with the metadata in
//! memory: the data path alone is measured, without a kernel and without ordering. Clouds are
//! directories, or any given places, each behind a link of stated latency and bandwidth; ratios are
//! to the best that such clouds allow:
//!
//! | Figure | Against |
//! |---|---|
//! | a block, written and synced | the w-th fastest cloud's latency and transfer of one shard |
//! | writing in order | k times the w-th highest bandwidth: a shard is 1/k of a block |
//! | reading in order, `fast` | all clouds' bandwidth together |
//! | reading in order, `cheap` | the bandwidth of the k chosen ones, which are the cheapest |
//! | with a cloud that hangs | the same of the clouds that remain, and the speed before |
//!
//! | Module | What it holds |
//! |---|---|
//! | [`world`] | a volume in memory over shaped clouds, and mounts of it |
//! | [`phases`] | the measurements |

mod phases;
mod world;

use crate::arguments::DataArguments;
use crate::failure::{BenchFailure, BenchResult};
use crate::output::Printer;
use quorumfs_backends::shaped::Shape;
use quorumfs_gateway::blocks::Preference;
use quorumfs_metadata::placement::Policy;
use serde::Serialize;
use std::time::Duration;
use world::BenchVolume;

/// The workload and the clouds.
#[derive(Debug, Clone)]
struct DataSetting {
    policy: Policy,
    shapes: Vec<Shape>,
    prices: Vec<u32>,
    preference: Preference,
    memory_bytes: u64,
}

/// One line.
#[derive(Debug, Default, Serialize)]
struct DataRecord {
    preference: String,
    policy: [u8; 3],
    latency_ms: Vec<u64>,
    mib_per_second: Vec<u64>,
    /// One block after the other, each synced.
    block_write_ms: f64,
    block_write_stated_ms: f64,
    block_write_ratio: f64,
    write_mib_per_second: f64,
    write_stated_mib_per_second: f64,
    write_ratio: f64,
    read_mib_per_second: f64,
    read_stated_mib_per_second: f64,
    read_ratio: f64,
    /// Bytes sent to the busiest cloud for an overwrite of 4 KiB.
    overwrite_bytes_per_cloud: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    hang: Option<phases::Hang>,
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<phases::Files>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repair: Option<phases::Repair>,
    #[serde(skip_serializing_if = "Option::is_none")]
    writers: Option<phases::Writers>,
    size_mib: u64,
}

impl DataRecord {
    fn text(&self) -> String {
        let [n, f, k] = self.policy;
        let mut text = format!(
            "(n, f, k) = ({n}, {f}, {k}), {}, clouds of {:?} ms and {:?} MiB/s\n  \
             block, synced      {:8.1} ms      stated {:.1} ms: {:.2}\n  \
             write in order     {:8.1} MiB/s   stated {:.1}: {:.2}\n  \
             read in order      {:8.1} MiB/s   stated {:.1}: {:.2}\n  \
             overwrite of 4 KiB {:8} bytes to the busiest cloud",
            self.preference,
            self.latency_ms,
            self.mib_per_second,
            self.block_write_ms,
            self.block_write_stated_ms,
            self.block_write_ratio,
            self.write_mib_per_second,
            self.write_stated_mib_per_second,
            self.write_ratio,
            self.read_mib_per_second,
            self.read_stated_mib_per_second,
            self.read_ratio,
            self.overwrite_bytes_per_cloud,
        );
        if let Some(hang) = &self.hang {
            text.push_str(&hang.text());
        }
        if let Some(files) = &self.files {
            text.push_str(&files.text());
        }
        if let Some(repair) = &self.repair {
            text.push_str(&repair.text());
        }
        if let Some(writers) = &self.writers {
            text.push_str(&writers.text());
        }
        text
    }
}

/// One value for each cloud, from one for each or one for all.
fn each<T: Copy>(what: &str, values: &[T], clouds: usize) -> BenchResult<Vec<T>> {
    match values {
        [one] => Ok(vec![*one; clouds]),
        all if all.len() == clouds => Ok(all.to_vec()),
        all => Err(BenchFailure::usage(format!(
            "{what} has {} values, and there are {clouds} clouds",
            all.len()
        ))
        .hint("give one value for each cloud, or one for all")),
    }
}

fn setting(arguments: &DataArguments) -> BenchResult<DataSetting> {
    let [n, f, k] = arguments.code.policy.0;
    let target = arguments.target.unwrap_or(n);
    let policy =
        Policy::new(n, f, k, target).map_err(|error| BenchFailure::usage(error.to_string()))?;
    let clouds = usize::from(n);
    if !arguments.cloud.is_empty() && arguments.cloud.len() != clouds {
        let reason = format!("{} clouds are named, of {clouds}", arguments.cloud.len());
        return Err(BenchFailure::usage(reason).hint("name each of them, or none"));
    }
    let latencies = each("--latency-ms", &arguments.latency_ms, clouds);
    let latencies = match (latencies, arguments.latency_ms.as_slice()) {
        (Err(_), [20, 30, 40, 200]) => vec![30; clouds],
        (given, _) => given?,
    };
    let rates = each("--mib-per-second", &arguments.mib_per_second, clouds)?;
    let shapes = latencies.iter().zip(&rates).map(|(latency, rate)| Shape {
        latency: Duration::from_millis(*latency),
        bytes_per_second: (*rate > 0).then_some(*rate << 20),
    });
    Ok(DataSetting {
        policy,
        shapes: shapes.collect(),
        prices: each("--read-price", &arguments.read_price, clouds)?,
        preference: arguments.preference,
        memory_bytes: u64::from(arguments.memory_mib) << 20,
    })
}

/// Runs the command.
pub(crate) async fn run(arguments: &DataArguments, output: Printer) -> BenchResult {
    let setting = setting(arguments)?;
    if let Some(hang) = arguments.hang
        && hang >= setting.shapes.len()
    {
        return Err(BenchFailure::usage(format!("there is no cloud {hang}"))
            .hint("clouds are counted from 0"));
    }
    let world = BenchVolume::found(&setting, &arguments.cloud).await?;
    let measured = measure(&world, &setting, arguments).await;
    let given_back = world.give_back().await;
    let record = measured?;
    given_back?;
    output.record("data", &record, DataRecord::text)?;
    Ok(())
}

async fn measure(
    world: &BenchVolume,
    setting: &DataSetting,
    arguments: &DataArguments,
) -> BenchResult<DataRecord> {
    let mib = |rate: Option<u64>| rate.unwrap_or(0) >> 20;
    let mut record = DataRecord {
        preference: setting.preference.to_string(),
        policy: arguments.code.policy.0,
        latency_ms: setting
            .shapes
            .iter()
            .map(|s| s.latency.as_millis() as u64)
            .collect(),
        mib_per_second: setting
            .shapes
            .iter()
            .map(|s| mib(s.bytes_per_second))
            .collect(),
        size_mib: arguments.size_mib,
        ..DataRecord::default()
    };
    let size = arguments.size_mib << 20;
    record.block_write_ms = phases::blocks(world, setting).await?;
    record.block_write_stated_ms = phases::stated_block_ms(setting, None);
    record.block_write_ratio = record.block_write_ms / record.block_write_stated_ms;
    record.write_mib_per_second = phases::write_in_order(world, setting, b"large", size).await?;
    record.write_stated_mib_per_second = phases::stated_write(setting, None);
    record.write_ratio = record.write_mib_per_second / record.write_stated_mib_per_second;
    record.read_mib_per_second = phases::read_in_order(world, setting, b"large", size).await?;
    record.read_stated_mib_per_second = phases::stated_read(setting, None);
    record.read_ratio = record.read_mib_per_second / record.read_stated_mib_per_second;
    record.overwrite_bytes_per_cloud = phases::overwrite(world, setting, b"large", size).await?;
    if let Some(cloud) = arguments.hang {
        record.hang = Some(phases::hang(world, setting, size, cloud).await?);
    }
    if arguments.files > 0 {
        record.files = Some(phases::files(world, setting, arguments).await?);
    }
    if arguments.writers > 0 {
        record.writers = Some(phases::writers(world, setting, arguments.writers).await?);
    }
    if arguments.repair {
        record.repair = Some(phases::repair(world, setting).await?);
    }
    Ok(record)
}
