//! The counters of a replica, and its status report.
//!
//! All counter names are defined here and nowhere else. They show an operator what is happening,
//! and the simulator that a path was really taken.

use crate::authentication::Authentication;
use crate::durability::Durability;
use crate::identity::{Digest, Epoch, Incarnation, ReplicaId, Sequence, Time, View};
use borsh::{BorshDeserialize, BorshSerialize};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of events since this process started.
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize,
        )]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Names and values, in a fixed order.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Batches executed.
    batches,
    /// Of those, learnt from a peer with their certificate.
    batches_fetched,
    /// Requests executed.
    requests,
    /// Operations executed.
    operations,
    /// Requests in a batch that had been executed before.
    duplicates,
    /// Replies sent from the cache.
    replies_resent,
    /// Replies with a digest in place of the results, which another replica gave.
    replies_shortened,
    /// Ticks executed.
    ticks,
    /// Sessions opened.
    sessions_opened,
    /// Sessions closed by their owner.
    sessions_closed,
    /// Sessions closed because they were idle.
    sessions_expired,
    /// Batches proposed.
    proposals,
    /// Of those, carried over from an earlier view.
    reproposals,
    /// Of those, fresh ones while others were pending.
    pipelined,
    /// Of those, while three or more were pending.
    pipelined_deep,
    /// Proposals that came before their predecessor, or are beyond the window.
    proposals_ahead,
    /// Batches for which q COMMITs were here before the batch before them was executed.
    decided_early,
    /// Views that began with several batches carried over.
    chains_carried,
    /// PREPAREs sent.
    prepares,
    /// COMMITs sent.
    commits,
    /// Proposals held back until our clock reaches their time.
    held_for_clock,
    /// Proposals refused because no correct leader would have made them.
    proposals_refused,
    /// Leaders found to have made two proposals for one sequence.
    equivocations,
    /// Times that a body was asked for.
    bodies_fetched,
    /// Times that committed batches were asked for.
    committed_fetched,
    /// Frames sent again because a STATUS showed that they are missing.
    resends,
    /// Committed batches sent to peers.
    committed_served,
    /// Requests forwarded to a leader that seems not to have them.
    forwarded,
    /// SUSPECTs sent.
    suspicions,
    /// Of those, because nothing committed in time.
    suspicions_progress,
    /// Of those, because requests were passed over.
    suspicions_unfair,
    /// Of those, because the leader's time lags.
    suspicions_clock,
    /// Of those, because others had to repeat the leader's proposals.
    suspicions_silent,
    /// Of those, because it orders less than it could.
    suspicions_slow,
    /// SUSPECTs withdrawn, since the order went on.
    suspicions_withdrawn,
    /// Views that this leader handed over to a replica that should lead.
    handovers,
    /// Intervals in which requests were waiting all the time, and that were compared with others.
    throughput_compared,
    /// VIEW-CHANGEs sent.
    view_changes,
    /// Views entered.
    views_entered,
    /// NEW-VIEWs made as a leader.
    new_views_led,
    /// Requests beyond their session's credit or this replica's capacity.
    busy,
    /// Requests of sessions that have ended.
    no_session,
    /// Peers blacklisted.
    blacklisted,
    /// Messages dropped because their sender is blacklisted.
    dropped_blacklisted,
    /// Queries answered out of order.
    reads,
    /// READs that could not be answered.
    reads_refused,
    /// Committed batches sent to laggards because a client asked again.
    laggards_handed,
    /// Durable roots written.
    flushes,
    /// Checkpoints that this replica has voted for.
    checkpoints,
    /// Checkpoints that became stable.
    checkpoints_stable,
    /// Committed batches removed because a stable checkpoint covers them.
    batches_truncated,
    /// State transfers begun.
    transfers,
    /// Of those, moved to a newer checkpoint on the way.
    transfers_moved,
    /// Of those, resumed after a restart.
    transfers_resumed,
    /// Of those, finished.
    transfers_finished,
    /// Nodes of a state taken over from peers.
    nodes_fetched,
    /// Nodes of a state that a peer sent and that did not match their digest.
    nodes_refused,
    /// Nodes of a state sent to peers.
    nodes_served,
    /// Times that the own state was found to differ from that of a quorum.
    states_refuted,
    /// Reports shown to observers.
    reports,
    /// Attempts to observe that were refused.
    observers_refused,
    /// Events of sessions that watch.
    watch_events,
    /// Epochs entered.
    epochs_entered,
    /// Of those, by their records alone, without the state that they begin from.
    epochs_jumped,
    /// Records of epochs sent.
    epochs_served,
    /// Batches that ended an epoch.
    epochs_ended,
    /// Batches replayed from the journal at the start.
    replayed,
    /// Votes for batches that were executed here before, for replicas that have not executed them.
    echoes,
    /// NEW-VIEWs without the batches that their view begins with.
    new_views_refused,
    /// Messages sent back to the peer that made them, which seems not to know of them.
    messages_returned,
    /// Times that the journal was found to be older than messages of this replica.
    rollbacks_noticed,
    /// Batches that asked for a checkpoint.
    checkpoints_wanted,
    /// Nodes of the state sent to clients that copy it.
    nodes_copied,
    /// Requests for such nodes by clients that may not copy it.
    copies_refused,
}

/// Whether a replica votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Voting {
    /// It votes.
    Voting,
    /// It lost its journal, or has an older one than that in which it made its promises: it follows
    /// and serves, but it cannot know its promises. It votes from the epoch that begins with its
    /// rejoining.
    Lost,
    /// Its state store failed: it is silent.
    Poisoned,
    /// Its state is not the one that a quorum has, or no quorum has the same.
    Diverged,
    /// The membership does not name it as a voter: it follows and serves.
    Observing,
    /// Its state came from others, and it may have voted for batches that it has not executed again
    /// yet.
    Abstaining,
}

impl Voting {
    /// As one word, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Voting => "voting",
            Self::Lost => "lost",
            Self::Poisoned => "poisoned",
            Self::Diverged => "diverged",
            Self::Observing => "observing",
            Self::Abstaining => "abstaining",
        }
    }
}

/// A replica's status report.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct ReplicaStatus {
    /// Its id.
    pub replica: ReplicaId,
    /// Its membership epoch.
    pub epoch: Epoch,
    /// The last batch of the epoch before.
    pub began: Sequence,
    /// Whether it has executed the end of its epoch, and waits for the next one to begin.
    pub ended: bool,
    /// Its incarnation, if it is not the one in the membership.
    pub reborn: Option<Incarnation>,
    /// Its view.
    pub view: View,
    /// That view's leader.
    pub leader: ReplicaId,
    /// Whether it knows the batches that the view begins with; otherwise it waits for the NEW-VIEW.
    pub active: bool,
    /// The last sequence that it has executed.
    pub sequence: Sequence,
    /// The digest of that batch, which covers the whole order up to it.
    pub batch: Digest,
    /// The agreed time of that batch.
    pub time: Time,
    /// The sequence of its newest durable root.
    pub durable: Sequence,
    /// The digest of the state at that root.
    pub root: Digest,
    /// The newest stable checkpoint that it knows.
    pub stable: Sequence,
    /// The first committed batch that it keeps for other replicas.
    pub kept: Sequence,
    /// The checkpoint whose state it is taking over from its peers, if any.
    pub transfer: Option<Sequence>,
    /// Whether it votes.
    pub voting: Voting,
    /// The replicas whose COMMITs are in the certificate of the last batch.
    pub signers: Vec<ReplicaId>,
    /// Open sessions.
    pub sessions: u32,
    /// Pending requests.
    pub waiting: u32,
    /// How the cluster authenticates votes.
    pub authentication: Authentication,
    /// How durable what it promises is.
    pub durability: Durability,
    /// Its counters.
    pub counters: Counters,
}

impl ReplicaStatus {
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        // Writing into a vector cannot fail.
        let _ = BorshSerialize::serialize(self, bytes);
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        borsh::from_slice(bytes).ok()
    }
}
