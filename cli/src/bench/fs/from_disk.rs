//! Reads a large file from the gateway's disk cache, compared with a loop that reads and decrypts
//! the same.
//!
//! Before each round the gateway drops its caches in memory, and the kernel drops its pages of the
//! disk cache's files and of the loop's file. Both then wait for the disk.

use super::WorkloadPlaces;
use super::content::{mib_per_second, read_in_order};
use super::in_turns;
use crate::bench::failed;
use crate::commands::{MountReport, Synced, WarmedPiece, sync_asked};
use crate::configuration::TierSetting;
use crate::control::Question;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustix::fs::Advice;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

/// Bytes that are sealed together, as in the cache.
const CHUNK_BYTES: usize = 256 << 10;
const TAG_BYTES: usize = 16;
/// Bytes to bring into the cache with one request.
const PIECE_BYTES: usize = 4 << 20;

/// Makes the kernel drop a file's pages, which it can once they are on the disk.
fn leave_to_the_disk(path: &Path) -> CommandResult<()> {
    let cannot = |error| Failure::file("drop the cached pages of", path, &error);
    let file = File::open(path).map_err(cannot)?;
    file.sync_all().map_err(cannot)?;
    let forgotten = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
    forgotten.map_err(|error| cannot(error.into()))
}

fn ask(places: &WorkloadPlaces, question: Question) -> CommandResult<MountReport> {
    let runtime = tokio::runtime::Handle::current();
    let answer = runtime.block_on(crate::control::ask::<MountReport>(&places.state, question))?;
    answer.ok_or_else(|| Failure::new(Exit::Error, "the mount has ended"))
}

/// Waits until all written data is committed, so that the next measurement has the machine for
/// itself and reads sealed content.
pub(super) fn settle(places: &WorkloadPlaces) -> CommandResult<()> {
    let runtime = tokio::runtime::Handle::current();
    let asked = sync_asked(&places.state, None, TierSetting::Clouds);
    match runtime.block_on(asked)? {
        Some(Synced::Failed { message, .. }) => Err(Failure::new(Exit::Error, message)),
        Some(_) => Ok(()),
        None => Err(Failure::new(Exit::Error, "the mount has ended")),
    }
}

/// Brings a file into the disk cache, which otherwise takes written and read content only as time
/// permits.
fn warm(places: &WorkloadPlaces, path: &Path, size: u64) -> CommandResult<()> {
    let found = path.metadata();
    let inode = found
        .map_err(|error| Failure::file("look at", path, &error))?
        .ino();
    let runtime = tokio::runtime::Handle::current();
    for offset in (0..size).step_by(PIECE_BYTES) {
        let length = (size - offset).min(PIECE_BYTES as u64);
        let question = Question::Warm {
            inode,
            offset,
            length,
        };
        let answer = crate::control::ask::<WarmedPiece>(&places.state, question);
        match runtime.block_on(answer)? {
            Some(WarmedPiece::Done { .. }) => {}
            Some(WarmedPiece::Failed { message }) => {
                return Err(Failure::new(Exit::Error, message));
            }
            None => return Err(Failure::new(Exit::Error, "the mount has ended")),
        }
    }
    Ok(())
}

fn hits(report: &MountReport) -> CommandResult<u64> {
    let cache = report.cache.as_ref();
    let cache = cache.filter(|cache| cache.problem.is_none());
    let hits = cache.map(|cache| cache.hits);
    hits.ok_or_else(|| Failure::new(Exit::Error, "the mount has no disk cache"))
}

fn through_the_mount(
    places: &WorkloadPlaces,
    path: &Path,
    size: u64,
    counts: bool,
) -> CommandResult<f64> {
    let report = ask(places, Question::Forget)?;
    let cache = report.cache.as_ref().and_then(|cache| cache.path.clone());
    let directory = cache.unwrap_or_default();
    let cannot = |error| Failure::file("look into", &directory, &error);
    for entry in std::fs::read_dir(&directory).map_err(cannot)? {
        leave_to_the_disk(&entry.map_err(cannot)?.path())?;
    }
    let before = hits(&report)?;
    let speed = read_in_order(path, size)?;
    let served = hits(&ask(places, Question::Status)?)? - before;
    let wanted = size / CHUNK_BYTES as u64;
    if counts && served < wanted {
        let message = format!("{served} of {wanted} pieces came from the disk cache");
        return Err(Failure::new(Exit::Error, message)
            .hint("give the bench a directory on a disk with more free space"));
    }
    Ok(speed)
}

fn cipher() -> CommandResult<LessSafeKey> {
    let key = UnboundKey::new(&AES_256_GCM, &[2; 32]);
    let key = key.map_err(|error| failed("prepare the cipher", &error))?;
    Ok(LessSafeKey::new(key))
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    if let Some(last) = nonce.last_chunk_mut() {
        *last = number.to_be_bytes();
    }
    Nonce::assume_unique_for_key(nonce)
}

fn write_sealed(path: &Path, size: u64) -> CommandResult<()> {
    let cannot = |error| Failure::file("write", path, &error);
    let (key, mut file) = (cipher()?, File::create(path).map_err(cannot)?);
    for number in 0..size / CHUNK_BYTES as u64 {
        let mut chunk = vec![number as u8; CHUNK_BYTES];
        let sealed = key.seal_in_place_append_tag(nonce(number), Aad::empty(), &mut chunk);
        sealed.map_err(|error| failed("encrypt", &error))?;
        file.write_all(&chunk).map_err(cannot)?;
    }
    file.sync_all().map_err(cannot)
}

fn bare(path: &Path, size: u64) -> CommandResult<f64> {
    let cannot = |error| Failure::file("read", path, &error);
    leave_to_the_disk(path)?;
    let (key, file) = (cipher()?, File::open(path).map_err(cannot)?);
    let mut chunk = vec![0; CHUNK_BYTES + TAG_BYTES];
    let began = Instant::now();
    for number in 0..size / CHUNK_BYTES as u64 {
        let offset = number * (CHUNK_BYTES + TAG_BYTES) as u64;
        file.read_exact_at(&mut chunk, offset).map_err(cannot)?;
        let opened = key.open_in_place(nonce(number), Aad::empty(), &mut chunk);
        opened.map_err(|error| failed("decrypt", &error))?;
    }
    Ok(mib_per_second(size, began))
}

/// Reading in order from the disk cache, ours and a bare loop, in MiB/s.
pub(super) fn read(places: &WorkloadPlaces, size: u64) -> CommandResult<(f64, f64)> {
    let (ours, sealed) = (places.ours.join("large"), places.local.join("sealed"));
    write_sealed(&sealed, size)?;
    settle(places)?;
    warm(places, &ours, size)?;
    let both = in_turns(
        |round| through_the_mount(places, &ours, size, round > 0),
        |_| bare(&sealed, size),
    )?;
    std::fs::remove_file(&sealed).map_err(|error| Failure::file("remove", &sealed, &error))?;
    Ok(both)
}
