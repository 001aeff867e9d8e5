//! A cloud with a configurable latency and bandwidth, for benchmarks and tests.
//!
//! ```text
//! put   ├── bytes at the link's rate ──┤├── latency ──┤ acknowledged
//! get   ├── latency ──┤├── bytes at the link's rate ──┤ answered
//! ask   ├── latency ──┤ answered
//! ```
//!
//! Each direction is one link that requests share in the order in which their bytes are ready,
//! without bursts. The wrapped store works in the meantime, so its own time counts only where it is
//! longer. A cloud may also *hang*: from then on no request is answered.

use crate::error::{Operation, StoreError, StoreErrorKind};
use crate::name::ObjectName;
use crate::presigned::PresignedUrl;
use crate::receipt::Receipt;
use crate::remote::{Meter, Traffic};
use crate::store::{Deadline, FreeSpace, ObjectInfo, ObjectStore, Page};
use bytes::Bytes;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The latency and bandwidth of a cloud.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shape {
    /// Between a request's arrival and the first byte of its answer, both ways included.
    pub latency: Duration,
    /// Bytes of objects a second, in each direction; `None` is unbounded.
    pub bytes_per_second: Option<u64>,
}

#[derive(Debug, Default)]
struct Link(Mutex<Option<Instant>>);

impl Link {
    /// Books the link for `length` as soon as it is free after `from`; returns the end.
    fn book(&self, from: Instant, length: Duration) -> Instant {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let until = free.map_or(from, |free| free.max(from)) + length;
        *free = Some(until);
        until
    }
}

/// A store behind a link of a certain shape.
#[derive(Debug)]
pub struct Shaped {
    inner: Arc<dyn ObjectStore>,
    shape: Shape,
    up: Link,
    down: Link,
    hangs: AtomicBool,
    meter: Meter,
}

impl Shaped {
    /// Puts `inner` behind a link.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>, shape: Shape) -> Self {
        Self {
            inner,
            shape,
            up: Link::default(),
            down: Link::default(),
            hangs: AtomicBool::new(false),
            meter: Meter::default(),
        }
    }

    /// Stops answering, or resumes.
    pub fn set_hanging(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::Release);
    }

    fn transfer(&self, bytes: u64) -> Duration {
        let rate = self.shape.bytes_per_second;
        rate.map_or(Duration::ZERO, |rate| {
            let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        })
    }

    async fn silence(&self, operation: Operation, deadline: Deadline) -> Result<(), StoreError> {
        if !self.hangs.load(Ordering::Acquire) {
            return Ok(());
        }
        tokio::time::sleep_until(deadline.instant()).await;
        Err(StoreError {
            kind: StoreErrorKind::Timeout,
            operation,
            cloud: self.describe(),
            object: None,
            detail: "it was set to hang".to_owned(),
        })
    }

    async fn asked<T>(
        &self,
        operation: Operation,
        deadline: Deadline,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.meter.asked(operation, 0, false);
        self.silence(operation, deadline).await?;
        let latency = tokio::time::sleep(self.shape.latency);
        let (answer, ()) = tokio::join!(answer, latency);
        self.silence(operation, deadline).await?;
        answer
    }

    async fn got(
        &self,
        deadline: Deadline,
        answer: impl Future<Output = Result<Bytes, StoreError>>,
    ) -> Result<Bytes, StoreError> {
        self.meter.asked(Operation::Get, 0, false);
        self.silence(Operation::Get, deadline).await?;
        let ready = Instant::now() + self.shape.latency;
        let answer = answer.await;
        let bytes = answer.as_ref().map_or(0, |body| body.len() as u64);
        let done = self.down.book(ready, self.transfer(bytes));
        tokio::time::sleep_until(done).await;
        self.silence(Operation::Get, deadline).await?;
        self.meter.received(bytes);
        answer
    }
}

#[async_trait::async_trait]
impl ObjectStore for Shaped {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    async fn found(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.inner.found(deadline).await
    }

    async fn check(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.inner.check(deadline).await
    }

    async fn give_back(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.inner.give_back(deadline).await
    }

    async fn put_if_absent(
        &self,
        name: &ObjectName,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Option<Receipt>, StoreError> {
        let bytes = body.len() as u64;
        self.meter.asked(Operation::Put, bytes, false);
        self.silence(Operation::Put, deadline).await?;
        let sent = self.up.book(Instant::now(), self.transfer(bytes));
        let done = tokio::time::sleep_until(sent + self.shape.latency);
        let put = self.inner.put_if_absent(name, body, deadline);
        let (answer, ()) = tokio::join!(put, done);
        self.silence(Operation::Put, deadline).await?;
        answer
    }

    async fn get(
        &self,
        name: &ObjectName,
        length_max: u64,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError> {
        let get = self.inner.get(name, length_max, deadline);
        self.got(deadline, get).await
    }

    async fn get_range(
        &self,
        name: &ObjectName,
        range: Range<u64>,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError> {
        let get = self.inner.get_range(name, range, deadline);
        self.got(deadline, get).await
    }

    async fn head(&self, name: &ObjectName, deadline: Deadline) -> Result<ObjectInfo, StoreError> {
        let head = self.inner.head(name, deadline);
        self.asked(Operation::Head, deadline, head).await
    }

    async fn list(
        &self,
        prefix: &str,
        cursor: Option<&ObjectName>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Page, StoreError> {
        let list = self.inner.list(prefix, cursor, limit, deadline);
        self.asked(Operation::List, deadline, list).await
    }

    async fn delete(&self, name: &ObjectName, deadline: Deadline) -> Result<(), StoreError> {
        let delete = self.inner.delete(name, deadline);
        self.asked(Operation::Delete, deadline, delete).await
    }

    /// At once: a signature needs no link.
    async fn presign(
        &self,
        name: &ObjectName,
        valid_for: Duration,
        deadline: Deadline,
    ) -> Result<PresignedUrl, StoreError> {
        self.inner.presign(name, valid_for, deadline).await
    }

    async fn free_space(&self, deadline: Deadline) -> Result<Option<FreeSpace>, StoreError> {
        self.inner.free_space(deadline).await
    }

    /// The requests through this link.
    fn traffic(&self) -> Traffic {
        self.meter.read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::LocalStore;
    use crate::marker::Marker;

    fn name(number: u8) -> ObjectName {
        ObjectName::parse(&format!("{number:02x}/{number:032x}")).unwrap()
    }

    fn shaped(directory: &std::path::Path, hangs: bool) -> Shaped {
        let marker = Marker {
            volume: [1; 16],
            cloud: 0,
        };
        let path = directory.join("cloud");
        LocalStore::create(&path, marker).unwrap();
        let shape = Shape {
            latency: Duration::from_millis(100),
            bytes_per_second: Some(1 << 20),
        };
        let shaped = Shaped::new(Arc::new(LocalStore::open(&path, marker).unwrap()), shape);
        shaped.set_hanging(hangs);
        shaped
    }

    fn deadline() -> Deadline {
        Deadline::after(Duration::from_secs(5))
    }

    #[tokio::test]
    async fn requests_share_the_bandwidth_and_not_the_latency() {
        let directory = tempfile::tempdir().unwrap();
        let cloud = shaped(directory.path(), false);
        let begin = Instant::now();
        let body = Bytes::from(vec![7; 100 << 10]);
        let (one, two) = (name(1), name(2));
        let first = cloud.put_if_absent(&one, body.clone(), deadline());
        let second = cloud.put_if_absent(&two, body.clone(), deadline());
        let (first, second) = tokio::join!(first, second);
        assert!(first.is_ok() && second.is_ok());
        let took = begin.elapsed().as_millis();
        assert!(
            took >= 295,
            "200 KiB at 1 MiB/s and the latency once: {took} ms"
        );
        let begin = Instant::now();
        assert_eq!(
            cloud.get_range(&name(1), 5..10, deadline()).await.unwrap(),
            body[5..10]
        );
        assert!(begin.elapsed().as_millis() >= 100);
        let traffic = cloud.traffic();
        assert_eq!((traffic.puts, traffic.gets), (2, 1));
        assert_eq!((traffic.bytes_sent, traffic.bytes_received), (200 << 10, 5));
    }

    #[tokio::test]
    async fn a_hanging_call_ends_at_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let cloud = shaped(directory.path(), true);
        let soon = Deadline::after(Duration::from_millis(50));
        let error = cloud.head(&name(1), soon).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Timeout);
    }
}
