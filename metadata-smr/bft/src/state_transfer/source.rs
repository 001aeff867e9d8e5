//! A replica's answers to a peer that takes its state over.

use crate::state::{KeySpace, StateError, Store};
use crate::wire::limits::FETCH_BYTES_MAX;
use crate::wire::message::{FetchNodes, Nodes};

/// The requested nodes, as many as fit into one answer. Places that do not exist are left out: a
/// replica that asks for them was lied to, or lies.
///
/// # Errors
/// If the store fails.
pub fn answer<D: Store>(space: &KeySpace<D>, fetch: &FetchNodes) -> Result<Nodes, StateError> {
    let mut answer = Nodes {
        root: fetch.root,
        gone: !space.serves(&fetch.root),
        nodes: Vec::new(),
    };
    let mut bytes = 0;
    for path in &fetch.paths {
        if answer.gone || bytes > FETCH_BYTES_MAX {
            break;
        }
        if let Some(node) = space.export(&fetch.root, path)? {
            bytes += node.len();
            answer.nodes.push((path.clone(), node));
        }
    }
    Ok(answer)
}
