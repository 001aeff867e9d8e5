//! Files that a gateway stores on its host's disk, and bytes that it reads from clouds and
//! programs; see [`quorumfs_gateway::decoders`].

use super::{Pieces, pieces};
use quorumfs_gateway::decoders::{ATTRIBUTE, CAPSULE, Format, HOST_KEY, JOURNAL, OBJECT, SEGMENT};

fn read(format: Format, bytes: &[u8]) {
    let pieces: Vec<_> = Pieces(bytes).collect();
    (format.read)(&pieces);
}

fn seeds(format: Format) -> Vec<Vec<u8>> {
    let seeds = (format.seeds)().into_iter();
    let laid = seeds.map(|seed| pieces(seed.iter().map(|(kind, bytes)| (*kind, &bytes[..]))));
    laid.collect()
}

/// A mount's journal.
///
/// # Panics
/// If pending data is out of order, or differs when it is read again.
pub fn mount_journal(bytes: &[u8]) {
    read(JOURNAL, bytes);
}

/// Journals, whole and torn.
#[must_use]
pub fn mount_journals() -> Vec<Vec<u8>> {
    seeds(JOURNAL)
}

/// A segment of the disk cache.
///
/// # Panics
/// If data is read that was not written, or a position lies outside.
pub fn segment(bytes: &[u8]) {
    read(SEGMENT, bytes);
}

/// Segments of a few chunks.
#[must_use]
pub fn segments() -> Vec<Vec<u8>> {
    seeds(SEGMENT)
}

/// Headers, indexes and paths of objects on a cloud.
///
/// # Panics
/// If invalid bytes are accepted.
pub fn object(bytes: &[u8]) {
    read(OBJECT, bytes);
}

/// One of each.
#[must_use]
pub fn objects() -> Vec<Vec<u8>> {
    seeds(OBJECT)
}

/// Names and values of extended attributes.
///
/// # Panics
/// If invalid bytes are accepted.
pub fn attribute(bytes: &[u8]) {
    read(ATTRIBUTE, bytes);
}

/// Some names and access control lists.
#[must_use]
pub fn attributes() -> Vec<Vec<u8>> {
    seeds(ATTRIBUTE)
}

/// Links of capsules, and what they lead to.
///
/// # Panics
/// If something is accepted that leads outside or contradicts itself.
pub fn capsule(bytes: &[u8]) {
    read(CAPSULE, bytes);
}

/// A link, a manifest, and where one is.
#[must_use]
pub fn capsules() -> Vec<Vec<u8>> {
    seeds(CAPSULE)
}

/// A host key and cached shares, for [`super::files::keys`].
pub(super) fn kept_key(bytes: &[u8]) {
    read(HOST_KEY, bytes);
}

/// Seeds for [`kept_key`].
pub(super) fn kept_keys() -> Vec<Vec<u8>> {
    seeds(HOST_KEY)
}
