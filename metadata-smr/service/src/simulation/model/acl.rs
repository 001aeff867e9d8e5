//! Access control lists of the model.

use super::{Inode, Model, ModelKind, StepResult};
use crate::acl::{AccessAcl, Acl, AclKind};
use crate::attributes::{Credentials, Mode};
use crate::error::Error;
use crate::operation::SetAcl;

/// The lists of an inode.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lists {
    pub(super) access: Option<AccessAcl>,
    pub(super) default: Option<Acl>,
}

impl Lists {
    /// The number of named users and groups.
    pub(super) fn lines(&self) -> u64 {
        let access = self.access.iter().map(|acl| &acl.named);
        let default = self.default.iter().map(|acl| &acl.named);
        let named = access.chain(default);
        named
            .map(|it| (it.users.len() + it.groups.len()) as u64)
            .sum()
    }

    /// The lists and mode of a new inode below these.
    pub(super) fn inherited(&self, mode: u16, umask: u16, directory: bool) -> (Self, u16) {
        let Some(default) = &self.default else {
            return (Self::default(), mode & !(umask & 0o777));
        };
        let (access, mode) = default.inherited(Mode(mode));
        let default = directory.then(|| default.clone());
        (Self { access, default }, mode.0)
    }
}

impl Model {
    pub(super) fn set_acl(&mut self, who: &Credentials, set: &SetAcl) -> StepResult {
        let inode = self.get_mut(set.inode)?;
        if matches!(inode.kind, ModelKind::Symlink { .. }) {
            return Err(Error::NotSupported);
        }
        if who.uid.0 != 0 && who.uid.0 != inode.uid {
            return Err(Error::NotPermitted);
        }
        if let Some(acl) = &set.acl {
            acl.check()?;
        }
        match set.kind {
            AclKind::Access => inode.set_access(who, set.acl.clone()),
            AclKind::Default => {
                let directory = matches!(inode.kind, ModelKind::Directory { .. });
                if set.acl.is_some() && !directory {
                    return Err(Error::Denied);
                }
                inode.lists.default.clone_from(&set.acl);
            }
        }
        Ok(vec![set.inode])
    }
}

impl Inode {
    fn set_access(&mut self, who: &Credentials, acl: Option<Acl>) {
        if let Some(acl) = &acl {
            self.mode = self.mode & !0o777 | acl.mode();
            if who.uid.0 != 0 && !in_group(who, self.gid) {
                self.mode &= !0o2000;
            }
        }
        self.lists.access = acl.and_then(Acl::beyond_mode);
    }
}

pub(super) fn in_group(who: &Credentials, gid: u32) -> bool {
    who.gid.0 == gid || who.groups.iter().any(|group| group.0 == gid)
}
