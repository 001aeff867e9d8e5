//! When a request is late, so that another cloud is asked as well.

use super::{Clouds, Exchange};
use crate::blocks::object::StoredObject;
use std::time::Duration;
use tokio::time::Instant;

impl Clouds {
    /// How long a put runs before another cloud is asked as well.
    pub(in crate::blocks) fn put_delay(
        &self,
        object: &StoredObject,
        shard: usize,
        bytes: usize,
    ) -> Duration {
        let link = self.link_of(object, shard);
        link.map_or(self.config.timeouts.hedge_max, |link| {
            link.health.hedge_delay(Exchange::Put(bytes as u64))
        })
    }

    /// The longest hedge delay of these shards, for so many bytes of each.
    pub(in crate::blocks) fn hedge_delay_of(
        &self,
        object: &StoredObject,
        wanted: impl Iterator<Item = (usize, u64)>,
    ) -> Duration {
        let delays = wanted.map(|(shard, bytes)| {
            let link = self.link_of(object, shard);
            link.map_or(self.config.timeouts.hedge_min, |link| {
                link.health.hedge_delay(Exchange::Get(bytes))
            })
        });
        delays.max().unwrap_or(self.config.timeouts.hedge_min)
    }

    /// Marks these shards as overdue: requested at `begin`, and now requested elsewhere too.
    pub(in crate::blocks) fn are_overdue(
        &self,
        object: &StoredObject,
        begin: Instant,
        shards: impl Iterator<Item = usize>,
    ) {
        for shard in shards {
            if let Ok(link) = self.link_of(object, shard) {
                link.health.overdue(begin);
            }
        }
    }
}
