//! Extended attributes and access control lists that were decrypted recently.
//!
//! An inode's attributes as of the version that changed them last never change, so an entry under
//! that version stays valid. Memory is bounded in bytes.

use super::extended_name::Name;
use super::segmented_lru::SegmentedLru;
use crate::error::VfsError;
use bytes::Bytes;
use quorumfs_metadata::acl::{AccessAcl, Acl, Named};
use quorumfs_metadata::identity::{InodeId, InodeVersion};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of names and values in all.
const BYTES_MAX: usize = 8 << 20;
/// What an attribute and an inode count in addition to the bytes of names and values.
const OVERHEAD_BYTES: usize = 128;

/// Bytes of an entry of an access control list.
const ENTRY_BYTES: usize = 8;

/// A decrypted attribute.
#[derive(Debug)]
pub(in crate::vfs) struct Plain {
    pub(in crate::vfs) name: Name,
    pub(in crate::vfs) value: Value,
}

/// An attribute's value.
#[derive(Debug)]
pub(in crate::vfs) enum Value {
    Known(Bytes),
    /// The servers do not show it to this principal.
    Hidden,
    /// It does not decrypt.
    Damaged(VfsError),
}

/// All attributes of an inode.
#[derive(Debug)]
pub(in crate::vfs) struct DecryptedAttributes {
    pub(in crate::vfs) all: Vec<Plain>,
    /// The access list without the mode.
    pub(in crate::vfs) acl: Option<AccessAcl>,
    pub(in crate::vfs) default_acl: Option<Acl>,
}

type CacheMap = SegmentedLru<InodeId, (InodeVersion, Arc<DecryptedAttributes>)>;

/// See the module.
#[derive(Debug)]
pub(in crate::vfs) struct AttributeCache(Mutex<CacheMap>);

impl Default for AttributeCache {
    fn default() -> Self {
        Self(Mutex::new(SegmentedLru::new(BYTES_MAX)))
    }
}

impl AttributeCache {
    fn lock(&self) -> MutexGuard<'_, CacheMap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An inode's attributes as of `changed`, if they are cached.
    pub(super) fn get(
        &self,
        inode: InodeId,
        changed: InodeVersion,
    ) -> Option<Arc<DecryptedAttributes>> {
        let cached = self.lock();
        let (version, all) = cached.get(&inode)?;
        (*version == changed).then(|| all.clone())
    }

    /// Caches an inode's attributes as of `changed`.
    pub(super) fn insert(
        &self,
        inode: InodeId,
        changed: InodeVersion,
        all: DecryptedAttributes,
    ) -> Arc<DecryptedAttributes> {
        let bytes = all.bytes().saturating_add(OVERHEAD_BYTES);
        let all = Arc::new(all);
        self.lock()
            .insert_weighted(bytes, inode, (changed, all.clone()));
        all
    }

    /// Evicts everything.
    pub(in crate::vfs) fn clear(&self) {
        self.lock().clear();
    }
}

impl DecryptedAttributes {
    fn bytes(&self) -> usize {
        let named = |named: &Named| named.users.len().saturating_add(named.groups.len());
        let access = self.acl.as_ref().map_or(0, |acl| named(&acl.named));
        let default = self.default_acl.as_ref().map_or(0, |acl| named(&acl.named));
        let lists = access.saturating_add(default).saturating_mul(ENTRY_BYTES);
        self.all
            .iter()
            .map(Plain::bytes)
            .fold(lists, usize::saturating_add)
    }
}

impl Plain {
    fn bytes(&self) -> usize {
        let value = match &self.value {
            Value::Known(value) => value.len(),
            Value::Hidden | Value::Damaged(_) => 0,
        };
        self.name
            .rest
            .len()
            .saturating_add(value)
            .saturating_add(OVERHEAD_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_metadata::attributes::Namespace;

    fn plain(length: usize) -> Plain {
        Plain {
            name: Name {
                namespace: Namespace::User,
                rest: b"name".to_vec(),
            },
            value: Value::Known(vec![7; length].into()),
        }
    }

    fn one(plain: Plain) -> DecryptedAttributes {
        DecryptedAttributes {
            all: vec![plain],
            acl: None,
            default_acl: None,
        }
    }

    #[test]
    fn an_entry_of_another_version_is_not_returned() {
        let cached = AttributeCache::default();
        cached.insert(InodeId(1), InodeVersion(3), one(plain(1)));
        assert!(cached.get(InodeId(1), InodeVersion(3)).is_some());
        assert!(cached.get(InodeId(1), InodeVersion(4)).is_none());
        assert!(cached.get(InodeId(2), InodeVersion(3)).is_none());
    }

    #[test]
    fn memory_is_bounded_in_bytes() {
        let cached = AttributeCache::default();
        for number in 0..1000 {
            cached.insert(InodeId(number), InodeVersion(1), one(plain(100_000)));
            let inner = cached.lock();
            let bytes: usize = inner.values().map(|(_, opened)| opened.bytes()).sum();
            assert!(bytes <= BYTES_MAX, "{bytes}");
        }
        assert!(cached.get(InodeId(999), InodeVersion(1)).is_some());
    }
}
