//! One replica: the composition of everything else.
//!
//! ```text
//!                 requests                         proposals, votes            STATUS, fetches
//!                    │                                    │                          │
//!  ┌─────────────────▼──────────┐   batch   ┌─────────────▼─────────────┐   ┌────────▼────────┐
//!  │ clients    admission::Pool ├──────────►│ agreement,      Window    │◄──┤ repair          │
//!  └─────────────────▲──────────┘           │ votes, views    Departures│   │  PeerRecord,    │
//!                    │ replies              │                 Choice    │   │  Inquiry        │
//!  ┌─────────────────┴──────────┐ committed └──┬──────────────▲─────────┘   └────────▲────────┘
//!  │ commit  execution::Executor│◄─────────────┘              │ durable              │ batches
//!  │         state::KeySpace    │                ┌────────────┴─────────┐            │
//!  └─────────────────┬──────────┘                │ JournalWrites        │            │
//!                    └─────── flush, batches ────┴──────────────────────┴────────────┘
//! ```
//!
//! * [`config`]: its settings.  * `recovery`: from journal and state to a replica that runs.
//! * `clients`: requests in, replies out.  * `proposing`: the leader's batches.
//! * `agreement`: which proposals are accepted.  * `votes`: from there to a certificate.
//! * `commit`: execution.  * `checkpoints`: durable roots, agreed upon.
//! * `channel`: differences where votes are not signed.
//! * `views`: leaving a view and entering the next.  * `returning`: handing one over.
//! * `reads`: queries out of order.  * `observers`: reports and events.
//! * `copies`: nodes of the state for clients that copy it.  * `listeners`: where a reply goes.
//! * `epochs`: from one membership to the next.
//! * `repair`: STATUS, resending, fetching.  * `timers`: what happens without input.
//! * `persist_before_send`: signing and recording.
//! * `rollback`: noticing that the journal is an older one.
//!
//! # How a step goes
//!
//! A handler notes what an event says. Then [`Replica::step`] does everything that is possible now,
//! in a fixed order: leave a view, vote, commit, propose, set timers. A handler does nothing that
//! another event could enable as well, so no path is forgotten. Most events are requests. A request
//! that no open batch waits for changes only what waits: after it only the end of the same order is
//! run. Anything else that time may have enabled meanwhile has a timer, or comes with the next
//! STATUS.
//!
//! # What always holds
//!
//! * A message that promises something is sent after the record that holds it is durable; the own
//!   vote counts from then on.
//! * A replica votes once for each view, sequence and phase, and in no view below its own.
//! * Batches are executed in order, each with a commit certificate, and never undone.
//! * Nothing that comes in can make it panic, and nothing grows without bound.
//!
//! # What can go wrong
//!
//! The state store fails: the replica stops and is silent. The journal is lost: the replica
//! follows, executes and serves, but does not vote, since it cannot know what it promised. The
//! journal is whole, but an older one: others show what it lacks, and it counts as lost.

pub mod config;

mod agreement;
mod channel;
mod checkpoints;
mod clients;
mod commit;
mod copies;
mod epochs;
mod listeners;
mod observers;
mod persist_before_send;
mod proposing;
mod reads;
mod recovery;
mod repair;
mod returning;
mod rollback;
mod timers;
mod transfer;
mod views;
mod votes;

#[cfg(test)]
mod tests;

pub use crate::metrics::ReplicaStatus as Status;
pub use commit::is_batch_row;
pub use config::Config;

use crate::admission::{Blacklist, Pool};
use crate::certificate::CommitCertificate;
use crate::execution::Executor;
use crate::identity::{Digest, Now, ReplicaId, Sequence, Time};
use crate::metrics::{Counters, Voting};
use crate::ordering::proposer::BatchPosition;
use crate::ordering::returning::Returning;
use crate::ordering::slot::ReceivedProposal;
use crate::ordering::status::{Inquiry, PeerRecord};
use crate::ordering::suspicion::{Reason, Suspicions};
use crate::ordering::throughput::Throughput;
use crate::ordering::window::Window;
use crate::sabotage::Sabotage;
use crate::service::Service;
use crate::state::{KeySpace, StateError, Store};
use crate::state_transfer::Sink;
use crate::step::{Effect, Effects, Event, Peer};
use crate::wire::message::Message;
use crate::wire::{Context, Envelope, Verified};
use checkpoints::States;
use commit::History;
use copies::Copies;
use epochs::Epochs;
use observers::Observers;
use persist_before_send::JournalWrites;
use proposing::DecideTime;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use timers::Timers;
use views::Views;

/// One replica of `S`, with its state in `D`.
pub struct Replica<S, D> {
    config: Config,
    context: Context,
    now: Now,
    voting: Voting,
    executor: Executor<S>,
    space: KeySpace<D>,
    /// The last batch that was executed, and the proof that it was committed.
    last_executed: BatchPosition,
    last_certificate: Option<CommitCertificate>,
    /// The certificates of the last batches, a window of them at most.
    recent: VecDeque<CommitCertificate>,
    epochs: Epochs,
    /// When the service wants to be called again.
    deadline: Option<Time>,
    window: Window,
    /// Proposals of views that have not been entered yet: for each sequence the next view's.
    early: BTreeMap<Sequence, ReceivedProposal>,
    decide_time: DecideTime,
    views: Views,
    suspicions: Suspicions,
    throughput: Throughput,
    returning: Returning,
    /// Requests forwarded to this view's leader.
    forwarded: BTreeSet<Digest>,
    /// How many requests had come here at the last STATUS.
    aged: u64,
    pool: Pool,
    blacklist: Blacklist,
    journal_writes: JournalWrites,
    history: History,
    states: States,
    /// The state that is being taken over from peers, if any.
    sink: Option<Sink>,
    /// No vote is given before this sequence has been executed.
    vote_barrier: Sequence,
    peers: Vec<PeerRecord>,
    inquiry: Inquiry,
    observers: Observers,
    copies: Copies,
    /// Committed batches that peers have sent, from the next one on.
    fetched: BTreeMap<Sequence, Arc<Envelope>>,
    /// The same where they prove nothing: which peer gave which batch as executed.
    vouchers: BTreeMap<Sequence, BTreeMap<ReplicaId, Arc<Envelope>>>,
    timers: Timers,
    counters: Counters,
}

/// What an event may have made possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Enables {
    /// A client only queried.
    Nothing,
    /// More requests may wait: a batch may be due.
    Batch,
    Anything,
}

impl<S: Service, D: Store> Replica<S, D> {
    /// Handles one event.
    pub fn step(&mut self, now: Now, event: Event, effects: &mut Effects) {
        self.now = now;
        if self.voting == Voting::Poisoned {
            return;
        }
        let done = self
            .handle(event, effects)
            .and_then(|enables| match enables {
                Enables::Nothing => Ok(()),
                Enables::Batch => {
                    self.advance_requests(effects);
                    Ok(())
                }
                Enables::Anything => self.advance(effects),
            });
        if let Err(error) = done {
            self.voting = Voting::Poisoned;
            effects.push(Effect::Poison {
                reason: error.to_string(),
            });
        }
    }

    fn handle(&mut self, event: Event, effects: &mut Effects) -> Result<Enables, StateError> {
        match event {
            Event::Received { from, message } => {
                if self.blacklist.holds(&from, self.now.monotonic) {
                    self.counters.dropped_blacklisted += 1;
                    return Ok(Enables::Nothing);
                }
                return self.received(from, &message, effects);
            }
            Event::Signed { message } => self.signed(message.envelope(), effects),
            Event::Persisted { token } => self.journal_writes.persisted(token, effects),
            Event::Flushed { sequence } => self.flushed(sequence, effects)?,
            Event::Timer { timer } => self.timer(timer, effects)?,
            Event::Connected { replica } => self.send_status(Some(replica), effects),
            Event::Disconnected { connection } => {
                self.pool.disconnected(connection);
                self.observers.disconnected(connection);
                self.epochs.disconnected(connection);
                self.copies.disconnected(connection);
                self.blacklist.forget(&Peer::Client(connection));
            }
        }
        Ok(Enables::Anything)
    }

    fn received(
        &mut self,
        from: Peer,
        message: &Verified,
        effects: &mut Effects,
    ) -> Result<Enables, StateError> {
        let envelope = message.envelope();
        self.check_for_rollback(envelope, effects);
        match (envelope.message(), from) {
            (Message::Request(_) | Message::OpenSession(_) | Message::CloseSession(_), from) => {
                self.guide_client(from, envelope.header().epoch, effects)?;
                if !self.request(from, envelope, effects)? {
                    return Ok(Enables::Batch);
                }
            }
            (Message::Stray(stray), Peer::Client(connection)) => {
                self.stray(connection, stray, envelope, effects)?;
            }
            (Message::Read(read), Peer::Client(connection)) => {
                self.read(connection, read, effects)?;
                return Ok(Enables::Nothing);
            }
            (Message::FetchCopy(fetch), Peer::Client(connection)) => {
                self.serve_copy(connection, fetch, effects)?;
                return Ok(Enables::Nothing);
            }
            (Message::Observe(observe), Peer::Client(connection)) => {
                self.observe(connection, observe, effects)?;
            }
            (Message::StatusQuery(query), Peer::Client(connection)) => {
                self.status_query(connection, *query, effects);
            }
            (Message::Proposal(_), from) => {
                let leader = self.context.leader(envelope.view());
                let directly = from == Peer::Replica(leader);
                let proposal = Arc::clone(envelope);
                if directly || self.vouched(from, &proposal) {
                    self.proposal(&ReceivedProposal { proposal, directly }, effects);
                }
            }
            (Message::Prepare(_) | Message::Commit(_), _) => self.ballot(envelope),
            (Message::ViewChange(change), _) => {
                self.note_change(change.signer, envelope, effects);
            }
            (Message::NewView(_), _) => self.new_view(envelope, effects),
            (Message::Suspect(suspect), _) => self.suspected(suspect.signer, envelope, effects),
            (Message::Status(status), Peer::Replica(peer)) => {
                let epoch = envelope.header().epoch;
                match epoch == self.context.epoch {
                    true => self.peer_status(peer, envelope.view(), status, effects),
                    false => self.status_of_other_epoch(peer, epoch, status, effects)?,
                }
            }
            (Message::FetchEpochs(fetch), from) => {
                self.serve_epochs(from, fetch.after, effects)?;
            }
            (Message::Epochs(records), Peer::Replica(_)) => {
                self.receive_epochs(records);
            }
            (Message::FetchBodies(fetch), Peer::Replica(peer)) => {
                self.serve_bodies(peer, fetch, effects);
            }
            (Message::Bodies(bodies), Peer::Replica(peer)) => {
                self.bodies_came(peer);
                for body in &bodies.requests {
                    self.window.offer(body);
                }
            }
            (Message::FetchCommitted(fetch), Peer::Replica(peer)) => {
                self.serve_committed(peer, fetch.from, effects)?;
            }
            (Message::Committed(_), Peer::Replica(peer)) => {
                self.committed_elsewhere(peer, envelope);
            }
            (Message::Checkpoint(_), Peer::Replica(_)) => self.checkpoint_vote(envelope, effects),
            (Message::Stable(stable), Peer::Replica(_)) => self.stable(stable, effects),
            (Message::FetchNodes(fetch), Peer::Replica(peer)) => {
                self.serve_nodes(peer, fetch, effects)?;
            }
            (Message::Nodes(nodes), Peer::Replica(peer)) => self.receive_nodes(peer, nodes)?,
            // A message for clients, or one that the wrong side sent.
            _ => {}
        }
        Ok(Enables::Anything)
    }

    /// Does everything that can be done now.
    fn advance(&mut self, effects: &mut Effects) -> Result<(), StateError> {
        self.advance_transfer(effects)?;
        self.advance_epochs(effects)?;
        loop {
            self.advance_abstention(effects);
            self.advance_views(effects);
            self.advance_proposals(effects);
            self.advance_votes(effects);
            self.flush_if_due(effects)?;
            if self.execution_paused()
                || (!self.advance_commit(effects)? && !self.advance_fetched(effects)?)
            {
                break;
            }
        }
        self.propose_all(effects);
        self.advance_inquiries(effects);
        self.watch_throughput(effects);
        self.set_timers(effects);
        self.show_report(effects);
        Ok(())
    }

    /// Does what more waiting requests make possible.
    fn advance_requests(&mut self, effects: &mut Effects) {
        if !self.collects() {
            self.propose_all(effects);
        }
        self.watch_throughput(effects);
        self.set_request_timers(effects);
    }

    /// Where proposals are not signed, one is sent at once and the next may follow.
    fn propose_all(&mut self, effects: &mut Effects) {
        while self.propose(effects) {
            self.advance_votes(effects);
        }
    }

    /// Checks whether the leader is as fast as it could be; this replica itself may be slow.
    fn watch_throughput(&mut self, effects: &mut Effects) {
        let ours = self.execution_paused() || self.history.backlog() || self.sink.is_some();
        let follows = self.leader() != self.config.replica && self.views.active();
        if !follows || self.voting != Voting::Voting {
            self.throughput.idle();
        } else if ours {
            self.throughput.paused();
        } else if self
            .throughput
            .note_waiting(self.now.monotonic, self.pool.owed())
        {
            self.suspect(Reason::Slow, effects);
        }
        self.counters.throughput_compared = self.throughput.compared;
    }

    /// The leader of the view that this replica is in.
    fn leader(&self) -> ReplicaId {
        self.context.leader(self.views.view)
    }

    /// Whether this replica leads its view and may propose.
    fn leads(&self) -> bool {
        self.voting == Voting::Voting
            && self.leader() == self.config.replica
            && self.views.active()
            && self
                .views
                .barred
                .is_none_or(|barred| self.views.view > barred)
    }

    fn sabotaged(&self, sabotage: Sabotage) -> bool {
        self.config.sabotage.is(sabotage)
    }

    /// Its status.
    #[must_use]
    pub fn status(&self) -> Status {
        let durable = self.space.durable_root();
        let certificate = self.last_certificate.iter();
        Status {
            replica: self.config.replica,
            epoch: self.context.epoch,
            began: self.epochs.from(),
            ended: self.epochs.ended(),
            reborn: self
                .epochs
                .announced(|token| self.journal_writes.durable(token)),
            view: self.views.view,
            leader: self.leader(),
            active: self.views.active(),
            sequence: self.last_executed.sequence,
            batch: self.last_executed.digest,
            time: self.last_executed.time,
            durable: durable.map_or(Sequence(0), |root| root.sequence),
            root: durable.map_or(Digest::default(), |root| root.digest),
            stable: self.states.known.stable_sequence(),
            kept: self.states.kept,
            transfer: self.sink.as_ref().map(|it| it.target.checkpoint.sequence),
            voting: self.voting,
            signers: certificate
                .flat_map(|it| &it.votes)
                .map(|vote| vote.signer)
                .collect(),
            sessions: u32::try_from(self.pool.sessions()).unwrap_or(u32::MAX),
            waiting: u32::try_from(self.pool.len()).unwrap_or(u32::MAX),
            authentication: self.config.authentication,
            durability: self.config.durability,
            counters: self.counters,
        }
    }

    /// The last committed sequence.
    #[must_use]
    pub const fn committed(&self) -> Sequence {
        self.last_executed.sequence
    }

    /// The digest of the state as it is now, between durable roots: for tests that compare
    /// replicas. It hashes what has changed since the last call.
    ///
    /// # Errors
    /// If the store fails.
    pub fn state_digest(&mut self) -> Result<Digest, StateError> {
        self.executor.settle(&mut self.space)?;
        self.space.root_digest()
    }

    /// The service.
    pub const fn service(&self) -> &S {
        self.executor.service()
    }
}
