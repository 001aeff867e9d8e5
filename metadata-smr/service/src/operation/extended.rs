//! Steps on extended attributes and access control lists.
//!
//! The servers see namespaces and lengths. A name's hash is its place among the attributes of its
//! inode; name and value are sealed.

use crate::acl::{Acl, AclKind};
use crate::attributes::Namespace;
use crate::identity::{AttributeHash, InodeId, RealmEpoch};
use crate::row::Sealed;
use borsh::{BorshDeserialize, BorshSerialize};

/// One of an inode's extended attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct AttributePlace {
    /// The inode.
    pub inode: InodeId,
    /// Its namespace.
    pub namespace: Namespace,
    /// The hash of its name, under the inode's generation of names; [`Namespace::Capability`] has
    /// only [`AttributeHash::ONLY`].
    pub hash: AttributeHash,
    /// That generation, or any key epoch of the realm while the inode has no attributes; another
    /// one is refused with [`Error::Changed`](crate::error::Error::Changed).
    pub generation: RealmEpoch,
}

/// What setting an attribute does with an existing one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum SetMode {
    /// Replaces it.
    Any,
    /// Fails with [`Error::Exists`](crate::error::Error::Exists): `XATTR_CREATE`.
    Create,
    /// Fails with [`Error::NoAttribute`](crate::error::Error::NoAttribute) if there is none:
    /// `XATTR_REPLACE`.
    Replace,
}

/// Sets an extended attribute.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SetExtended {
    /// The attribute.
    pub place: AttributePlace,
    /// Its name without the namespace, sealed under the place's generation.
    pub name: Vec<u8>,
    /// Its value, at most
    /// [`EXTENDED_VALUE_BYTES_MAX`](crate::limits::EXTENDED_VALUE_BYTES_MAX) before it was sealed.
    pub value: Sealed,
    /// Whether it may, or must, exist.
    pub mode: SetMode,
}

/// Sets or removes an access control list. The servers enforce it, so it is plain.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SetAcl {
    /// The inode.
    pub inode: InodeId,
    /// The list.
    pub kind: AclKind,
    /// The list; `None` removes it. An access list that a mode can express is stored in the mode
    /// alone.
    pub acl: Option<Acl>,
}
