//! A map of bounded size that forgets what was entered longest ago.
//!
//! Entries lie in generations. What is entered goes to the youngest one, out of whatever other one
//! it was in; when that is full another one begins, and the oldest goes with all that is still in
//! it. So forgetting is seldom and of many at a time, which somebody who has to take note of it is
//! glad of. With two generations all that is sure to be there is a half of the bound, and whether
//! a tree fits that is somewhat larger depends on where the border happens to lie; with eight it
//! is seven eighths. A search goes through all of them, which is less than asking a server.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// How many there are at most.
const GENERATIONS: usize = 8;

#[derive(Debug)]
struct Entry<V> {
    value: V,
    weight: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Generations<K, V> {
    /// The youngest one first.
    maps: VecDeque<HashMap<K, Entry<V>>>,
    /// What the youngest one weighs.
    weight: usize,
    /// What one may weigh.
    most: usize,
}

impl<K: Eq + Hash, V> Generations<K, V> {
    /// So much may all entries weigh together. One that weighs more than an eighth of that has a
    /// generation of its own, whatever it weighs.
    pub(super) fn new(most: usize) -> Self {
        Self {
            maps: VecDeque::from([HashMap::new()]),
            weight: 0,
            most: (most / GENERATIONS).max(1),
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

    /// Enters a value that weighs 1; answers the keys that had to go, if any had.
    pub(super) fn insert(&mut self, key: K, value: V) -> Vec<K> {
        self.insert_weighing(1, key, value)
    }

    /// The same of another weight.
    pub(super) fn insert_weighing(&mut self, weight: usize, key: K, value: V) -> Vec<K> {
        self.remove(&key);
        let full = self.weight.saturating_add(weight) > self.most;
        let gone = if full && self.weight > 0 {
            self.begin_another()
        } else {
            Vec::new()
        };
        if let Some(youngest) = self.maps.front_mut() {
            youngest.insert(key, Entry { value, weight });
            self.weight = self.weight.saturating_add(weight);
        }
        gone
    }

    fn begin_another(&mut self) -> Vec<K> {
        let oldest = match self.maps.len() {
            GENERATIONS.. => self.maps.pop_back(),
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

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.maps = VecDeque::from([HashMap::new()]);
        self.weight = 0;
    }

    /// All values that there are.
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
            let mut map = Generations::new(80);
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
    fn what_had_to_go_is_told_and_nothing_else_goes() {
        let mut map = Generations::new(80);
        let mut there = std::collections::HashSet::new();
        for number in 0..1000_u32 {
            // Some again, which makes them young.
            let key = if number % 3 == 0 { number / 2 } else { number };
            there.insert(key);
            for gone in map.insert(key, number) {
                assert!(there.remove(&gone), "{gone}");
            }
            assert_eq!(map.get(&key), Some(&number));
            assert_eq!(map.values().count(), there.len());
        }
        assert!(there.iter().all(|key| map.get(key).is_some()));
    }

    #[test]
    fn what_is_entered_again_or_removed_weighs_nothing_any_more() {
        let mut map = Generations::new(80);
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
    fn what_weighs_more_than_a_generation_has_one_of_its_own() {
        let mut map = Generations::new(80);
        for number in 0..100 {
            map.insert_weighing(1000, number, ());
            assert!(map.get(&number).is_some());
            assert!(map.values().count() <= GENERATIONS);
        }
    }
}
