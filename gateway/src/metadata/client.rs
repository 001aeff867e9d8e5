//! The typed queries and operations of one session.

use super::cut_off::LastAnswer;
use super::ids::{AllocatedId, IdPool};
use super::mounting::Mounting;
use super::{MetadataError, Transport, quota};
use crate::clock::ServerClock;
use crate::error::VfsError;
use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use quorumfs_metadata::attributes::{Access, Attributes, Credentials, Timestamp};
use quorumfs_metadata::error::Error;
use quorumfs_metadata::identity::{AllocationId, Cookie, InodeId, RealmId};
use quorumfs_metadata::limits::{
    ALLOCATION_IDS_MAX, DIRECTORY_PAGE_MAX, EXTENT_PAGE_MAX, QUEUE_PAGE_MAX,
};
use quorumfs_metadata::operation::{Compound, EntryPlace, Operation, Precondition, Step};
use quorumfs_metadata::query::{Query, Question};
use quorumfs_metadata::reply::{
    Answer, ContentPage, DirectoryPage, Done, QueryResult, Response, StepDone,
};
use quorumfs_metadata::row::Sealed;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long ids are kept that no write wants.
const IDLE_IDS: Duration = Duration::from_secs(60);

/// The first wait for the reap queue before asking again; doubled from try to try.
const REAP_WAIT: Duration = Duration::from_millis(20);
/// How often to ask again: about a minute in all. A short tail waits for a piece of each long one.
const REAP_TRIES: u32 = 70;
/// The longest wait between two.
const REAP_WAIT_MAX: Duration = Duration::from_secs(1);

/// Who answers a query.
#[derive(Clone, Copy)]
enum Servers {
    /// As many as have seen all that was acknowledged to any client.
    Quorum,
    /// The nearest, if they are nearer than a quorum.
    Nearest,
}

/// One session with the metadata servers.
pub struct MetadataClient {
    pub(super) transport: Arc<dyn Transport>,
    realm: RealmId,
    /// The credentials for queries on no particular user's behalf.
    own: RwLock<Credentials>,
    fenced: AtomicBool,
    pub(super) mounting: Mounting,
    operations: AtomicU64,
    queries: AtomicU64,
    last_answer: LastAnswer,
    pub(super) agreed: ServerClock,
    ids: Mutex<IdPool>,
    /// Allocations before this one were already granted, to this session or an earlier one.
    next_allocation: AtomicU64,
}

impl std::fmt::Debug for MetadataClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetadataClient")
            .field("fenced", &self.is_fenced())
            .finish_non_exhaustive()
    }
}

impl MetadataClient {
    /// A client of the root realm over an open session. `own` are credentials that the session's
    /// principal may speak for; they are used for queries on no particular user's behalf.
    #[must_use]
    pub fn new(transport: Arc<dyn Transport>, own: Credentials) -> Self {
        Self {
            transport,
            realm: RealmId::ROOT,
            own: RwLock::new(own),
            fenced: AtomicBool::new(false),
            mounting: Mounting::default(),
            operations: AtomicU64::new(0),
            queries: AtomicU64::new(0),
            last_answer: LastAnswer::default(),
            agreed: ServerClock::default(),
            ids: Mutex::default(),
            next_allocation: AtomicU64::new(0),
        }
    }

    /// Refuses allocations up to this one, which an earlier session was granted: servers that grant
    /// it again were restored from a copy, or lie.
    pub fn allocated_before(&self, allocation: AllocationId) {
        let next = allocation.0.saturating_add(1);
        self.next_allocation.fetch_max(next, Ordering::AcqRel);
    }

    /// The newest allocation known to be granted, to this session or an earlier one.
    #[must_use]
    pub fn newest_allocation(&self) -> Option<AllocationId> {
        let next = self.next_allocation.load(Ordering::Acquire);
        next.checked_sub(1).map(AllocationId)
    }

    /// Whether the servers have reported that this session was fenced.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// An error once the session was fenced.
    pub(crate) fn not_fenced(&self) -> Result<(), VfsError> {
        if self.is_fenced() {
            Err(VfsError::Fenced)
        } else {
            Ok(())
        }
    }

    /// Whether fewer servers are connected now than any answer requires.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.transport.is_cut_off()
    }

    /// Operations and queries that were sent.
    #[must_use]
    pub fn counters(&self) -> (u64, u64) {
        (
            self.operations.load(Ordering::Relaxed),
            self.queries.load(Ordering::Relaxed),
        )
    }

    /// Ends the session.
    #[boxed]
    pub async fn close(&self) {
        self.transport.close().await;
        self.fenced.store(true, Ordering::Release);
    }

    /// The realm of the session.
    pub(crate) fn realm(&self) -> RealmId {
        self.realm
    }

    /// Credentials that the session's principal may speak for.
    pub(crate) fn own(&self) -> Credentials {
        let own = self.own.read();
        own.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Uses other credentials for queries on no particular user's behalf from now on: the
    /// principal may act for another user than before.
    pub fn act_as(&self, own: Credentials) {
        *self.own.write().unwrap_or_else(PoisonError::into_inner) = own;
    }

    fn unanswered(&self, error: MetadataError) -> VfsError {
        if let MetadataError::SessionEnded { .. } = error {
            self.fenced.store(true, Ordering::Release);
            return VfsError::Fenced;
        }
        VfsError::Metadata(Arc::new(error))
    }

    fn refused(&self, what: &'static str, error: &Error) -> VfsError {
        if matches!(error, Error::Fenced { .. } | Error::NoSession) {
            if !self.fenced.swap(true, Ordering::AcqRel) {
                tracing::error!(%error, "this mount is fenced");
            }
            return VfsError::Fenced;
        }
        tracing::debug!(what, %error, "refused");
        if let Error::OldKeys { current } | Error::OtherGeneration { current } = error {
            let epoch = *current;
            return VfsError::OtherKeys { what, epoch };
        }
        let errno = Errno::from_raw_os_error(error.errno().0);
        quota::full(what, errno, error).unwrap_or_else(|| VfsError::refused(what, errno))
    }

    pub(super) fn unusable_answer(&self, question: &'static str, reason: String) -> VfsError {
        self.unanswered(MetadataError::Answer { question, reason })
    }

    /// Asks `question` on behalf of `credentials`.
    ///
    /// # Errors
    /// If it is refused, or the servers gave no usable answer.
    #[boxed]
    pub async fn ask(
        &self,
        what: &'static str,
        credentials: Credentials,
        question: Question,
    ) -> Result<QueryResult, VfsError> {
        self.ask_of(Servers::Quorum, what, credentials, question)
            .await
    }

    /// Asks `question` of the nearest servers. The answer contains all that this session was shown,
    /// and so all that the news tell that have arrived; without news that are fresh, it is
    /// [`ask`](Self::ask).
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    #[boxed]
    pub(crate) async fn ask_near(
        &self,
        what: &'static str,
        credentials: Credentials,
        question: Question,
    ) -> Result<QueryResult, VfsError> {
        let servers = match self.has_fresh_news() {
            true => Servers::Nearest,
            false => Servers::Quorum,
        };
        self.ask_of(servers, what, credentials, question).await
    }

    async fn ask_of(
        &self,
        servers: Servers,
        what: &'static str,
        credentials: Credentials,
        question: Question,
    ) -> Result<QueryResult, VfsError> {
        self.not_fenced()?;
        self.queries.fetch_add(1, Ordering::Relaxed);
        let query = Query {
            credentials,
            question,
        };
        let query = Bytes::from(query.to_bytes());
        let asked = match servers {
            Servers::Quorum => self.transport.query(query),
            Servers::Nearest => self.transport.query_near(query),
        };
        let answer = self.last_answer.wait(&*self.transport, asked).await;
        let answer = answer.map_err(|error| self.unanswered(error))?;
        let Answer(found) = Answer::from_bytes(&answer)
            .map_err(|error| self.unusable_answer(what, error.to_string()))?;
        found.map_err(|error| self.refused(what, &error))
    }

    /// Asks a question that is on no user's behalf.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn ask_about_volume(
        &self,
        what: &'static str,
        question: Question,
    ) -> Result<QueryResult, VfsError> {
        self.ask(what, self.own(), question).await
    }

    /// Executes `operation`.
    ///
    /// # Errors
    /// If it is refused, or the servers gave no usable answer.
    #[boxed]
    pub async fn order(&self, what: &'static str, operation: &Operation) -> Result<Done, VfsError> {
        let bytes = Bytes::from(operation.to_bytes());
        let mut wait = REAP_WAIT;
        for tried in 1..=REAP_TRIES {
            self.not_fenced()?;
            self.operations.fetch_add(1, Ordering::Relaxed);
            let ordered = self.transport.execute(bytes.clone());
            let reply = self.last_answer.wait(&*self.transport, ordered).await;
            let reply = reply.map_err(|error| self.unanswered(error))?;
            let Response(outcome) = Response::from_bytes(&reply)
                .map_err(|error| self.unusable_answer(what, error.to_string()))?;
            match outcome {
                Ok(done) => return Ok(done),
                // The truncation of a huge file is done by ordered ticks, a bounded piece each.
                Err(refusal) if refusal.error == Error::Reaping => {
                    if tried == REAP_TRIES {
                        break;
                    }
                    tokio::time::sleep(wait).await;
                    wait = wait.saturating_mul(2).min(REAP_WAIT_MAX);
                }
                Err(refusal) => return Err(self.refused(what, &refusal.error)),
            }
        }
        Err(VfsError::refused(what, Errno::TIMEDOUT))
    }

    /// Executes steps atomically; returns the result of each.
    ///
    /// # Errors
    /// As [`MetadataClient::order`]; nothing changed then.
    #[boxed]
    pub async fn compound(
        &self,
        what: &'static str,
        credentials: Credentials,
        time: Timestamp,
        preconditions: Vec<Precondition>,
        steps: Vec<Step>,
    ) -> Result<Vec<StepDone>, VfsError> {
        let count = steps.len();
        let compound = Compound {
            credentials,
            time,
            preconditions,
            steps,
        };
        match self.order(what, &Operation::Compound(compound)).await? {
            Done::Compound(done) if done.len() == count => Ok(done),
            other => Err(self.unusable_answer(what, format!("{other:?}"))),
        }
    }

    /// As [`MetadataClient::compound`], for one step.
    ///
    /// # Errors
    /// As [`MetadataClient::order`]; nothing changed then.
    #[boxed]
    pub async fn step(
        &self,
        what: &'static str,
        credentials: Credentials,
        time: Timestamp,
        step: Step,
    ) -> Result<StepDone, VfsError> {
        let done = self
            .compound(what, credentials, time, Vec::new(), vec![step])
            .await?;
        done.into_iter()
            .next()
            .ok_or_else(|| self.unusable_answer(what, "no step was done".into()))
    }

    /// The error of an answer of the wrong kind.
    pub(crate) fn mismatch(&self, what: &'static str, found: &impl std::fmt::Debug) -> VfsError {
        self.unusable_answer(what, format!("{found:?}"))
    }

    /// The target of an entry, and its directory; `None` if there is no such entry.
    pub(crate) async fn lookup(
        &self,
        credentials: Credentials,
        place: EntryPlace,
    ) -> Result<Option<(Attributes, Attributes)>, VfsError> {
        match self
            .ask_near("lookup", credentials, Question::Lookup(place))
            .await
        {
            Ok(QueryResult::Entry { inode, parent, .. }) => Ok(Some((inode, parent))),
            Ok(other) => Err(self.mismatch("lookup", &other)),
            Err(VfsError::Refused {
                errno: Errno::NOENT,
                ..
            }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The attributes of an inode, after all changes that were acknowledged to any client.
    pub(crate) async fn attributes(&self, inode: InodeId) -> Result<Attributes, VfsError> {
        let question = Question::Attributes(inode);
        self.attributes_in(self.ask("getattr", self.own(), question).await?)
    }

    /// The attributes of an inode, as the nearest servers know them.
    pub(crate) async fn attributes_near(&self, inode: InodeId) -> Result<Attributes, VfsError> {
        let question = Question::Attributes(inode);
        self.attributes_in(self.ask_near("getattr", self.own(), question).await?)
    }

    fn attributes_in(&self, found: QueryResult) -> Result<Attributes, VfsError> {
        match found {
            QueryResult::Attributes(attributes) => Ok(attributes),
            other => Err(self.mismatch("getattr", &other)),
        }
    }

    /// Whether the caller may do all of `access`.
    pub(crate) async fn access(
        &self,
        credentials: Credentials,
        inode: InodeId,
        access: Access,
    ) -> Result<(), VfsError> {
        let question = Question::Access { inode, access };
        match self.ask("access", credentials, question).await? {
            QueryResult::Allowed => Ok(()),
            other => Err(self.mismatch("access", &other)),
        }
    }

    /// A page of an open directory.
    pub(crate) async fn list(
        &self,
        inode: InodeId,
        after: Cookie,
        limit: u32,
    ) -> Result<DirectoryPage, VfsError> {
        let limit = limit.clamp(1, DIRECTORY_PAGE_MAX);
        let question = Question::Directory {
            inode,
            after,
            limit,
            by_handle: true,
        };
        match self.ask_near("readdir", self.own(), question).await? {
            QueryResult::Directory(page) => Ok(page),
            other => Err(self.mismatch("readdir", &other)),
        }
    }

    /// The places of a file's bytes, from `from` on.
    pub(crate) async fn content(&self, inode: InodeId, from: u64) -> Result<ContentPage, VfsError> {
        let question = Question::Content {
            inode,
            from,
            to: u64::MAX,
            limit: EXTENT_PAGE_MAX,
        };
        match self.ask_near("read", self.own(), question).await? {
            QueryResult::Content(page) => Ok(page),
            other => Err(self.mismatch("read", &other)),
        }
    }

    /// A symlink's sealed target.
    pub(crate) async fn symlink(&self, inode: InodeId) -> Result<Sealed, VfsError> {
        let question = Question::Symlink(inode);
        match self.ask_near("readlink", self.own(), question).await? {
            QueryResult::Symlink(target) => Ok(target),
            other => Err(self.mismatch("readlink", &other)),
        }
    }

    /// Inodes without an entry that this session holds, behind `after`, and whether there are more.
    pub(crate) async fn orphans(
        &self,
        after: Option<InodeId>,
    ) -> Result<(Vec<InodeId>, bool), VfsError> {
        let limit = QUEUE_PAGE_MAX;
        let question = Question::Orphans { after, limit };
        match self.ask("orphans", self.own(), question).await? {
            QueryResult::Orphans { inodes, more } => Ok((inodes, more)),
            other => Err(self.mismatch("orphans", &other)),
        }
    }

    /// Inodes that exist and bytes that extents cover.
    pub(crate) async fn usage(&self) -> Result<(u64, u64), VfsError> {
        let question = Question::Usage(self.realm);
        match self.ask("statfs", self.own(), question).await? {
            QueryResult::Usage { inodes, allocated } => Ok((inodes, allocated)),
            other => Err(self.mismatch("statfs", &other)),
        }
    }

    /// A moment of this machine's clock as the servers will accept it as the time of a change.
    pub(crate) fn agreed(&self, here: Timestamp) -> Timestamp {
        self.agreed.at_most(here, Instant::now())
    }

    /// Fresh ids for an object and a slice.
    ///
    /// # Errors
    /// If the servers grant none.
    #[boxed]
    pub async fn allocate(&self) -> Result<AllocatedId, VfsError> {
        let mut ids = self.ids.lock().await;
        if let Some(id) = ids.take() {
            return Ok(id);
        }
        self.give_back(&mut ids).await;
        let granted = match self.grant().await {
            // The session has its most allocations, and no id is left here: the answers to some
            // grants were lost.
            Err(VfsError::Refused {
                errno: Errno::BUSY, ..
            }) => {
                self.give_back_unknown(&ids).await?;
                self.grant().await?
            }
            outcome => outcome?,
        };
        ids.grant(granted.0, granted.1);
        ids.take()
            .ok_or_else(|| self.unusable_answer("allocation", "no ids were granted".into()))
    }

    /// Gives back ids that were not used for a while: an open allocation keeps the collector away
    /// from everything that was ever written under it.
    pub(super) async fn give_back_idle(&self) {
        let mut ids = self.ids.lock().await;
        ids.retire_idle(IDLE_IDS);
        self.give_back(&mut ids).await;
    }

    async fn give_back(&self, ids: &mut IdPool) {
        for allocation in ids.finished() {
            let close = Operation::CloseAllocation { allocation };
            match self.order("allocation", &close).await {
                // Refused: it is closed already.
                Ok(_) | Err(VfsError::Refused { .. }) => {}
                // Not worth failing a write for.
                Err(error) => {
                    tracing::debug!(%allocation, %error, "an allocation will be given back later");
                    ids.keep(allocation);
                }
            }
        }
    }

    async fn grant(&self) -> Result<(AllocationId, u32), VfsError> {
        let operation = Operation::Allocate {
            count: ALLOCATION_IDS_MAX,
        };
        match self.order("allocation", &operation).await? {
            Done::Allocated { allocation, count } => {
                let next = self.next_allocation.load(Ordering::Acquire);
                if allocation.0 < next {
                    let reason = format!(
                        "they grant allocation {allocation}, and {} was granted before",
                        next.saturating_sub(1)
                    );
                    return Err(self.unanswered(MetadataError::WentBack { reason }));
                }
                self.allocated_before(allocation);
                Ok((allocation, count))
            }
            other => Err(self.mismatch("allocation", &other)),
        }
    }

    /// Gives back ids that were granted in lost answers.
    async fn give_back_unknown(&self, ids: &IdPool) -> Result<(), VfsError> {
        let asked = self.ask("allocation", self.own(), Question::WhoAmI);
        let QueryResult::WhoAmI { row, .. } = asked.await? else {
            return Err(VfsError::refused("allocation", Errno::BUSY));
        };
        for allocation in row.allocations {
            if !ids.knows(allocation) {
                tracing::warn!(%allocation, "giving back ids that this session did not know of");
                let operation = Operation::CloseAllocation { allocation };
                self.order("allocation", &operation).await?;
            }
        }
        Ok(())
    }
}
