//! Requests to a server of links: what a client sends, and the names that come from a volume; see
//! [`quorumfs_http::decoding`].

use super::{Pieces, pieces};
use quorumfs_http::decoding;

/// A connection, a name, a target, or the headers of a request.
///
/// # Panics
/// If an answer has something that is outside of the link, or a name leads out of its place.
pub fn request(bytes: &[u8]) {
    let pieces: Vec<_> = Pieces(bytes).collect();
    decoding::read(&pieces);
}

/// Some requests.
#[must_use]
pub fn requests() -> Vec<Vec<u8>> {
    let seeds = decoding::seeds().into_iter();
    let laid = seeds.map(|seed| pieces(seed.iter().map(|(kind, bytes)| (*kind, &bytes[..]))));
    laid.collect()
}
