//! Changing access control lists.
//!
//! Source: Linux, `fs/posix_acl.c` (`vfs_set_acl`, `set_posix_acl`, `posix_acl_update_mode`).

use crate::acl::AclKind;
use crate::attributes::{Credentials, FileType, Mode};
use crate::change::Change;
use crate::error::Error;
use crate::extended;
use crate::operation::SetAcl;
use crate::permission::{new_mode, owns};
use crate::reply::StepDone;
use crate::rows::{Outcome, Rows, require};

/// Sets or removes a list of an inode. The access list's entries for owner and others, and its
/// mask, become the mode's.
pub(crate) fn set_acl(
    change: &mut Change<'_, '_>,
    who: &Credentials,
    step: &SetAcl,
) -> Outcome<StepDone> {
    let mut row = change.inode(step.inode)?;
    let is_link = row.file_type() == FileType::Symlink;
    require(!is_link, Error::NotSupported)?;
    require(owns(&row, who), Error::NotPermitted)?;
    if let Some(acl) = &step.acl {
        acl.check()?;
    }
    match step.kind {
        AclKind::Access => {
            if let Some(acl) = &step.acl {
                let mode = Mode(row.mode.0 & !0o777 | acl.mode());
                row.mode = new_mode(&row, who, mode);
            }
            row.acl = step.acl.clone().and_then(crate::acl::Acl::beyond_mode);
        }
        AclKind::Default => {
            let holds = row.is_directory() || step.acl.is_none();
            require(holds, Error::Denied)?;
            row.default_acl.clone_from(&step.acl);
        }
    }
    // Lists are returned together with extended attributes, and cached as long.
    row.extended.get_or_insert_default();
    extended::save(change, step.inode, &mut row)
}
