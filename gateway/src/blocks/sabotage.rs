//! Defects that can be built in, so that a simulation shows that it would see them.
//!
//! Nothing but the simulator of clouds switches one on: a configuration begins without any. Each is
//! a mistake that somebody could make in good faith, and is asked for in one place of the engine.

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
