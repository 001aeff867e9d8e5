//! A cloud that lies, for tests.
//!
//! [`Faulty`] wraps any store and does to it what a Byzantine cloud may do: refuse, hang, be slow,
//! store without saying so, say so without storing, flip bits, cut short, hand out another object
//! or deny one that it has. A [`Plan`] gives the odds of each; the choices follow from a seed. The
//! decorator stands between the caller and an honest store, so a test can heal the cloud and see
//! what is there.

use crate::error::{Operation, StoreError, StoreErrorKind};
use crate::name::ObjectName;
use crate::receipt::Receipt;
use crate::remote::Traffic;
use crate::store::{Deadline, ObjectInfo, ObjectStore, Page, Room};
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What may happen to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is refused as the given kind; nothing is done.
    Refuse(StoreErrorKind),
    /// It never ends; the caller's deadline ends it.
    Hang,
    /// It is done after this many milliseconds.
    Delay(u64),
    /// A put is acknowledged and forgotten.
    AcknowledgeWithoutStoring,
    /// A put is done and reported as failed.
    LoseTheAnswer,
    /// A put is done, and acknowledged as a put of something else.
    WrongReceipt,
    /// A put takes the name even if it is taken: create-only is not honoured.
    Overwrite,
    /// An answer or a stored body has one bit flipped.
    FlipBit,
    /// An answer is shorter than it was asked for.
    Truncate,
    /// An answer is longer than it was asked for.
    Extend,
    /// An answer is zeros of the right length.
    Zeros,
    /// The bytes of another object are handed out under this name.
    WrongObject,
    /// An object that is there is denied: an old state is shown.
    Stale,
}

/// The odds of each fault, in thousandths of the operations; what remains is done honestly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Faults with their odds.
    pub odds: Vec<(Fault, u16)>,
}

impl Plan {
    /// A cloud that does as it is told.
    #[must_use]
    pub fn honest() -> Self {
        Self::default()
    }

    /// A cloud that does nothing but this.
    #[must_use]
    pub fn always(fault: Fault) -> Self {
        Self {
            odds: vec![(fault, 1000)],
        }
    }

    /// A cloud that lies now and then in every way, about `thousandths` of the time all in all.
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
struct Mind {
    plan: Plan,
    random: u64,
    faults: u64,
    operations: u64,
    last_stored: Option<ObjectName>,
}

impl Mind {
    /// SplitMix64: enough for choosing lies.
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

/// A store that lies as its plan says.
pub struct Faulty {
    inner: Arc<dyn ObjectStore>,
    mind: Mutex<Mind>,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty")
            .field("inner", &self.inner)
            .field("mind", &self.mind)
            .finish()
    }
}

impl Faulty {
    /// Wraps a store.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>, plan: Plan, seed: u64) -> Self {
        let mind = Mind {
            plan,
            random: seed,
            faults: 0,
            operations: 0,
            last_stored: None,
        };
        Self {
            inner,
            mind: Mutex::new(mind),
        }
    }

    /// Behaves by another plan from now on.
    pub fn set_plan(&self, plan: Plan) {
        self.mind().plan = plan;
    }

    /// How many operations were asked for, and how many of them were answered with a fault.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let mind = self.mind();
        (mind.operations, mind.faults)
    }

    fn mind(&self) -> MutexGuard<'_, Mind> {
        self.mind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse(&self, operation: Operation, name: &ObjectName, kind: StoreErrorKind) -> StoreError {
        StoreError {
            kind,
            operation,
            cloud: self.inner.describe(),
            object: Some(name.clone()),
            detail: "the decorator was told to refuse".to_owned(),
        }
    }

    /// Begins an operation: refuses, hangs or delays it, or says what remains to be done wrong.
    async fn meddle(
        &self,
        operation: Operation,
        name: &ObjectName,
        deadline: Deadline,
    ) -> Result<Option<Fault>, StoreError> {
        let fault = self.mind().choose();
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
        let draw = self.mind().next();
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
                .mind()
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
        let fault = self.meddle(Operation::Put, name, deadline).await?;
        match fault {
            Some(Fault::AcknowledgeWithoutStoring) => return Ok(Some(Receipt::crc32c(&body))),
            Some(Fault::Overwrite) => self.inner.delete(name, deadline).await?,
            _ => {}
        }
        let sent = body.clone();
        let body = self.distort(body, fault);
        let receipt = self.inner.put_if_absent(name, body, deadline).await?;
        // Whoever lies about what it keeps does not say so.
        let receipt = receipt.map(|receipt| receipt.of_same_kind(&sent));
        self.mind().last_stored = Some(name.clone());
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
        let fault = self.meddle(Operation::Get, name, deadline).await?;
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
        let fault = self.meddle(Operation::Get, name, deadline).await?;
        let bytes = self
            .inner
            .get_range(&self.target(name, fault), range, deadline)
            .await?;
        Ok(self.distort(bytes, fault))
    }

    async fn head(&self, name: &ObjectName, deadline: Deadline) -> Result<ObjectInfo, StoreError> {
        let fault = self.meddle(Operation::Head, name, deadline).await?;
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
        let fault = self.mind().choose();
        if fault == Some(Fault::Hang) {
            tokio::time::sleep_until(deadline.instant()).await;
        }
        let mut page = self.inner.list(prefix, cursor, limit, deadline).await?;
        if fault.is_some() && page.names.len() > 1 {
            let omitted = usize::try_from(self.mind().next()).unwrap_or(0) % page.names.len();
            page.names.remove(omitted);
        }
        Ok(page)
    }

    async fn delete(&self, name: &ObjectName, deadline: Deadline) -> Result<(), StoreError> {
        match self.meddle(Operation::Delete, name, deadline).await? {
            Some(Fault::AcknowledgeWithoutStoring) => Ok(()),
            _ => self.inner.delete(name, deadline).await,
        }
    }

    async fn room(&self, deadline: Deadline) -> Result<Option<Room>, StoreError> {
        self.inner.room(deadline).await
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
}
