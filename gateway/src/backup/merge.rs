//! The rows of a backup, from its layers.
//!
//! ```text
//! base     a1 b1 c1    e1        all rows of one point
//! layer 1     b2    d1           what has changed until a later one
//! layer 2        c✗              …
//!          ─────────────
//! rows     a1 b2    d1 e1        for each key the newest layer that names it
//! ```
//!
//! Each layer is read in order, a part at a time, so that memory is one part per layer. Invariant:
//! the rows come in the order of their keys, each once; a layer that is not in order is refused.

use super::rows::{self, Malformed};
use bytes::Bytes;
use quorumfs_bft::state::ChangedRow;

/// A layer that is being read.
#[derive(Debug, Default)]
struct Layer {
    part: Bytes,
    head: Option<ChangedRow>,
    /// There are no further parts.
    over: bool,
}

/// What a merge needs or gives next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The next part of this layer, or the word that there is none.
    Wants(usize),
    /// A row that exists.
    Row(ChangedRow),
    /// There are no further rows.
    End,
}

/// Merges layers, the oldest first.
#[derive(Debug)]
pub(super) struct Merge {
    layers: Vec<Layer>,
}

impl Merge {
    pub(super) fn new(layers: usize) -> Self {
        Self {
            layers: (0..layers).map(|_| Layer::default()).collect(),
        }
    }

    /// The next part of a layer; `None`: there is none.
    pub(super) fn feed(&mut self, layer: usize, part: Option<Bytes>) {
        if let Some(layer) = self.layers.get_mut(layer) {
            match part {
                Some(part) => layer.part = part,
                None => layer.over = true,
            }
        }
    }

    /// Goes on.
    pub(super) fn next(&mut self) -> Result<Next, Malformed> {
        loop {
            for (index, layer) in self.layers.iter_mut().enumerate() {
                if layer.head.is_none() {
                    match rows::next(&mut layer.part).transpose()? {
                        Some(row) => layer.head = Some(row),
                        None if layer.over => {}
                        None => return Ok(Next::Wants(index)),
                    }
                }
            }
            let heads = self.layers.iter().filter_map(|layer| layer.head.as_ref());
            let Some(least) = heads.map(|row| row.key.clone()).min() else {
                return Ok(Next::End);
            };
            let mut newest = None;
            for layer in &mut self.layers {
                if layer.head.as_ref().is_some_and(|row| row.key == least) {
                    newest = layer.head.take();
                    layer.is_ascending(&least)?;
                }
            }
            if let Some(row) = newest.filter(|row| row.now.is_some()) {
                return Ok(Next::Row(row));
            }
        }
    }
}

impl Layer {
    /// Looks at the row behind the one that was taken.
    fn is_ascending(&mut self, taken: &Bytes) -> Result<(), Malformed> {
        self.head = rows::next(&mut self.part).transpose()?;
        match &self.head {
            Some(row) if row.key <= *taken => Err(Malformed),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::PartWriter;
    use super::*;
    use proptest::prelude::*;
    use quorumfs_bft::identity::Sequence;
    use quorumfs_bft::state::Born;
    use std::collections::BTreeMap;

    type Changes = BTreeMap<Vec<u8>, Option<u64>>;

    fn parts(changes: &Changes, cut: usize) -> Vec<Bytes> {
        let rows: Vec<_> = changes.iter().collect();
        let part = |rows: &[(&Vec<u8>, &Option<u64>)]| {
            let mut writer = PartWriter::default();
            for (key, now) in rows {
                let now = now.map(|birth| Born {
                    birth: Sequence(birth),
                    value: Bytes::copy_from_slice(&birth.to_le_bytes()),
                });
                let key = Bytes::copy_from_slice(key);
                assert!(writer.push(&ChangedRow { key, now }).is_none());
            }
            writer.finish().unwrap()
        };
        rows.chunks(cut).map(part).collect()
    }

    fn merged(layers: Vec<Vec<Bytes>>) -> Result<Vec<(Vec<u8>, u64)>, Malformed> {
        let mut merge = Merge::new(layers.len());
        let mut layers: Vec<_> = layers.into_iter().map(Vec::into_iter).collect();
        let mut found = Vec::new();
        loop {
            match merge.next()? {
                Next::Wants(layer) => merge.feed(layer, layers[layer].next()),
                Next::Row(row) => found.push((row.key.to_vec(), row.now.unwrap().birth.0)),
                Next::End => return Ok(found),
            }
        }
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(0..3_u8, 1..4)
    }

    proptest! {
        #[test]
        fn the_newest_layer_that_names_a_key_counts(
            layers in proptest::collection::vec(
                proptest::collection::btree_map(key(), any::<Option<u64>>(), 0..30),
                0..6,
            ),
            cut in 1..5_usize,
        ) {
            let mut expected = BTreeMap::new();
            for layer in &layers {
                for (key, now) in layer {
                    expected.insert(key.clone(), *now);
                }
            }
            let expected: Vec<_> = expected
                .into_iter()
                .filter_map(|(key, now)| Some((key, now?)))
                .collect();
            let layers = layers.iter().map(|layer| parts(layer, cut)).collect();
            prop_assert_eq!(merged(layers), Ok(expected));
        }
    }

    #[test]
    fn a_layer_out_of_order_is_refused() {
        let one = |key: &[u8]| parts(&BTreeMap::from([(key.to_vec(), Some(1))]), 1).remove(0);
        for keys in [[b"b", b"a"], [b"a", b"a"]] {
            let whole = [one(keys[0]), one(keys[1])].concat();
            assert_eq!(merged(vec![vec![whole.into()]]), Err(Malformed));
        }
    }
}
