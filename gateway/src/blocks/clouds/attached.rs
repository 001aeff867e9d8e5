//! The clouds that a store is attached to now, and which of them take new shards.
//!
//! Clouds are added and replaced while a store is open (`fleet` of the metadata). The store learns
//! that from its owner, and replaces the whole list at once: an operation that began with the list
//! before goes on with it. A cloud that was attached once stays so, with its health and its keys:
//! the header of a shard names the cloud that it was coded for, wherever it lies now.
//!
//! Invariant: the list has every cloud that the volume ever had, those without a usable
//! configuration too, and as many active ones as the policy spreads over.

use super::{Cloud, Clouds, CloudsConfig, Link};
use crate::blocks::object::BlockError;
use quorumfs_metadata::fleet::{CloudState, Fleet};
use quorumfs_metadata::identity::CloudIndex;
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use tokio::sync::Notify;

/// The clouds, and which of them take new shards.
#[derive(Debug)]
pub(in crate::blocks) struct Attached {
    /// All of them, by index.
    links: Vec<Arc<Link>>,
    fleet: Fleet,
}

impl Attached {
    /// Attaches clouds; those with a link `before` keep it.
    pub(super) fn new(
        config: &CloudsConfig,
        clouds: &[Cloud],
        fleet: Fleet,
        before: &[Arc<Link>],
        suspensions: &Arc<Notify>,
    ) -> Result<Self, BlockError> {
        let configuration = |reason| Err(BlockError::Configuration { reason });
        let indexes: BTreeSet<CloudIndex> = clouds.iter().map(|cloud| cloud.index).collect();
        if indexes.len() != clouds.len() {
            return configuration("two of them have the same index".to_owned());
        }
        let mut links = before.to_vec();
        for cloud in clouds {
            if links.iter().all(|link| link.index != cloud.index) {
                links.push(Arc::new(Link::new(cloud, config.timeouts, suspensions)));
            }
        }
        links.sort_by_key(|link| link.index);
        if fleet.active.len() != usize::from(config.policy.clouds()) {
            return configuration(format!(
                "there are {} of them, and the policy spreads over {}",
                fleet.active.len(),
                config.policy.clouds()
            ));
        }
        let attached = Self { links, fleet };
        if let Some(lacks) = attached.missing() {
            return configuration(format!("cloud {lacks} takes new shards, and is not given"));
        }
        Ok(attached)
    }

    /// A cloud that has or takes shards and is not in the list.
    fn missing(&self) -> Option<CloudIndex> {
        let wanted = self.fleet.active.iter().chain(&self.fleet.former);
        wanted.copied().find(|cloud| self.link(*cloud).is_none())
    }

    /// All of them, by index.
    pub(in crate::blocks) fn links(&self) -> &[Arc<Link>] {
        &self.links
    }

    /// Which of them take new shards.
    pub(in crate::blocks) fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    pub(in crate::blocks) fn link(&self, index: CloudIndex) -> Option<&Arc<Link>> {
        self.links.iter().find(|link| link.index == index)
    }

    /// The state of one of them.
    pub(in crate::blocks) fn state(&self, link: &Link) -> CloudState {
        self.fleet.state(link.index)
    }

    /// Those that take new shards, each in its position.
    pub(in crate::blocks) fn active(&self) -> impl Iterator<Item = &Arc<Link>> + Clone {
        let active = self.fleet.active.iter();
        active.filter_map(|index| self.link(*index))
    }

    /// Those that may hold what is needed: the active and the draining ones.
    pub(in crate::blocks) fn in_use(&self) -> impl Iterator<Item = &Arc<Link>> {
        let in_use = |state| matches!(state, CloudState::Active | CloudState::Draining);
        self.links
            .iter()
            .filter(move |link| in_use(self.state(link)))
    }
}

impl Clouds {
    /// The clouds as they are now.
    pub(in crate::blocks) fn attached(&self) -> Arc<Attached> {
        let attached = self.attached.read();
        Arc::clone(&attached.unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on these clouds are attached as well, and these take new shards. Returns whether
    /// that is anything new.
    pub(in crate::blocks) fn learn(
        &self,
        clouds: &[Cloud],
        fleet: Fleet,
    ) -> Result<bool, BlockError> {
        let before = self.attached();
        let is_known = |cloud: &Cloud| before.link(cloud.index).is_some();
        if before.fleet == fleet && clouds.iter().all(is_known) {
            return Ok(false);
        }
        let suspensions = &self.suspensions;
        let now = Attached::new(&self.config, clouds, fleet, before.links(), suspensions)?;
        *self
            .attached
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(now);
        self.fleet_changed.notify_one();
        Ok(true)
    }

    /// Notified when the fleet has changed.
    pub(in crate::blocks) fn fleet_changed(&self) -> &Notify {
        &self.fleet_changed
    }
}
