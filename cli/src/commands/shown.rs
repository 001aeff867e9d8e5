//! The newest state that the servers have shown this state directory, to refuse servers that are
//! behind it.
//!
//! Replicas that were restored from copies of their disks do not know what they acknowledged since.
//! They would assign numbers a second time, present an old key epoch as the newest, and show old
//! versions of files, with a quorum that vouches for it. Only a client that saw more can detect
//! that. So each command and mount stores the highest numbers that it was shown, and the next one
//! from this state directory refuses lower ones (`Exit::WentBack`). The message says what an
//! operator can do, and `volume accept-rollback` ends the refusal.
//!
//! A new state directory accepts the first state that it is shown. So does one whose file is
//! damaged or missing: a user who can write to the directory has the key anyway.

use crate::directory;
use crate::failure::CommandResult;
use quorumfs_bft::identity::{ClusterId, Sequence};
use quorumfs_metadata::identity::{AllocationId, RealmEpoch};
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

/// The file in a volume's state directory.
pub(super) const FILE: &str = "shown";

/// The highest numbers that were shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// The highest operation that was shown.
    pub(super) sequence: Sequence,
    /// The realm's key epoch.
    pub(super) epoch: RealmEpoch,
    /// The newest allocation of ids that was granted, if any.
    pub(super) allocation: Option<AllocationId>,
}

impl Shown {
    fn max(self, other: Self) -> Self {
        Self {
            sequence: self.sequence.max(other.sequence),
            epoch: self.epoch.max(other.epoch),
            allocation: self.allocation.max(other.allocation),
        }
    }

    fn encode(self, cluster: ClusterId) -> Vec<u8> {
        let allocations = self.allocation.map_or(0, |it| it.0.saturating_add(1));
        let mut bytes = cluster.0.to_vec();
        bytes.extend(self.sequence.0.to_le_bytes());
        bytes.extend(self.epoch.0.to_le_bytes());
        bytes.extend(allocations.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8], cluster: ClusterId) -> Option<Self> {
        let rest = bytes.strip_prefix(&cluster.0)?;
        let (sequence, rest) = rest.split_first_chunk()?;
        let (epoch, rest) = rest.split_first_chunk()?;
        let allocations = u64::from_le_bytes(rest.try_into().ok()?);
        Some(Self {
            sequence: Sequence(u64::from_le_bytes(*sequence)),
            epoch: RealmEpoch(u32::from_le_bytes(*epoch)),
            allocation: allocations.checked_sub(1).map(AllocationId),
        })
    }
}

/// The file, and the cluster that it is about.
#[derive(Clone, Debug)]
pub(super) struct ShownBefore {
    path: PathBuf,
    cluster: ClusterId,
}

impl ShownBefore {
    pub(super) fn new(path: PathBuf, cluster: ClusterId) -> Self {
        Self { path, cluster }
    }

    /// The stored numbers, as far as they are known.
    pub(super) fn recall(&self) -> Shown {
        let path = self.path.display();
        match fs::read(&self.path) {
            Ok(bytes) => Shown::decode(&bytes, self.cluster).unwrap_or_else(|| {
                tracing::warn!(%path, "damaged or about another volume: any state is accepted");
                Shown::default()
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Shown::default(),
            Err(error) => {
                tracing::warn!(%path, %error, "cannot be read: any state is accepted");
                Shown::default()
            }
        }
    }

    /// Stores numbers that are higher than the stored ones.
    pub(super) fn keep(&self, shown: Shown) {
        // Usually nothing is new.
        let is_news = || self.recall() != self.recall().max(shown);
        if !is_news() {
            return;
        }
        let kept = directory::lock_for(&self.path).and_then(|_alone| {
            let all = self.recall().max(shown);
            directory::replace(&self.path, &all.encode(self.cluster))
        });
        if let Err(failure) = kept {
            tracing::warn!(%failure, "the state that the servers have shown could not be stored");
        }
    }

    /// From now on accepts servers that are at no more than this.
    pub(crate) fn accept(&self, shown: Shown) -> CommandResult<()> {
        let _alone = directory::lock_for(&self.path)?;
        directory::replace(&self.path, &shown.encode(self.cluster))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_of_each_number_is_kept_and_what_is_damaged_is_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shown");
        let before = ShownBefore::new(path.clone(), ClusterId([1; 16]));
        assert_eq!(before.recall(), Shown::default());
        let of = |sequence, epoch, allocation: Option<u64>| Shown {
            sequence: Sequence(sequence),
            epoch: RealmEpoch(epoch),
            allocation: allocation.map(AllocationId),
        };
        before.keep(of(7, 2, Some(0)));
        before.keep(of(9, 1, None));
        assert_eq!(before.recall(), of(9, 2, Some(0)));
        before.accept(of(3, 0, None)).unwrap();
        assert_eq!(before.recall(), of(3, 0, None));
        let other = ShownBefore::new(path.clone(), ClusterId([2; 16]));
        assert_eq!(other.recall(), Shown::default());
        for rubbish in [&b"rubbish"[..], b"", &[1; 16], &[1; 37]] {
            fs::write(&path, rubbish).unwrap();
            assert_eq!(before.recall(), Shown::default());
        }
    }

    #[test]
    fn commands_side_by_side_lose_nothing_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let before = ShownBefore::new(directory.path().join("shown"), ClusterId([1; 16]));
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let before = &before;
                scope.spawn(move || {
                    for step in 0..20 {
                        before.keep(Shown {
                            sequence: Sequence(step * 8 + thread),
                            ..Shown::default()
                        });
                    }
                });
            }
        });
        assert_eq!(before.recall().sequence, Sequence(159));
    }
}
