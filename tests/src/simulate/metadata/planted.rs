//! Defects that the simulator plants in the metadata service, to show that it would find them.
//!
//! They change what the service writes or answers, and so no code of the service knows of them.

mod rows;

use bytes::Bytes;
use quorumfs_bft::identity::{PublicKey, SessionId, Time};
use quorumfs_bft::service::{Caller, Context, Credit, Service};
use quorumfs_bft::state::{StateError, Txn, View};
use quorumfs_metadata::Metadata;
use quorumfs_metadata::reply::{Answer, Done, QueryResult, Response};

/// A defect of every replica's metadata service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceDefect {
    /// A mount that is recalled is not told so: the recall is lost with the refusal of the other.
    RecallLost,
    /// News list what the asking session itself has changed, in place of what others have.
    NewsOfOthersLeftOut,
    /// News say that nothing was left out though the log does not reach back so far.
    GapUntold,
    /// A shared lock of another session does not block an exclusive one.
    LockConflictMissed,
    /// Locks of a mount that has ended count.
    LocksOutliveTheirMount,
    /// A waiter whose turn has come is not noted in the change log.
    TurnUntold,
    /// The change log is written, and the bell is neither rung nor owed.
    BellNotRung,
}

impl ServiceDefect {
    /// Every defect.
    pub const ALL: [Self; 7] = [
        Self::RecallLost,
        Self::NewsOfOthersLeftOut,
        Self::GapUntold,
        Self::LockConflictMissed,
        Self::LocksOutliveTheirMount,
        Self::TurnUntold,
        Self::BellNotRung,
    ];
}

impl ServiceDefect {
    /// Whether it is in what the service writes, and not in its answers.
    const fn is_of_rows(self) -> bool {
        match self {
            Self::RecallLost | Self::NewsOfOthersLeftOut | Self::GapUntold => false,
            Self::LockConflictMissed
            | Self::LocksOutliveTheirMount
            | Self::TurnUntold
            | Self::BellNotRung => true,
        }
    }
}

/// The metadata service, perhaps with a defect.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlantedMetadata {
    pub(super) defect: Option<ServiceDefect>,
}

impl PlantedMetadata {
    fn has(self, defect: ServiceDefect) -> bool {
        self.defect == Some(defect)
    }
}

#[deny(clippy::missing_trait_methods)]
impl Service for PlantedMetadata {
    fn genesis(&self, txn: &mut Txn<'_>, genesis: &[u8]) -> Result<(), StateError> {
        Metadata.genesis(txn, genesis)
    }

    fn sessions_begin_after(&self, genesis: &[u8]) -> SessionId {
        Metadata.sessions_begin_after(genesis)
    }

    fn open_session(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
    ) -> Result<Option<Credit>, StateError> {
        Metadata.open_session(txn, context, caller)
    }

    fn may_open(&self, view: &View<'_>, principal: &PublicKey) -> Result<bool, StateError> {
        Metadata.may_open(view, principal)
    }

    fn administers(
        &self,
        view: &View<'_>,
        principal: &PublicKey,
    ) -> Result<Option<bool>, StateError> {
        Metadata.administers(view, principal)
    }

    fn may_copy(&self, view: &View<'_>, principal: &PublicKey) -> Result<bool, StateError> {
        Metadata.may_copy(view, principal)
    }

    fn close_session(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
    ) -> Result<(), StateError> {
        Metadata.close_session(txn, context, caller)
    }

    fn execute(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
        operation: &[u8],
    ) -> Result<Bytes, StateError> {
        if let Some(defect) = self.defect.filter(|it| it.is_of_rows()) {
            return rows::execute(defect, txn, context, (caller, operation));
        }
        let savepoint = txn.savepoint();
        let response = Metadata.execute(txn, context, caller, operation)?;
        if self.has(ServiceDefect::RecallLost)
            && let Ok(Response(Ok(Done::Recalled(_)))) = Response::from_bytes(&response)
        {
            txn.rollback(savepoint);
        }
        Ok(response)
    }

    fn read(&self, view: &View<'_>, caller: &Caller, query: &[u8]) -> Result<Bytes, StateError> {
        let answer = Metadata.read(view, caller, query)?;
        if self.defect.is_none_or(ServiceDefect::is_of_rows) {
            return Ok(answer);
        }
        let Ok(Answer(Ok(QueryResult::News {
            position,
            gap,
            inodes,
            more,
            others,
            recalled,
        }))) = Answer::from_bytes(&answer)
        else {
            return Ok(answer);
        };
        let inodes = match self.has(ServiceDefect::NewsOfOthersLeftOut) {
            true => Vec::new(),
            false => inodes,
        };
        let gap = gap && !self.has(ServiceDefect::GapUntold);
        let told = QueryResult::News {
            position,
            gap,
            inodes,
            more,
            others,
            recalled,
        };
        Ok(Bytes::from(Answer(Ok(told)).to_bytes()))
    }

    fn read_in_order(
        &self,
        view: &View<'_>,
        context: &Context,
        caller: &Caller,
        query: &[u8],
    ) -> Result<Bytes, StateError> {
        let _ = context;
        self.read(view, caller, query)
    }

    fn watch(
        &self,
        view: &View<'_>,
        caller: &Caller,
        watch: &[u8],
    ) -> Result<Option<Vec<Bytes>>, StateError> {
        Metadata.watch(view, caller, watch)
    }

    fn next_deadline(&self, view: &View<'_>) -> Result<Option<Time>, StateError> {
        Metadata.next_deadline(view)
    }

    fn tick(&self, txn: &mut Txn<'_>, context: &Context) -> Result<(), StateError> {
        match self.defect.filter(|it| it.is_of_rows()) {
            Some(defect) => rows::tick(defect, txn, context),
            None => Metadata.tick(txn, context),
        }
    }
}
