//! From one membership epoch to the next, in a replica. [`crate::membership`] says why it is right.
//!
//! ```text
//!  the end is executed ─► root durable ─► CHECKPOINT ─► stable: the record is complete ─► enter
//!  records came from others, and own execution does not get there ──────────► enter, then transfer
//! ```
//!
//! A replica enters an epoch in place: views, votes and open sequences are forgotten; the state,
//! the sessions and the waiting requests stay. The record is written to the journal first, and then
//! together with the next root.

use super::Replica;
use super::config::Config;
use super::views::Views;
use crate::admission::{Blacklist, Pace};
use crate::identity::{
    ConnectionId, Digest, Epoch, Incarnation, Monotonic, PublicKey, ReplicaId, Sequence,
};
use crate::journal::Record;
use crate::membership::{EpochRecord, Membership};
use crate::metrics::Voting;
use crate::ordering::returning::Returning;
use crate::ordering::status::{Inquiry, PeerRecord};
use crate::ordering::suspicion::Suspicions;
use crate::ordering::throughput::Throughput;
use crate::ordering::window::Window;
use crate::service::Service;
use crate::state::{KeySpace, StateError, Store};
use crate::state_transfer::sink::Ending;
use crate::step::{Destination, Effect, Effects, Peer, Token};
use crate::wire::limits::{EPOCH_PATIENCE, EPOCHS_MAX};
use crate::wire::message::{FetchEpochs, Message, PeerStatus};
use bytes::Bytes;
use std::collections::BTreeMap;

/// The key, outside the tree, of the record of the epoch that was entered last.
const ENTERED_KEY: &[u8] = b"n";

/// The key, outside the tree, of an epoch's record.
fn record_key(epoch: Epoch) -> Bytes {
    let mut key = vec![b'e'];
    key.extend_from_slice(&epoch.0.to_be_bytes());
    key.into()
}

fn stored_record<D: Store>(
    space: &KeySpace<D>,
    key: &[u8],
) -> Result<Option<EpochRecord>, StateError> {
    let Some(row) = space.extra(key)? else {
        return Ok(None);
    };
    let record = EpochRecord::from_bytes(&row).map_err(|error| StateError::Damaged {
        place: "the record of an epoch".to_owned(),
        reason: error.to_string(),
    })?;
    Ok(Some(record))
}

/// The current epoch, and what is known of others.
#[derive(Debug)]
pub(super) struct Epochs {
    /// The membership of the epoch that this replica is in.
    pub(super) current: Membership,
    /// The batch that its first one follows upon.
    pub(super) start: Digest,
    /// The membership in the state after the last batch: another one once the end was executed.
    agreed: Membership,
    agreed_digest: Digest,
    /// Records that were not written with a durable root.
    unwritten: BTreeMap<Epoch, EpochRecord>,
    /// The last of those that are being written with a root.
    writing: Option<Epoch>,
    /// Records of later epochs that others have shown, without a gap.
    ahead: Vec<EpochRecord>,
    /// Since when.
    ahead_since: Monotonic,
    /// The rate limits of records that are sent to clients.
    served: BTreeMap<ConnectionId, Pace>,
    /// The incarnation that the own journal begins with.
    pub(super) incarnation: Incarnation,
    /// Whether the journal records it, since an earlier one was lost.
    pub(super) reborn: bool,
    /// If that happened after the start: the record of it, and the incarnation announced before. No
    /// crash may take back an incarnation that the others have accepted.
    pub(super) unannounced: Option<(Token, Option<Incarnation>)>,
}

impl Epochs {
    /// What the durable root says; `agreed` is the membership in it.
    pub(super) fn stored<D: Store>(
        config: &Config,
        space: &KeySpace<D>,
        agreed: Membership,
        genesis: Digest,
    ) -> Result<Self, StateError> {
        let (current, start) = match stored_record(space, ENTERED_KEY)? {
            Some(record) => (record.membership, record.certificate.checkpoint.batch),
            None => (config.membership(), genesis),
        };
        Ok(Self {
            current,
            start,
            agreed_digest: agreed.digest(),
            agreed,
            unwritten: BTreeMap::new(),
            writing: None,
            ahead: Vec::new(),
            ahead_since: Monotonic(0),
            served: BTreeMap::new(),
            incarnation: config.incarnation,
            reborn: false,
            unannounced: None,
        })
    }

    /// The last batch of the epoch before this one.
    pub(super) const fn from(&self) -> Sequence {
        self.current.from
    }

    /// Whether the end of this epoch has been executed: no batch may be executed beyond it.
    pub(super) fn ended(&self) -> bool {
        self.agreed.epoch > self.current.epoch
    }

    /// Whether this batch was the end.
    pub(super) fn ended_by(&self, sequence: Sequence) -> bool {
        self.ended() && self.agreed.from == sequence
    }

    /// The membership digest for a CHECKPOINT of the current state.
    pub(super) const fn digest(&self) -> Digest {
        self.agreed_digest
    }

    /// The state has this membership now.
    pub(super) fn agree(&mut self, membership: Membership) {
        self.agreed_digest = membership.digest();
        self.agreed = membership;
    }

    /// The rows that are written with the next root.
    pub(super) fn rows(&mut self) -> Vec<(Bytes, Option<Bytes>)> {
        let encoded = |record: &EpochRecord| {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            Some(Bytes::from(bytes))
        };
        let each = self.unwritten.iter();
        let each = each.map(|(epoch, record)| (record_key(*epoch), encoded(record)));
        let newest = self.unwritten.last_key_value();
        self.writing = newest.map(|(epoch, _)| *epoch);
        let entered = newest.map(|(_, it)| (Bytes::from_static(ENTERED_KEY), encoded(it)));
        each.chain(entered).collect()
    }

    /// The root is durable, and the rows written with it.
    pub(super) fn written(&mut self) {
        let written = self.writing.take();
        self.unwritten.retain(|epoch, _| Some(*epoch) > written);
    }

    /// Records that only the journal has.
    pub(super) fn unwritten(&self) -> impl Iterator<Item = &EpochRecord> {
        self.unwritten.values()
    }

    /// A connection is closed.
    pub(super) fn disconnected(&mut self, connection: ConnectionId) {
        self.served.remove(&connection);
    }

    /// The incarnation that the journal begins with, if it is not that of the new disk.
    pub(super) fn announced(&self, durable: impl Fn(Token) -> bool) -> Option<Incarnation> {
        match self.unannounced {
            Some((token, before)) if !durable(token) => before,
            _ => self.reborn.then_some(self.incarnation),
        }
    }

    /// Whether a member with this key votes in this epoch, as far as the membership decides it.
    fn voting_by_membership(&self, key: &PublicKey) -> Voting {
        let voter = self.current.voters.iter().find(|it| it.key == *key);
        match voter {
            None => Voting::Observing,
            Some(voter) if voter.incarnation != self.incarnation => Voting::Lost,
            Some(_) => Voting::Abstaining,
        }
    }
}

impl<S: Service, D: Store> Replica<S, D> {
    /// Whether this replica may vote in this epoch, once it has executed what it must have.
    pub(super) fn voting_by_membership(&self) -> Voting {
        self.epochs.voting_by_membership(&self.config.key)
    }

    /// Whether this epoch's membership names the incarnation of this replica's journal.
    fn is_named(&self) -> bool {
        let (key, incarnation) = (self.config.key, self.epochs.incarnation);
        let mut members = self.epochs.current.members();
        members.any(|it| it.key == key && it.incarnation == incarnation)
    }

    /// Whether the state is older than the epoch: it has to come from others.
    pub(super) fn follows(&self) -> bool {
        self.last_executed.sequence < self.epochs.from()
    }

    /// Enters the next epoch if everything for it is here.
    pub(super) fn advance_epochs(&mut self, effects: &mut Effects) -> Result<(), StateError> {
        if let Some(first) = self.epochs.ahead.first().map(|it| it.certificate.clone()) {
            self.stable(&first, effects);
        }
        let busy = |ending: &Ending| *ending != Ending::Open;
        let sink = self.sink.as_ref();
        if self.history.is_flushing() || sink.is_some_and(|it| it.writing || busy(&it.ending)) {
            return Ok(());
        }
        if let Some(record) = self.completed() {
            return self.enter(vec![record], effects);
        }
        let waited = self.now.monotonic.since(self.epochs.ahead_since);
        let several = self.epochs.ahead.len() > 1;
        let beyond = |record: &EpochRecord| record.membership.from > self.last_executed.sequence;
        if self.epochs.ahead.last().is_some_and(beyond) && (several || waited >= EPOCH_PATIENCE) {
            self.counters.epochs_jumped += 1;
            let records = std::mem::take(&mut self.epochs.ahead);
            return self.enter(records, effects);
        }
        Ok(())
    }

    /// The record of the next epoch, if its state is durable here and stable.
    fn completed(&self) -> Option<EpochRecord> {
        let last = self.last_executed.sequence;
        let durable = self.space.durable_root()?.sequence;
        let certificate = self.states.known.stable()?;
        let complete = self.epochs.ended_by(last)
            && durable == last
            && certificate.checkpoint.sequence == last
            && certificate.checkpoint.membership == self.epochs.digest()
            && self.states.finding.is_none()
            && self.sink.is_none();
        complete.then(|| EpochRecord::new(certificate.clone(), self.epochs.agreed.clone()))
    }

    fn enter(
        &mut self,
        records: Vec<EpochRecord>,
        effects: &mut Effects,
    ) -> Result<(), StateError> {
        let mut token = Token(0);
        let mut was_named = self.is_named();
        for record in records {
            self.counters.epochs_entered += 1;
            let kept = Record::Epoch(Box::new(record.clone()));
            token = self.journal_writes.persist(&kept, effects);
            self.begin_epoch(record)?;
            was_named |= self.is_named();
        }
        // A new disk, which no membership has named yet, keeps its incarnation: it may have asked
        // for that one to be named already.
        if self.config.detects_rollback
            && was_named
            && self.voting_by_membership() == Voting::Lost
            && !self.epochs.reborn
        {
            // The disk is from before the replica rejoined, which made its incarnation void.
            self.start_new_incarnation(effects);
        }
        self.views.boot_token = token;
        self.announce_epoch(effects);
        self.timers.progressed(effects);
        self.send_status(None, effects);
        Ok(())
    }

    /// Tells the driver which epoch this is.
    pub(super) fn announce_epoch(&self, effects: &mut Effects) {
        effects.push(Effect::NewEpoch {
            membership: Box::new(self.epochs.current.clone()),
            me: self.config.replica,
        });
    }

    /// Begins the epoch of this record, which is in the journal or being written there.
    pub(super) fn begin_epoch(&mut self, record: EpochRecord) -> Result<(), StateError> {
        let membership = record.membership.clone();
        if membership.behaviour_version > self.config.behaviour_version {
            return Err(StateError::Newer {
                found: membership.behaviour_version,
                known: self.config.behaviour_version,
            });
        }
        self.states.known.learn(&record.certificate);
        self.states.epoch_begins();
        self.epochs.start = record.certificate.checkpoint.batch;
        self.epochs.current = membership;
        self.epochs.unwritten.insert(record.epoch(), record);
        let epoch = self.epochs.current.epoch;
        self.epochs.ahead.retain(|ahead| ahead.epoch() > epoch);
        self.apply_membership();
        self.views = Views::default();
        self.leave_view();
        self.early.clear();
        self.suspicions = Suspicions::default();
        self.returning = Returning::default();
        self.throughput = Throughput::default();
        self.inquiry = Inquiry::default();
        self.fetched.clear();
        self.vouchers.clear();
        self.blacklist = Blacklist::default();
        self.history.epoch_begins();
        self.recent.clear();
        self.last_certificate = None;
        self.vote_barrier = self.epochs.from();
        self.journal_writes.epoch_begins(self.epochs.from());
        if self.voting != Voting::Diverged {
            self.voting = self.voting_by_membership();
        }
        Ok(())
    }

    /// Applies the membership of the epoch.
    pub(super) fn apply_membership(&mut self) {
        let current = &self.epochs.current;
        self.context = self.config.context_of(current);
        self.config.replica = current.place(&self.config.key).unwrap_or(ReplicaId::NONE);
        self.peers = vec![PeerRecord::default(); current.peers()];
        self.window = Window::after(self.last_executed.sequence, &self.context);
    }

    /// A peer that is in another epoch reports its state. The one that is behind gets records.
    pub(super) fn status_of_other_epoch(
        &mut self,
        peer: ReplicaId,
        epoch: Epoch,
        status: &PeerStatus,
        effects: &mut Effects,
    ) -> Result<(), StateError> {
        let now = self.now.monotonic;
        let record = self.peers.get_mut(usize::from(peer.0));
        if !record.is_some_and(|record| record.may_resend(now)) {
            return Ok(());
        }
        if epoch < self.context.epoch {
            return self.serve_epochs(Peer::Replica(peer), epoch, effects);
        }
        self.behind(peer, status.committed);
        let after = self.context.epoch;
        let fetch = Message::FetchEpochs(FetchEpochs { after });
        self.send_unsigned(Destination::Replica(peer), fetch, effects);
        Ok(())
    }

    /// The rate limit of epoch records for a peer or client.
    fn epochs_pace(&mut self, peer: Peer) -> Option<&mut Pace> {
        match peer {
            Peer::Replica(replica) => {
                let record = self.peers.get_mut(usize::from(replica.0))?;
                Some(&mut record.epochs)
            }
            Peer::Client(connection) => Some(self.epochs.served.entry(connection).or_default()),
        }
    }

    /// A peer or client asks for the records of the epochs after this one.
    pub(super) fn serve_epochs(
        &mut self,
        peer: Peer,
        after: Epoch,
        effects: &mut Effects,
    ) -> Result<(), StateError> {
        let now = self.now.monotonic;
        if !self.epochs_pace(peer).is_some_and(|pace| pace.allows(now)) {
            return Ok(());
        }
        let mut records = Vec::new();
        let last = self.context.epoch.0;
        for epoch in (after.0.saturating_add(1)..=last).take(EPOCHS_MAX) {
            let epoch = Epoch(epoch);
            let record = match self.epochs.unwritten.get(&epoch) {
                Some(record) => Some(record.clone()),
                None => stored_record(&self.space, &record_key(epoch))?,
            };
            match record {
                Some(record) => records.push(record),
                None => break,
            }
        }
        if records.is_empty() {
            return Ok(());
        }
        self.counters.epochs_served += records.len() as u64;
        let to = match peer {
            Peer::Replica(replica) => Destination::Replica(replica),
            Peer::Client(connection) => Destination::Client(connection),
        };
        let header = self.context.header(self.views.view);
        let frame = crate::wire::encode(header, &Message::Epochs(records));
        if let Some(pace) = self.epochs_pace(peer) {
            pace.served(frame.len());
        }
        effects.push(Effect::Send {
            to,
            frame,
            after: None,
        });
        Ok(())
    }

    /// A voter answers in its epoch, from which a client learns of that. A client of an earlier
    /// epoch may know only replicas that do not vote, so these send it the records.
    pub(super) fn guide_client(
        &mut self,
        from: Peer,
        epoch: Epoch,
        effects: &mut Effects,
    ) -> Result<(), StateError> {
        match from {
            Peer::Client(_) if self.voting == Voting::Observing && epoch < self.context.epoch => {
                self.serve_epochs(from, epoch, effects)
            }
            _ => Ok(()),
        }
    }

    /// Records of later epochs, each of which follows upon the one before.
    pub(super) fn receive_epochs(&mut self, records: &[EpochRecord]) {
        let now = self.context.epoch;
        let new: Vec<EpochRecord> = records
            .iter()
            .filter(|it| it.epoch() > now)
            .cloned()
            .collect();
        let follows = new.first().is_some_and(|it| it.epoch().0 == now.0 + 1);
        if !follows || new.len() <= self.epochs.ahead.len() {
            return;
        }
        if self.epochs.ahead.is_empty() {
            self.epochs.ahead_since = self.now.monotonic;
        }
        self.epochs.ahead = new;
    }
}
