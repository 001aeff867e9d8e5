//! A cloud that lies, for tests.
//!
//! [`Faulty`] wraps any store and does to it what a Byzantine cloud may do: refuse, hang, be slow,
//! store without acknowledging, acknowledge without storing, flip bits, truncate, return another
//! object or deny one that it has. A [`Plan`] gives the odds of each fault; a seed determines the
//! choices. The decorator stands between the caller and an honest store, so a test can heal the
//! cloud and inspect its content.

use crate::error::{Operation, StoreError, StoreErrorKind};
use crate::name::ObjectName;
use crate::presigned::PresignedUrl;
use crate::receipt::Receipt;
use crate::remote::Traffic;
use crate::store::{Deadline, FreeSpace, ObjectInfo, ObjectStore, Page};
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A fault of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is refused with the given kind and has no effect.
    Refuse(StoreErrorKind),
    /// It never ends; the caller's deadline ends it.
    Hang,
    /// It is executed after this many milliseconds.
    Delay(u64),
    /// A put is acknowledged but not stored.
    AcknowledgeWithoutStoring,
    /// A put is executed and reported as failed.
    LoseTheAnswer,
    /// A put is executed and acknowledged with the receipt of another body.
    WrongReceipt,
    /// A put replaces an existing object: create-only is not honoured.
    Overwrite,
    /// An answer or a stored body has one bit flipped.
    FlipBit,
    /// An answer is shorter than requested.
    Truncate,
    /// An answer is longer than requested.
    Extend,
    /// An answer is zeros of the right length.
    Zeros,
    /// The bytes of another object are returned under this name.
    WrongObject,
    /// An existing object is denied: an old state is shown.
    Stale,
}

/// The odds of each fault, in thousandths of the operations; all others are executed honestly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Faults with their odds.
    pub odds: Vec<(Fault, u16)>,
}

impl Plan {
    /// A cloud without faults.
    #[must_use]
    pub fn honest() -> Self {
        Self::default()
    }

    /// A cloud with this fault in every operation.
    #[must_use]
    pub fn always(fault: Fault) -> Self {
        Self {
            odds: vec![(fault, 1000)],
        }
    }

    /// A cloud that commits every fault, in about `thousandths` of its operations altogether.
    #[must_use]
    pub fn of_everything(thousandths: u16) -> Self {
        let faults = [
            Fault::Refuse(StoreErrorKind::Unavailable),
            Fault::Refuse(StoreErrorKind::NotFound),
            Fault::Refuse(StoreErrorKind::AlreadyExists),
            Fault::Refuse(StoreErrorKind::Full),
            Fault::Delay(20),
            Fault::AcknowledgeWithoutStoring,
            Fault::LoseTheAnswer,
            Fault::Overwrite,
            Fault::FlipBit,
            Fault::Truncate,
            Fault::Extend,
            Fault::Zeros,
            Fault::WrongObject,
            Fault::Stale,
        ];
        let each = thousandths / u16::try_from(faults.len()).unwrap_or(u16::MAX);
        Self {
            odds: faults
                .into_iter()
                .map(|fault| (fault, each.max(1)))
                .collect(),
        }
    }
}

#[derive(Debug)]
struct FaultState {
    plan: Plan,
    random: u64,
    faults: u64,
    operations: u64,
    last_stored: Option<ObjectName>,
}

impl FaultState {
    /// SplitMix64: sufficient for choosing faults.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn choose(&mut self) -> Option<Fault> {
        self.operations += 1;
        let mut ticket = self.next() % 1000;
        for (fault, odds) in &self.plan.odds {
            match ticket.checked_sub(u64::from(*odds)) {
                None => {
                    self.faults += 1;
                    return Some(*fault);
                }
                Some(rest) => ticket = rest,
            }
        }
        None
    }
}

/// A store with the faults of its plan.
pub struct Faulty {
    inner: Arc<dyn ObjectStore>,
    state: Mutex<FaultState>,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty")
            .field("inner", &self.inner)
            .field("state", &self.state)
            .finish()
    }
}

impl Faulty {
    /// Wraps a store.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>, plan: Plan, seed: u64) -> Self {
        let state = FaultState {
            plan,
            random: seed,
            faults: 0,
            operations: 0,
            last_stored: None,
        };
        Self {
            inner,
            state: Mutex::new(state),
        }
    }

    /// Follows another plan from now on.
    pub fn set_plan(&self, plan: Plan) {
        self.state().plan = plan;
    }

    /// How many operations were requested, and how many of them were answered with a fault.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state();
        (state.operations, state.faults)
    }

    fn state(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse(&self, operation: Operation, name: &ObjectName, kind: StoreErrorKind) -> StoreError {
        StoreError {
            kind,
            operation,
            cloud: self.inner.describe(),
            object: Some(name.clone()),
            detail: "a planned fault of the decorator".to_owned(),
        }
    }

    /// Begins an operation: refuses, hangs or delays it, or returns the fault that is still to be
    /// committed.
    async fn begin(
        &self,
        operation: Operation,
        name: &ObjectName,
        deadline: Deadline,
    ) -> Result<Option<Fault>, StoreError> {
        let fault = self.state().choose();
        match fault {
            Some(Fault::Refuse(kind)) => Err(self.refuse(operation, name, kind)),
            Some(Fault::Hang) => {
                tokio::time::sleep_until(deadline.instant()).await;
                Err(self.refuse(operation, name, StoreErrorKind::Timeout))
            }
            Some(Fault::Delay(milliseconds)) => {
                tokio::time::sleep(Duration::from_millis(milliseconds)).await;
                Ok(None)
            }
            Some(Fault::Stale) if operation != Operation::Put => {
                Err(self.refuse(operation, name, StoreErrorKind::NotFound))
            }
            other => Ok(other),
        }
    }

    fn distort(&self, bytes: Bytes, fault: Option<Fault>) -> Bytes {
        let draw = self.state().next();
        let length = bytes.len();
        let at = |bound: usize| usize::try_from(draw % bound.max(1) as u64).unwrap_or(0);
        match fault {
            Some(Fault::FlipBit) => {
                let mut bytes = bytes.to_vec();
                if let Some(byte) = bytes.get_mut(at(length)) {
                    *byte ^= 1 << (draw >> 61);
                }
                bytes.into()
            }
            Some(Fault::Truncate) => bytes.slice(..at(length)),
            Some(Fault::Extend) => {
                let mut bytes = bytes.to_vec();
                bytes.resize(length + 1 + at(100), 0xa5);
                bytes.into()
            }
            Some(Fault::Zeros) => vec![0; length].into(),
            _ => bytes,
        }
    }

    fn target(&self, name: &ObjectName, fault: Option<Fault>) -> ObjectName {
        match fault {
            Some(Fault::WrongObject) => self
                .state()
                .last_stored
                .clone()
                .unwrap_or_else(|| name.clone()),
            _ => name.clone(),
        }
    }
}

#[async_trait::async_trait]
impl ObjectStore for Faulty {
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
        let fault = self.begin(Operation::Put, name, deadline).await?;
        match fault {
            Some(Fault::AcknowledgeWithoutStoring) => return Ok(Some(Receipt::crc32c(&body))),
            Some(Fault::Overwrite) => self.inner.delete(name, deadline).await?,
            _ => {}
        }
        let sent = body.clone();
        let body = self.distort(body, fault);
        let receipt = self.inner.put_if_absent(name, body, deadline).await?;
        // A cloud that lies about its content does not reveal it in the receipt.
        let receipt = receipt.map(|receipt| receipt.of_same_kind(&sent));
        self.state().last_stored = Some(name.clone());
        match fault {
            Some(Fault::LoseTheAnswer) => {
                Err(self.refuse(Operation::Put, name, StoreErrorKind::Unavailable))
            }
            Some(Fault::WrongReceipt) => Ok(Some(Receipt::crc32c(b"something else"))),
            _ => Ok(receipt),
        }
    }

    async fn get(
        &self,
        name: &ObjectName,
        length_max: u64,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError> {
        let fault = self.begin(Operation::Get, name, deadline).await?;
        let bytes = self
            .inner
            .get(&self.target(name, fault), length_max, deadline)
            .await?;
        Ok(self.distort(bytes, fault))
    }

    async fn get_range(
        &self,
        name: &ObjectName,
        range: Range<u64>,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError> {
        let fault = self.begin(Operation::Get, name, deadline).await?;
        let bytes = self
            .inner
            .get_range(&self.target(name, fault), range, deadline)
            .await?;
        Ok(self.distort(bytes, fault))
    }

    async fn head(&self, name: &ObjectName, deadline: Deadline) -> Result<ObjectInfo, StoreError> {
        let fault = self.begin(Operation::Head, name, deadline).await?;
        let mut info = self.inner.head(name, deadline).await?;
        if fault.is_some() {
            info.length = info.length.wrapping_add(1);
        }
        Ok(info)
    }

    async fn list(
        &self,
        prefix: &str,
        cursor: Option<&ObjectName>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Page, StoreError> {
        let fault = self.state().choose();
        if fault == Some(Fault::Hang) {
            tokio::time::sleep_until(deadline.instant()).await;
        }
        let mut page = self.inner.list(prefix, cursor, limit, deadline).await?;
        if fault.is_some() && page.names.len() > 1 {
            let omitted = usize::try_from(self.state().next()).unwrap_or(0) % page.names.len();
            page.names.remove(omitted);
        }
        Ok(page)
    }

    async fn delete(&self, name: &ObjectName, deadline: Deadline) -> Result<(), StoreError> {
        match self.begin(Operation::Delete, name, deadline).await? {
            Some(Fault::AcknowledgeWithoutStoring) => Ok(()),
            _ => self.inner.delete(name, deadline).await,
        }
    }

    /// Honest in each plan: the one that signs is this machine, not the cloud.
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

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
}
