//! Additional durable writes: the cost of a disk alone.
//!
//! With strict durability each replica waits for its disk with each batch. Where all replicas share
//! the processors, they all pay for the interrupts and wake-ups. A cluster that does not wait, with
//! these writes, shows that cost apart from the waiting.

use crate::failure::{BenchResult, failed};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The size of a write: about what a replica's journal writes for a batch of small requests.
const BYTES: usize = 8 << 10;
/// The size of the file that is overwritten.
const FILE_BYTES: u64 = 16 << 20;

/// Begins to make so many writes a second durable, until the process ends; counts them.
pub(super) fn begin(directory: &Path, rate: u32) -> BenchResult<Arc<AtomicU64>> {
    let describe = |error: std::io::Error| failed("make additional writes", &error);
    let path = directory.join("flushing");
    let file = File::create(path).map_err(describe)?;
    let zeros = vec![0; BYTES];
    for at in (0..FILE_BYTES).step_by(BYTES) {
        file.write_all_at(&zeros, at).map_err(describe)?;
    }
    file.sync_all().map_err(describe)?;
    let every = Duration::from_secs(1) / rate.max(1);
    let count = Arc::new(AtomicU64::new(0));
    let done = Arc::clone(&count);
    let run = move || {
        let mut due = Instant::now();
        for at in (0..FILE_BYTES).step_by(BYTES).cycle() {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            due += every;
            let written = file.write_all_at(&zeros, at);
            if let Err(error) = written.and_then(|()| file.sync_data()) {
                tracing::error!(%error, "additional writes have stopped");
                return;
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    let thread = std::thread::Builder::new().name("flushing".to_owned());
    thread.spawn(run).map_err(describe)?;
    Ok(count)
}
