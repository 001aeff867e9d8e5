//! The required and the permitted content of a writer's files.
//!
//! Content follows from the position, so that a byte written elsewhere, or never written, is
//! noticed.

use std::collections::BTreeMap;

/// The size of a block that is written in place.
pub const BLOCK_BYTES: usize = 4096;

/// The version and length of a whole file that was put in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Unique for each file that is put anywhere.
    pub version: u64,
    /// In bytes.
    pub length: usize,
}

/// The expected state of one writer's files.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    /// Files that are replaced as a whole, by the number in their names: the required versions.
    pub whole: BTreeMap<u64, Stamp>,
    /// A permitted alternative, because an operation was not acknowledged: no file, or this
    /// version.
    pub pending: Option<(u64, Option<Stamp>)>,
    /// Length of the log in bytes: the minimum and the maximum.
    pub log: (usize, usize),
    /// Versions of each block: the minimum and the maximum.
    pub blocks: BTreeMap<u64, (u64, u64)>,
}

impl Manifest {
    /// Makes the found version the required one: it is as durable as synced data.
    ///
    /// # Panics
    /// If the version is neither required nor allowed.
    pub fn found_whole(&mut self, number: u64, found: Option<Stamp>) {
        let due = self.whole.get(&number).copied();
        let allowed = found == due || self.pending == Some((number, found));
        assert!(
            allowed,
            "file {number} is {found:?}; it has to be {due:?}, and may be {:?}",
            self.pending
        );
        match found {
            Some(stamp) => self.whole.insert(number, stamp),
            None => self.whole.remove(&number),
        };
    }

    /// The same for the log.
    ///
    /// # Panics
    /// If it is shorter than the minimum or longer than the maximum.
    pub fn found_log(&mut self, length: usize) {
        let (least, most) = self.log;
        assert!(
            (least..=most).contains(&length),
            "the log has {length} bytes; {least} were synced and {most} written"
        );
        self.log = (length, length);
    }

    /// The same for a block.
    ///
    /// # Panics
    /// If it is older than what was synced, or was never written.
    pub fn found_block(&mut self, block: u64, version: u64) {
        let (least, most) = self.blocks.get(&block).copied().unwrap_or_default();
        assert!(
            (least..=most).contains(&version),
            "block {block} is of version {version}; {least} was synced, {most} was the last one"
        );
        self.blocks.insert(block, (version, version));
    }

    /// Everything written to blocks so far is synced.
    pub fn blocks_synced(&mut self) {
        for (least, most) in self.blocks.values_mut() {
            *least = *most;
        }
    }
}

/// `length` bytes from `offset` of the content that `name` determines.
#[must_use]
pub fn content(name: &[u64], offset: usize, length: usize) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    for part in name {
        hasher.update(&part.to_le_bytes());
    }
    let mut reader = hasher.finalize_xof();
    reader.set_position(offset as u64);
    let mut bytes = vec![0; length];
    reader.fill(&mut bytes);
    bytes
}

/// A version of a block; the block starts with its version number.
#[must_use]
pub fn block(writer: usize, block: u64, version: u64) -> Vec<u8> {
    let mut bytes = version.to_le_bytes().to_vec();
    let rest = BLOCK_BYTES - bytes.len();
    bytes.extend(content(&[writer as u64, block, version], 0, rest));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(what: impl FnOnce(&mut Manifest) + std::panic::UnwindSafe, from: &Manifest) -> bool {
        let mut manifest = from.clone();
        std::panic::catch_unwind(move || what(&mut manifest)).is_err()
    }

    #[test]
    fn acknowledged_operations_are_required_and_others_are_permitted() {
        let (old, new) = (
            Stamp {
                version: 1,
                length: 5,
            },
            Stamp {
                version: 2,
                length: 6,
            },
        );
        let manifest = Manifest {
            whole: [(3, old)].into(),
            pending: Some((3, Some(new))),
            log: (10, 20),
            blocks: [(7, (4, 6))].into(),
        };
        assert!(refused(|it| it.found_whole(3, None), &manifest));
        assert!(refused(|it| it.found_whole(4, Some(new)), &manifest));
        assert!(refused(|it| it.found_log(9), &manifest));
        assert!(refused(|it| it.found_log(21), &manifest));
        assert!(refused(|it| it.found_block(7, 3), &manifest));
        assert!(refused(|it| it.found_block(7, 7), &manifest));
        assert!(refused(|it| it.found_block(8, 1), &manifest));
        let mut manifest = manifest;
        manifest.found_whole(3, Some(new));
        manifest.found_log(15);
        manifest.found_block(7, 5);
        manifest.pending = None;
        assert!(refused(|it| it.found_whole(3, Some(old)), &manifest));
        assert!(refused(|it| it.found_log(14), &manifest));
        assert!(refused(|it| it.found_block(7, 4), &manifest));
    }
}
