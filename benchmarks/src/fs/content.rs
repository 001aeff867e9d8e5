//! Large files: read from the gateway's memory, written and synced.

use super::from_disk::settle;
use super::{WorkloadPlaces, in_turns};
use crate::failure::{BenchFailure, BenchResult, failed};
use crate::noise::noise;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

/// `O_DIRECT`, as Linux numbers it on this architecture: past the kernel's cache.
const DIRECT: i32 = if cfg!(target_arch = "aarch64") {
    0o200_000
} else {
    0o40_000
};
const CHUNK_BYTES: usize = 1 << 20;
const SMALL_BYTES: usize = 4 << 10;
/// The bytes that a bare loop encrypts at once, as the mount does.
const SEGMENT_BYTES: usize = 64 << 10;
/// Reads at random in one round.
const READS: u64 = 4096;

pub(super) fn mib_per_second(bytes: u64, began: Instant) -> f64 {
    bytes as f64 / f64::from(1 << 20) / began.elapsed().as_secs_f64()
}

/// Writes a file of so many bytes and syncs it.
fn write(path: &Path, size: u64) -> BenchResult<f64> {
    let cannot = |error| BenchFailure::file("write", path, &error);
    let chunk = noise(&size.to_be_bytes(), CHUNK_BYTES);
    let mut file = File::create(path).map_err(cannot)?;
    let began = Instant::now();
    for _ in 0..size / CHUNK_BYTES as u64 {
        file.write_all(&chunk).map_err(cannot)?;
    }
    file.sync_all().map_err(cannot)?;
    Ok(mib_per_second(size, began))
}

/// The same on a local file, each segment encrypted first.
fn write_encrypted(path: &Path, size: u64) -> BenchResult<f64> {
    let cannot = |error| BenchFailure::file("write", path, &error);
    let key = UnboundKey::new(&AES_256_GCM, &[1; 32]);
    let key = LessSafeKey::new(key.map_err(|error| failed("prepare the cipher", &error))?);
    let chunk = noise(&size.to_be_bytes(), CHUNK_BYTES);
    let mut file = File::create(path).map_err(cannot)?;
    let began = Instant::now();
    let mut sealed = Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / SEGMENT_BYTES * 16);
    let mut counter = 0_u64;
    for _ in 0..size / CHUNK_BYTES as u64 {
        sealed.clear();
        for segment in chunk.chunks(SEGMENT_BYTES) {
            let mut nonce = [0; 12];
            if let Some(last) = nonce.last_chunk_mut() {
                *last = counter.to_be_bytes();
            }
            counter += 1;
            let from = sealed.len();
            sealed.extend_from_slice(segment);
            let nonce = Nonce::assume_unique_for_key(nonce);
            let part = sealed.get_mut(from..).unwrap_or_default();
            let tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), part);
            let tag = tag.map_err(|error| failed("encrypt", &error))?;
            sealed.extend_from_slice(tag.as_ref());
        }
        file.write_all(&sealed).map_err(cannot)?;
    }
    file.sync_all().map_err(cannot)?;
    Ok(mib_per_second(size, began))
}

/// Writing in order, ours and a bare loop, in MiB/s. Leaves the file that [`read`] reads.
pub(super) fn write_in_order(places: &WorkloadPlaces, size: u64) -> BenchResult<(f64, f64)> {
    let (ours, bare) = (places.ours.join("large"), places.local.join("large"));
    let ours_settled = |_| {
        let speed = write(&ours, size)?;
        // Uploads in the background must not slow the other side down.
        settle(places)?;
        Ok(speed)
    };
    let both = in_turns(ours_settled, |_| write_encrypted(&bare, size))?;
    write(&places.null.join("large"), size)?;
    Ok(both)
}

fn open_directly(path: &Path) -> BenchResult<File> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(DIRECT).open(path);
    opened.map_err(|error| BenchFailure::file("open", path, &error))
}

pub(super) fn read_in_order(path: &Path, size: u64) -> BenchResult<f64> {
    let file = open_directly(path)?;
    let mut buffer = vec![0; CHUNK_BYTES];
    let began = Instant::now();
    for offset in (0..size).step_by(CHUNK_BYTES) {
        let read = file.read_exact_at(&mut buffer, offset);
        read.map_err(|error| BenchFailure::file("read", path, &error))?;
    }
    Ok(mib_per_second(size, began))
}

fn read_at_random(path: &Path, size: u64) -> BenchResult<f64> {
    let file = open_directly(path)?;
    let mut buffer = vec![0; SMALL_BYTES];
    let blocks = (size / SMALL_BYTES as u64).max(1);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let began = Instant::now();
    for _ in 0..READS {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let offset = state % blocks * SMALL_BYTES as u64;
        let read = file.read_exact_at(&mut buffer, offset);
        read.map_err(|error| BenchFailure::file("read", path, &error))?;
    }
    Ok(mib_per_second(READS * SMALL_BYTES as u64, began))
}

/// Reading in order and at random, ours and the null file system, in MiB/s. The first round, which
/// does not count, brings the file into the gateway's memory.
pub(super) fn read(places: &WorkloadPlaces, size: u64) -> BenchResult<((f64, f64), (f64, f64))> {
    let (ours, null) = (places.ours.join("large"), places.null.join("large"));
    let in_order = in_turns(
        |_| read_in_order(&ours, size),
        |_| read_in_order(&null, size),
    )?;
    let at_random = in_turns(
        |_| read_at_random(&ours, size),
        |_| read_at_random(&null, size),
    )?;
    Ok((in_order, at_random))
}
