//! What this process knows about principals: which one is its own, and the names of the others.
//!
//! Rows contain a principal's number; its name is fetched from the metadata only for an error
//! message or for an operator, and cached. An error message does not wait long for a name.

use super::Reads;
use crate::blocks::object::{BlockError, PrincipalName, StoredObject, Writer};
use quorumfs_metadata::identity::PrincipalNumber;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tokio::sync::OnceCell;

/// The most principals whose names are cached.
const NAMES_MAX: usize = 1024;

/// Cached facts about principals.
#[derive(Debug, Default)]
pub(super) struct Principals {
    /// This process's own principal; `None` if the log does not name it.
    own: OnceCell<Option<PrincipalNumber>>,
    names: Mutex<BTreeMap<PrincipalNumber, PrincipalName>>,
}

impl Reads {
    /// Whether this process's own principal wrote an object. If the metadata cannot be asked, the
    /// answer is no: that costs more and is still right.
    pub(super) async fn is_own(&self, object: &StoredObject) -> bool {
        let Some(writer) = object.writer().principal else {
            return true;
        };
        let ask = || async { self.clouds.log().own_principal().await };
        let own = self.principals.own.get_or_try_init(ask).await;
        own.is_ok_and(|own| *own == Some(writer))
    }

    /// Adds the writer's name, if it can be fetched.
    pub(in crate::blocks) async fn named(&self, mut error: BlockError) -> BlockError {
        if let Some(writer) = error.writer_mut() {
            let named = self.with_name(std::mem::take(writer)).await;
            *writer = named;
        }
        error
    }

    /// The same for a writer alone.
    pub(in crate::blocks) async fn with_name(&self, writer: Writer) -> Writer {
        let number = match writer {
            Writer {
                name: None,
                principal: Some(number),
                ..
            } => number,
            _ => return writer,
        };
        let name = match self.known_name(number) {
            Some(name) => Some(name),
            None => {
                // An error message does not wait long for the name of its writer.
                let ask = self.clouds.log().principal(number);
                let asked = tokio::time::timeout(self.clouds.config().timeouts.get, ask).await;
                let name = asked.ok().and_then(Result::ok).flatten();
                if let Some(name) = &name {
                    self.remember_name(number, name.clone());
                }
                name
            }
        };
        Writer {
            name: name.map(Box::new),
            ..writer
        }
    }

    fn known_name(&self, number: PrincipalNumber) -> Option<PrincipalName> {
        let names = &self.principals.names;
        let names = names.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(&number).cloned()
    }

    fn remember_name(&self, number: PrincipalNumber, name: PrincipalName) {
        let names = &self.principals.names;
        let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= NAMES_MAX {
            names.pop_first();
        }
        names.insert(number, name);
    }
}
