//! One cloud with its keys and its health record: the only module that talks to an object store.

use super::counters::Counter;
use super::evidence::ordered;
use super::health::{Health, Timeouts};
use super::latency::Exchange;
use crate::blocks::object::{
    BlockError, CloudKeys, Named, ObjectFormat, ShardFault, object_format,
};
use crate::keys::CloudSecret;
use bytes::Bytes;
use quorumfs_backends::presigned::PresignedUrl;
use quorumfs_backends::{
    Deadline, FreeSpace, ObjectName, ObjectStore, Operation, Page, StoreError, StoreErrorKind,
    Traffic,
};
use quorumfs_metadata::identity::CloudIndex;
use quorumfs_metadata::placement::Receipt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How much longer than its deadline a probe may take.
const PROBE_GRACE: Duration = Duration::from_secs(1);
/// Below this, the time that an answer takes predicts nothing about the next one.
const BURDEN_MIN: Duration = Duration::from_millis(1);

/// A cloud of the volume.
#[derive(Clone, Debug)]
pub struct Cloud {
    /// Its index in the volume's list.
    pub index: CloudIndex,
    /// Its object store.
    pub store: Arc<dyn ObjectStore>,
    /// The secret that its names and header codes are derived from.
    pub secret: CloudSecret,
    /// The price of reading from it, per byte, in any unit that is the same for all clouds.
    pub read_price: u32,
}

/// A cloud in use.
#[derive(Debug)]
pub(in crate::blocks) struct Link {
    pub(in crate::blocks) index: CloudIndex,
    pub(in crate::blocks) keys: CloudKeys,
    pub(in crate::blocks) health: Health,
    pub(in crate::blocks) read_price: u32,
    pub(in crate::blocks) puts: AtomicUsize,
    /// Unanswered gets.
    gets: AtomicUsize,
    /// Answers with other bytes than those that were written.
    pub(in crate::blocks) refused: Counter,
    store: Arc<dyn ObjectStore>,
    timeouts: Timeouts,
    /// How much more it took, by its last statement.
    room: Mutex<Option<FreeSpace>>,
}

impl Link {
    pub(in crate::blocks) fn new(
        cloud: &Cloud,
        timeouts: Timeouts,
        suspensions: &Arc<Notify>,
    ) -> Self {
        Self {
            index: cloud.index,
            keys: CloudKeys::derive(&cloud.secret),
            health: Health::new(timeouts, Arc::clone(suspensions)),
            read_price: cloud.read_price,
            puts: AtomicUsize::new(0),
            gets: AtomicUsize::new(0),
            refused: Counter::default(),
            store: Arc::clone(&cloud.store),
            timeouts,
            room: Mutex::default(),
        }
    }

    pub(in crate::blocks) fn describe(&self) -> String {
        self.store.describe()
    }

    /// The requests to the cloud so far.
    pub(in crate::blocks) fn traffic(&self) -> Traffic {
        self.store.traffic()
    }

    /// How much more the cloud takes, by its present or its last statement.
    pub(in crate::blocks) async fn room(&self, deadline: Deadline) -> Option<FreeSpace> {
        let most = deadline.instant() + PROBE_GRACE;
        let answer = tokio::time::timeout_at(most, self.store.free_space(deadline)).await;
        let mut known = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(Ok(room)) = answer {
            *known = room;
        }
        *known
    }

    fn name(&self, named: &Named) -> Result<ObjectName, ShardFault> {
        self.keys
            .name(named)
            .map_err(|_: BlockError| ShardFault::Defect)
    }

    /// Records an answer in the cloud's health.
    fn record<T>(
        &self,
        exchange: Exchange,
        begin: Instant,
        result: Result<T, StoreError>,
    ) -> Result<T, ShardFault> {
        match &result {
            Err(error) if error.kind.concerns_the_cloud() => self.health.failed(error),
            // A refusal is short, whatever the request asked for.
            Err(_) => self.health.answered(Exchange::Ask, begin.elapsed()),
            Ok(_) => self.health.answered(exchange, begin.elapsed()),
        }
        result.map_err(ShardFault::Store)
    }

    /// Puts an object and compares the cloud's receipt with the bytes sent. A slow put makes the
    /// cloud suspect before the put itself ends.
    pub(in crate::blocks) async fn put(
        &self,
        named: &Named,
        body: Bytes,
    ) -> Result<Option<Receipt>, ShardFault> {
        let name = self.name(named)?;
        let begin = Instant::now();
        let exchange = Exchange::Put(body.len() as u64);
        let _count = Counted::new(&self.puts);
        let put = self
            .store
            .put_if_absent(&name, body.clone(), Deadline::after(self.timeouts.put));
        tokio::pin!(put);
        let result = loop {
            let suspect = self.health.suspect_at(begin);
            tokio::select! {
                biased;
                result = &mut put => break result,
                () = tokio::time::sleep_until(suspect) => {}
            }
            if self.health.suspect_at(begin) <= Instant::now() {
                self.health.suspected();
                let rest = self.timeouts.put + Duration::from_secs(1);
                let no_answer = |_| Err(self.no_answer(Operation::Put, Some(&name)));
                let last = tokio::time::timeout(rest, put).await;
                break last.unwrap_or_else(no_answer);
            }
        };
        self.health.put_ended(result.as_ref().err());
        let receipt = self.record(exchange, begin, result)?;
        match receipt {
            Some(said) if !said.is_for(&body) => {
                let fault = ShardFault::WrongReceipt {
                    cloud: self.describe(),
                    said: ordered(said),
                    sent: ordered(said.of_same_kind(&body)),
                };
                self.health
                    .lied(format!("{fault} (object {})", named.object));
                Err(fault)
            }
            receipt => Ok(receipt.map(ordered)),
        }
    }

    /// The error of a store that ignores its deadline: it gets no more time.
    fn no_answer(&self, operation: Operation, name: Option<&ObjectName>) -> StoreError {
        StoreError {
            kind: StoreErrorKind::Timeout,
            operation,
            cloud: self.describe(),
            object: name.cloned(),
            detail: "no answer, not even at the deadline".to_owned(),
        }
    }

    pub(in crate::blocks) async fn get_range(
        &self,
        named: &Named,
        range: Range<u64>,
    ) -> Result<Bytes, ShardFault> {
        let name = self.name(named)?;
        let begin = Instant::now();
        let exchange = Exchange::Get(range.end.saturating_sub(range.start));
        let _count = Counted::new(&self.gets);
        let get = self
            .store
            .get_range(&name, range, Deadline::after(self.timeouts.get));
        let result = self.bounded(Operation::Get, Some(&name), get).await;
        self.record(exchange, begin, result)
    }

    pub(in crate::blocks) async fn get(
        &self,
        named: &Named,
        length: u64,
    ) -> Result<Bytes, ShardFault> {
        let name = self.name(named)?;
        let begin = Instant::now();
        let _count = Counted::new(&self.gets);
        // A newer format may be longer and has to be recognised, so some more bytes are accepted.
        let most = length.saturating_mul(2).saturating_add(4096);
        let get = self
            .store
            .get(&name, most, Deadline::after(self.timeouts.get));
        let result = self.bounded(Operation::Get, Some(&name), get).await;
        self.record(Exchange::Get(length), begin, result)
    }

    /// Deletes an object; one that is not there is a success.
    pub(in crate::blocks) async fn delete(&self, named: &Named) -> Result<(), ShardFault> {
        let name = self.name(named)?;
        let begin = Instant::now();
        let delete = self.store.delete(&name, Deadline::after(self.timeouts.get));
        let result = match self.bounded(Operation::Delete, Some(&name), delete).await {
            Err(error) if error.kind == StoreErrorKind::NotFound => Ok(()),
            result => result,
        };
        self.record(Exchange::Ask, begin, result)
    }

    /// A page of the names of all objects, after a cursor.
    pub(in crate::blocks) async fn list(
        &self,
        cursor: Option<&ObjectName>,
        limit: usize,
    ) -> Result<Page, ShardFault> {
        let begin = Instant::now();
        let list = self
            .store
            .list("", cursor, limit, Deadline::after(self.timeouts.get));
        let result = self.bounded(Operation::List, None, list).await;
        self.record(Exchange::Ask, begin, result)
    }

    /// Signs a URL at which anyone reads an object.
    pub(in crate::blocks) async fn presign(
        &self,
        named: &Named,
        valid_for: Duration,
    ) -> Result<PresignedUrl, ShardFault> {
        let name = self.name(named)?;
        let deadline = Deadline::after(self.timeouts.get);
        let presign = self.store.presign(&name, valid_for, deadline);
        let result = self.bounded(Operation::Presign, Some(&name), presign).await;
        // Most clouds are not asked, so it says nothing of their health.
        result.map_err(ShardFault::Store)
    }

    /// Asks for the length of an object.
    pub(in crate::blocks) async fn head(&self, named: &Named) -> Result<u64, ShardFault> {
        let name = self.name(named)?;
        let begin = Instant::now();
        let head = self.store.head(&name, Deadline::after(self.timeouts.get));
        let result = self.bounded(Operation::Head, Some(&name), head).await;
        let answer = self.record(Exchange::Ask, begin, result);
        answer.map(|info| info.length)
    }

    /// Sends the smallest request, so that the health record is current. Credentials that may get
    /// and create need not be allowed to list; such a cloud is asked for the marker instead.
    pub(in crate::blocks) async fn probe(&self, deadline: Deadline) {
        let begin = Instant::now();
        let ask = async {
            match self.store.list("00", None, 1, deadline).await {
                Err(error) if error.kind == StoreErrorKind::Denied => {
                    self.store.check(deadline).await
                }
                listed => listed.map(drop),
            }
        };
        let most = deadline.instant() + PROBE_GRACE;
        let answer = tokio::time::timeout_at(most, ask).await;
        let answer = answer.unwrap_or_else(|_| Err(self.no_answer(Operation::List, None)));
        let _ = self.record(Exchange::Ask, begin, answer);
    }

    /// The relative load of a request to this cloud: it grows with the usual time of an answer and
    /// the number of unanswered requests.
    pub(in crate::blocks) fn burden(&self, exchange: Exchange) -> Duration {
        let waiting = u32::try_from(self.gets.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        let usual = self.health.usual(exchange).max(BURDEN_MIN);
        usual.saturating_mul(waiting.saturating_add(1))
    }

    async fn bounded<T>(
        &self,
        operation: Operation,
        name: Option<&ObjectName>,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let most = self.timeouts.get + Duration::from_secs(1);
        let answer = tokio::time::timeout(most, answer).await;
        answer.unwrap_or_else(|_| Err(self.no_answer(operation, name)))
    }

    /// The fault of an answer whose bytes are not the shard's.
    pub(in crate::blocks) fn refuse(&self, named: &Named, bytes: &[u8]) -> ShardFault {
        let newer = match object_format(bytes) {
            ObjectFormat::Newer { format } => Some(format),
            ObjectFormat::Known | ObjectFormat::Foreign => None,
        };
        let fault = ShardFault::Refused {
            cloud: self.describe(),
            newer,
        };
        self.health
            .lied(format!("{fault} (object {})", named.object));
        fault
    }
}

struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
