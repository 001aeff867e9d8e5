//! The model's quotas: counted anew from all inodes for each question.

use super::{Model, ModelKind};
use crate::error::Error;
use crate::identity::Uid;
use crate::operation::{QuotaOf, SetQuota};
use crate::row::{Amount, Limit, Resource};
use std::collections::BTreeMap;

/// Limits that were set.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Limits {
    realm: Limit,
    default: Limit,
    users: BTreeMap<Uid, Limit>,
}

/// The usage of each user.
pub(super) type Usage = BTreeMap<Uid, Amount>;

impl Limits {
    pub(super) fn set(&mut self, set: &SetQuota) {
        match (set.of, set.limit) {
            (QuotaOf::Realm, limit) => self.realm = limit.unwrap_or_default(),
            (QuotaOf::Default, limit) => self.default = limit.unwrap_or_default(),
            (QuotaOf::User(uid), Some(limit)) => {
                self.users.insert(uid, limit);
            }
            (QuotaOf::User(uid), None) => {
                self.users.remove(&uid);
            }
        }
    }

    pub(super) fn are_any(&self) -> bool {
        *self != Self::default()
    }

    /// Whether the usage may change from `before` to `after`.
    pub(super) fn allow(&self, before: &Usage, after: &Usage) -> Result<(), Error> {
        for (uid, now) in after {
            let was = before.get(uid).copied().unwrap_or_default();
            let uid = *uid;
            if uid != Uid::ROOT {
                let limit = self.users.get(&uid).unwrap_or(&self.default);
                exceeds(limit, &was, now).map_or(Ok(()), |(of, remaining)| {
                    Err(Error::UserQuota { uid, of, remaining })
                })?;
            }
        }
        exceeds(&self.realm, &sum(before), &sum(after)).map_or(Ok(()), |(of, remaining)| {
            Err(Error::RealmQuota { of, remaining })
        })
    }
}

fn sum(usage: &Usage) -> Amount {
    let mut all = Amount::default();
    for one in usage.values() {
        all.bytes = all.bytes.saturating_add(one.bytes);
        all.inodes = all.inodes.saturating_add(one.inodes);
    }
    all
}

fn exceeds(limit: &Limit, was: &Amount, now: &Amount) -> Option<(Resource, u64)> {
    let inodes = (Resource::Inodes, limit.inodes, was.inodes, now.inodes);
    let bytes = (Resource::Bytes, limit.bytes, was.bytes, now.bytes);
    for (of, limit, was, now) in [inodes, bytes] {
        if let Some(limit) = limit
            && now > was
            && now > limit
        {
            return Some((of, limit.saturating_sub(was)));
        }
    }
    None
}

impl Model {
    /// The usage of each user: the inodes that it owns, and their bytes: the written content, 512
    /// for each name, 8 for each line of a list, a symlink's target, the attributes.
    #[must_use]
    pub fn usage(&self) -> BTreeMap<Uid, Amount> {
        let mut usage = Usage::new();
        for inode in self.inodes.values() {
            let sum = usage.entry(Uid(inode.uid)).or_default();
            sum.inodes = sum.inodes.saturating_add(1);
            let (own, names) = match &inode.kind {
                ModelKind::File { inline, bytes, .. } => (inline + bytes.len() as u64, inode.links),
                ModelKind::Symlink { sealed, .. } => (*sealed, inode.links),
                ModelKind::Special => (0, inode.links),
                ModelKind::Directory { .. } => (0, inode.links.min(1)),
            };
            let other = u64::from(names) * 512 + inode.lists.lines() * 8 + inode.extended.bytes();
            sum.bytes = sum.bytes.saturating_add(own).saturating_add(other);
        }
        usage
    }
}
