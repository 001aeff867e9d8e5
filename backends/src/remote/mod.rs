//! A cloud across a network: what all providers have in common.
//!
//! ```text
//!  a call of ObjectStore, with its deadline
//!    │  the marker was verified lately, else it is read        Foreign, NoContainer, …
//!    │  a permit: connections, requests and bytes a second,    pace
//!    │  of this cloud and of all clouds together
//!    ▼
//!  Driver: one try of one provider's SDK, within its time-out
//!    │
//!    ├─ done, or refused permanently ───────────────────────►  the caller
//!    ├─ the credentials are refused ── their source has others ──► one more try
//!    └─ throttled, unreachable, late ── a pause with full jitter, or as long as the cloud asks,
//!                                       if it ends before the deadline ──► another try
//! ```
//!
//! Invariants: a call ends at its deadline; every try is counted, because every try is billed; the
//! trait's rules for time-outs say how an abandoned try may still take effect. A put whose answer
//! was lost is retried and then finds its own object: the caller gets `AlreadyExists` and reads the
//! object back, as it has to with any store.
//!
//! *Credentials are renewed while a mount runs*: a session's keys expire and are replaced, a key is
//! rotated. When a provider refuses the credentials themselves, the driver reads their source again
//! (`renewal`); if it finds others, the request is made once more with them, beyond the usual
//! tries. So no request waits until the cached credentials are old.
//!
//! *Retries are few and short.* Other clouds hold the same content, so bypassing a cloud that does
//! not answer is better than waiting for it; two retries hide the occasional failures of every
//! large service. The pause is random between zero and a bound that doubles ("full jitter"), so
//! that clients that failed together do not return together.

#[cfg(any(feature = "s3", feature = "azure", feature = "google"))]
mod body;
#[cfg(any(feature = "s3", feature = "azure", feature = "google"))]
mod causes;
#[cfg(test)]
#[cfg(any(feature = "azure", feature = "google"))]
pub(crate) mod conformance;
mod driver;
mod pace;
mod presign;
#[cfg(any(feature = "s3", feature = "azure", feature = "google"))]
mod renewal;
mod roles;
#[cfg(test)]
#[cfg(any(feature = "azure", feature = "google"))]
pub(crate) mod scripted;
#[cfg(any(feature = "s3", feature = "azure", feature = "google"))]
pub(crate) mod tls;
mod traffic;
mod trial;

#[cfg(any(feature = "s3", feature = "azure", feature = "google"))]
pub(crate) use body::Body;
#[cfg(any(feature = "s3", feature = "azure", feature = "google"))]
pub(crate) use causes::causes;
#[cfg(any(feature = "azure", feature = "google"))]
pub(crate) use causes::shorten;
pub use driver::{Container, Driver, Listing, Refusal};
pub use pace::{Limits, Pace};
#[cfg(feature = "s3")]
pub(crate) use renewal::PAUSE;
#[cfg(any(feature = "azure", feature = "google"))]
pub(crate) use renewal::RenewableCredentials;
pub(crate) use roles::Both;
pub(crate) use traffic::Meter;
pub use traffic::Traffic;
pub use trial::Attempt;

use crate::error::{Operation, StoreError, StoreErrorKind};
use crate::marker::{MARKER_BYTES, MARKER_FILE, Marker};
use crate::name::ObjectName;
use crate::presigned::PresignedUrl;
use crate::receipt::Receipt;
use crate::store::{Deadline, ObjectInfo, ObjectStore, Page};
use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Time limits and retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Tries of one call, the first included.
    pub tries: u32,
    /// The time limit of one try, in addition to the time of its bytes at
    /// [`Self::bytes_per_second_min`].
    pub try_timeout: Duration,
    /// The slowest acceptable transfer.
    pub bytes_per_second_min: u64,
    /// The bound of the first pause; it doubles with each further try.
    pub pause_min: Duration,
    /// The longest pause, even if the cloud asks for more.
    pub pause_max: Duration,
    /// How long a verified marker remains valid.
    pub marker_age_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            tries: 3,
            try_timeout: Duration::from_secs(8),
            bytes_per_second_min: 256 << 10,
            pause_min: Duration::from_millis(100),
            pause_max: Duration::from_secs(5),
            marker_age_max: Duration::from_secs(60),
        }
    }
}

/// A cloud across a network.
#[derive(Debug)]
pub struct RemoteStore {
    driver: Arc<dyn Driver>,
    prefix: String,
    marker: Marker,
    retry_policy: RetryPolicy,
    own: Pace,
    shared: Arc<Pace>,
    meter: Meter,
    /// When the marker was last verified.
    seen: Mutex<Option<Instant>>,
}

impl RemoteStore {
    /// A cloud below `prefix`, which may be unreachable now: each operation checks.
    ///
    /// `shared` is the pace of all clouds together.
    #[must_use]
    pub fn attach(
        driver: Arc<dyn Driver>,
        prefix: &str,
        marker: Marker,
        retry_policy: RetryPolicy,
        limits: Limits,
        shared: Arc<Pace>,
    ) -> Self {
        Self {
            driver,
            prefix: prefix.to_owned(),
            marker,
            retry_policy,
            own: Pace::new(limits),
            shared,
            meter: Meter::default(),
            seen: Mutex::default(),
        }
    }

    /// Makes the place a cloud of this volume: it must be empty or already be that cloud.
    async fn write_marker(&self, deadline: Deadline) -> Result<(), StoreError> {
        let found = self.read_marker(Operation::Create, deadline).await?;
        if let Some(bytes) = found {
            return self.judge_marker(Operation::Create, &bytes);
        }
        let listing = self
            .tries(
                Operation::List,
                None,
                deadline,
                pace::Bytes::Sent(0),
                || self.driver.list(&self.prefix, None, 1),
            )
            .await?;
        if let Some(foreign) = listing.keys.first() {
            let detail = format!("it is not empty: it holds {foreign:?}, and no {MARKER_FILE}");
            return Err(self.error(Operation::Create, None, StoreErrorKind::Foreign, detail));
        }
        let (key, body) = (self.key(MARKER_FILE), Bytes::from(self.marker.encode()));
        let bytes = pace::Bytes::Sent(MARKER_BYTES as u64);
        let put = self
            .tries(Operation::Create, None, deadline, bytes, || {
                self.driver.put(&key, body.clone())
            })
            .await;
        match put {
            Err(error) if error.kind != StoreErrorKind::AlreadyExists => Err(error),
            // Read the marker back, whichever writer won: only the stored one counts.
            _ => self.check_marker(Operation::Create, deadline).await,
        }
    }

    /// The properties of the bucket or container.
    ///
    /// # Errors
    /// The provider's refusal.
    #[boxed]
    pub async fn container(&self, deadline: Deadline) -> Result<Container, StoreError> {
        self.tries(
            Operation::Open,
            None,
            deadline,
            pace::Bytes::Sent(0),
            || self.driver.container(),
        )
        .await
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn error(
        &self,
        operation: Operation,
        object: Option<&ObjectName>,
        kind: StoreErrorKind,
        detail: String,
    ) -> StoreError {
        StoreError {
            kind,
            operation,
            cloud: self.describe(),
            object: object.cloned(),
            detail,
        }
    }

    /// The marker's bytes, if there is one.
    async fn read_marker(
        &self,
        operation: Operation,
        deadline: Deadline,
    ) -> Result<Option<Bytes>, StoreError> {
        let key = self.key(MARKER_FILE);
        // A newer marker may be longer and must be recognised as newer.
        let most = MARKER_BYTES as u64 * 4;
        let bytes = pace::Bytes::Received(MARKER_BYTES as u64);
        let read = self
            .tries(operation, None, deadline, bytes, || {
                self.driver.get(&key, None, most)
            })
            .await;
        match read {
            Ok(bytes) => {
                self.meter.received(bytes.len() as u64);
                Ok(Some(bytes))
            }
            Err(error) if error.kind == StoreErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn judge_marker(&self, operation: Operation, bytes: &[u8]) -> Result<(), StoreError> {
        Marker::check(self.marker, bytes).map_err(|error| {
            let detail = format!("{MARKER_FILE}: {error}");
            self.error(operation, None, error.kind(), detail)
        })?;
        *self.seen() = Some(Instant::now());
        Ok(())
    }

    async fn check_marker(
        &self,
        operation: Operation,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        match self.read_marker(operation, deadline).await? {
            Some(bytes) => self.judge_marker(operation, &bytes),
            None => {
                let detail =
                    format!("it has no {MARKER_FILE}: it is empty or holds something else");
                Err(self.error(operation, None, StoreErrorKind::Foreign, detail))
            }
        }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Verifies the marker, unless that was done lately.
    async fn ensure_marker(
        &self,
        operation: Operation,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let believed = |seen: Instant| seen.elapsed() < self.retry_policy.marker_age_max;
        if self.seen().is_some_and(believed) {
            return Ok(());
        }
        self.check_marker(operation, deadline).await
    }

    /// The time limit of one try with these bytes.
    fn try_timeout(&self, bytes: pace::Bytes) -> Duration {
        let (pace::Bytes::Sent(bytes) | pace::Bytes::Received(bytes)) = bytes;
        let transfer = bytes / self.retry_policy.bytes_per_second_min.max(1);
        self.retry_policy
            .try_timeout
            .saturating_add(Duration::from_secs(transfer))
    }

    /// Random between zero and a bound that doubles, or as long as the cloud asks.
    fn pause(&self, tried: u32, asked: Option<Duration>) -> Duration {
        let doubled = self
            .retry_policy
            .pause_min
            .saturating_mul(1 << tried.min(16));
        let bound = asked.unwrap_or(doubled).min(self.retry_policy.pause_max);
        if asked.is_some() {
            return bound;
        }
        let mut random = [0; 4];
        // Without randomness the pause is the whole bound, which is safe as well.
        let fraction = match getrandom::fill(&mut random) {
            Ok(()) => f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX),
            Err(_) => 1.0,
        };
        bound.mul_f64(fraction)
    }

    /// Retries until success, a permanent refusal or the deadline.
    async fn tries<T, F>(
        &self,
        operation: Operation,
        object: Option<&ObjectName>,
        deadline: Deadline,
        bytes: pace::Bytes,
        attempt: impl Fn() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Refusal>>,
    {
        let mut tried = 0;
        let fail = |kind, detail| Err(self.error(operation, object, kind, detail));
        let late = |last: Option<Refusal>| {
            let detail = match last {
                Some(last) => format!("no answer in time; before, {last}"),
                None => "no answer in time".to_owned(),
            };
            fail(StoreErrorKind::Timeout, detail)
        };
        let mut last = None;
        let mut renewed = false;
        loop {
            // This cloud's permit first: requests waiting for a cloud that hangs must not hold
            // permits of all.
            let turns = async { (self.own.turn(bytes).await, self.shared.turn(bytes).await) };
            let Ok(turns) = tokio::time::timeout_at(deadline.instant(), turns).await else {
                return late(last);
            };
            // Operations of all kinds read the marker.
            let (counted, sent) = match bytes {
                pace::Bytes::Sent(bytes) => (operation, bytes),
                pace::Bytes::Received(_) => (Operation::Get, 0),
            };
            self.meter.asked(counted, sent, tried > 0 || renewed);
            let end = (Instant::now() + self.try_timeout(bytes)).min(deadline.instant());
            let credentials = self.driver.credentials();
            let refusal = match tokio::time::timeout_at(end, attempt()).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(refusal)) => refusal.without_identities(),
                Err(_) => Refusal::new(StoreErrorKind::Timeout, "no answer in time"),
            };
            self.meter.failed(refusal.kind == StoreErrorKind::Throttled);
            if refusal.outdated && !renewed {
                renewed = true;
                let looked = self.driver.renew_credentials(credentials);
                if tokio::time::timeout_at(deadline.instant(), looked).await == Ok(true) {
                    tracing::info!(cloud = self.describe(), "its credentials were renewed");
                    continue;
                }
            }
            tried += 1;
            let worth_it = matches!(
                refusal.kind,
                StoreErrorKind::Throttled | StoreErrorKind::Unavailable | StoreErrorKind::Timeout
            );
            if !worth_it || tried >= self.retry_policy.tries {
                return fail(refusal.kind, refusal.detail);
            }
            let next = Instant::now() + self.pause(tried - 1, refusal.retry_after);
            if next >= deadline.instant() {
                return fail(refusal.kind, refusal.detail);
            }
            drop(turns);
            last = Some(refusal);
            tokio::time::sleep_until(next).await;
        }
    }

    async fn read(
        &self,
        name: &ObjectName,
        range: Option<Range<u64>>,
        length_max: u64,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError> {
        self.ensure_marker(Operation::Get, deadline).await?;
        let key = self.key(name.as_str());
        let bytes = pace::Bytes::Received(length_max);
        let read = self
            .tries(Operation::Get, Some(name), deadline, bytes, || {
                self.driver.get(&key, range.clone(), length_max)
            })
            .await?;
        self.meter.received(read.len() as u64);
        Ok(read)
    }
}

#[async_trait::async_trait]
impl ObjectStore for RemoteStore {
    fn describe(&self) -> String {
        format!("cloud {} ({})", self.marker.cloud, self.driver.place())
    }

    async fn found(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.write_marker(deadline).await
    }

    async fn check(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.check_marker(Operation::Open, deadline).await
    }

    async fn give_back(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.check_marker(Operation::Delete, deadline).await?;
        let marker = self.key(MARKER_FILE);
        // The marker may be among the first two.
        let listing = self
            .tries(
                Operation::List,
                None,
                deadline,
                pace::Bytes::Sent(0),
                || self.driver.list(&self.prefix, None, 2),
            )
            .await?;
        if let Some(other) = listing.keys.iter().find(|key| **key != marker) {
            let detail = format!("it is in use: it holds {other:?}");
            return Err(self.error(Operation::Delete, None, StoreErrorKind::Foreign, detail));
        }
        *self.seen() = None;
        self.tries(
            Operation::Delete,
            None,
            deadline,
            pace::Bytes::Sent(0),
            || self.driver.delete(&marker),
        )
        .await
    }

    async fn put_if_absent(
        &self,
        name: &ObjectName,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Option<Receipt>, StoreError> {
        self.ensure_marker(Operation::Put, deadline).await?;
        let key = self.key(name.as_str());
        let bytes = pace::Bytes::Sent(body.len() as u64);
        self.tries(Operation::Put, Some(name), deadline, bytes, || {
            self.driver.put(&key, body.clone())
        })
        .await
    }

    async fn get(
        &self,
        name: &ObjectName,
        length_max: u64,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError> {
        self.read(name, None, length_max, deadline).await
    }

    async fn get_range(
        &self,
        name: &ObjectName,
        range: Range<u64>,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError> {
        let length = range.end.saturating_sub(range.start);
        if length == 0 {
            // HTTP cannot express an empty range.
            return Ok(Bytes::new());
        }
        let read = self.read(name, Some(range), length, deadline).await?;
        if read.len() as u64 != length {
            let detail = format!("it answered with {} bytes instead of {length}", read.len());
            return Err(self.error(Operation::Get, Some(name), StoreErrorKind::Corrupt, detail));
        }
        Ok(read)
    }

    async fn head(&self, name: &ObjectName, deadline: Deadline) -> Result<ObjectInfo, StoreError> {
        self.ensure_marker(Operation::Head, deadline).await?;
        let key = self.key(name.as_str());
        let length = self
            .tries(
                Operation::Head,
                Some(name),
                deadline,
                pace::Bytes::Sent(0),
                || self.driver.head(&key),
            )
            .await?;
        Ok(ObjectInfo { length })
    }

    async fn list(
        &self,
        prefix: &str,
        cursor: Option<&ObjectName>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Page, StoreError> {
        self.ensure_marker(Operation::List, deadline).await?;
        let below = self.key(prefix);
        let mut after = cursor.map(|name| self.key(name.as_str()));
        let mut names = Vec::new();
        loop {
            let wanted = limit.saturating_sub(names.len());
            if wanted == 0 {
                return Ok(Page { names, more: true });
            }
            let listing = self
                .tries(
                    Operation::List,
                    None,
                    deadline,
                    pace::Bytes::Sent(0),
                    || self.driver.list(&below, after.as_deref(), wanted),
                )
                .await?;
            // A listing that does not advance would be an endless loop.
            let Some(last) = listing
                .keys
                .last()
                .filter(|last| after.as_ref() < Some(last))
            else {
                return Ok(Page { names, more: false });
            };
            let last = last.clone();
            let ours = listing.keys.iter().filter(|key| after.as_ref() < Some(key));
            names.extend(
                ours.filter_map(|key| ObjectName::parse(key.strip_prefix(&self.prefix)?).ok())
                    .take(wanted),
            );
            if !listing.more {
                return Ok(Page { names, more: false });
            }
            after = Some(last);
        }
    }

    async fn delete(&self, name: &ObjectName, deadline: Deadline) -> Result<(), StoreError> {
        self.ensure_marker(Operation::Delete, deadline).await?;
        let key = self.key(name.as_str());
        let deleted = self
            .tries(
                Operation::Delete,
                Some(name),
                deadline,
                pace::Bytes::Sent(0),
                || self.driver.delete(&key),
            )
            .await;
        match deleted {
            Err(error) if error.kind != StoreErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    async fn presign(
        &self,
        name: &ObjectName,
        valid_for: Duration,
        deadline: Deadline,
    ) -> Result<PresignedUrl, StoreError> {
        self.sign_url(name, valid_for, deadline).await
    }

    fn traffic(&self) -> Traffic {
        self.meter.read()
    }
}

#[cfg(test)]
mod tests;
