//! A replica's settings.

use crate::authentication::Authentication;
use crate::durability::Durability;
use crate::fault_model::FaultModel;
use crate::identity::{ClusterId, Incarnation, Nanos, PublicKey, ReplicaId};
use crate::membership::Membership;
use crate::sabotage::{Planted, Sabotage};
use crate::state::LEAF_BYTES_MAX;
use crate::wire::Context;
use crate::wire::limits::{CHECKPOINT_INTERVAL, REPLY_WHOLE_BYTES, RETURN_AFTER, SESSION_IDLE};
use bytes::Bytes;

/// The newest behaviour that this release knows.
pub const BEHAVIOUR_VERSION: u32 = 1;

/// A replica's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its number in its current epoch; the core sets it.
    pub replica: ReplicaId,
    /// The key that identifies it.
    pub key: PublicKey,
    /// The incarnation that its journal began with when its disk was new.
    pub incarnation: Incarnation,
    /// The one that it begins with if the journal turns out to be lost: a random one at each start.
    /// It must be none that this replica ever had.
    pub reincarnation: Incarnation,
    /// The cluster.
    pub cluster: ClusterId,
    /// Its membership at genesis, the same on every replica.
    pub genesis_membership: Membership,
    /// The initial data of the service: the same bytes on every replica.
    pub genesis: Bytes,
    /// The highest version of the behaviour that this release knows.
    pub behaviour_version: u32,
    /// Batches from one checkpoint to the next: the same number on every replica, for good.
    pub checkpoint_interval: u64,
    /// Whether votes are signed: the same on every replica, for good.
    pub authentication: Authentication,
    /// How durable its runtime makes what it promises: for its status report alone.
    pub durability: Durability,
    /// How long a replica that should lead has to be well before this one hands a view over to it;
    /// `None`: it never does. Longer where that failed ([`crate::ordering::returning`]).
    pub return_after: Option<Nanos>,
    /// The bound on the rows of one leaf of the state tree. Every digest depends on it; a
    /// simulation has small ones, so that small states make deep trees.
    #[doc(hidden)]
    pub leaf_bytes_max: u64,
    /// The length of results above which one replica sends them whole and the others a digest.
    /// Small in a simulation.
    #[doc(hidden)]
    pub reply_whole_bytes: usize,
    /// The time on the lease clock after which a session without a request is closed: the same on
    /// every replica.
    #[doc(hidden)]
    pub session_idle: Nanos,
    /// Whether its own messages, shown by others, make it notice a rollback of its journal. A liar
    /// of a simulation ignores them.
    #[doc(hidden)]
    pub detects_rollback: bool,
    /// A planted defect, to show that a simulation finds it.
    #[doc(hidden)]
    pub sabotage: Planted,
}

impl Config {
    /// The usual settings, for a membership that is known by numbers and never changes.
    #[must_use]
    pub fn new(replica: ReplicaId, cluster: ClusterId, model: FaultModel, genesis: Bytes) -> Self {
        let membership = Membership::unnamed(model);
        let key = membership.member(replica).map(|member| member.key);
        let lost = Incarnation([u8::MAX; 16]);
        let key = key.unwrap_or_default();
        Self {
            replica,
            ..Self::member(
                key,
                Incarnation::default(),
                lost,
                cluster,
                membership,
                genesis,
            )
        }
    }

    /// The usual settings for the member with this key, in a membership that can change.
    #[must_use]
    pub fn member(
        key: PublicKey,
        incarnation: Incarnation,
        reincarnation: Incarnation,
        cluster: ClusterId,
        genesis_membership: Membership,
        genesis: Bytes,
    ) -> Self {
        Self {
            replica: genesis_membership.place(&key).unwrap_or(ReplicaId::NONE),
            key,
            incarnation,
            reincarnation,
            cluster,
            genesis_membership,
            genesis,
            behaviour_version: BEHAVIOUR_VERSION,
            checkpoint_interval: CHECKPOINT_INTERVAL,
            authentication: Authentication::Sig,
            durability: Durability::Strict,
            return_after: Some(RETURN_AFTER),
            leaf_bytes_max: LEAF_BYTES_MAX,
            reply_whole_bytes: REPLY_WHOLE_BYTES,
            session_idle: SESSION_IDLE,
            detects_rollback: true,
            sabotage: Planted::NONE,
        }
    }

    /// The membership at genesis, with the other settings that are agreed for good.
    pub(super) fn membership(&self) -> Membership {
        Membership {
            checkpoint_interval: self.checkpoint_interval,
            ..self.genesis_membership.clone()
        }
    }

    /// What [`crate::wire::admit()`] needs to know at genesis.
    #[must_use]
    pub fn context(&self) -> Context {
        self.context_of(&self.genesis_membership)
    }

    /// The same in a later epoch.
    #[must_use]
    pub fn context_of(&self, membership: &Membership) -> Context {
        let mut context = membership.context(self.cluster);
        context.authentication = self.authentication;
        if self.sabotage.is(Sabotage::QuorumOneShort) {
            context.quorum = context.quorum.saturating_sub(1);
        }
        context.duplicates = self.sabotage.flag(Sabotage::DuplicateSignerCounted);
        context.old_votes = self.sabotage.flag(Sabotage::OldEpochVoteCounted);
        context.short = self.sabotage.flag(Sabotage::CertificateOneShort);
        context.any_sender = self.sabotage.flag(Sabotage::VoteInAnothersName);
        context
    }
}
