//! Extended attributes, a row for each.
//!
//! Inode, namespace and the hash of the name are in the key. How many an inode has, and under which
//! epoch their names are sealed, is in its own row, which every change of them writes: whoever
//! watches an inode is told of its attributes too.

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
    /// What it takes of the room that an inode has.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        let bytes = self.name.len().saturating_add(self.value.bytes.len());
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }
}
