//! The connections between a gateway and the rest of the world, which are cut when it crashes.
//!
//! A crashed process has no further effects, and nothing else about its crash is visible from
//! outside. So a *life* counts the polls of everything that reaches the world: calls of stores and
//! of the metadata from any task, and the gateway's own operations. The life ends when the count
//! reaches zero: before a request was sent, while it was pending (the cloud then decides whether it
//! takes effect), or after its answer and before any task has seen the answer. From then on no
//! request of that life gets through, its tasks are aborted, and another life opens the same
//! volume. Between two such polls nothing reaches the world, so a crash there has the same effects
//! as a crash at the next poll: these are all the points at which a crash makes a difference.

use super::cloud::SimulatedCloud;
use super::ledger::Ledger;
use bytes::Bytes;
use quorumfs_backends::{Deadline, ObjectInfo, ObjectName, ObjectStore, Page, Receipt, StoreError};
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use tokio::sync::Notify;

/// The life of a gateway, from start to end.
pub(super) struct Life {
    /// The number of the gateway and its life: clouds can distinguish clients by it.
    pub(super) client: u64,
    left: AtomicU64,
    steps: AtomicU64,
    dead: AtomicBool,
    end: Notify,
}

impl Life {
    /// A life of at most this many steps.
    pub(super) fn new(client: u64, steps: u64) -> Arc<Self> {
        Arc::new(Self {
            client,
            left: AtomicU64::new(steps),
            steps: AtomicU64::new(0),
            dead: AtomicBool::new(false),
            end: Notify::new(),
        })
    }

    /// Takes a step; returns whether the life still goes on.
    fn step(&self) -> bool {
        if self.is_over() {
            return false;
        }
        self.steps.fetch_add(1, Ordering::Relaxed);
        if self.left.fetch_sub(1, Ordering::Relaxed) <= 1 {
            self.dead.store(true, Ordering::Relaxed);
            self.end.notify_one();
            return false;
        }
        true
    }

    pub(super) fn is_over(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Steps taken so far.
    pub(super) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Waits for the end of the life.
    pub(super) async fn ended(&self) {
        if !self.is_over() {
            self.end.notified().await;
        }
    }

    /// Work that proceeds only while the life goes on.
    pub(super) fn bound<T>(
        self: &Arc<Self>,
        work: impl Future<Output = T> + Send,
    ) -> impl Future<Output = T> + Send {
        Bound {
            life: Arc::clone(self),
            work: Box::pin(work),
        }
    }
}

struct Bound<F> {
    life: Arc<Life>,
    work: Pin<Box<F>>,
}

impl<F: Future> Future for Bound<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if !self.life.step() {
            return Poll::Pending;
        }
        match self.work.as_mut().poll(context) {
            Poll::Ready(output) if self.life.step() => Poll::Ready(output),
            _ => Poll::Pending,
        }
    }
}

/// A cloud as one life of a gateway reaches it.
pub(super) struct Wire {
    pub(super) cloud: Arc<SimulatedCloud>,
    pub(super) life: Arc<Life>,
    pub(super) ledger: Arc<Ledger>,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wire({} → cloud {})", self.life.client, self.cloud.index)
    }
}

impl Wire {
    fn note<T>(&self, what: &str, name: &ObjectName, result: &Result<T, StoreError>) {
        let result = match result {
            Ok(_) => "done".to_owned(),
            Err(error) => format!("{:?}", error.kind),
        };
        let (client, cloud) = (self.life.client, self.cloud.index);
        self.ledger
            .note(&format!("{client} {what} {name} at {cloud}: {result}"));
    }

    /// The cloud has these bytes, or claims to have them.
    fn acknowledged(&self, name: &ObjectName, body: Option<&Bytes>) {
        let Some(named) = self.cloud.keys.invert(name) else {
            return;
        };
        let mut records = self.ledger.records();
        let right = match body {
            None => true,
            Some(body) => records
                .bodies
                .get(&(named.object, named.shard.0))
                .is_some_and(|hash| *hash == blake3::hash(body)),
        };
        if right {
            let shard = (named.object, named.shard.0, named.attempt);
            records.acknowledged.insert(shard);
        }
    }
}

#[async_trait::async_trait]
impl ObjectStore for Wire {
    fn describe(&self) -> String {
        format!("cloud {}", self.cloud.index)
    }

    async fn found(&self, _: Deadline) -> Result<(), StoreError> {
        Ok(())
    }

    async fn give_back(&self, _: Deadline) -> Result<(), StoreError> {
        Ok(())
    }

    async fn check(&self, _: Deadline) -> Result<(), StoreError> {
        Ok(())
    }

    async fn put_if_absent(
        &self,
        name: &ObjectName,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Option<Receipt>, StoreError> {
        if let Some(named) = self.cloud.keys.invert(name)
            && !self.life.is_over()
        {
            self.ledger.put(named.object, named.shard.0, &body);
        }
        let put = self.cloud.put(name, body, deadline);
        let result = self.life.bound(put).await;
        self.note("puts", name, &result);
        if result.is_ok() {
            self.acknowledged(name, None);
        }
        result
    }

    async fn get(
        &self,
        name: &ObjectName,
        length_max: u64,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError> {
        let client = self.life.client;
        let get = self.cloud.get(client, name, None, length_max, deadline);
        let result = self.life.bound(get).await;
        self.note("gets", name, &result);
        if let Ok(body) = &result {
            self.acknowledged(name, Some(body));
        }
        result
    }

    async fn get_range(
        &self,
        name: &ObjectName,
        range: Range<u64>,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError> {
        let client = self.life.client;
        let get = self.cloud.get(client, name, Some(range), 0, deadline);
        let result = self.life.bound(get).await;
        self.note("gets a range of", name, &result);
        result
    }

    async fn head(&self, name: &ObjectName, deadline: Deadline) -> Result<ObjectInfo, StoreError> {
        self.life.bound(self.cloud.head(name, deadline)).await
    }

    async fn list(
        &self,
        prefix: &str,
        cursor: Option<&ObjectName>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Page, StoreError> {
        let list = self.cloud.list(prefix, cursor, limit, deadline);
        self.life.bound(list).await
    }

    async fn delete(&self, name: &ObjectName, deadline: Deadline) -> Result<(), StoreError> {
        let result = self.life.bound(self.cloud.delete(name, deadline)).await;
        self.note("deletes", name, &result);
        result
    }
}
