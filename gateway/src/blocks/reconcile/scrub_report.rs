//! The findings of a scrub so far, for its caller and for the status.

use crate::blocks::clouds::Link;
use quorumfs_metadata::identity::{CloudIndex, ObjectId};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The state of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShardObservation {
    /// It is present, with the right length.
    Present,
    /// So many bytes of it were proved.
    Proved(u64),
    /// Its cloud denies having it.
    Missing,
    /// Its cloud has other bytes.
    Damaged,
    /// Its cloud does not answer; the shard was not checked.
    Unreachable,
}

/// The findings about one cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloudFindings {
    /// Its index in the volume's list.
    pub index: u8,
    /// Its location.
    pub place: String,
    /// Shards that are present, with the right length or proved.
    pub good: u64,
    /// Missing shards.
    pub missing: u64,
    /// Shards with other bytes.
    pub damaged: u64,
    /// Shards that could not be checked because the cloud does not answer.
    pub unreachable: u64,
}

/// The progress and the findings of a scrub.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    /// The last object that is finished: the next scrub continues behind it.
    pub position: Option<ObjectId>,
    /// Whether it has reached the end.
    pub finished: bool,
    /// Objects that were passed.
    pub objects: u64,
    /// Shards of which bytes were read and proved.
    pub proved: u64,
    /// The number of those bytes.
    pub bytes: u64,
    /// The findings about each cloud.
    pub clouds: Vec<CloudFindings>,
    /// Shards whose acknowledgement was withdrawn by order.
    pub withdrawn: u64,
    /// Shards that were restored.
    pub restored: u64,
    /// Objects with inconsistent shards; the status names their writers.
    pub poisoned: u64,
    /// Objects that could not be rebuilt although every cloud answers.
    pub lost: u64,
    /// Objects that lack shards: during the scrub those met so far, at the end those that are left.
    pub lacking: u64,
    /// Those of them, at the end, that lack shards only on unreachable clouds.
    pub lacking_unreachable: u64,
    /// The report as of its position: later findings are behind that.
    pub at_position: Option<Box<Self>>,
    /// The start, by the clock of its process.
    pub started: Option<Instant>,
}

impl ScrubReport {
    pub(super) fn new(from: Option<ObjectId>, links: &[Arc<Link>]) -> Self {
        let clouds = links.iter().map(|link| CloudFindings {
            index: link.index.0,
            place: link.describe(),
            ..CloudFindings::default()
        });
        Self {
            position: from,
            clouds: clouds.collect(),
            started: Some(Instant::now()),
            ..Self::default()
        }
    }

    /// All objects up to this one are finished.
    pub(super) fn reached(&mut self, position: Option<ObjectId>) {
        self.at_position = None;
        self.position = position;
        self.at_position = Some(Box::new(self.clone()));
    }

    pub(super) fn saw(&mut self, cloud: Option<CloudIndex>, seen: ShardObservation) {
        if let ShardObservation::Proved(bytes) = seen {
            self.proved += 1;
            self.bytes += bytes;
        }
        let index = cloud.map(|cloud| cloud.0);
        let Some(found) = self.clouds.iter_mut().find(|it| Some(it.index) == index) else {
            return;
        };
        let count = match seen {
            ShardObservation::Present | ShardObservation::Proved(_) => &mut found.good,
            ShardObservation::Missing => &mut found.missing,
            ShardObservation::Damaged => &mut found.damaged,
            ShardObservation::Unreachable => &mut found.unreachable,
        };
        *count += 1;
    }

    /// A shard counted as not checked turned out to be damaged.
    pub(super) fn disproved(&mut self, cloud: Option<CloudIndex>) {
        let index = cloud.map(|cloud| cloud.0);
        if let Some(found) = self.clouds.iter_mut().find(|it| Some(it.index) == index) {
            found.unreachable = found.unreachable.saturating_sub(1);
            found.damaged += 1;
        }
    }

    fn sum(&self, of: impl Fn(&CloudFindings) -> u64) -> u64 {
        self.clouds.iter().map(of).sum()
    }

    /// Shards found good.
    #[must_use]
    pub fn good(&self) -> u64 {
        self.sum(|cloud| cloud.good)
    }

    /// Shards that are missing or bad.
    #[must_use]
    pub fn found(&self) -> u64 {
        self.sum(|cloud| cloud.missing + cloud.damaged)
    }

    /// Shards that could not be checked.
    #[must_use]
    pub fn unreachable(&self) -> u64 {
        self.sum(|cloud| cloud.unreachable)
    }

    /// The running time.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.started.map(|it| it.elapsed()).unwrap_or_default()
    }
}
