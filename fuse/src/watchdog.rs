//! Requests in flight, and the abort of a stuck connection.
//!
//! The task that serves a request answers it within its deadline. If one is much later than that,
//! the runtime itself no longer runs, and every process that waits for the mount is unkillable. A
//! dedicated thread then aborts the connection: the kernel answers all waiting requests with an
//! error (a session of fuser cannot be ended otherwise while a request hangs).

use crate::mount_table::mounted_at;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Requests that are not answered yet.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    next: AtomicU64,
    requests: Mutex<BTreeMap<u64, Entered>>,
}

#[derive(Debug)]
struct Entered {
    at: Instant,
    name: &'static str,
    /// How much more time than others it has.
    grace: Duration,
}

/// One request; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct TrackedRequest {
    number: u64,
    all: Arc<InFlight>,
}

impl InFlight {
    fn requests(&self) -> MutexGuard<'_, BTreeMap<u64, Entered>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a request that may take longer than others by `grace`.
    pub(crate) fn enter(self: &Arc<Self>, name: &'static str, grace: Duration) -> TrackedRequest {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let at = Instant::now();
        self.requests().insert(number, Entered { at, name, grace });
        TrackedRequest {
            number,
            all: self.clone(),
        }
    }

    /// The age, less its grace, and the name of the latest request.
    pub(crate) fn latest(&self) -> Option<(Duration, &'static str)> {
        let now = Instant::now();
        let requests = self.requests();
        let late = requests.values().map(|request| {
            let age = now.saturating_duration_since(request.at);
            (age.saturating_sub(request.grace), request.name)
        });
        late.max_by_key(|(late, _)| *late)
    }
}

impl Drop for TrackedRequest {
    fn drop(&mut self) {
        self.all.requests().remove(&self.number);
    }
}

/// A connection that can be aborted.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    /// Its number under `/sys/fs/fuse/connections`, if it could be found.
    pub(crate) minor: Option<u32>,
    /// Its mount point.
    pub(crate) mount_point: PathBuf,
}

impl Connection {
    /// Makes the kernel answer all waiting and later requests with an error.
    pub(crate) fn abort(&self) {
        let control = self
            .minor
            .map(|minor| format!("/sys/fs/fuse/connections/{minor}/abort"));
        let written = control.is_some_and(|path| {
            std::fs::OpenOptions::new()
                .write(true)
                .open(path)
                .and_then(|mut file| file.write_all(b"1"))
                .is_ok()
        });
        if !written {
            // The control file system is not mounted here: a forced unmount aborts as well. By now
            // another mount may be there.
            let here = mounted_at(&self.mount_point).map(|entry| entry.minor);
            if self.minor.is_some() && here != self.minor {
                return;
            }
            let flags = rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH;
            if let Err(error) = rustix::mount::unmount(&self.mount_point, flags) {
                tracing::error!(
                    mount_point = %self.mount_point.display(), %error,
                    "a stuck connection could not be aborted; run `umount -f` on it as root"
                );
            }
        }
    }
}

/// Watches until `ended`; aborts when a request is older than `limit` and its grace.
pub(crate) fn spawn(
    requests: Arc<InFlight>,
    connection: Connection,
    limit: Duration,
    ended: Arc<AtomicBool>,
) -> std::io::Result<()> {
    let pause = (limit / 8).clamp(Duration::from_millis(20), Duration::from_secs(2));
    std::thread::Builder::new()
        .name("fuse-watchdog".into())
        .spawn(move || {
            while !ended.load(Ordering::Acquire) {
                std::thread::sleep(pause);
                let Some((age, name)) = requests.latest().filter(|(age, _)| *age > limit) else {
                    continue;
                };
                tracing::error!(
                    request = name, age_seconds = age.as_secs(),
                    mount_point = %connection.mount_point.display(),
                    "the mount is stuck; its connection is aborted so that no process hangs"
                );
                connection.abort();
                return;
            }
        })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_request_is_known_until_it_is_answered() {
        let all = Arc::new(InFlight::default());
        let name = || all.latest().map(|(_, name)| name);
        let patient = all.enter("write", Duration::from_secs(3600));
        let first = all.enter("read", Duration::ZERO);
        std::thread::sleep(Duration::from_millis(20));
        let second = all.enter("lookup", Duration::ZERO);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(name(), Some("read"), "not the one with more time");
        drop(first);
        assert_eq!(name(), Some("lookup"));
        drop(second);
        assert_eq!(all.latest().map(|(late, _)| late), Some(Duration::ZERO));
        drop(patient);
        assert!(all.latest().is_none());
    }
}
