//! What a replica says to a request before it is ordered.

use crate::wire::message::Reply;

/// The standing of a request before it is ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It should be ordered.
    New,
    /// It would open a session for a principal that the service would refuse at present, or it was
    /// signed too long ago.
    Stranger,
    /// It need not be ordered: this is the answer.
    Settled(Reply),
    /// Its number is too far above the last one executed here. This replica may be behind its
    /// client, so that is no answer: the client sends it again.
    FarAhead,
}
