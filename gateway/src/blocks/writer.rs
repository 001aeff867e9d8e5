//! Who wrote an object: the principal, for as long as the object lives, and the session.
//!
//! Sessions end, and their numbers say nothing to an operator a month later. What a message names
//! is therefore the *principal*, by its label and its key. Rows know it by a number; whose that is
//! is asked of the metadata only when there is something to blame somebody for, and remembered.

use super::engine::Engine;
use super::error::BlockError;
use super::object::StoredObject;
use quorumfs_bft::identity::SessionId;
use quorumfs_metadata::identity::{PrincipalId, PrincipalNumber};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use tokio::sync::OnceCell;

/// Principals whose names are remembered.
const NAMES_MAX: usize = 1024;

/// A principal as people know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrincipalName {
    /// Its key.
    pub key: PrincipalId,
    /// What it is called.
    pub label: String,
}

/// Who wrote something.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Writer {
    /// The session that brought it in; 0 while that is this one and no row was read.
    pub session: SessionId,
    /// Whose session that was; `None` while that is this one.
    pub principal: Option<PrincipalNumber>,
    /// The principal's name, once it was asked for and told.
    pub name: Option<Box<PrincipalName>>,
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.principal) {
            (Some(name), _) => write!(
                f,
                "principal `{}` ({}, session {})",
                name.label.escape_debug(),
                name.key,
                self.session
            ),
            (None, Some(number)) => {
                write!(f, "principal {number} (session {})", self.session)
            }
            (None, None) => write!(f, "this very session"),
        }
    }
}

/// What is known of principals.
#[derive(Debug, Default)]
pub(super) struct Principals {
    /// This process's own; `None` if the log does not say.
    own: OnceCell<Option<PrincipalNumber>>,
    names: Mutex<BTreeMap<PrincipalNumber, PrincipalName>>,
}

impl Engine {
    /// Whether this process's own principal wrote an object. If the metadata cannot be asked, it
    /// did not: what follows from that is dearer and right all the same.
    pub(super) async fn is_own(&self, object: &StoredObject) -> bool {
        let Some(writer) = object.writer().principal else {
            return true;
        };
        let ask = || async { self.log.own_principal().await };
        let own = self.principals.own.get_or_try_init(ask).await;
        own.is_ok_and(|own| *own == Some(writer))
    }

    /// With the writer's name, if it can be had.
    pub(super) async fn named(&self, mut error: BlockError) -> BlockError {
        if let Some(writer) = error.writer_mut() {
            let named = self.with_name(std::mem::take(writer)).await;
            *writer = named;
        }
        error
    }

    /// The same of a writer alone.
    pub(super) async fn with_name(&self, writer: Writer) -> Writer {
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
                // Nobody waits long for the name of somebody to blame.
                let ask = self.log.principal(number);
                let asked = tokio::time::timeout(self.config.timeouts.get, ask).await;
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
