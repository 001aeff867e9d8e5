//! A map of bounded size that evicts its oldest entries.
//!
//! Entries lie in segments. A new or replaced entry goes to the youngest segment; when that is full
//! another one begins, and the oldest is evicted with all entries that are still in it. So eviction
//! is rare and of many entries at a time, which is cheap for a caller that has to react to it. With
//! two segments only half of the bound is sure to be there, and whether a slightly larger tree fits
//! depends on the position of the border; with eight it is seven eighths. A search goes through all
//! of them, which is cheaper than a query to a server.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// The number of segments, at most.
const SEGMENTS: usize = 8;

#[derive(Debug)]
struct LruEntry<V> {
    value: V,
    weight: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct SegmentedLru<K, V> {
    /// The youngest segment first.
    maps: VecDeque<HashMap<K, LruEntry<V>>>,
    /// The weight of the youngest segment.
    weight: usize,
    /// The weight that a segment may have.
    segment_max: usize,
}

impl<K: Eq + Hash, V> SegmentedLru<K, V> {
    /// `most` is the weight of all entries together. An entry heavier than an eighth of that has a
    /// segment of its own, whatever it weighs.
    pub(super) fn new(most: usize) -> Self {
        Self {
            maps: VecDeque::from([HashMap::new()]),
            weight: 0,
            segment_max: (most / SEGMENTS).max(1),
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        let found = self.maps.iter().find_map(|map| map.get(key));
        found.map(|entry| &entry.value)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let found = self.maps.iter_mut().find_map(|map| map.get_mut(key));
        found.map(|entry| &mut entry.value)
    }

    /// Inserts a value of weight 1; returns the evicted keys, if any.
    pub(super) fn insert(&mut self, key: K, value: V) -> Vec<K> {
        self.insert_weighted(1, key, value)
    }

    /// The same with another weight.
    pub(super) fn insert_weighted(&mut self, weight: usize, key: K, value: V) -> Vec<K> {
        self.remove(&key);
        let full = self.weight.saturating_add(weight) > self.segment_max;
        let evicted = if full && self.weight > 0 {
            self.begin_segment()
        } else {
            Vec::new()
        };
        if let Some(youngest) = self.maps.front_mut() {
            youngest.insert(key, LruEntry { value, weight });
            self.weight = self.weight.saturating_add(weight);
        }
        evicted
    }

    fn begin_segment(&mut self) -> Vec<K> {
        let oldest = match self.maps.len() {
            SEGMENTS.. => self.maps.pop_back(),
            _ => None,
        };
        self.maps.push_front(HashMap::new());
        self.weight = 0;
        oldest.unwrap_or_default().into_keys().collect()
    }

    pub(super) fn remove(&mut self, key: &K) {
        let mut maps = self.maps.iter_mut();
        if let Some(entry) = maps.next().and_then(|youngest| youngest.remove(key)) {
            self.weight = self.weight.saturating_sub(entry.weight);
        } else {
            // It is in one of them.
            let _ = maps.find_map(|map| map.remove(key));
        }
    }

    /// Removes everything.
    pub(super) fn clear(&mut self) {
        self.maps = VecDeque::from([HashMap::new()]);
        self.weight = 0;
    }

    /// All values.
    #[cfg(test)]
    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        let entries = self.maps.iter().flat_map(HashMap::values);
        entries.map(|entry| &entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seven_eighths_are_there_wherever_the_borders_lie_and_never_more_than_all() {
        for before in 0..200 {
            let mut map = SegmentedLru::new(80);
            for number in 0..before {
                map.insert((0, number), ());
            }
            for number in 0..70 {
                map.insert((1, number), ());
                assert!(map.values().count() <= 80, "{before}");
            }
            let missing = (0..70).filter(|number| map.get(&(1, *number)).is_none());
            assert_eq!(missing.count(), 0, "{before}");
        }
    }

    #[test]
    fn insert_returns_the_evicted_keys_and_nothing_else_goes() {
        let mut map = SegmentedLru::new(80);
        let mut there = std::collections::HashSet::new();
        for number in 0..1000_u32 {
            // Some again, which makes them young.
            let key = if number % 3 == 0 { number / 2 } else { number };
            there.insert(key);
            for evicted in map.insert(key, number) {
                assert!(there.remove(&evicted), "{evicted}");
            }
            assert_eq!(map.get(&key), Some(&number));
            assert_eq!(map.values().count(), there.len());
        }
        assert!(there.iter().all(|key| map.get(key).is_some()));
    }

    #[test]
    fn replaced_and_removed_entries_weigh_nothing() {
        let mut map = SegmentedLru::new(80);
        map.insert("first", 0);
        for number in 0..1000 {
            map.insert("again", number);
            map.insert("removed", number);
            map.remove(&"removed");
        }
        assert_eq!(map.get(&"first"), Some(&0));
        assert_eq!(map.get(&"removed"), None);
        assert_eq!(map.maps.len(), 1);
    }

    #[test]
    fn an_entry_heavier_than_a_segment_has_a_segment_of_its_own() {
        let mut map = SegmentedLru::new(80);
        for number in 0..100 {
            map.insert_weighted(1000, number, ());
            assert!(map.get(&number).is_some());
            assert!(map.values().count() <= SEGMENTS);
        }
    }
}
