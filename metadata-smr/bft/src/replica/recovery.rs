//! From a journal and a state to a replica that runs.
//!
//! Execution starts at the newest durable root; the journal holds the batches committed since, the
//! view, and the votes in the open sequences. Promises are restored as they were. A view that this
//! replica led before the restart it does not lead again: its last proposal may have been sent
//! without being durable.
//!
//! A record of a newer release is not damage, and no reason to forget what it promises: the replica
//! does not start, and the newer release finds everything as it was.
//!
//! If the journal was lost, or contradicts the state, the replica does not vote: what it reads is
//! used to catch up, but it cannot know what else it promised. It is another incarnation from then
//! on, which the new journal begins with, and votes once the membership names that one. A journal
//! and a state that are both older than they should be look like whole ones here; `rollback` says
//! what follows.
//!
//! Records that were void when the journal was trimmed are skipped, as far as they still exist: the
//! driver removes whole segments, and the remaining ones may begin anywhere.
//!
//! A state that was refuted stays refuted, unless another one has replaced it since: such a replica
//! neither votes nor answers before that.
//!
//! Records of epochs before the one that was entered last promise nothing any more.

use super::config::Config;
use super::copies::Copies;
use super::observers::Observers;
use super::persist_before_send::JournalWrites;
use super::proposing::DecideTime;
use super::views::{Phase, Views};
use super::{Epochs, History, Replica, States, Timers, commit, commit::stored_batch};
use crate::admission::{Blacklist, Pool};
use crate::certificate::{CommitCertificate, PreparedCertificate};
use crate::checkpoint::{Checkpoint, Finding};
use crate::execution::Executor;
use crate::identity::{Digest, Now, Sequence};
use crate::journal::{Condition, Entry, Journal, Record};
use crate::metrics::{Counters, Voting};
use crate::ordering::proposer::BatchPosition;
use crate::ordering::returning::Returning;
use crate::ordering::slot::{CommitStage, Promise, Stage};
use crate::ordering::status::Inquiry;
use crate::ordering::suspicion::{Reason, Suspicions};
use crate::ordering::throughput::Throughput;
use crate::ordering::window::Window;
use crate::sabotage::Sabotage;
use crate::service::Service;
use crate::state::{KeySpace, StateError, Store};
use crate::step::{Effects, Token};
use crate::wire::message::{Batch, Kind, Message};
use crate::wire::signed_bytes::genesis_digest;
use crate::wire::{Envelope, Malformed};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Batches of the open sequences that the journal holds with their bodies.
type Voted = BTreeMap<Digest, (Batch, Vec<Arc<Envelope>>)>;

impl<S: Service, D: Store> Replica<S, D> {
    /// Starts a replica from its journal ([`crate::journal::examine`]) and state.
    ///
    /// # Errors
    /// If the state store fails, or a newer release has written the journal; nothing was sent then,
    /// and nothing may be.
    pub fn recover(
        config: Config,
        service: S,
        store: D,
        journal: Journal,
        now: Now,
        effects: &mut Effects,
    ) -> Result<Self, StateError> {
        let mut replica = Self::at_durable_root(config, service, store, now, effects)?;
        let has_state = replica.last_executed.sequence > Sequence(0);
        let fresh = journal.entries.is_empty() && !has_state;
        let mut lost = match &journal.condition {
            Condition::Lost { .. } => true,
            Condition::Intact | Condition::TornTail => journal.entries.is_empty() && !fresh,
        };
        let last = journal.entries.last().map_or(Token(0), |entry| entry.token);
        let next = Token(last.0.saturating_add(1)).max(journal.next);
        let trimmed = journal.entries.iter().rev();
        let trimmed = trimmed.filter_map(|it| Record::trimmed(&it.record)).next();
        let mut voted = Voted::new();
        let mut named = replica.last_executed.sequence.max(replica.epochs.from());
        // First, so that nothing of the state that is being replaced is flushed meanwhile.
        replica.resume_transfer()?;
        let counts = |entry: &Entry| Some(entry.token) >= trimmed;
        for entry in journal.entries.into_iter().filter(counts) {
            // Nothing after the first record that makes no sense can be relied on.
            let made_sense = match Record::decode(&entry.record) {
                Ok(record) => {
                    let void = record.epoch().is_some_and(|of| of < replica.context.epoch);
                    named = match (&record, record.sequence()) {
                        (Record::Epoch(record), _) if record.epoch() > replica.context.epoch => {
                            record.membership.from
                        }
                        (_, Some(sequence)) if !void => named.max(sequence),
                        _ => named,
                    };
                    replica.replay(record, entry.token, &mut voted, effects)?
                }
                // Its checksum is right, so it is not damaged. This release does not know what it
                // promises.
                Err(Malformed::OtherVersion { .. } | Malformed::UnknownKind) => {
                    return Err(StateError::NewerJournal);
                }
                Err(_) => false,
            };
            if !made_sense {
                lost = true;
                break;
            }
        }
        replica.journal_writes = JournalWrites::new(next, Self::forgetful(&replica.config));
        replica.journal_writes.recovered(named);
        if lost {
            replica.epochs.incarnation = replica.config.reincarnation;
            replica.epochs.reborn = true;
        }
        replica.voting = match replica.voting_by_membership() {
            Voting::Abstaining if replica.states.finding.is_some() => Voting::Diverged,
            Voting::Abstaining => Voting::Voting,
            other => other,
        };
        if replica.voting != Voting::Voting {
            replica.views.forget_own();
            replica.window.leave_view();
        }
        replica.announce_epoch(effects);
        let mark = replica.start_mark();
        replica.views.boot_token = replica.journal_writes.persist(&mark, effects);
        if !fresh && !replica.sabotaged(Sabotage::OldViewLedAgain) {
            replica.views.barred = Some(replica.views.view);
            if replica.leader() == replica.config.replica {
                replica.suspect(Reason::Abdicated, effects);
            }
        }
        if replica.voting == Voting::Voting {
            replica.voting = Voting::Abstaining;
            replica.advance_abstention(effects);
        }
        replica.examine_states(effects);
        replica.start_timers(effects);
        replica.send_status(None, effects);
        replica.advance(effects)?;
        Ok(replica)
    }

    fn at_durable_root(
        config: Config,
        service: S,
        store: D,
        now: Now,
        effects: &mut Effects,
    ) -> Result<Self, StateError> {
        let config_interval = config.checkpoint_interval;
        let mut space = KeySpace::open_with_leaves(store, config.leaf_bytes_max)?;
        let root = space.durable_root().map_or(Sequence(0), |it| it.sequence);
        let executor = Executor::new(service)
            .with_idle(config.session_idle)
            .sabotaged(config.sabotage, root);
        space.trust(config.sabotage.flag(Sabotage::TransferUnverified));
        if space.durable_root().is_none() {
            executor.genesis(&mut space, &config.genesis, &config.membership())?;
        }
        let mut states = States::stored(&space)?;
        let applied = executor.applied(&space)?;
        let genesis = genesis_digest(config.cluster, &config.genesis);
        let agreed = executor.membership(&space)?;
        let epochs = Epochs::stored(&config, &space, agreed, genesis)?;
        let count = config.context().recent();
        let recent = recent_certificates(&space, applied.sequence, epochs.from(), count)?;
        let digest = match (recent.back(), applied.sequence == epochs.from()) {
            (Some(last), _) => last.digest,
            (None, true) => epochs.start,
            // Older than its epoch: another state replaces it before any batch follows upon it.
            (None, false) => {
                stored_certificate(&space, applied.sequence)?.map_or(genesis, |last| last.digest)
            }
        };
        let last_executed = BatchPosition {
            sequence: applied.sequence,
            digest,
            time: applied.time,
        };
        if let Some(root) = space.durable_root() {
            states.durable(Checkpoint {
                sequence: root.sequence,
                batch: digest,
                root: root.digest,
                membership: epochs.digest(),
            });
        }
        let throughput =
            Throughput::sabotaged(config.sabotage.flag(Sabotage::ThroughputComparedIdle));
        let mut pool = Pool::default();
        commit::announce_sessions(&executor, &space, &mut pool, effects)?;
        let context = config.context_of(&epochs.current);
        let mut replica = Self {
            deadline: executor.next_deadline(&space)?,
            peers: Vec::new(),
            context,
            config,
            now,
            voting: Voting::Voting,
            executor,
            space,
            window: Window::after(last_executed.sequence, &context),
            last_executed,
            last_certificate: recent.back().cloned(),
            recent,
            epochs,
            early: BTreeMap::new(),
            decide_time: DecideTime::default(),
            views: Views::default(),
            suspicions: Suspicions::default(),
            throughput,
            returning: Returning::default(),
            forwarded: BTreeSet::new(),
            aged: 0,
            pool,
            blacklist: Blacklist::default(),
            journal_writes: JournalWrites::default(),
            history: History::every(config_interval),
            states,
            sink: None,
            vote_barrier: Sequence(0),
            inquiry: Inquiry::default(),
            observers: Observers::default(),
            copies: Copies::default(),
            fetched: BTreeMap::new(),
            vouchers: BTreeMap::new(),
            timers: Timers::default(),
            counters: Counters::default(),
        };
        replica.apply_membership();
        Ok(replica)
    }

    /// Replays one record. `false` if it cannot be true.
    fn replay(
        &mut self,
        record: Record,
        token: Token,
        voted: &mut Voted,
        effects: &mut Effects,
    ) -> Result<bool, StateError> {
        if record.epoch().is_some_and(|of| of < self.context.epoch) {
            return Ok(true);
        }
        match record {
            Record::BootMark | Record::Trimmed { .. } => Ok(true),
            Record::Epoch(record) => {
                if record.epoch() > self.context.epoch {
                    self.begin_epoch(*record)?;
                }
                Ok(true)
            }
            Record::Stable { certificate } => {
                // A batch that waits at a boundary may have waited for this.
                self.states.known.learn(&certificate);
                self.flush_if_due(effects)?;
                Ok(true)
            }
            Record::VoteBarrier { until, .. } => {
                self.vote_barrier = self.vote_barrier.max(until);
                Ok(true)
            }
            Record::Refuted { sequence } => {
                self.states.finding = Some(Finding::Alone(sequence));
                Ok(true)
            }
            Record::Replaced { root } => {
                let roots = [self.space.durable_root(), self.space.previous_root()];
                if roots.contains(&Some(root)) {
                    self.states.finding = None;
                }
                Ok(true)
            }
            Record::Incarnation(incarnation) => {
                self.epochs.incarnation = incarnation;
                self.epochs.reborn = true;
                Ok(true)
            }
            Record::Voted {
                proposal,
                bodies,
                vote,
            } => {
                let whole = |it: &&Batch| it.requests.len() == bodies.len();
                if let Some(batch) = proposal.batch().filter(whole) {
                    voted.insert(proposal.digest(), (batch.clone(), bodies.clone()));
                }
                Ok(self.replay_voted(proposal, &bodies, vote, token))
            }
            Record::Prepared { prepared, commit } => {
                let batch = prepared.as_ref().and_then(|it| it.proposal.batch());
                let slot = batch.and_then(|batch| self.window.get_mut(batch.sequence));
                if let Some(slot) = slot {
                    slot.recorded(token);
                    slot.prepared = prepared;
                }
                if let Some(commit) = commit {
                    self.replay_commit(commit, token);
                }
                Ok(true)
            }
            Record::Committed { certificate, batch } => {
                let known = batch.or_else(|| voted.remove(&certificate.digest));
                voted.retain(|_, (batch, _)| batch.sequence > certificate.sequence);
                self.replay_committed(certificate, known, token, effects)
            }
            Record::ViewChange { frame } => {
                if frame.view() > self.views.view {
                    self.views.go(frame.view(), Phase::Changing);
                    self.window.leave_view();
                }
                if frame.view() == self.views.view {
                    let small = self.context.model.small().into();
                    let departures = &mut self.views.departures;
                    let now = self.now.monotonic;
                    departures.change(self.config.replica, &frame, small, now);
                    self.views.own_change = Some(Promise {
                        message: frame,
                        token,
                    });
                }
                Ok(true)
            }
            Record::NewView { frame } => {
                let later = frame.view() > self.views.view;
                if later || (frame.view() == self.views.view && !self.views.active()) {
                    self.begin_view(&frame);
                    self.suspicions = Suspicions::default();
                }
                Ok(true)
            }
        }
    }

    fn replay_voted(
        &mut self,
        proposal: Arc<Envelope>,
        bodies: &[Arc<Envelope>],
        vote: Option<Arc<Envelope>>,
        token: Token,
    ) -> bool {
        let Some(batch) = proposal.batch().cloned() else {
            return false;
        };
        let (sequence, open) = (batch.sequence, self.window.open());
        let votes_on = self.window.votes_on(sequence);
        let (phases, current) = (
            self.has_prepare_phase(),
            proposal.view() == self.views.view && self.views.active(),
        );
        let Some(slot) = self.window.get_mut(sequence).filter(|_| votes_on) else {
            // Below, it was executed since. Above is impossible: commits are recorded before.
            return sequence < open;
        };
        slot.recorded(token);
        bodies.iter().for_each(|body| slot.bodies_mut().keep(body));
        if slot.bodies().of(proposal.digest_ref(), &batch).is_some() {
            self.window.journaled(&proposal);
        }
        let commits = matches!(
            vote.as_deref().map(Envelope::message),
            Some(Message::Commit(_))
        );
        let Some(slot) = self.window.get_mut(sequence) else {
            return true;
        };
        // With PREPAREs, the certificate that a COMMIT rests on has a record of its own.
        let before = slot.prepared.as_ref().map(|it| it.proposal.view());
        if commits && !phases && before.is_none_or(|before| before < proposal.view()) {
            let (proposal, votes) = (Arc::clone(&proposal), Vec::new());
            slot.prepared = Some(PreparedCertificate { proposal, votes });
        }
        if !current {
            // Kept because something prepared in an earlier view rests on it.
            return true;
        }
        let known = slot.proposal.as_ref().map(|it| it.digest());
        if known != Some(proposal.digest()) {
            // Otherwise it was written again behind a root: what is known of it still holds.
            slot.accept(Arc::clone(&proposal));
        }
        slot.stage = Stage::Voted;
        match vote {
            Some(vote) if commits => self.replay_commit(vote, token),
            Some(vote) => {
                slot.own_prepare = Some(Promise {
                    message: vote,
                    token,
                });
                self.count_own(sequence, Kind::Prepare);
            }
            None => {}
        }
        true
    }

    fn replay_commit(&mut self, commit: Arc<Envelope>, token: Token) {
        let Message::Commit(ballot) = *commit.message() else {
            return;
        };
        let Some(slot) = self.window.get_mut(ballot.sequence) else {
            return;
        };
        let current = slot.proposal.as_ref().is_some_and(|proposal| {
            proposal.view() == commit.view() && *proposal.digest_ref() == ballot.digest
        });
        if current {
            slot.commit = CommitStage::Durable;
            slot.own_commit = Some(Promise {
                message: commit,
                token,
            });
            self.count_own(ballot.sequence, Kind::Commit);
        }
    }

    fn replay_committed(
        &mut self,
        certificate: CommitCertificate,
        known: Option<(Batch, Vec<Arc<Envelope>>)>,
        token: Token,
        effects: &mut Effects,
    ) -> Result<bool, StateError> {
        let open = self.window.open();
        if certificate.sequence != open {
            return Ok(certificate.sequence < open);
        }
        let Some((batch, bodies)) = known else {
            return Ok(false);
        };
        if self.history.backlog() {
            // No batch was executed past a boundary before the one below was stable, as a record
            // before this one says.
            return Ok(false);
        }
        self.window.lowest_mut().recorded(token);
        self.execute(&batch, &bodies, effects)?;
        self.counters.replayed += 1;
        self.enter_next_slot(batch, bodies, certificate);
        self.flush_if_due(effects)?;
        Ok(true)
    }
}

/// The certificates of the last `count` batches under the durable root, if there are as many.
fn recent_certificates<D: Store>(
    space: &KeySpace<D>,
    last_executed: Sequence,
    from: Sequence,
    count: usize,
) -> Result<VecDeque<CommitCertificate>, StateError> {
    let mut recent = VecDeque::new();
    for step in 0..count as u64 {
        let sequence = Sequence(last_executed.0.saturating_sub(step));
        if sequence <= from {
            break;
        }
        // The last one is there; of those before, the ones that have not been truncated.
        if step > 0 && stored_batch(space, sequence)?.is_none() {
            break;
        }
        match stored_certificate(space, sequence)? {
            Some(certificate) => recent.push_front(certificate),
            None => break,
        }
    }
    Ok(recent)
}

/// The certificate of a batch under the durable root.
fn stored_certificate<D: Store>(
    space: &KeySpace<D>,
    sequence: Sequence,
) -> Result<Option<CommitCertificate>, StateError> {
    if sequence == Sequence(0) {
        return Ok(None);
    }
    let damaged = |reason: &str| StateError::Damaged {
        place: format!("committed batch {sequence}"),
        reason: reason.to_owned(),
    };
    let frame = stored_batch(space, sequence)?.ok_or_else(|| damaged("it is missing"))?;
    let envelope = Envelope::decode(frame).map_err(|error| damaged(&error.to_string()))?;
    match envelope.message() {
        Message::Committed(committed) if committed.certificate.sequence == sequence => {
            Ok(Some(committed.certificate.clone()))
        }
        _ => Err(damaged("it is something else")),
    }
}
