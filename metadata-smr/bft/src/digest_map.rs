//! A sorted map by digest with fast lookups.
//!
//! Requests are known by their digests, and each is looked up a few times on its way. Digests are
//! spread evenly, so the first byte separates them well: there is one sorted map for each value of
//! that byte, most of them a single small node. A client that makes many digests with the same
//! first byte makes one of these maps as deep as a map of all digests would be, and no deeper. Like
//! any sorted map it is the same on every run, and so is its order.

use crate::identity::Digest;
use std::collections::BTreeMap;

const PARTS: usize = 1 << u8::BITS;

/// Values by digest.
#[derive(Clone, Debug)]
pub(crate) struct DigestMap<T> {
    parts: Vec<BTreeMap<Digest, T>>,
}

impl<T> Default for DigestMap<T> {
    fn default() -> Self {
        Self {
            parts: (0..PARTS).map(|_| BTreeMap::new()).collect(),
        }
    }
}

impl<T> DigestMap<T> {
    const fn part(digest: &Digest) -> usize {
        let [first, ..] = digest.0;
        first as usize
    }

    /// The value under `digest`.
    pub(crate) fn get(&self, digest: &Digest) -> Option<&T> {
        self.parts.get(Self::part(digest))?.get(digest)
    }

    /// Inserts a value and returns the one that it replaces.
    pub(crate) fn insert(&mut self, digest: Digest, value: T) -> Option<T> {
        let part = self.parts.get_mut(Self::part(&digest))?;
        part.insert(digest, value)
    }

    /// Removes a value.
    pub(crate) fn remove(&mut self, digest: &Digest) -> Option<T> {
        self.parts.get_mut(Self::part(digest))?.remove(digest)
    }

    /// All values, in the order of their digests.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.parts.iter().flat_map(BTreeMap::values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_sorted_map(steps: Vec<(bool, u8, u8)>) {
            let (mut map, mut model) = (DigestMap::default(), BTreeMap::new());
            for (number, (puts, first, last)) in steps.into_iter().enumerate() {
                let mut digest = Digest([0; 32]);
                (digest.0[0], digest.0[31]) = (first % 4, last % 4);
                let same = match puts {
                    true => map.insert(digest, number) == model.insert(digest, number),
                    false => map.remove(&digest) == model.remove(&digest),
                };
                prop_assert!(same && map.get(&digest) == model.get(&digest));
                prop_assert!(map.values().eq(model.values()));
            }
        }
    }
}
