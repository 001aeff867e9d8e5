//! The writer of an object: its principal, for as long as the object lives, and its session.
//!
//! Sessions end, and their numbers mean nothing to an operator a month later. So messages name the
//! *principal*, by its label and its key. Rows contain its number; the name is fetched from the
//! metadata only for an error message, and cached.

use super::error::BlockError;
use super::stored::StoredObject;
use crate::blocks::engine::Engine;
use quorumfs_bft::identity::SessionId;
use quorumfs_metadata::identity::{PrincipalId, PrincipalNumber};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use tokio::sync::OnceCell;

/// The most principals whose names are cached.
const NAMES_MAX: usize = 1024;

/// A principal's name for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrincipalName {
    /// Its key.
    pub key: PrincipalId,
    /// Its label.
    pub label: String,
}

/// The writer of an object or a slice.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Writer {
    /// Its session; 0 for this session while no row was read.
    pub session: SessionId,
    /// Its principal; `None` for this session.
    pub principal: Option<PrincipalNumber>,
    /// The principal's name, once it was fetched.
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

/// Cached facts about principals.
#[derive(Debug, Default)]
pub(in crate::blocks) struct Principals {
    /// This process's own principal; `None` if the log does not name it.
    own: OnceCell<Option<PrincipalNumber>>,
    names: Mutex<BTreeMap<PrincipalNumber, PrincipalName>>,
}

impl Engine {
    /// Whether this process's own principal wrote an object. If the metadata cannot be asked, the
    /// answer is no: that costs more and is still right.
    pub(in crate::blocks) async fn is_own(&self, object: &StoredObject) -> bool {
        let Some(writer) = object.writer().principal else {
            return true;
        };
        let ask = || async { self.log.own_principal().await };
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
