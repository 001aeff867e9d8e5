//! What a scrub has found so far: for its caller, and for the status while it runs.

use super::cloud::Link;
use quorumfs_metadata::identity::{CloudIndex, ObjectId};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What was seen of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShardObservation {
    /// It is there, with the right length.
    Present,
    /// So many bytes of it are those that were written.
    Proved(u64),
    /// Its cloud says that it does not have it.
    Missing,
    /// Its cloud holds something else.
    Damaged,
    /// Its cloud does not answer; nothing was seen.
    Unreachable,
}

/// What was seen on one cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloudFindings {
    /// Its place in the volume's list.
    pub index: u8,
    /// Where it is.
    pub place: String,
    /// Shards that are there, with the right length or proved.
    pub good: u64,
    /// Shards that it does not have.
    pub missing: u64,
    /// Shards that are not what was written.
    pub damaged: u64,
    /// Shards that could not be looked at, because it does not answer.
    pub unreachable: u64,
}

/// How far a scrub has come and what it found.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    /// The last object that is done with: where the next scrub goes on.
    pub position: Option<ObjectId>,
    /// Whether it has seen everything.
    pub finished: bool,
    /// Objects that were walked past.
    pub objects: u64,
    /// Shards of which bytes were read and proved.
    pub proved: u64,
    /// Those bytes.
    pub bytes: u64,
    /// What was seen on each cloud.
    pub clouds: Vec<CloudFindings>,
    /// Shards whose acknowledgement was taken back by order.
    pub withdrawn: u64,
    /// Shards that were restored.
    pub restored: u64,
    /// Objects whose shards do not fit each other; who wrote them is in the status.
    pub poisoned: u64,
    /// Objects that could not be rebuilt although every cloud answers.
    pub lost: u64,
    /// Objects that lack shards: those met on the way, and at the end those that are left.
    pub lacking: u64,
    /// Those of them, at the end, that lack shards only on clouds that cannot be reached.
    pub lacking_unreachable: u64,
    /// How it stood when it reached its position: what it has seen since lies behind that.
    pub at_position: Option<Box<Self>>,
    /// When it began, by the clock of its process.
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

    /// Everything up to an object is done with.
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

    /// What counted as not to be looked at turned out to be damaged.
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

    /// Shards that were found good.
    #[must_use]
    pub fn good(&self) -> u64 {
        self.sum(|cloud| cloud.good)
    }

    /// Shards that are missing or bad.
    #[must_use]
    pub fn found(&self) -> u64 {
        self.sum(|cloud| cloud.missing + cloud.damaged)
    }

    /// Shards that could not be looked at.
    #[must_use]
    pub fn unreachable(&self) -> u64 {
        self.sum(|cloud| cloud.unreachable)
    }

    /// How long it has been at work.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.started.map(|it| it.elapsed()).unwrap_or_default()
    }
}
