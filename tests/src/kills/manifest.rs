//! What has to be in a writer's files, and what may be.
//!
//! Content follows from the place, so that a byte that was written elsewhere, or never, is seen.

use std::collections::BTreeMap;

/// Bytes of a block that is written in place.
pub const BLOCK_BYTES: usize = 4096;

/// A whole file as it was put in its place: which one, and how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Each file that is put anywhere has another one.
    pub version: u64,
    /// In bytes.
    pub length: usize,
}

/// Everything that one writer knows.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    /// Files that are replaced as a whole, by their names' numbers: what has to be there.
    pub whole: BTreeMap<u64, Stamp>,
    /// What else may be there, because an operation was not acknowledged: nothing, or this.
    pub pending: Option<(u64, Option<Stamp>)>,
    /// Bytes of the log that have to be there, and that may be.
    pub log: (usize, usize),
    /// Versions of each block: what it has at least, and at most.
    pub blocks: BTreeMap<u64, (u64, u64)>,
}

impl Manifest {
    /// Takes what was found as what has to be there: it is no worse kept than what was synced.
    ///
    /// # Panics
    /// If it is neither what has to be there nor what may be.
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

    /// The same of the log.
    ///
    /// # Panics
    /// If it is shorter or longer than it may be.
    pub fn found_log(&mut self, length: usize) {
        let (least, most) = self.log;
        assert!(
            (least..=most).contains(&length),
            "the log has {length} bytes; {least} were synced and {most} written"
        );
        self.log = (length, length);
    }

    /// The same of a block.
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

    /// All that was written to blocks so far is synced.
    pub fn blocks_synced(&mut self) {
        for (least, most) in self.blocks.values_mut() {
            *least = *most;
        }
    }
}

/// What belongs into `length` bytes from `offset` on of whatever `name` says.
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

/// A block of a version, which says itself which one it is.
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
    fn what_was_acknowledged_has_to_be_there_and_what_was_not_may_be() {
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
