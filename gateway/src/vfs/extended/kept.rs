//! Extended attributes that were opened a moment ago, and access control lists.
//!
//! What an inode's attributes are as of the version that changed them last never changes, so what
//! is kept under that version is right for as long as it is kept. Memory is bounded in bytes.

use super::name::Name;
use crate::vfs::VfsError;
use crate::vfs::generations::Generations;
use bytes::Bytes;
use quorumfs_metadata::acl::{AccessAcl, Acl, Named};
use quorumfs_metadata::identity::{InodeId, InodeVersion};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of names and values in all.
const BYTES_MAX: usize = 8 << 20;
/// What an attribute and an inode are counted as beyond the bytes of names and values.
const OVERHEAD_BYTES: usize = 128;

/// What an entry of an access control list takes.
const ENTRY_BYTES: usize = 8;

/// An attribute, opened.
#[derive(Debug)]
pub(super) struct Plain {
    pub(super) name: Name,
    pub(super) value: Value,
}

/// An attribute's value.
#[derive(Debug)]
pub(super) enum Value {
    Known(Bytes),
    /// The servers do not show it to this principal.
    Hidden,
    /// It does not open.
    Damaged(VfsError),
}

/// All of an inode's.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) all: Vec<Plain>,
    /// What its access list has beside the mode.
    pub(super) acl: Option<AccessAcl>,
    pub(super) default_acl: Option<Acl>,
}

type Kept = Generations<InodeId, (InodeVersion, Arc<Opened>)>;

/// See the module.
#[derive(Debug)]
pub(crate) struct KeptAttributes(Mutex<Kept>);

impl Default for KeptAttributes {
    fn default() -> Self {
        Self(Mutex::new(Generations::new(BYTES_MAX)))
    }
}

impl KeptAttributes {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an inode's attributes were as of `changed`, if that is kept.
    pub(super) fn get(&self, inode: InodeId, changed: InodeVersion) -> Option<Arc<Opened>> {
        let kept = self.kept();
        let (version, all) = kept.get(&inode)?;
        (*version == changed).then(|| all.clone())
    }

    /// Keeps what an inode's attributes are as of `changed`.
    pub(super) fn keep(&self, inode: InodeId, changed: InodeVersion, all: Opened) -> Arc<Opened> {
        let bytes = all.bytes().saturating_add(OVERHEAD_BYTES);
        let all = Arc::new(all);
        self.kept()
            .insert_weighing(bytes, inode, (changed, all.clone()));
        all
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.kept().clear();
    }
}

impl Opened {
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

    fn one(plain: Plain) -> Opened {
        Opened {
            all: vec![plain],
            acl: None,
            default_acl: None,
        }
    }

    #[test]
    fn what_changed_since_is_not_believed() {
        let kept = KeptAttributes::default();
        kept.keep(InodeId(1), InodeVersion(3), one(plain(1)));
        assert!(kept.get(InodeId(1), InodeVersion(3)).is_some());
        assert!(kept.get(InodeId(1), InodeVersion(4)).is_none());
        assert!(kept.get(InodeId(2), InodeVersion(3)).is_none());
    }

    #[test]
    fn memory_is_bounded_in_bytes() {
        let kept = KeptAttributes::default();
        for number in 0..1000 {
            kept.keep(InodeId(number), InodeVersion(1), one(plain(100_000)));
            let inner = kept.kept();
            let bytes: usize = inner.values().map(|(_, opened)| opened.bytes()).sum();
            assert!(bytes <= BYTES_MAX, "{bytes}");
        }
        assert!(kept.get(InodeId(999), InodeVersion(1)).is_some());
    }
}
