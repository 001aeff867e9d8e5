//! A directory that acts as a cloud.
//!
//! ```text
//! quorumfs.cloud     the marker: the cloud's identity
//! incoming/          objects that are being written; leftovers of crashes, swept at opening
//! 00/ … ff/          the objects, each a file named by the part of its name after the slash
//! ```
//!
//! **An object exists whole or not at all, and once acknowledged it is durable.** It is written
//! into `incoming`, its data synced, *then* linked under its name, which fails if the name is
//! taken, and the directory synced before the put returns. If the name is taken, the directory is
//! synced too before the caller gets the answer: a put that crashed between link and sync may have
//! left the object.
//!
//! **Nothing is written to a wrong place.** Every operation compares the identity of the marker
//! file with the one it last checked, and reads the marker again if it changed. A directory that
//! was moved away is `Unavailable`, one that came back is used again, another volume's is
//! `Foreign`. Links that replace its directories and files are not followed, and only files with a
//! name of the cloud's own form are ever deleted: other users may have write access.
//!
//! Blocking calls run on threads of the runtime's blocking pool, at most [`JOBS_MAX`] at a time for
//! one store. A disk that hangs occupies at most that many threads; callers leave at their
//! deadline.

mod files;

use crate::error::{Operation, StoreError, StoreErrorKind};
use crate::marker::Marker;
use crate::name::ObjectName;
use crate::receipt::Receipt;
use crate::remote::{Meter, Traffic};
use crate::store::{Deadline, FreeSpace, ObjectInfo, ObjectStore, Page};
use bytes::Bytes;
use files::{CloudDirectory, Fault, Root};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// How many operations of one store may block at a time.
pub const JOBS_MAX: usize = 16;

/// A cloud in a directory.
#[derive(Clone, Debug)]
pub struct LocalStore {
    directory: Arc<CloudDirectory>,
    jobs: Arc<Semaphore>,
    /// Its requests are free, and counted so that a plan can be compared with them.
    meter: Arc<Meter>,
}

fn error(
    directory: &CloudDirectory,
    operation: Operation,
    object: Option<&ObjectName>,
    fault: Fault,
) -> StoreError {
    StoreError {
        kind: fault.kind,
        operation,
        cloud: directory.describe(),
        object: object.cloned(),
        detail: fault.detail,
    }
}

impl LocalStore {
    /// Makes `path` a cloud: creates it if necessary, with its marker and directories, all synced.
    ///
    /// Repeated after a crash, it completes the creation; an existing marker must match.
    ///
    /// # Errors
    /// `Foreign` if the directory holds anything else; the operating system's errors.
    pub fn create(path: &Path, marker: Marker) -> Result<(), StoreError> {
        let directory = CloudDirectory::new(path.to_path_buf(), marker);
        directory
            .create()
            .map_err(|fault| error(&directory, Operation::Create, None, fault))
    }

    /// Opens a cloud, which must exist, complete and writable.
    ///
    /// # Errors
    /// `Unavailable` if the directory is missing, `Foreign` if it is no cloud or another one,
    /// `Corrupt` if its marker is damaged, `NewerFormat`, `ReadOnly`, `Denied`.
    pub fn open(path: &Path, marker: Marker) -> Result<Self, StoreError> {
        let store = Self::attach(path, marker);
        let directory = &store.directory;
        directory
            .marked()
            .and_then(|root| root.check_writable())
            .map_err(|fault| error(directory, Operation::Open, None, fault))?;
        Ok(store)
    }

    /// A cloud that may be missing now and return later: each operation checks.
    #[must_use]
    pub fn attach(path: &Path, marker: Marker) -> Self {
        Self {
            directory: Arc::new(CloudDirectory::new(path.to_path_buf(), marker)),
            jobs: Arc::new(Semaphore::new(JOBS_MAX)),
            meter: Arc::default(),
        }
    }

    /// The directory's path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path().to_path_buf()
    }

    /// Counts the bytes of an answer.
    fn received(&self, read: Result<Bytes, StoreError>) -> Result<Bytes, StoreError> {
        if let Ok(bytes) = &read {
            self.meter.received(bytes.len() as u64);
        }
        read
    }

    /// Runs `job` on the marked directory.
    async fn run<T: Send + 'static>(
        &self,
        operation: Operation,
        object: Option<&ObjectName>,
        deadline: Deadline,
        job: impl FnOnce(&Root) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run_unmarked(operation, object, deadline, |directory| {
            directory.marked().and_then(|root| job(&root))
        })
        .await
    }

    async fn run_unmarked<T: Send + 'static>(
        &self,
        operation: Operation,
        object: Option<&ObjectName>,
        deadline: Deadline,
        job: impl FnOnce(&CloudDirectory) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let directory = Arc::clone(&self.directory);
        let jobs = Arc::clone(&self.jobs);
        let work = async move {
            let Ok(permit) = jobs.acquire_owned().await else {
                return Err(Fault::new(StoreErrorKind::Unavailable, "the store is shut"));
            };
            let done = tokio::task::spawn_blocking(move || {
                let result = job(&directory);
                drop(permit);
                result
            });
            done.await.unwrap_or_else(|failure| {
                Err(Fault::new(
                    StoreErrorKind::Other,
                    format!("the operation was interrupted: {failure}"),
                ))
            })
        };
        let result = tokio::time::timeout_at(deadline.instant(), work)
            .await
            .unwrap_or_else(|_| Err(Fault::new(StoreErrorKind::Timeout, "no answer in time")));
        result.map_err(|fault| error(&self.directory, operation, object, fault))
    }
}

#[async_trait::async_trait]
impl ObjectStore for LocalStore {
    fn describe(&self) -> String {
        self.directory.describe()
    }

    async fn found(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.run_unmarked(Operation::Create, None, deadline, CloudDirectory::create)
            .await
    }

    async fn check(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.run(Operation::Open, None, deadline, Root::check_writable)
            .await
    }

    async fn give_back(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.run(Operation::Delete, None, deadline, Root::give_back)
            .await
    }

    async fn put_if_absent(
        &self,
        name: &ObjectName,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Option<Receipt>, StoreError> {
        let target = name.clone();
        self.meter.asked(Operation::Put, body.len() as u64, false);
        self.run(Operation::Put, Some(name), deadline, move |d| {
            d.put(&target, &body)?;
            Ok(Some(Receipt::crc32c(&body)))
        })
        .await
    }

    async fn get(
        &self,
        name: &ObjectName,
        length_max: u64,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError> {
        let target = name.clone();
        self.meter.asked(Operation::Get, 0, false);
        let read = self.run(Operation::Get, Some(name), deadline, move |d| {
            d.get(&target, length_max)
        });
        self.received(read.await)
    }

    async fn get_range(
        &self,
        name: &ObjectName,
        range: Range<u64>,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError> {
        let target = name.clone();
        self.meter.asked(Operation::Get, 0, false);
        let read = self.run(Operation::Get, Some(name), deadline, move |d| {
            d.get_range(&target, range)
        });
        self.received(read.await)
    }

    async fn head(&self, name: &ObjectName, deadline: Deadline) -> Result<ObjectInfo, StoreError> {
        let target = name.clone();
        self.meter.asked(Operation::Head, 0, false);
        self.run(Operation::Head, Some(name), deadline, move |d| {
            d.head(&target)
        })
        .await
    }

    async fn list(
        &self,
        prefix: &str,
        cursor: Option<&ObjectName>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Page, StoreError> {
        let (prefix, cursor) = (prefix.to_owned(), cursor.cloned());
        self.meter.asked(Operation::List, 0, false);
        self.run(Operation::List, None, deadline, move |d| {
            d.list(&prefix, cursor.as_ref(), limit)
        })
        .await
    }

    async fn delete(&self, name: &ObjectName, deadline: Deadline) -> Result<(), StoreError> {
        let target = name.clone();
        self.meter.asked(Operation::Delete, 0, false);
        self.run(Operation::Delete, Some(name), deadline, move |d| {
            d.delete(&target)
        })
        .await
    }

    async fn free_space(&self, deadline: Deadline) -> Result<Option<FreeSpace>, StoreError> {
        let room = self.run(Operation::Head, None, deadline, Root::free_space);
        room.await.map(Some)
    }

    fn traffic(&self) -> Traffic {
        self.meter.read()
    }
}

#[cfg(test)]
mod tests;
