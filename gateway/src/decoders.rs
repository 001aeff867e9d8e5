//! Readers of bytes from this host's disk, a cloud, or people, as functions that accept any input,
//! for `quorumfs_tests::decoders`.
//!
//! Most of these bytes are sealed, and cannot be read without the key. Their plaintext may still
//! come from another release or another principal, and has to be read with as much care. So each
//! function takes *pieces*, numbered by their treatment: some are stored unchanged, others under a
//! valid seal. Each function asserts the properties that hold for any input, and returns how much
//! of it was accepted, so that seeds can be checked.

/// The number of a treatment, and bytes.
pub type Piece<'a> = (u8, &'a [u8]);
/// The same, as a starting point.
pub type Seed = Vec<(u8, Vec<u8>)>;

/// A file format.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The name of the format.
    pub what: &'static str,
    /// Reads pieces. Returns how many were accepted.
    pub read: fn(&[Piece<'_>]) -> usize,
    /// Valid inputs.
    pub seeds: fn() -> Vec<Seed>,
}

/// The mount's journal: files of records, and the records in them.
pub const JOURNAL: Format = Format {
    what: "journal",
    read: crate::journal::decoding::read,
    seeds: crate::journal::decoding::seeds,
};

/// A segment of the disk cache: its header, table and chunks.
pub const SEGMENT: Format = Format {
    what: "segment",
    read: crate::disk_cache::decoding::read,
    seeds: crate::disk_cache::decoding::seeds,
};

/// Headers of objects, indexes of slices, paths to cells.
pub const OBJECT: Format = Format {
    what: "object",
    read: crate::blocks::decoding::read,
    seeds: crate::blocks::decoding::seeds,
};

/// Names and values of extended attributes that programs set, and access control lists.
pub const ATTRIBUTE: Format = Format {
    what: "attribute",
    read: crate::vfs::extended_decoding::read,
    seeds: crate::vfs::extended_decoding::seeds,
};

/// Host keys and cached shares.
pub const HOST_KEY: Format = Format {
    what: "host key",
    read: crate::keys::decoding::read,
    seeds: crate::keys::decoding::seeds,
};

/// Links of capsules and what they lead to.
pub const CAPSULE: Format = Format {
    what: "capsule",
    read: crate::capsule::decoding::read,
    seeds: crate::capsule::decoding::seeds,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_accepted_and_truncated_ones_do_no_harm() {
        for format in [JOURNAL, SEGMENT, OBJECT, ATTRIBUTE, HOST_KEY, CAPSULE] {
            for (number, seed) in (format.seeds)().into_iter().enumerate() {
                let pieces: Vec<Piece<'_>> = seed.iter().map(|(it, of)| (*it, &of[..])).collect();
                let held = (format.read)(&pieces);
                assert!(held > 0, "{} {number}: nothing holds", format.what);
                for (at, (kind, piece)) in pieces.iter().enumerate() {
                    let mut changed = pieces.clone();
                    changed[at].1 = &piece[..piece.len() / 2];
                    (format.read)(&changed);
                    for bit in [0_u8, 3, 7] {
                        let mut flipped = piece.to_vec();
                        if let Some(byte) = flipped.get_mut(usize::from(bit)) {
                            *byte ^= 1 << bit;
                        }
                        let mut changed = pieces.clone();
                        changed[at].1 = &flipped;
                        (format.read)(&changed);
                        changed[at].0 = kind ^ (1 << (bit % 3));
                        (format.read)(&changed);
                    }
                    changed.remove(at);
                    (format.read)(&changed);
                }
            }
        }
    }
}
