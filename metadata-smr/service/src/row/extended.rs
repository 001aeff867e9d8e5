//! Extended attributes, a row for each.
//!
//! Inode, namespace and the hash of the name are in the key. The inode's own row has their number
//! and the key epoch of their names; every change of them writes that row, so a watcher of an inode
//! is notified of its attributes too.

use super::Sealed;
use borsh::{BorshDeserialize, BorshSerialize};

/// An extended attribute.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ExtendedAttribute {
    /// Its name without the namespace, sealed under the inode's generation of names.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Sealed,
}

impl ExtendedAttribute {
    /// The bytes that count against the inode's bound.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        let bytes = self.name.len().saturating_add(self.value.bytes.len());
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }
}
