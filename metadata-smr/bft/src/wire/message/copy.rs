//! Copying the state to a client.

use super::Nodes;
use crate::checkpoint::CheckpointCertificate;
use crate::identity::{Digest, SessionId};
use crate::state::Path;

/// Asks for nodes of a state's tree, for a client's copy. It is unsigned: the transport
/// authenticates the principal, and the session that it names has to be that principal's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchCopy {
    /// The session that asks.
    pub session: SessionId,
    /// The digest of all rows; zeros for a client that does not know any.
    pub root: Digest,
    /// The nodes' paths.
    pub paths: Vec<Path>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyPart {
    /// Whether the session's principal may not copy the state; everything else is empty then.
    pub refused: bool,
    /// The newest stable checkpoint, if the root is not kept here. It may be the last one of an
    /// earlier epoch.
    pub stable: Option<CheckpointCertificate>,
    /// The nodes that were asked for.
    pub nodes: Nodes,
}
