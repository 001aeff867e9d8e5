//! Jobs of the volume that one process does at a time, and retained points in the past.

use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::{Sequence, SessionId, Time};

/// A job.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize,
)]
pub enum Job {
    /// Moves live slices out of sparse packs.
    Compaction,
    /// Deletes what nothing needs, by the queue of the unreferenced.
    Collection,
    /// Deletes what nothing needs, by the clouds' listings.
    Sweep,
    /// Backs the metadata up to the clouds.
    Backup,
    /// Moves the shards of draining clouds.
    Drain,
}

impl Job {
    /// Its number in keys.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Compaction => 0,
            Self::Collection => 1,
            Self::Sweep => 2,
            Self::Backup => 3,
            Self::Drain => 4,
        }
    }
}

impl std::fmt::Display for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Compaction => "compaction",
            Self::Collection => "collection",
            Self::Sweep => "sweep",
            Self::Backup => "backup",
            Self::Drain => "drain",
        })
    }
}

/// The session that does a job. The job is in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct JobHolder {
    /// The session.
    pub session: SessionId,
    /// Until when, by the agreed time.
    pub until: Time,
}

/// Why a point in the past is retained.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum RetentionKind {
    /// A copy of the metadata on the clouds is of this point.
    RecoveryPoint,
    /// A link that needs no server refers to objects of this point. Capsules retain what they need
    /// by themselves, so nothing orders this.
    Link,
}

/// Points in the past that are retained: what the volume needed at one of them is not forgotten.
/// Its number is in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Retention {
    /// The reason.
    pub kind: RetentionKind,
    /// The first point.
    pub from: Sequence,
    /// The last point; `None`: it is not known yet, so all points since the first are retained.
    pub to: Option<Sequence>,
    /// The time of the first point.
    pub at: Time,
    /// Until when; `None`: until it is released.
    pub until: Option<Time>,
}

impl Retention {
    /// Whether one of the points needs what was created at `born` and not needed any more from
    /// `since` on.
    #[must_use]
    pub fn needs(&self, born: Sequence, since: Sequence) -> bool {
        self.from < since && born < since && self.to.is_none_or(|to| born <= to && self.from <= to)
    }
}
