//! Reads a large file from the gateway's disk cache, compared with a loop that reads and decrypts
//! the same.
//!
//! Before each round the gateway drops its caches in memory, and the kernel drops its pages of the
//! disk cache's files and of the loop's file. Both then wait for the disk.

use super::WorkloadPlaces;
use super::content::{mib_per_second, read_in_order};
use super::in_turns;
use crate::failure::{BenchFailure, BenchResult, failed};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustix::fs::Advice;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes that are sealed together, as in the cache.
const CHUNK_BYTES: usize = 256 << 10;
const TAG_BYTES: usize = 16;
/// How long the mount may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a mount reports, as far as it is of interest here.
#[derive(Debug, Deserialize)]
struct MountFigures {
    cache: Option<CacheFigures>,
}

#[derive(Debug, Deserialize)]
struct CacheFigures {
    #[serde(default)]
    path: PathBuf,
    /// Chunks that were read from it.
    hits: u64,
    /// Why nothing more is written, if so.
    problem: Option<String>,
}

/// Makes the kernel drop a file's pages, which it can once they are on the disk.
fn leave_to_the_disk(path: &Path) -> BenchResult {
    let cannot = |error| BenchFailure::file("drop the cached pages of", path, &error);
    let file = File::open(path).map_err(cannot)?;
    file.sync_all().map_err(cannot)?;
    let forgotten = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
    forgotten.map_err(|error| cannot(error.into()))
}

/// Asks the mount on its control socket, as the commands of the program do. For the question that
/// makes it drop its caches there is no command.
fn ask(places: &WorkloadPlaces, question: &str) -> BenchResult<MountFigures> {
    let cannot = |error: std::io::Error| failed("ask the mount", &error);
    let mut socket = UnixStream::connect(places.state.join("control.sock")).map_err(cannot)?;
    socket.set_read_timeout(Some(PATIENCE)).map_err(cannot)?;
    writeln!(socket, "\"{question}\"").map_err(cannot)?;
    let mut line = String::new();
    let read = BufReader::new(socket).read_line(&mut line);
    read.map_err(cannot)?;
    serde_json::from_str(&line).map_err(|error| failed("understand the mount", &error))
}

/// Waits until all written data is committed, so that the next measurement has the machine for
/// itself and reads sealed content.
pub(super) fn settle(places: &WorkloadPlaces) -> BenchResult {
    let program = &places.program;
    let synced = program.run(&[
        "sync".as_ref(),
        "--state".as_ref(),
        places.state.as_os_str(),
    ]);
    synced.map(drop)
}

/// Brings a file into the disk cache, which otherwise takes written and read content only as time
/// permits.
fn warm(places: &WorkloadPlaces, path: &Path) -> BenchResult {
    let (state, path) = (places.state.as_os_str(), path.as_os_str());
    let warmed = places
        .program
        .run(&["warmup".as_ref(), path, "--state".as_ref(), state]);
    warmed.map(drop)
}

/// The disk cache in the figures, if it is written.
fn cache(figures: MountFigures) -> BenchResult<CacheFigures> {
    let cache = figures.cache.filter(|cache| cache.problem.is_none());
    cache.ok_or_else(|| BenchFailure::new("the mount has no disk cache"))
}

fn through_the_mount(
    places: &WorkloadPlaces,
    path: &Path,
    size: u64,
    counts: bool,
) -> BenchResult<f64> {
    let before = cache(ask(places, "forget")?)?;
    let directory = before.path;
    let cannot = |error| BenchFailure::file("look into", &directory, &error);
    for entry in std::fs::read_dir(&directory).map_err(cannot)? {
        leave_to_the_disk(&entry.map_err(cannot)?.path())?;
    }
    let speed = read_in_order(path, size)?;
    let served = cache(ask(places, "status")?)?.hits - before.hits;
    let wanted = size / CHUNK_BYTES as u64;
    if counts && served < wanted {
        let message = format!("{served} of {wanted} pieces came from the disk cache");
        return Err(BenchFailure::new(message)
            .hint("give the bench a directory on a disk with more free space"));
    }
    Ok(speed)
}

fn cipher() -> BenchResult<LessSafeKey> {
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

fn write_sealed(path: &Path, size: u64) -> BenchResult {
    let cannot = |error| BenchFailure::file("write", path, &error);
    let (key, mut file) = (cipher()?, File::create(path).map_err(cannot)?);
    for number in 0..size / CHUNK_BYTES as u64 {
        let mut chunk = vec![number as u8; CHUNK_BYTES];
        let sealed = key.seal_in_place_append_tag(nonce(number), Aad::empty(), &mut chunk);
        sealed.map_err(|error| failed("encrypt", &error))?;
        file.write_all(&chunk).map_err(cannot)?;
    }
    file.sync_all().map_err(cannot)
}

fn bare(path: &Path, size: u64) -> BenchResult<f64> {
    let cannot = |error| BenchFailure::file("read", path, &error);
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
pub(super) fn read(places: &WorkloadPlaces, size: u64) -> BenchResult<(f64, f64)> {
    let (ours, sealed) = (places.ours.join("large"), places.local.join("sealed"));
    write_sealed(&sealed, size)?;
    settle(places)?;
    warm(places, &ours)?;
    let both = in_turns(
        |round| through_the_mount(places, &ours, size, round > 0),
        |_| bare(&sealed, size),
    )?;
    std::fs::remove_file(&sealed).map_err(|error| BenchFailure::file("remove", &sealed, &error))?;
    Ok(both)
}
