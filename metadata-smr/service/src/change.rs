//! One operation's writes: counted, typed, and rolled back together.
//!
//! Every row that an operation writes goes through [`Change`], which refuses the operation when it
//! exceeds its bounds; the service then rolls back to the operation's beginning.

use crate::attributes::Timestamp;
use crate::error::Error;
use crate::fleet::{self, CloudState, Fleet};
use crate::identity::{CloudIndex, Home, InodeId, InodeVersion, PrincipalNumber, SliceId};
use crate::limits::{
    CTIME_AHEAD_MAX_SECONDS, CTIME_BEHIND_MAX_SECONDS, ROWS_READ_MAX, ROWS_WRITTEN_MAX,
};
use crate::log;
use crate::quota::{self, Charged};
use crate::row::{Cloud, Counters, HomeCounters, Inode, Reap, Rights, Row, Session, key};
use crate::rows::{Halt, Outcome, Rows, decode, require};
use quorumfs_bft::identity::{SessionId, Time};
use quorumfs_bft::service::{Caller, Context};
use quorumfs_bft::state::{Txn, View};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

/// The writes of one operation or tick.
pub(crate) struct Change<'a, 't> {
    txn: &'a mut Txn<'t>,
    context: Context,
    written: BTreeSet<Vec<u8>>,
    written_max: usize,
    read: Cell<usize>,
    read_max: usize,
    clouds: Option<BTreeMap<CloudIndex, String>>,
    fleet: Option<Fleet>,
    /// The sender's time of the change; `None`: now.
    sender_time: Option<Timestamp>,
    session: Option<SessionId>,
    /// What the operation has changed and not logged yet.
    pub(crate) noted: log::Noted,
    /// Whether the session has to hear of it too.
    pub(crate) tells_itself: bool,
    /// References to slices that the operation has dropped but not yet accounted for.
    pub(crate) dropped: BTreeMap<(Home, SliceId), u32>,
    /// Gains and losses of users that are not yet accounted for.
    pub(crate) charged: Charged,
}

impl Rows for Change<'_, '_> {
    fn view(&self) -> View<'_> {
        self.txn.view()
    }

    fn count_reads(&self, rows: usize) -> Outcome<()> {
        let read = self.read.get().saturating_add(rows);
        self.read.set(read);
        require(read <= self.read_max, Error::TooManyRows)
    }
}

impl<'a, 't> Change<'a, 't> {
    /// An operation of a client, with bounded reads and writes.
    pub(crate) const fn bounded(txn: &'a mut Txn<'t>, context: &Context) -> Self {
        Self::new(txn, context, ROWS_WRITTEN_MAX, ROWS_READ_MAX)
    }

    /// The service's own work, which bounds itself.
    pub(crate) const fn unbounded(txn: &'a mut Txn<'t>, context: &Context) -> Self {
        Self::new(txn, context, usize::MAX, usize::MAX)
    }

    const fn new(
        txn: &'a mut Txn<'t>,
        context: &Context,
        written_max: usize,
        read_max: usize,
    ) -> Self {
        Self {
            txn,
            context: *context,
            written: BTreeSet::new(),
            written_max,
            read: Cell::new(0),
            read_max,
            clouds: None,
            fleet: None,
            sender_time: None,
            session: None,
            noted: log::Noted::new(),
            tells_itself: false,
            dropped: BTreeMap::new(),
            charged: Charged::new(),
        }
    }

    /// From here on it is an operation of this session.
    pub(crate) const fn act_for(&mut self, session: SessionId) {
        self.session = Some(session);
    }

    /// The session of the operation; `None` for the service's own work.
    pub(crate) const fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// The batch's agreed context.
    pub(crate) const fn context(&self) -> &Context {
        &self.context
    }

    /// The batch's time.
    pub(crate) const fn time(&self) -> Time {
        self.context.time
    }

    /// The number of rows written so far.
    pub(crate) fn rows_written(&self) -> usize {
        self.written.len()
    }

    /// The number of rows read so far.
    pub(crate) const fn rows_read(&self) -> usize {
        self.read.get()
    }

    /// Makes room for so many rows, to be read and written beyond the operation's bounds.
    pub(crate) const fn reserve(&mut self, rows: usize) {
        self.written_max = self.written_max.saturating_add(rows);
        self.read_max = self.read_max.saturating_add(rows.saturating_mul(8));
    }

    /// Writes a row.
    pub(crate) fn put<R: Row>(&mut self, row_key: Vec<u8>, row: &R) -> Outcome<()> {
        self.txn.put(&row_key, row.to_bytes())?;
        self.count_write(row_key)
    }

    /// Writes a row whose bytes are known to decode.
    pub(crate) fn put_bytes(&mut self, row_key: Vec<u8>, bytes: &[u8]) -> Outcome<()> {
        self.txn.put(&row_key, bytes.to_vec())?;
        self.count_write(row_key)
    }

    /// Deletes a row.
    pub(crate) fn delete(&mut self, row_key: Vec<u8>) -> Outcome<()> {
        self.txn.delete(&row_key)?;
        self.count_write(row_key)
    }

    fn count_write(&mut self, row_key: Vec<u8>) -> Outcome<()> {
        self.written.insert(row_key);
        require(self.written.len() <= self.written_max, Error::TooManyRows)
    }

    /// From now on changed inodes get the sender's time, within the limits of
    /// [`CTIME_BEHIND_MAX_SECONDS`].
    pub(crate) fn done_at(&mut self, sent: Timestamp) {
        let now = Timestamp::from(self.context.time);
        let ahead = sent.seconds.saturating_sub(now.seconds);
        let accepted = -CTIME_BEHIND_MAX_SECONDS..=CTIME_AHEAD_MAX_SECONDS;
        self.sender_time = accepted.contains(&ahead).then_some(sent);
    }

    /// Writes an inode after a change: its version increases, and its ctime never decreases.
    ///
    /// Every change that `stat`, `readdir`, `read` or `getxattr` show, except of times of access,
    /// increases the inode's version, and this is the only place where versions increase. So
    /// changes are noted here for the sessions that have the realm mounted.
    pub(crate) fn save(&mut self, inode: InodeId, row: &mut Inode) -> Outcome<()> {
        let now = Timestamp::from(self.context.time);
        row.ctime = row.ctime.max(self.sender_time.unwrap_or(now));
        self.save_same_time(inode, row)
    }

    /// The same without a new ctime: it changes how an inode is stored, and nothing that is stored.
    pub(crate) fn save_same_time(&mut self, inode: InodeId, row: &mut Inode) -> Outcome<()> {
        log::note(self, row.realm, inode);
        row.version = InodeVersion(row.version.0.saturating_add(1));
        self.put_inode(inode, row)
    }

    /// Writes an inode unchanged, and charges its owner. All writes of inode rows go through here,
    /// unless neither owner nor content changes.
    pub(crate) fn put_inode(&mut self, inode: InodeId, row: &Inode) -> Outcome<()> {
        let row_key = key::inode(inode);
        if let Some(before) = self.find::<Inode>(&row_key)? {
            quota::take(&mut self.charged, &before);
        }
        quota::add(&mut self.charged, row);
        self.put(row_key, row)
    }

    /// Deletes an inode, and credits its owner.
    pub(crate) fn delete_inode(&mut self, inode: InodeId) -> Outcome<()> {
        let row_key = key::inode(inode);
        if let Some(before) = self.find::<Inode>(&row_key)? {
            quota::take(&mut self.charged, &before);
            if before.has_old_names() {
                self.delete(key::reseal(inode))?;
            }
        }
        self.delete(row_key)
    }

    /// A home's counters.
    pub(crate) fn home(&self, home: Home) -> Outcome<HomeCounters> {
        Ok(self.find(&key::home(home))?.unwrap_or_default())
    }

    /// Adjusts the bytes that the extents of a home cover.
    pub(crate) fn allocate(&mut self, home: Home, added: u64, removed: u64) -> Outcome<()> {
        if added == removed {
            return Ok(());
        }
        let mut counters = self.home(home)?;
        counters.allocated = counters
            .allocated
            .saturating_add(added)
            .saturating_sub(removed);
        self.put(key::home(home), &counters)
    }

    /// A fresh number from the volume's counters.
    pub(crate) fn next(&mut self, counter: impl FnOnce(&mut Counters) -> &mut u64) -> Outcome<u64> {
        let mut counters: Counters = self.find(&key::counters())?.unwrap_or_default();
        let place = counter(&mut counters);
        let number = *place;
        *place = number
            .checked_add(1)
            .ok_or(Halt::Refused(Error::LimitReached))?;
        self.put(key::counters(), &counters)?;
        Ok(number)
    }

    /// Queues work for the ticks.
    pub(crate) fn queue(&mut self, reap: &Reap) -> Outcome<()> {
        let number = self.next(|counters| &mut counters.next_reap)?;
        self.put(key::reap(number), reap)
    }

    /// The failure domain of a cloud, if the volume has such a cloud.
    pub(crate) fn failure_domain(&mut self, cloud: CloudIndex) -> Outcome<Option<String>> {
        if self.clouds.is_none() {
            let prefix = key::clouds();
            let mut clouds = BTreeMap::new();
            for (row_key, bytes) in self.scan(&prefix, &prefix, crate::limits::CLOUDS_MAX)? {
                let row: Cloud = decode(&row_key, &bytes)?;
                clouds.insert(row.index, row.failure_domain);
            }
            self.clouds = Some(clouds);
        }
        let domain = self.clouds.as_ref().and_then(|clouds| clouds.get(&cloud));
        Ok(domain.cloned())
    }

    /// The state of a cloud.
    pub(crate) fn cloud_state(&mut self, cloud: CloudIndex) -> Outcome<CloudState> {
        let fleet = match self.fleet.take() {
            Some(fleet) => fleet,
            None => fleet::fleet(self)?,
        };
        let state = fleet.state(cloud);
        self.fleet = Some(fleet);
        Ok(state)
    }

    /// A shard is placed on a cloud: a retired one has to be drained again.
    pub(crate) fn uses(&mut self, cloud: CloudIndex) -> Outcome<()> {
        if self.cloud_state(cloud)? != CloudState::Retired {
            return Ok(());
        }
        let mut fleet = fleet::fleet(self)?;
        fleet.retired.retain(|retired| *retired != cloud);
        self.put_fleet(&fleet)
    }

    /// Writes which clouds take new shards.
    pub(crate) fn put_fleet(&mut self, fleet: &Fleet) -> Outcome<()> {
        self.fleet = Some(fleet.clone());
        self.put(key::fleet(), fleet)
    }
}

/// The sender of an operation, as the servers know it.
pub(crate) struct Asker {
    /// Session and principal.
    pub(crate) caller: Caller,
    /// The session's row.
    pub(crate) session: Session,
    /// The principal's rights.
    pub(crate) rights: Rights,
    /// The principal's number in rows.
    pub(crate) number: PrincipalNumber,
}

impl Asker {
    /// Looks up `caller`; refused if the session is unknown or was fenced.
    pub(crate) fn admit(rows: &impl Rows, caller: &Caller) -> Outcome<Self> {
        let session: Session = rows
            .find(&key::session(caller.session))?
            .ok_or(Halt::Refused(Error::NoSession))?;
        if let Some(by) = session.fenced_by {
            return Err(Error::Fenced { by }.into());
        }
        let principal = rows.principal(&caller.principal)?;
        Ok(Self {
            caller: *caller,
            session,
            rights: principal.rights,
            number: principal.number,
        })
    }
}
