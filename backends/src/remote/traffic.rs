//! Counts the requests to a cloud: every try, because every try is billed.

use crate::error::Operation;
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests and bytes since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Tries to create an object.
    pub puts: u64,
    /// Tries to read an object, or a range of one.
    pub gets: u64,
    /// Tries to get an object's length.
    pub heads: u64,
    /// Tries to list.
    pub lists: u64,
    /// Tries to delete.
    pub deletes: u64,
    /// Tries that failed, for any reason.
    pub failed: u64,
    /// Failed tries that the cloud throttled.
    pub throttled: u64,
    /// Tries that followed a failed one.
    pub retries: u64,
    /// Bytes of objects that were sent.
    pub bytes_sent: u64,
    /// Bytes of objects that were received.
    pub bytes_received: u64,
}

impl Traffic {
    /// Each number's name and value.
    #[must_use]
    pub fn entries(&self) -> [(&'static str, u64); 10] {
        [
            ("puts", self.puts),
            ("gets", self.gets),
            ("heads", self.heads),
            ("lists", self.lists),
            ("deletes", self.deletes),
            ("failed", self.failed),
            ("throttled", self.throttled),
            ("retries", self.retries),
            ("bytes_sent", self.bytes_sent),
            ("bytes_received", self.bytes_received),
        ]
    }

    /// All requests together.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.puts + self.gets + self.heads + self.lists + self.deletes
    }
}

/// The counters while they change.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    puts: AtomicU64,
    gets: AtomicU64,
    heads: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    failed: AtomicU64,
    throttled: AtomicU64,
    retries: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Meter {
    /// Counts a new try that sends so many bytes of an object.
    pub(crate) fn asked(&self, operation: Operation, sent: u64, again: bool) {
        let counter = match operation {
            Operation::Put | Operation::Create => &self.puts,
            Operation::Get | Operation::Open | Operation::Presign => &self.gets,
            Operation::Head => &self.heads,
            Operation::List => &self.lists,
            Operation::Delete => &self.deletes,
        };
        add(counter, 1);
        add(&self.sent, sent);
        add(&self.retries, u64::from(again));
    }

    /// Counts received bytes of an object.
    pub(crate) fn received(&self, bytes: u64) {
        add(&self.received, bytes);
    }

    /// Counts a failed try.
    pub(crate) fn failed(&self, throttled: bool) {
        add(&self.failed, 1);
        add(&self.throttled, u64::from(throttled));
    }

    pub(crate) fn read(&self) -> Traffic {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            puts: get(&self.puts),
            gets: get(&self.gets),
            heads: get(&self.heads),
            lists: get(&self.lists),
            deletes: get(&self.deletes),
            failed: get(&self.failed),
            throttled: get(&self.throttled),
            retries: get(&self.retries),
            bytes_sent: get(&self.sent),
            bytes_received: get(&self.received),
        }
    }
}
