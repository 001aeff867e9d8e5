//! The configuration of a client.

use crate::fault_model::FaultModel;
use crate::identity::{ClusterId, Epoch, Nanos, PublicKey, Sequence};
use crate::membership::Membership;
use crate::sabotage::Flag;
use crate::wire::limits::OPERATIONS_MAX;

/// A client's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// The cluster that the client talks to.
    pub cluster: ClusterId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The fault model, with the number of replicas (numbered from 0).
    pub fault_model: FaultModel,
    /// The known membership, from which later epochs are followed. Without one the client stays in
    /// this epoch for good. With one, the epoch and the fault model are those of the membership.
    pub membership: Option<Membership>,
    /// The principal that sessions are opened for.
    pub principal: PublicKey,
    /// Lanes to ask for; the service may grant fewer.
    pub lanes: u16,
    /// Requests in flight per lane: 1 or 2.
    pub in_flight: u16,
    /// Operations in one bundle at the most; 1 means no bundles.
    pub bundle_max: usize,
    /// Operations that may be waiting or pending, all lanes together; beyond that a submission
    /// fails with [`super::Failure::Full`].
    pub operations_max: usize,
    /// Bytes of operations that may be waiting or pending, with the same consequence.
    pub bytes_max: usize,
    /// Whether [`OperationKind::Read`](super::OperationKind::Read) is answered out of order. A
    /// client that changes something then waits for a medium quorum of equal replies instead of
    /// r + 1, so that every reader finds a correct one of those replicas: all clients of a cluster
    /// have to agree on this.
    pub unordered_reads: bool,
    /// The delay before the first retry of an unanswered request, until the client has measured the
    /// cluster.
    pub retry: Nanos,
    /// The upper bound of the delay between retries, which doubles each time.
    pub retry_max: Nanos,
    /// The newest state that this client's owner was shown before. Sessions are opened in the
    /// order, so at a later state. Replicas that open one no later than this have lost operations
    /// that they acknowledged: they were restored from a copy, or too many lie. The session ends at
    /// once then ([`End::WentBack`](super::End::WentBack)).
    pub shown: Sequence,
    /// A defect that only a simulation plants: a watch event counts with one copy.
    #[doc(hidden)]
    pub accepts_one_watch_event: Flag,
    /// Another: queries wait as long over any way.
    #[doc(hidden)]
    pub patience_fixed: Flag,
    /// Another: answers to earlier tries of a query are dropped.
    #[doc(hidden)]
    pub earlier_try_dropped: Flag,
    /// Spreads the retries of different clients; any number will do.
    pub jitter_seed: u64,
}

impl ClientConfig {
    /// The number of equal replies that make a result.
    pub(super) const fn replies_needed(&self) -> u16 {
        let model = &self.fault_model;
        if self.unordered_reads {
            model.medium()
        } else {
            model.small()
        }
    }

    /// The same on a cluster whose membership may change.
    #[must_use]
    pub fn following(cluster: ClusterId, membership: Membership, principal: PublicKey) -> Self {
        Self {
            epoch: membership.epoch,
            membership: Some(membership.clone()),
            ..Self::new(cluster, membership.model, principal)
        }
    }

    /// The usual settings for `principal` on this cluster.
    #[must_use]
    pub const fn new(cluster: ClusterId, fault_model: FaultModel, principal: PublicKey) -> Self {
        Self {
            cluster,
            epoch: Epoch(0),
            fault_model,
            membership: None,
            principal,
            lanes: 8,
            in_flight: 1,
            bundle_max: OPERATIONS_MAX,
            operations_max: 4096,
            bytes_max: 64 << 20,
            unordered_reads: true,
            retry: Nanos::from_millis(250),
            retry_max: Nanos::from_secs(4),
            shown: Sequence(0),
            accepts_one_watch_event: Flag::CLEAR,
            patience_fixed: Flag::CLEAR,
            earlier_try_dropped: Flag::CLEAR,
            jitter_seed: 0,
        }
    }
}
