//! What all connections of a server share.

use super::ServingOptions;
use super::watched::WatchedLinks;
use crate::admission::{Admission, CountedAddress};
use crate::limits::{ARCHIVES_MAX, ServingLimits};
use crate::source::LinkSource;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// What a server did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Requests that were answered.
    pub requests: u64,
    /// Files and archives of which content was sent.
    pub downloads: u64,
    /// Bytes of content that were sent.
    pub bytes: u64,
    /// Requests and connections that were refused because there were too many.
    pub refused: u64,
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    downloads: AtomicU64,
    bytes: AtomicU64,
    refused: AtomicU64,
}

/// See the module.
pub(super) struct Face {
    pub(super) source: Arc<dyn LinkSource>,
    pub(super) options: ServingOptions,
    pub(super) watched: WatchedLinks,
    admission: Mutex<Admission>,
    began: Instant,
    connections: Arc<Semaphore>,
    downloads: Arc<Semaphore>,
    archives: Arc<Semaphore>,
    counters: Counters,
}

impl Face {
    pub(super) fn new(source: Arc<dyn LinkSource>, options: ServingOptions) -> Self {
        let limits = &options.limits;
        Self {
            source,
            watched: WatchedLinks::default(),
            admission: Mutex::new(Admission::new(limits)),
            began: Instant::now(),
            connections: Arc::new(Semaphore::new(limits.connections)),
            downloads: Arc::new(Semaphore::new(limits.downloads)),
            archives: Arc::new(Semaphore::new(ARCHIVES_MAX)),
            counters: Counters::default(),
            options,
        }
    }

    pub(super) fn limits(&self) -> &ServingLimits {
        &self.options.limits
    }

    fn admission(&self) -> MutexGuard<'_, Admission> {
        self.admission
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self) {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A place for a connection, if there is one.
    pub(super) fn connect(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionSlot> {
        let address = CountedAddress::from(peer);
        // All connections of a proxy have its address.
        let counted = !self.options.trusts_forwarded;
        let permit = self.connections.clone().try_acquire_owned().ok();
        let admitted = permit.filter(|_| !counted || self.admission().connect(address));
        let Some(permit) = admitted else {
            self.refused();
            return None;
        };
        Some(ConnectionSlot {
            face: self.clone(),
            address: counted.then_some(address),
            _permit: permit,
        })
    }

    /// Counts a request.
    ///
    /// # Errors
    /// If the address has sent too many: when to come again.
    pub(super) fn request(&self, address: CountedAddress) -> Result<(), Duration> {
        let admitted = self.admission().request(address, self.began.elapsed());
        match admitted {
            Ok(()) => self.counters.requests.fetch_add(1, Ordering::Relaxed),
            Err(_) => self.counters.refused.fetch_add(1, Ordering::Relaxed),
        };
        admitted
    }

    /// A request of this address had no token that leads anywhere.
    pub(super) fn wrong(&self, address: CountedAddress) {
        let cost = self.limits().wrong_token_cost;
        self.admission().wrong(address, self.began.elapsed(), cost);
    }

    /// A place for a download, if there is one.
    pub(super) fn download(
        self: &Arc<Self>,
        address: CountedAddress,
        is_archive: bool,
    ) -> Option<DownloadSlot> {
        let permit = self.downloads.clone().try_acquire_owned().ok();
        let archive = match is_archive {
            true => self.archives.clone().try_acquire_owned().ok().map(Some),
            false => Some(None),
        };
        let permits = permit.zip(archive);
        let Some((permit, archive)) = permits.filter(|_| self.admission().begin_download(address))
        else {
            self.refused();
            return None;
        };
        self.counters.downloads.fetch_add(1, Ordering::Relaxed);
        Some(DownloadSlot {
            face: self.clone(),
            address,
            _permits: (permit, archive),
        })
    }

    pub(super) fn sent(&self, bytes: usize) {
        self.counters
            .bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn served(&self) -> Served {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Served {
            requests: count(&self.counters.requests),
            downloads: count(&self.counters.downloads),
            bytes: count(&self.counters.bytes),
            refused: count(&self.counters.refused),
        }
    }
}

/// A connection's place; given back when it is dropped.
pub(super) struct ConnectionSlot {
    face: Arc<Face>,
    address: Option<CountedAddress>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        if let Some(address) = self.address {
            self.face.admission().disconnect(address);
        }
    }
}

/// A download's place; given back when it is dropped.
pub(super) struct DownloadSlot {
    face: Arc<Face>,
    address: CountedAddress,
    _permits: (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
}

impl Drop for DownloadSlot {
    fn drop(&mut self) {
        self.face.admission().end_download(self.address);
    }
}
