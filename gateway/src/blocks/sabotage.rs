//! Defects that can be built in, so that a simulation shows that it would see them.
//!
//! No release has them: the feature `sabotage`, which the simulator of clouds switches on, adds the
//! only field that can hold one; without it [`Planted`] has no bytes and answers "no" while the
//! program is compiled. Each is a mistake that one could make in good faith, and is asked for in
//! one place of the engine.

use super::engine::Engine;
use super::error::ShardFault;
use super::object::StoredObject;
use bytes::Bytes;

/// A defect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// A write takes the first acknowledgement for two.
    AcknowledgementCountedTwice,
    /// Shards are decoded as they come, and only what comes out is compared with digests.
    DigestCheckedAfterDecode,
    /// A repair writes again what it found.
    RepairTrustsTheShard,
    /// Data shards that were rebuilt from parity are not compared with their digests.
    ParityBelieved,
    /// Whoever gets its data shards whole takes them for the object, whoever wrote it.
    ForeignDataShardsBelieved,
    /// A gateway goes on after a crash with the ids that it had. Those who hand out ids are the
    /// engine's callers, so it is the simulated gateway that does it.
    NonceReusedAfterCrash,
    /// A write returns with one acknowledgement less than w and says that all have acknowledged.
    CommittedBeforeQuorum,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::AcknowledgementCountedTwice,
        Self::DigestCheckedAfterDecode,
        Self::RepairTrustsTheShard,
        Self::ParityBelieved,
        Self::ForeignDataShardsBelieved,
        Self::NonceReusedAfterCrash,
        Self::CommittedBeforeQuorum,
    ];
}

/// The defect that is planted, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planted {
    #[cfg(feature = "sabotage")]
    defect: Option<Sabotage>,
}

impl Planted {
    /// No defect: what every program but a simulation has.
    pub const NONE: Self = Self {
        #[cfg(feature = "sabotage")]
        defect: None,
    };

    /// This defect, or none.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub const fn new(defect: Option<Sabotage>) -> Self {
        Self { defect }
    }

    /// Whether it is this one.
    #[cfg(feature = "sabotage")]
    pub(super) fn is(self, defect: Sabotage) -> bool {
        self.defect == Some(defect)
    }

    /// Whether it is this one: never.
    #[cfg(not(feature = "sabotage"))]
    #[inline(always)]
    pub(super) const fn is(self, _defect: Sabotage) -> bool {
        false
    }
}

impl Engine {
    /// What a cloud has under a shard's name, whatever it is.
    pub(super) async fn found(
        &self,
        object: &StoredObject,
        shard: usize,
    ) -> Result<Bytes, ShardFault> {
        let link = self.link_of(object, shard)?;
        let row = object.shard(shard).ok_or(ShardFault::Defect)?;
        let length = object.layout().stored_length(shard as u64);
        link.get(&object.named(shard, row.attempt), length).await
    }
}
