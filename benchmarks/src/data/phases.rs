//! The measurements, and the best that clouds of the stated shape allow.

use super::world::{BenchMount, BenchVolume, empty};
use super::{DataArguments, DataSetting};
use crate::failure::{BenchFailure, BenchResult, failed};
use crate::median::median;
use crate::noise::noise;
use quorumfs_backends::ObjectStore;
use quorumfs_backends::shaped::Shape;
use quorumfs_gateway::blocks::{Preference, ScrubConfig, ScrubDepth};
use quorumfs_gateway::vfs::{Caller, FileSystem, HandleId, OpenMode, Packing, VfsError};
use serde::Serialize;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Plain bytes of a block.
const BLOCK_BYTES: u64 = 4 << 20;
/// Bytes of a read, as the kernel's are.
const READ_BYTES: u32 = 128 << 10;
/// Bytes of a write, as the kernel's are at most.
const WRITE_BYTES: usize = 1 << 20;
/// Blocks to write one after the other; some more before them do not count.
const BLOCKS: u64 = 24;
const WARM_UP: u64 = 4;
/// How long repair may take.
const REPAIR_WITHIN: Duration = Duration::from_secs(600);

fn broken(error: &VfsError) -> BenchFailure {
    failed("work in the file system", error)
}

fn root() -> Caller {
    Caller::user(0, 0, vec![])
}

/// The bytes of a block of any file; they differ from place to place, for comparisons.
fn pattern() -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    PATTERN.get_or_init(|| noise(&[], BLOCK_BYTES as usize))
}

fn mib(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / f64::from(1 << 20) / time.as_secs_f64()
}

/// The clouds that count: all but one that hangs.
fn remaining(setting: &DataSetting, without: Option<usize>) -> Vec<Shape> {
    let numbered = setting.shapes.iter().copied().enumerate();
    numbered
        .filter(|(number, _)| Some(*number) != without)
        .map(|(_, shape)| shape)
        .collect()
}

fn rate(shape: &Shape) -> f64 {
    shape
        .bytes_per_second
        .map_or(f64::INFINITY, |rate| rate as f64 / f64::from(1 << 20))
}

/// The time of the w-th fastest cloud for one shard of a block.
pub(super) fn stated_block_ms(setting: &DataSetting, without: Option<usize>) -> f64 {
    let shard = BLOCK_BYTES as f64 / f64::from(1 << 20) / f64::from(setting.policy.data());
    let mut times: Vec<f64> = remaining(setting, without)
        .iter()
        .map(|shape| shape.latency.as_secs_f64() * 1e3 + shard / rate(shape) * 1e3)
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    let at = usize::from(setting.policy.write_quorum()).saturating_sub(1);
    times.get(at).copied().unwrap_or(f64::INFINITY)
}

/// MiB a second that the w-th highest bandwidth allows.
pub(super) fn stated_write(setting: &DataSetting, without: Option<usize>) -> f64 {
    let mut rates: Vec<f64> = remaining(setting, without).iter().map(rate).collect();
    rates.sort_unstable_by(|a, b| b.total_cmp(a));
    let at = usize::from(setting.policy.write_quorum()).saturating_sub(1);
    rates.get(at).copied().unwrap_or_default() * f64::from(setting.policy.data())
}

/// The sum of the bandwidths of the clouds that are read from, in MiB a second.
pub(super) fn stated_read(setting: &DataSetting, without: Option<usize>) -> f64 {
    let data = usize::from(setting.policy.data());
    let numbered = setting.shapes.iter().zip(&setting.prices).enumerate();
    let mut chosen: Vec<(u32, Duration, f64)> = numbered
        .filter(|(number, _)| Some(*number) != without)
        .map(|(_, (shape, price))| (*price, shape.latency, rate(shape)))
        .collect();
    if setting.preference == Preference::Cheap {
        chosen.sort_unstable_by_key(|(price, latency, _)| (*price, *latency));
        chosen.truncate(data);
    }
    chosen.iter().map(|(.., rate)| rate).sum()
}

async fn create(fs: &FileSystem, name: &[u8]) -> BenchResult<HandleId> {
    let made = fs
        .create(&root(), fs.root(), name, 0o644, OpenMode::READ_WRITE, true)
        .await;
    made.map(|(_, handle)| handle)
        .map_err(|error| broken(&error))
}

async fn open(fs: &FileSystem, name: &[u8], mode: OpenMode) -> BenchResult<HandleId> {
    let found = fs.lookup(&root(), fs.root(), name).await;
    let found = found.map_err(|error| broken(&error))?;
    let found = found.ok_or_else(|| failed("open a file", &"it does not exist"))?;
    let opened = fs.open(&root(), found.inode, mode).await;
    opened
        .map(|opened| opened.handle)
        .map_err(|error| broken(&error))
}

async fn close(fs: &FileSystem, handle: HandleId) -> BenchResult {
    let flushed = fs.flush(handle).await;
    let released = fs.release(handle).await;
    flushed.and(released).map_err(|error| broken(&error))
}

async fn end(mount: BenchMount) -> BenchResult {
    mount.blocks.drain(Duration::from_secs(60)).await;
    let ended = mount.fs.shutdown().await;
    mount.blocks.shutdown();
    ended.map_err(|error| broken(&error))
}

/// Blocks one after the other, each synced; milliseconds of each.
async fn synced(fs: &FileSystem, name: &[u8], blocks: u64) -> BenchResult<Vec<f64>> {
    let pattern = pattern();
    let handle = create(fs, name).await?;
    let mut times = Vec::new();
    for number in 0..blocks {
        let begin = Instant::now();
        for (piece, at) in pattern.chunks(WRITE_BYTES).zip((0..).step_by(WRITE_BYTES)) {
            let written = fs.write(handle, number * BLOCK_BYTES + at, piece).await;
            written.map_err(|error| broken(&error))?;
        }
        fs.fsync(handle).await.map_err(|error| broken(&error))?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    close(fs, handle).await?;
    Ok(times)
}

/// The median of a block that is written and synced.
pub(super) async fn blocks(world: &BenchVolume, setting: &DataSetting) -> BenchResult<f64> {
    let mount = world.mount(setting).await?;
    let mut times = synced(&mount.fs, b"blocks", WARM_UP + BLOCKS).await?;
    end(mount).await?;
    Ok(median(
        times.get_mut(WARM_UP as usize..).unwrap_or_default(),
    ))
}

async fn write_range(
    fs: &FileSystem,
    handle: HandleId,
    range: std::ops::Range<u64>,
) -> BenchResult<f64> {
    let pattern = pattern();
    let length = range.end.saturating_sub(range.start);
    let begin = Instant::now();
    let mut at = range.start;
    while at < range.end {
        let within = (at % BLOCK_BYTES) as usize;
        let piece = pattern.get(within..).unwrap_or_default();
        let piece = piece.get(..WRITE_BYTES).unwrap_or(piece);
        let written = fs.write(handle, at, piece).await;
        at += u64::from(written.map_err(|error| broken(&error))?);
    }
    fs.fsync(handle).await.map_err(|error| broken(&error))?;
    Ok(mib(length, begin.elapsed()))
}

/// MiB a second of a file that is written from its beginning to its end, and synced.
pub(super) async fn write_in_order(
    world: &BenchVolume,
    setting: &DataSetting,
    name: &[u8],
    size: u64,
) -> BenchResult<f64> {
    let mount = world.mount(setting).await?;
    let handle = create(&mount.fs, name).await?;
    let rate = write_range(&mount.fs, handle, 0..size).await?;
    close(&mount.fs, handle).await?;
    end(mount).await?;
    Ok(rate)
}

/// Reads in order and compares; returns MiB a second, and the longest time of a read.
async fn read_range(
    fs: &FileSystem,
    handle: HandleId,
    range: std::ops::Range<u64>,
) -> BenchResult<(f64, Duration)> {
    let pattern = pattern();
    let length = range.end.saturating_sub(range.start);
    let (begin, mut at, mut longest) = (Instant::now(), range.start, Duration::ZERO);
    while at < range.end {
        let one = Instant::now();
        let read = fs.read(handle, at, READ_BYTES).await;
        let read = read.map_err(|error| broken(&error))?;
        longest = longest.max(one.elapsed());
        let within = (at % BLOCK_BYTES) as usize;
        if read.is_empty() || pattern.get(within..within + read.len()) != Some(&read[..]) {
            let message = format!("the bytes read at {at} differ from the written ones");
            return Err(BenchFailure::new(message));
        }
        at += read.len() as u64;
    }
    Ok((mib(length, begin.elapsed()), longest))
}

/// MiB a second of a file that is read in order by a mount with empty caches.
pub(super) async fn read_in_order(
    world: &BenchVolume,
    setting: &DataSetting,
    name: &[u8],
    size: u64,
) -> BenchResult<f64> {
    let mount = world.mount(setting).await?;
    let handle = open(&mount.fs, name, OpenMode::READ).await?;
    let (rate, _) = read_range(&mount.fs, handle, 0..size).await?;
    close(&mount.fs, handle).await?;
    end(mount).await?;
    Ok(rate)
}

fn sent(world: &BenchVolume) -> Vec<u64> {
    let clouds = world.clouds.iter();
    clouds.map(|cloud| cloud.traffic().bytes_sent).collect()
}

/// Bytes sent to the busiest cloud for 4 KiB in the middle of a file.
pub(super) async fn overwrite(
    world: &BenchVolume,
    setting: &DataSetting,
    name: &[u8],
    size: u64,
) -> BenchResult<u64> {
    let mount = world.mount(setting).await?;
    let handle = open(&mount.fs, name, OpenMode::READ_WRITE).await?;
    let before = sent(world);
    let at = size / 2;
    let same = pattern();
    let written = mount
        .fs
        .write(handle, at, same.get(..4096).unwrap_or_default())
        .await;
    written.map_err(|error| broken(&error))?;
    close(&mount.fs, handle).await?;
    end(mount).await?;
    let spent = sent(world)
        .into_iter()
        .zip(before)
        .map(|(after, before)| after - before);
    Ok(spent.max().unwrap_or_default())
}

/// The effect of a cloud that hangs.
#[derive(Debug, Serialize)]
pub(super) struct Hang {
    cloud: usize,
    block_write_ms: f64,
    block_write_longest_ms: f64,
    block_write_stated_ms: f64,
    block_write_ratio: f64,
    write_mib_per_second: f64,
    write_ratio: f64,
    read_before_mib_per_second: f64,
    read_mib_per_second: f64,
    read_ratio: f64,
    read_longest_ms: f64,
    hedge_max_ms: u64,
}

impl Hang {
    pub(super) fn text(&self) -> String {
        format!(
            "\n  cloud {} hangs\n    \
             block, synced    {:8.1} ms      stated {:.1} ms: {:.2}; the longest {:.1}\n    \
             write in order   {:8.1} MiB/s   of what remains: {:.2}\n    \
             read in order    {:8.1} MiB/s   of what remains: {:.2}; {:.1} before; the longest \
             {:.1} ms",
            self.cloud,
            self.block_write_ms,
            self.block_write_stated_ms,
            self.block_write_ratio,
            self.block_write_longest_ms,
            self.write_mib_per_second,
            self.write_ratio,
            self.read_mib_per_second,
            self.read_ratio,
            self.read_before_mib_per_second,
            self.read_longest_ms,
        )
    }
}

/// Measures with one cloud that stops answering while a mount is at work.
pub(super) async fn hang(
    world: &BenchVolume,
    setting: &DataSetting,
    size: u64,
    cloud: usize,
) -> BenchResult<Hang> {
    let Some(hanging) = world.clouds.get(cloud) else {
        return Err(failed("hang a cloud", &"it does not exist"));
    };
    let mount = world.mount(setting).await?;
    synced(&mount.fs, b"before", BLOCKS / 2).await?;
    hanging.set_hanging(true);
    let mut times = synced(&mount.fs, b"meanwhile", BLOCKS).await?;
    let longest = times.iter().copied().fold(0.0, f64::max);
    let stated = stated_block_ms(setting, Some(cloud));
    let block = median(&mut times);
    let handle = create(&mount.fs, b"large meanwhile").await?;
    let write = write_range(&mount.fs, handle, 0..size).await?;
    hanging.set_hanging(false);
    close(&mount.fs, handle).await?;
    end(mount).await?;

    let mount = world.mount(setting).await?;
    let handle = open(&mount.fs, b"large", OpenMode::READ).await?;
    let quarter = size / 4 / BLOCK_BYTES * BLOCK_BYTES;
    let (before, _) = read_range(&mount.fs, handle, 0..quarter).await?;
    hanging.set_hanging(true);
    let read = read_range(&mount.fs, handle, quarter..size).await;
    hanging.set_hanging(false);
    let (read, read_longest) = read?;
    close(&mount.fs, handle).await?;
    end(mount).await?;
    Ok(Hang {
        cloud,
        block_write_ms: block,
        block_write_longest_ms: longest,
        block_write_stated_ms: stated,
        block_write_ratio: block / stated,
        write_mib_per_second: write,
        write_ratio: write / stated_write(setting, Some(cloud)),
        read_before_mib_per_second: before,
        read_mib_per_second: read,
        read_ratio: read / stated_read(setting, Some(cloud)),
        read_longest_ms: read_longest.as_secs_f64() * 1e3,
        hedge_max_ms: 1000,
    })
}

/// Many small files.
#[derive(Debug, Serialize)]
pub(super) struct Files {
    files: u32,
    file_bytes: u32,
    at_once: usize,
    files_per_second: f64,
    puts_per_cloud: u64,
    read_files_per_second: f64,
}

impl Files {
    pub(super) fn text(&self) -> String {
        format!(
            "\n  {} files of {} bytes, {} at once: {:.0} a second, {} puts to the busiest cloud; \
             read {:.0} a second",
            self.files,
            self.file_bytes,
            self.at_once,
            self.files_per_second,
            self.puts_per_cloud,
            self.read_files_per_second,
        )
    }
}

/// Writes many small files, some at once, and reads them again, as `quorumfs put` and `get` do.
pub(super) async fn files(
    world: &BenchVolume,
    setting: &DataSetting,
    arguments: &DataArguments,
) -> BenchResult<Files> {
    let (count, length) = (arguments.files, arguments.file_bytes as usize);
    let pattern = pattern();
    let at_once = arguments.files_at_once.max(1);
    let mount = world.mount_for(setting, Packing::THRIFTY).await?;
    let fs = Arc::new(mount.fs);
    let puts = |world: &BenchVolume| -> Vec<u64> {
        world
            .clouds
            .iter()
            .map(|cloud| cloud.traffic().puts)
            .collect()
    };
    let before = puts(world);
    let begin = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..count {
        if tasks.len() >= at_once {
            joined(tasks.join_next().await)?;
        }
        let fs = Arc::clone(&fs);
        tasks.spawn(async move {
            let handle = create(&fs, format!("small {number}").as_bytes()).await?;
            let body = pattern.get(..length).unwrap_or_default();
            let written = fs.write(handle, 0, body).await;
            written.map_err(|error| broken(&error))?;
            close(&fs, handle).await
        });
    }
    while let Some(done) = tasks.join_next().await {
        joined(Some(done))?;
    }
    let took = begin.elapsed();
    mount.blocks.drain(Duration::from_secs(60)).await;
    let spent = puts(world)
        .into_iter()
        .zip(before)
        .map(|(after, before)| after - before);
    let puts_per_cloud = spent.max().unwrap_or_default();
    fs.drop_caches();
    let begin = Instant::now();
    for number in 0..count {
        if tasks.len() >= at_once {
            joined(tasks.join_next().await)?;
        }
        let fs = Arc::clone(&fs);
        tasks.spawn(async move {
            let name = format!("small {number}");
            let handle = open(&fs, name.as_bytes(), OpenMode::READ).await?;
            let read = fs
                .read(handle, 0, u32::try_from(length).unwrap_or(u32::MAX))
                .await;
            let read = read.map_err(|error| broken(&error))?;
            if Some(&read[..]) != pattern.get(..length) {
                let message = format!("file `{name}` differs from the written one");
                return Err(BenchFailure::new(message));
            }
            close(&fs, handle).await
        });
    }
    while let Some(done) = tasks.join_next().await {
        joined(Some(done))?;
    }
    let read = begin.elapsed();
    fs.shutdown().await.map_err(|error| broken(&error))?;
    mount.blocks.shutdown();
    Ok(Files {
        files: count,
        file_bytes: arguments.file_bytes,
        at_once,
        files_per_second: f64::from(count) / took.as_secs_f64(),
        puts_per_cloud,
        read_files_per_second: f64::from(count) / read.as_secs_f64(),
    })
}

fn joined(done: Option<Result<BenchResult, tokio::task::JoinError>>) -> BenchResult {
    match done {
        None => Ok(()),
        Some(done) => done.map_err(|error| failed("wait for a task", &error))?,
    }
}

/// The cost of restoring a cloud.
#[derive(Debug, Serialize)]
pub(super) struct Repair {
    lost_mib: f64,
    restored_shards: u64,
    read_mib: f64,
    /// Relative to k times the lost bytes.
    read_ratio: f64,
    mib_per_second: f64,
}

impl Repair {
    pub(super) fn text(&self) -> String {
        format!(
            "\n  a cloud emptied: {:.0} MiB lost, {} shards restored at {:.1} MiB/s; {:.0} MiB \
             read, {:.3} of k for each",
            self.lost_mib,
            self.restored_shards,
            self.mib_per_second,
            self.read_mib,
            self.read_ratio,
        )
    }
}

/// Empties the first cloud and restores it.
pub(super) async fn repair(world: &BenchVolume, setting: &DataSetting) -> BenchResult<Repair> {
    let Some(first) = world.bare.first() else {
        return Err(failed("empty a cloud", &"there is none"));
    };
    let lost = empty(first.as_ref()).await?;
    let received = |world: &BenchVolume| -> u64 {
        world
            .clouds
            .iter()
            .map(|cloud| cloud.traffic().bytes_received)
            .sum()
    };
    let mount = world.mount(setting).await?;
    let before = received(world);
    let begin = Instant::now();
    let config = ScrubConfig {
        depth: ScrubDepth::Sample { per_million: 0 },
        ..ScrubConfig::default()
    };
    let scrub = tokio::time::timeout(REPAIR_WITHIN, mount.blocks.scrub(&config, None)).await;
    let scrub = scrub.map_err(|_| failed("repair", &"it takes too long"))?;
    let report = scrub.map_err(|error| failed("repair", &error))?;
    let took = begin.elapsed();
    let read = received(world) - before;
    end(mount).await?;
    Ok(Repair {
        lost_mib: lost as f64 / f64::from(1 << 20),
        restored_shards: report.restored,
        read_mib: read as f64 / f64::from(1 << 20),
        read_ratio: read as f64 / (lost as f64 * f64::from(setting.policy.data())),
        mib_per_second: mib(lost, took),
    })
}

/// The cost of many concurrent writers.
#[derive(Debug, Serialize)]
pub(super) struct Writers {
    writers: u32,
    memory_setting_mib: u64,
    peak_memory_mib: f64,
    mib_per_second: f64,
}

impl Writers {
    pub(super) fn text(&self) -> String {
        format!(
            "\n  {} writers at once, {} MiB of memory set: at most {:.0} MiB held, {:.1} MiB/s",
            self.writers, self.memory_setting_mib, self.peak_memory_mib, self.mib_per_second,
        )
    }
}

/// Each of them writes and syncs blocks of its own file.
pub(super) async fn writers(
    world: &BenchVolume,
    setting: &DataSetting,
    count: u32,
) -> BenchResult<Writers> {
    const EACH: u64 = 4;
    let mount = world.mount(setting).await?;
    let fs = Arc::new(mount.fs);
    // From here on the kernel measures peak memory anew.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let begin = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..count {
        let fs = Arc::clone(&fs);
        tasks.spawn(async move {
            let name = format!("writer {number}");
            synced(&fs, name.as_bytes(), EACH).await.map(|_| ())
        });
    }
    while let Some(done) = tasks.join_next().await {
        joined(Some(done))?;
    }
    let took = begin.elapsed();
    let peak = peak_memory_kib()?;
    mount.blocks.drain(Duration::from_secs(60)).await;
    fs.shutdown().await.map_err(|error| broken(&error))?;
    mount.blocks.shutdown();
    Ok(Writers {
        writers: count,
        memory_setting_mib: setting.memory_bytes >> 20,
        peak_memory_mib: peak as f64 / 1024.0,
        mib_per_second: mib(u64::from(count) * EACH * BLOCK_BYTES, took),
    })
}

fn peak_memory_kib() -> BenchResult<u64> {
    let status = std::fs::read_to_string("/proc/self/status");
    let status = status.map_err(|error| failed("read /proc/self/status", &error))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    let number = number.and_then(|number| number.parse().ok());
    number.ok_or_else(|| failed("read /proc/self/status", &"it has no VmHWM"))
}
