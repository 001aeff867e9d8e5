//! What a replica is told once.

use crate::authentication::Authentication;
use crate::fault_model::FaultModel;
use crate::identity::{ClusterId, Epoch, Nanos, ReplicaId};
use crate::state::LEAF_BYTES_MAX;
use crate::wire::Context;
use crate::wire::limits::{CHECKPOINT_INTERVAL, REPLY_WHOLE_BYTES, SESSION_IDLE};
use bytes::Bytes;

/// A replica's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who this is.
    pub replica: ReplicaId,
    /// The cluster.
    pub cluster: ClusterId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Who may fail, and how many replicas there are (numbered from 0).
    pub model: FaultModel,
    /// What the service begins with: the same bytes on every replica.
    pub genesis: Bytes,
    /// The version of the behaviour that is run.
    pub behaviour_version: u32,
    /// Batches from one checkpoint to the next: the same number on every replica, for good.
    pub checkpoint_interval: u64,
    /// Whether votes are signed: the same on every replica, for good.
    pub authentication: Authentication,
    /// The bound on the rows of one leaf of the state tree. It decides every digest; a simulation
    /// has small ones, so that small states make deep trees.
    #[doc(hidden)]
    pub leaf_bytes_max: u64,
    /// Above how many bytes of results one replica gives them and the others a digest. A simulation
    /// has few.
    #[doc(hidden)]
    pub reply_whole_bytes: usize,
    /// After how long on the clock of leases a session without a request is closed: the same on
    /// every replica.
    #[doc(hidden)]
    pub session_idle: Nanos,
    /// A defect to be built in, so that a simulation can show that it would be found.
    #[doc(hidden)]
    pub sabotage: Option<Sabotage>,
}

impl Config {
    /// The usual settings.
    #[must_use]
    pub const fn new(
        replica: ReplicaId,
        cluster: ClusterId,
        model: FaultModel,
        genesis: Bytes,
    ) -> Self {
        Self {
            replica,
            cluster,
            epoch: Epoch(0),
            model,
            genesis,
            behaviour_version: 1,
            checkpoint_interval: CHECKPOINT_INTERVAL,
            authentication: Authentication::Sig,
            leaf_bytes_max: LEAF_BYTES_MAX,
            reply_whole_bytes: REPLY_WHOLE_BYTES,
            session_idle: SESSION_IDLE,
            sabotage: None,
        }
    }

    /// What [`crate::wire::admit`] needs to know.
    #[must_use]
    pub fn context(&self) -> Context {
        let mut context = Context::new(self.cluster, self.epoch, self.model);
        context.authentication = self.authentication;
        match self.sabotage {
            Some(Sabotage::QuorumOneShort) => context.quorum = context.quorum.saturating_sub(1),
            Some(Sabotage::DuplicateSignerCounted) => context.duplicates = true,
            _ => {}
        }
        context
    }
}

/// Defects that a simulation has to find. Nobody else has a way to ask for one.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sabotage {
    /// The medium quorum is one too small.
    QuorumOneShort,
    /// COMMIT leaves when the own vote is durable, though the prepared certificate is not.
    VoteWithoutPreparedCertificate,
    /// PREPARE leaves without the bodies.
    PrepareWithoutBody,
    /// A proposal that a view change carried over is refused because of its time.
    ReproposalRefusedByClock,
    /// A vote that comes twice counts twice.
    DuplicateSignerCounted,
    /// A retry of the last request of a lane is executed again.
    RetryExecutedTwice,
    /// Messages do not wait for the disk.
    ForgottenFsync,
    /// What comes of a state is not compared with the digest that its parent names.
    TransferUnverified,
    /// A view begins with the certificates of the lowest views that are shown.
    LockOnLowerView,
    /// COMMIT is given for a batch before the one that it follows upon is prepared.
    CommitBeforePredecessor,
    /// Queries are answered without saying when what they saw last changed.
    ReadWithoutVersion,
    /// No STATUS is sent, so nothing that was lost comes again.
    MissingStatus,
    /// A state comes without the replies that were given in it: who asks again is told that they
    /// are gone.
    ReplyCacheOutsideState,
    /// A leader's throughput is compared however little there is to do.
    ThroughputComparedIdle,
    /// Clients believe a single replica that says that something they watch has changed.
    WatchOnOneCopy,
    /// What one replica claims to have prepared is chosen though not enough have accepted it.
    ClaimNotAccepted,
    /// A view begins with nothing where it is not known yet what it begins with.
    NothingInsteadOfWaiting,
    /// A committed batch is believed on one replica's word.
    OneVoucher,
}

impl Sabotage {
    /// Every defect.
    pub const ALL: [Self; 18] = [
        Self::QuorumOneShort,
        Self::VoteWithoutPreparedCertificate,
        Self::PrepareWithoutBody,
        Self::ReproposalRefusedByClock,
        Self::DuplicateSignerCounted,
        Self::RetryExecutedTwice,
        Self::ForgottenFsync,
        Self::TransferUnverified,
        Self::LockOnLowerView,
        Self::CommitBeforePredecessor,
        Self::ReadWithoutVersion,
        Self::MissingStatus,
        Self::ReplyCacheOutsideState,
        Self::ThroughputComparedIdle,
        Self::WatchOnOneCopy,
        Self::ClaimNotAccepted,
        Self::NothingInsteadOfWaiting,
        Self::OneVoucher,
    ];
}
