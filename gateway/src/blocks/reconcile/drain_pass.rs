//! A pass of draining: all objects once, page by page, and the orders for those that moved.
//!
//! The position is ordered together with the moves, so that another process goes on there. It
//! advances only when the moves of a whole page are ordered.

use super::Reconciler;
use super::completion::{Completed, SWEEP_CONCURRENCY};
use super::relocate::Relocated;
use super::throttle::Throttle;
use crate::blocks::clouds::PlacementError;
use crate::blocks::object::StoredObject;
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::limits::MOVE_SHARDS_MAX;
use quorumfs_metadata::operation::ShardMove;
use quorumfs_metadata::row::Job;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Objects in one page of a listing.
const PAGE: u32 = 256;
/// How long the job is taken for; it is taken again for each page, and within long ones.
const JOB: Duration = Duration::from_secs(60);
/// How many times an operation is ordered before a pass gives up.
const ORDER_TRIES: u32 = 4;

/// Where a pass is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pages {
    /// Among the objects that have slices, behind this one.
    Needed(Option<ObjectId>),
    /// Among those that a retained point alone needs, behind this one.
    Retained(Option<ObjectId>),
    /// At the end.
    End,
}

impl Pages {
    /// From a position on.
    pub(super) const fn behind(position: Option<ObjectId>) -> Self {
        Self::Needed(position)
    }
}

/// The result of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pass {
    /// Shards that were found on clouds that take nothing new.
    pub(super) found: u64,
    /// Those of them that have moved.
    pub(super) moved: u64,
    /// Another process has the job.
    pub(super) elsewhere: bool,
}

impl Reconciler {
    /// The next page of objects that may have to move; `None` at the end.
    pub(super) async fn next_page(
        &self,
        pages: &mut Pages,
    ) -> Result<Option<Vec<StoredObject>>, PlacementError> {
        let log = self.clouds.log();
        match *pages {
            Pages::Needed(after) => {
                let page = log.list_objects(after, PAGE).await?;
                *pages = match page.more && page.last.is_some() {
                    true => Pages::Needed(page.last),
                    false => Pages::Retained(None),
                };
                Ok(Some(page.objects))
            }
            Pages::Retained(after) => {
                let page = log.list_garbage(after, PAGE).await?;
                *pages = page
                    .next
                    .map_or(Pages::End, |last| Pages::Retained(Some(last)));
                let retained = page.garbage.into_iter().filter(|it| it.retained);
                Ok(Some(retained.map(|it| it.object).collect()))
            }
            Pages::End => Ok(None),
        }
    }

    /// Goes through the objects behind `position` and moves the shards that have to.
    pub(super) async fn drain_pass(
        self: &Arc<Self>,
        mut position: Option<ObjectId>,
        throttle: &Arc<Throttle>,
    ) -> Result<Pass, PlacementError> {
        let mut pass = Pass::default();
        let is_resumed = position.is_some();
        let mut pages = Pages::behind(position);
        loop {
            let Some(now) = self.clouds.log().take_job(Job::Drain, JOB).await? else {
                pass.elsewhere = true;
                return Ok(pass);
            };
            self.note_drainage(|drainage| drainage.now = now);
            let Some(objects) = self.next_page(&mut pages).await? else {
                break;
            };
            let moves = self.relocate_page(objects, throttle, &mut pass).await;
            let reached = match pages {
                Pages::Needed(last) => last,
                Pages::Retained(_) | Pages::End => position,
            };
            pass.moved += self.order_page(moves, (position, reached)).await?;
            position = reached;
        }
        if is_resumed || pass.found > 0 {
            // The next pass begins at the beginning.
            self.order_some(&[], None).await?;
        }
        Ok(pass)
    }

    /// Puts the shards of a page of objects on their new clouds; returns the moves of each object.
    async fn relocate_page(
        self: &Arc<Self>,
        objects: Vec<StoredObject>,
        throttle: &Arc<Throttle>,
        pass: &mut Pass,
    ) -> Vec<Vec<ShardMove>> {
        let mut work = JoinSet::new();
        let (mut taken, mut begun) = (Instant::now(), 0_u64);
        let mut all = Vec::new();
        let mut settle = |done: Option<Result<Relocated, _>>| {
            // A panic of the task leaves its object to the next pass.
            if let Some(Ok(Relocated { moves, outcome })) = done {
                if outcome != Completed::Whole {
                    tracing::debug!(?outcome, "an object keeps shards on a replaced cloud");
                }
                if !moves.is_empty() {
                    all.push(moves);
                }
            }
        };
        for object in objects {
            let object = self.clouds.with_replacements(&Arc::new(object));
            let found = self.relocations(&object).len() as u64;
            pass.found += found;
            // An object that this process still writes is left to its write.
            if found == 0 || self.writes.follows(object.id()) {
                continue;
            }
            // The first object alone shows whether the replaced clouds give their shards.
            let most = if begun == 1 { 1 } else { SWEEP_CONCURRENCY };
            while work.len() >= most {
                settle(work.join_next().await);
            }
            begun += 1;
            if taken.elapsed() > JOB / 2 {
                // At a low rate a page takes long. Losing the job costs double work at most.
                let _ = self.clouds.log().take_job(Job::Drain, JOB).await;
                taken = Instant::now();
            }
            let (reconciler, throttle) = (Arc::clone(self), Arc::clone(throttle));
            work.spawn(async move { reconciler.relocate(&object, &[], &throttle).await });
        }
        while !work.is_empty() {
            settle(work.join_next().await);
        }
        all
    }

    /// Orders the moves of a page, those of one object together; returns how many shards moved.
    async fn order_page(
        &self,
        moves: Vec<Vec<ShardMove>>,
        (before, reached): (Option<ObjectId>, Option<ObjectId>),
    ) -> Result<u64, PlacementError> {
        let (mut moved, mut some) = (0, Vec::new());
        let mut moves = moves.into_iter().peekable();
        while let Some(of_one) = moves.next() {
            some.extend(of_one);
            let next = moves.peek().map_or(0, Vec::len);
            if next > 0 && some.len() + next <= MOVE_SHARDS_MAX {
                continue;
            }
            let position = if next == 0 { reached } else { before };
            moved += self.order_some(&some, position).await?;
            some.clear();
        }
        Ok(moved)
    }

    /// Orders some moves, and what has moved in this process's records.
    pub(super) async fn order_some(
        &self,
        moves: &[ShardMove],
        position: Option<ObjectId>,
    ) -> Result<u64, PlacementError> {
        let mut tries = 0;
        let moved = loop {
            match self
                .clouds
                .log()
                .move_shards(moves.to_vec(), position)
                .await
            {
                Ok(moved) => break u64::from(moved),
                Err(error) if tries >= ORDER_TRIES => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(100 << tries)).await,
            }
            tries += 1;
        };
        if moves.is_empty() {
            return Ok(moved);
        }
        for step in moves.iter().filter(|step| step.is_acknowledged()) {
            self.clouds.remember_replacement(step.to);
        }
        self.clouds.counters().shards_moved.add(moved);
        let mut objects: Vec<ObjectId> = moves.iter().map(|step| step.to.object).collect();
        objects.dedup();
        self.note_drainage(|drainage| {
            drainage.objects += objects.len() as u64;
            drainage.shards_moved = drainage.shards_moved.saturating_add(moved);
            drainage.shards_left = drainage.shards_left.saturating_sub(moved);
        });
        Ok(moved)
    }
}
