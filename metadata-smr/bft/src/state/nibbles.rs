//! Keys as sequences of half-bytes, most significant half first.

use bytes::Bytes;
use std::cmp::Ordering;

/// The slots of a branch: one for the key that ends there, one for each nibble.
pub(super) const SLOTS: u8 = 17;

/// The nibble at `index`, if the key is that long.
pub(super) fn nibble(key: &[u8], index: usize) -> Option<u8> {
    let byte = key.get(index / 2)?;
    Some(if index.is_multiple_of(2) {
        byte >> 4
    } else {
        byte & 15
    })
}

/// The slot of `key` at a branch of `depth` nibbles; slots are in the order of the keys.
pub(super) fn slot(key: &[u8], depth: usize) -> u8 {
    nibble(key, depth).map_or(0, |nibble| nibble + 1)
}

/// The number of nibbles that two keys have in common from their start.
pub(super) fn common(left: &[u8], right: &[u8]) -> usize {
    let bytes = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    let half = match (left.get(bytes), right.get(bytes)) {
        (Some(a), Some(b)) => usize::from(a >> 4 == b >> 4),
        _ => 0,
    };
    2 * bytes + half
}

/// The slots on the way to a key in a tree with a branch at every nibble, the last one included,
/// with which the key ends. They are in the order of the keys.
pub(super) fn slots(key: &[u8]) -> Vec<u8> {
    (0..=2 * key.len()).map(|depth| slot(key, depth)).collect()
}

/// A prefix of keys, counted in nibbles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    /// ⌈nibbles / 2⌉ bytes; an unused last half is zero.
    bytes: Bytes,
    nibbles: usize,
}

impl Prefix {
    /// The first `nibbles` nibbles of `key`, which must be that long.
    pub(super) fn of(key: &[u8], nibbles: usize) -> Self {
        let mut bytes: Vec<u8> = key.iter().copied().take(nibbles.div_ceil(2)).collect();
        if !nibbles.is_multiple_of(2)
            && let Some(last) = bytes.last_mut()
        {
            *last &= 0xf0;
        }
        Self {
            bytes: bytes.into(),
            nibbles,
        }
    }

    /// A prefix that was read from a store; `None` if it is not in its canonical form.
    pub(super) fn from_stored(bytes: Bytes, nibbles: usize) -> Option<Self> {
        let canonical = bytes.len() == nibbles.div_ceil(2)
            && (nibbles.is_multiple_of(2) || bytes.last().is_some_and(|last| last & 15 == 0));
        canonical.then_some(Self { bytes, nibbles })
    }

    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub(super) const fn nibbles(&self) -> usize {
        self.nibbles
    }

    /// The number of nibbles of this prefix that `key` begins with.
    pub(super) fn common(&self, key: &[u8]) -> usize {
        common(&self.bytes, key).min(self.nibbles)
    }

    /// The number of nibbles that two prefixes have in common.
    pub(super) fn common_with(&self, other: &Self) -> usize {
        self.common(&other.bytes).min(other.nibbles)
    }

    /// The position of `key` relative to all keys with this prefix; `Equal` if it has the prefix.
    pub(super) fn place(&self, key: &[u8]) -> Ordering {
        let shared = self.common(key);
        if shared == self.nibbles {
            return Ordering::Equal;
        }
        nibble(key, shared).cmp(&nibble(&self.bytes, shared))
    }

    /// The slot of all keys with this prefix at a branch of `depth` nibbles.
    pub(super) fn slot(&self, depth: usize) -> u8 {
        slot(&self.bytes, depth)
    }

    /// The slots on the way to the place of a branch with this prefix.
    pub(super) fn slots(&self) -> Vec<u8> {
        (0..self.nibbles).map(|depth| self.slot(depth)).collect()
    }

    /// The shorter prefix of `nibbles` nibbles.
    pub(super) fn shorter(&self, nibbles: usize) -> Self {
        Self::of(&self.bytes, nibbles.min(self.nibbles))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nibbles_keep_the_order_of_bytes() {
        assert_eq!(common(b"\x12\x34", b"\x12\x35"), 3);
        assert_eq!(common(b"\x12", b"\x12\x35"), 2);
        assert_eq!(common(b"", b"a"), 0);
        let odd = Prefix::of(b"\x12\x34", 3);
        assert_eq!(odd.bytes().as_ref(), b"\x12\x30");
        assert_eq!(odd.place(b"\x12\x3f\xff"), Ordering::Equal);
        assert_eq!(odd.place(b"\x12"), Ordering::Less);
        assert_eq!(odd.place(b"\x12\x2f"), Ordering::Less);
        assert_eq!(odd.place(b"\x12\x40"), Ordering::Greater);
        assert!(slot(b"\x12", 2) < slot(b"\x12\x00", 2));
    }
}
