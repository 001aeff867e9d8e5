//! Which clouds are asked first, where there is a choice.
//!
//! | | `fast` | `cheap` |
//! |---|---|---|
//! | data shards lie | on each cloud in turn | on the k clouds that are cheapest to read from |
//! | written first | to all t at once | to the w quickest of the t; the others follow |
//! | read | data shards, unless their clouds are much busier | the cheapest shards |
//!
//! Both avoid suspended clouds as long as the others suffice, and both hedge when a cloud is late:
//! a low price is not worth an endless wait. Data shards are preferred to parity because any part
//! of them can be read and proved alone; from parity, the whole object has to be rebuilt.

use super::Clouds;
use super::latency::Exchange;
use crate::blocks::object::StoredObject;
use quorumfs_metadata::placement::Shard;
use std::time::Duration;

/// How many times more loaded than the best others the data shards' clouds have to be before the
/// whole object is read elsewhere.
const BURDEN_FACTOR: u32 = 2;
/// The least gain of time: below it, decoding gains nothing.
const GAIN_MIN: Duration = Duration::from_millis(10);
/// A rebuild reads at most so many times the wanted bytes.
const AMPLIFICATION_MAX: u64 = 4;

/// The preference among clouds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Preference {
    /// All clouds share the work according to their speed.
    #[default]
    Fast,
    /// As little as possible is read from clouds that charge for it.
    Cheap,
}

impl std::fmt::Display for Preference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Fast => "fast",
            Self::Cheap => "cheap",
        })
    }
}

/// The sort key of the shards to read, the smallest first.
pub(super) type Rank = (bool, bool, u32, Duration, bool);

impl Clouds {
    /// The cloud of each shard of a new object, the data shards first. Objects that are read one
    /// after the other take turns.
    pub(in crate::blocks) fn spread(&self, turn: u32) -> Vec<Shard> {
        let attached = self.attached();
        let count = attached.active().count();
        let rotation = turn as usize % count.max(1);
        let rotated = attached.active().cycle().skip(rotation).take(count);
        let mut links: Vec<_> = rotated.collect();
        links.sort_by_cached_key(|link| {
            let price = match self.config.preference {
                Preference::Fast => None,
                Preference::Cheap => {
                    let usual = link.health.usual(Exchange::Get(1));
                    Some((link.read_price, usual, link.index))
                }
            };
            (link.health.is_suspended(), price)
        });
        links
            .into_iter()
            .map(|link| Shard {
                digest: quorumfs_bft::identity::Digest([0; 32]),
                cloud: link.index,
                attempt: 0,
                acknowledged: false,
                withdrawn: false,
                receipt: None,
                coded_for: None,
            })
            .collect()
    }

    /// How undesirable a shard is for a rebuild: suspended after others, unacknowledged after
    /// acknowledged, then by price or load, parity after data.
    pub(in crate::blocks) fn rank(&self, object: &StoredObject, shard: usize) -> Rank {
        let acknowledged = object.shard(shard).is_some_and(|row| row.acknowledged);
        let is_parity = shard as u64 >= object.layout().data();
        let whole = Exchange::Get(object.layout().stored_length(shard as u64));
        let (mut price, mut burden) = (u32::MAX, Duration::MAX);
        if let Ok(link) = self.link_of(object, shard) {
            burden = link.burden(whole);
            price = match self.config.preference {
                Preference::Fast => 0,
                Preference::Cheap => link.read_price,
            };
        }
        if is_parity {
            // The gain has to be worth the work of decoding.
            burden = burden.saturating_mul(3) / 2;
        }
        let suspended = self.is_suspended(object, shard);
        (suspended, !acknowledged, price, burden, is_parity)
    }

    /// Whether to rebuild the whole object from the k best shards instead of reading so many bytes
    /// of each of these data shards.
    pub(in crate::blocks) fn reads_elsewhere(
        &self,
        object: &StoredObject,
        wanted: &[(usize, u64)],
    ) -> bool {
        let data = usize::from(object.policy().data());
        let mut best: Vec<(Rank, usize)> = (0..object.shards().len())
            .map(|shard| (self.rank(object, shard), shard))
            .collect();
        best.sort_unstable();
        best.truncate(data);
        let is_worse = |((suspended, hoped, ..), _): &(Rank, usize)| *suspended || *hoped;
        if best.iter().any(is_worse) || best.iter().all(|(_, shard)| *shard < data) {
            return false;
        }
        let whole = |shard: usize| object.layout().stored_length(shard as u64);
        let price = |shard: usize, bytes: u64| {
            let link = self.link_of(object, shard);
            u64::from(link.map_or(0, |link| link.read_price)).saturating_mul(bytes)
        };
        match self.config.preference {
            Preference::Cheap => {
                let here: u64 = wanted
                    .iter()
                    .map(|(shard, bytes)| price(*shard, *bytes))
                    .sum();
                let elsewhere: u64 = best.iter().map(|(_, s)| price(*s, whole(*s))).sum();
                elsewhere < here
            }
            Preference::Fast => {
                let bytes: u64 = wanted.iter().map(|(_, bytes)| bytes).sum();
                let all: u64 = best.iter().map(|(_, shard)| whole(*shard)).sum();
                let burdens = wanted.iter().filter_map(|(shard, bytes)| {
                    let link = self.link_of(object, *shard).ok()?;
                    Some(link.burden(Exchange::Get(*bytes)))
                });
                let here = burdens.max().unwrap_or_default();
                let elsewhere = best.iter().map(|((.., burden, _), _)| *burden).max();
                let elsewhere = elsewhere.unwrap_or(Duration::MAX);
                all <= bytes.saturating_mul(AMPLIFICATION_MAX)
                    && here
                        > elsewhere
                            .saturating_mul(BURDEN_FACTOR)
                            .max(elsewhere.saturating_add(GAIN_MIN))
            }
        }
    }
}
