//! Extended attributes that were opened a moment ago, and access control lists.
//!
//! What an inode's attributes are as of the version that changed them last never changes, so what
//! is kept under that version is right for as long as it is kept. Memory is bounded in bytes, in
//! two generations: when the young one is full the old one goes.

use super::name::Name;
use crate::vfs::VfsError;
use bytes::Bytes;
use quorumfs_metadata::acl::{AccessAcl, Acl, Named};
use quorumfs_metadata::identity::{InodeId, InodeVersion};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of names and values in one generation.
const GENERATION_BYTES_MAX: usize = 4 << 20;
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

type Map = HashMap<InodeId, (InodeVersion, Arc<Opened>)>;

#[derive(Debug, Default)]
struct Generations {
    young: Map,
    young_bytes: usize,
    old: Map,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct KeptAttributes(Mutex<Generations>);

impl KeptAttributes {
    /// What an inode's attributes were as of `changed`, if that is kept.
    pub(super) fn get(&self, inode: InodeId, changed: InodeVersion) -> Option<Arc<Opened>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (version, all) = kept.young.get(&inode).or_else(|| kept.old.get(&inode))?;
        (*version == changed).then(|| all.clone())
    }

    /// Keeps what an inode's attributes are as of `changed`.
    pub(super) fn keep(&self, inode: InodeId, changed: InodeVersion, all: Opened) -> Arc<Opened> {
        let bytes = all.bytes();
        let all = Arc::new(all);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.young_bytes >= GENERATION_BYTES_MAX {
            kept.old = std::mem::take(&mut kept.young);
            kept.young_bytes = 0;
        }
        // What an older entry was counted as stays counted until the generation goes.
        kept.young_bytes = kept
            .young_bytes
            .saturating_add(bytes)
            .saturating_add(OVERHEAD_BYTES);
        kept.young.insert(inode, (changed, all.clone()));
        all
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Generations::default();
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
            let inner = kept.0.lock().unwrap();
            let maps = [&inner.young, &inner.old];
            let sets = maps.into_iter().flat_map(|map| map.values());
            let bytes: usize = sets.map(|(_, opened)| opened.bytes()).sum();
            assert!(bytes <= 2 * GENERATION_BYTES_MAX + 200_000, "{bytes}");
        }
        assert!(kept.get(InodeId(999), InodeVersion(1)).is_some());
    }
}
