//! The writer of an object: its principal, for as long as the object lives, and its session.
//!
//! Sessions end, and their numbers mean nothing to an operator a month later. So messages name the
//! *principal*, by its label and its key. Rows contain its number; the name is fetched from the
//! metadata only for an error message, and cached.

use quorumfs_bft::identity::SessionId;
use quorumfs_metadata::identity::{PrincipalId, PrincipalNumber};
use std::fmt;

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
