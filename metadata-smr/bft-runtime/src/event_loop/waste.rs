//! Which frames of clients lead to nothing, and are charged to their principal.

use quorumfs_bft::identity::ConnectionId;
use quorumfs_bft::step::{Destination, Effect};
use quorumfs_bft::wire::{Message, Verified};

/// The length from which on a direct answer to this is what was asked for: any answer to a query,
/// and for a client that copies the state one longer than its question, since refusals are short.
pub(super) fn productive_from(message: &Verified) -> usize {
    match message.message() {
        Message::Read(_) => 0,
        Message::FetchCopy(_) => message.frame().len(),
        _ => usize::MAX,
    }
}

/// Whether this effect answers a client's connection with less than that.
pub(super) fn wastes(effect: &Effect, client: ConnectionId, productive: usize) -> bool {
    matches!(effect, Effect::Send { to, frame, .. }
        if *to == Destination::Client(client) && frame.len() < productive)
}
