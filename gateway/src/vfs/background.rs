//! Background work: committing data that is due; releasing orphans that are not open; sending times
//! of access; new keys; the access of shares that have ended.

use super::file_system::FileSystemCore;
use super::writeback::Large;
use crate::memory::give_back_spare;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// How often to look.
const PERIOD: Duration = Duration::from_millis(500);

/// Runs until the file system is shut down or dropped.
pub(super) fn spawn(inner: &Arc<FileSystemCore>) {
    let weak = Arc::downgrade(inner);
    tokio::spawn(async move {
        let mut swept = Instant::now();
        let mut large = Large::default();
        while let Some(()) = round(&weak, &mut swept, &mut large).await {}
    });
}

/// Releases orphans in a task of its own, if the last time was long ago.
fn sweep(inner: &Arc<FileSystemCore>, swept: &mut Instant) {
    if swept.elapsed() < inner.services.options.orphans_every {
        return;
    }
    *swept = Instant::now();
    let inner = inner.clone();
    tokio::spawn(async move {
        if let Err(error) = inner.release_orphans().await {
            tracing::debug!(%error, "the orphans could not all be released");
        }
    });
}

async fn round(weak: &Weak<FileSystemCore>, swept: &mut Instant, large: &mut Large) -> Option<()> {
    let inner = weak.upgrade()?;
    if inner.services.is_stopped() {
        return None;
    }
    sweep(&inner, swept);
    inner.services.refresh_keys_if_due();
    inner.take_back_if_due();
    inner.files.send_access_times_if_due();
    give_back_spare();
    if !inner.writeback.flush_due(large).await {
        // Only a weak reference is held while waiting, so that dropping the last file system ends
        // this task.
        let pressure = inner.services.pressure.clone();
        drop(inner);
        // In both cases: look again.
        let _ = tokio::time::timeout(PERIOD, pressure.notified()).await;
    }
    Some(())
}
