//! Planted defects, by which a simulation shows that it detects them.
//!
//! No release has them: the feature `sabotage`, which the simulator of clouds enables, adds the
//! only field that can hold one. Without it [`Planted`] has no bytes and answers "no" at compile
//! time. Each defect is a plausible mistake, and is queried in one place of the block store.

/// A defect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// A write counts the first acknowledgement twice.
    AcknowledgementCountedTwice,
    /// Shards are decoded unchecked, and only the result is compared with digests.
    DigestCheckedAfterDecode,
    /// A repair writes the cloud's bytes back.
    RepairTrustsTheShard,
    /// Data shards that were rebuilt from parity are not compared with their digests.
    ParityBelieved,
    /// A reader that gets all data shards accepts them, whichever principal wrote the object.
    ForeignDataShardsBelieved,
    /// A gateway continues after a crash with its old ids. The callers of the block store hand out
    /// ids, so the simulated gateway implements this one.
    NonceReusedAfterCrash,
    /// A write returns with one acknowledgement less than w and reports them all.
    CommittedBeforeQuorum,
    /// Collection deletes objects that a retained point in the past needs.
    RetentionIgnored,
    /// Collection deletes objects whose allocation is open.
    AllocationNotChecked,
    /// Rows are forgotten before their shards are deleted.
    ForgottenBeforeDeleted,
    /// Collection deletes the present name of a shard alone.
    AttemptForgotten,
    /// The sweep of listings decides about objects of every class.
    SweepWithoutClasses,
}

impl Sabotage {
    /// Those that simulations look for.
    pub const ALL: [Self; 7] = [
        Self::AcknowledgementCountedTwice,
        Self::DigestCheckedAfterDecode,
        Self::RepairTrustsTheShard,
        Self::ParityBelieved,
        Self::ForeignDataShardsBelieved,
        Self::NonceReusedAfterCrash,
        Self::CommittedBeforeQuorum,
    ];
    /// Those of collection, which unit tests look for.
    pub const OF_COLLECTION: [Self; 5] = [
        Self::RetentionIgnored,
        Self::AllocationNotChecked,
        Self::ForgottenBeforeDeleted,
        Self::AttemptForgotten,
        Self::SweepWithoutClasses,
    ];
}

/// The planted defect, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planted {
    #[cfg(feature = "sabotage")]
    defect: Option<Sabotage>,
}

impl Planted {
    /// No defect: the value of every program except a simulation.
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
    pub(in crate::blocks) fn is(self, defect: Sabotage) -> bool {
        self.defect == Some(defect)
    }

    /// Whether it is this one: never.
    #[cfg(not(feature = "sabotage"))]
    #[inline(always)]
    pub(in crate::blocks) const fn is(self, _defect: Sabotage) -> bool {
        false
    }
}
