//! Access control lists, in the form in which Linux passes them.
//!
//! A version, then entries of a tag, rights and a number, all little-endian: the owner, named
//! users, the owning group, named groups, the mask, the others. No user or group is named twice.
//!
//! Source: Linux, `include/uapi/linux/posix_acl_xattr.h`.

use super::change::AttributeChange;
use super::extended::{ExtendedChange, NONE};
use crate::error::VfsError;
use crate::vfs::file_system::FileSystem;
use crate::vfs::services::Caller;
use bytes::Bytes;
use quorumfs_metadata::acl::{Acl, AclKind, Named};
use quorumfs_metadata::attributes::FileType;
use quorumfs_metadata::error::Error;
use quorumfs_metadata::identity::{Gid, InodeId, Uid};
use rustix::io::Errno;

pub(in crate::vfs) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(in crate::vfs) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// The number of an entry without a user or group.
const NO_ID: u32 = u32::MAX;
const ENTRY_BYTES: usize = 8;

const INVALID: VfsError = VfsError::refused("access control list", Errno::INVAL);

/// The list of this name.
pub(in crate::vfs) fn kind(name: &[u8]) -> Option<AclKind> {
    match name {
        ACCESS => Some(AclKind::Access),
        DEFAULT => Some(AclKind::Default),
        _ => None,
    }
}

/// Reads a list; one without entries is no list.
pub(in crate::vfs) fn parse(bytes: &[u8]) -> Result<Option<Acl>, VfsError> {
    let (version, entries) = bytes.split_first_chunk::<4>().ok_or(INVALID)?;
    if u32::from_le_bytes(*version) != VERSION {
        return Err(VfsError::refused("access control list", Errno::OPNOTSUPP));
    }
    let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
    if !rest.is_empty() {
        return Err(INVALID);
    }
    if entries.is_empty() {
        return Ok(None);
    }
    let (mut owner, mut group, mut other, mut mask) = (None, None, None, None);
    let mut named = Named::default();
    for entry in entries {
        let [t0, t1, r0, r1, n0, n1, n2, n3] = *entry;
        let number = u32::from_le_bytes([n0, n1, n2, n3]);
        let rights = u8::try_from(u16::from_le_bytes([r0, r1])).map_err(|_| INVALID)?;
        let once = match u16::from_le_bytes([t0, t1]) {
            OWNER => &mut owner,
            OWNING_GROUP => &mut group,
            OTHER => &mut other,
            MASK => &mut mask,
            USER => {
                named.users.push((Uid(number), rights));
                continue;
            }
            GROUP => {
                named.groups.push((Gid(number), rights));
                continue;
            }
            _ => return Err(INVALID),
        };
        if once.replace(rights).is_some() {
            return Err(INVALID);
        }
    }
    named.users.sort_unstable();
    named.groups.sort_unstable();
    let acl = Acl {
        owner: owner.ok_or(INVALID)?,
        group: group.ok_or(INVALID)?,
        other: other.ok_or(INVALID)?,
        mask,
        named,
    };
    match acl.check() {
        Ok(()) => Ok(Some(acl)),
        Err(Error::LimitReached) => Err(VfsError::refused("access control list", Errno::NOSPC)),
        Err(_) => Err(INVALID),
    }
}

/// Writes a list.
pub(in crate::vfs) fn write(acl: &Acl) -> Vec<u8> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    let mut entry = |tag: u16, rights: u8, number: u32| {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&u16::from(rights).to_le_bytes());
        bytes.extend_from_slice(&number.to_le_bytes());
    };
    entry(OWNER, acl.owner, NO_ID);
    for (uid, rights) in &acl.named.users {
        entry(USER, *rights, uid.0);
    }
    entry(OWNING_GROUP, acl.group, NO_ID);
    for (gid, rights) in &acl.named.groups {
        entry(GROUP, *rights, gid.0);
    }
    if let Some(mask) = acl.mask {
        entry(MASK, mask, NO_ID);
    }
    entry(OTHER, acl.other, NO_ID);
    bytes
}

impl FileSystem {
    pub(in crate::vfs) async fn get_acl(
        &self,
        inode: InodeId,
        kind: AclKind,
    ) -> Result<Bytes, VfsError> {
        let attributes = self.inner.files.attributes(inode).await?;
        let there = match kind {
            AclKind::Access => attributes.acl.access,
            AclKind::Default => attributes.acl.default,
        };
        if !there {
            return Err(NONE);
        }
        let opened = self.inner.extended(&attributes).await?;
        let acl = match kind {
            AclKind::Access => opened
                .acl
                .as_ref()
                .map(|acl| acl.with_mode(attributes.mode)),
            AclKind::Default => opened.default_acl.clone(),
        };
        acl.map(|acl| write(&acl).into()).ok_or(NONE)
    }

    /// Sets or removes a list. A list that says no more than a mode is a mode; `cp -a` and `tar`
    /// set such on all inodes that they make. It may ride with the content.
    pub(in crate::vfs) async fn set_acl(
        &self,
        caller: &Caller,
        inode: InodeId,
        kind: AclKind,
        acl: Option<Acl>,
    ) -> Result<(), VfsError> {
        let refused = |errno| Err(VfsError::refused("access control list", errno));
        let attributes = self.inner.files.attributes(inode).await?;
        let is_link = attributes.file_type() == FileType::Symlink;
        if is_link {
            return refused(Errno::OPNOTSUPP);
        }
        if caller.uid != Uid::ROOT.0 && caller.uid != attributes.uid.0 {
            return refused(Errno::PERM);
        }
        match (kind, &acl) {
            (AclKind::Access, None) if !attributes.acl.access => return Ok(()),
            (AclKind::Default, None) if !attributes.acl.default => return Ok(()),
            (AclKind::Access, Some(acl)) if acl.mask.is_none() && !attributes.acl.access => {
                let change = AttributeChange {
                    mode: Some(attributes.mode.0 & !0o777 | acl.mode()),
                    ..AttributeChange::default()
                };
                self.setattr(caller, inode, None, change).await?;
                return Ok(());
            }
            _ => {}
        }
        let change = ExtendedChange::Acl(kind, acl);
        self.change_extended(caller, inode, change).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn an_acl() -> impl Strategy<Value = Acl> {
        let map = || proptest::collection::btree_map(0_u32..u32::MAX, 0_u8..8, 0..4);
        (0_u8..8, 0_u8..8, 0_u8..8, 0_u8..8, map(), map()).prop_map(
            |(owner, group, other, mask, users, groups)| {
                let users = users.into_iter().map(|(uid, rights)| (Uid(uid), rights));
                let groups = groups.into_iter().map(|(gid, rights)| (Gid(gid), rights));
                let named = Named {
                    users: users.collect(),
                    groups: groups.collect(),
                };
                Acl {
                    owner,
                    group,
                    other,
                    mask: Some(mask),
                    named,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn a_list_reads_back_as_it_was_set(acl in an_acl()) {
            prop_assert_eq!(parse(&write(&acl)).unwrap(), Some(acl));
        }

        #[test]
        fn any_bytes_are_a_list_or_refused(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..64), version in any::<bool>(),
        ) {
            if version && bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
            }
            if let Ok(Some(acl)) = parse(&bytes) {
                prop_assert!(acl.check().is_ok());
            }
        }
    }

    #[test]
    fn a_list_has_the_bytes_that_linux_has() {
        let acl = Acl {
            owner: 6,
            group: 4,
            other: 0,
            mask: Some(6),
            named: Named {
                users: vec![(Uid(1000), 6)],
                groups: Vec::new(),
            },
        };
        let bytes = [
            &[2, 0, 0, 0][..],
            &[1, 0, 6, 0, 255, 255, 255, 255],
            &[2, 0, 6, 0, 0xe8, 3, 0, 0],
            &[4, 0, 4, 0, 255, 255, 255, 255],
            &[16, 0, 6, 0, 255, 255, 255, 255],
            &[32, 0, 0, 0, 255, 255, 255, 255],
        ]
        .concat();
        assert_eq!(write(&acl), bytes);
        assert_eq!(parse(&[2, 0, 0, 0]).unwrap(), None);
        let errno = |bytes: &[u8]| parse(bytes).unwrap_err().errno();
        assert_eq!(errno(&[3, 0, 0, 0]), Errno::OPNOTSUPP);
        assert_eq!(errno(&bytes[..bytes.len() - 1]), Errno::INVAL);
        assert_eq!(errno(&bytes[..bytes.len() - 8]), Errno::INVAL, "no others");
        assert_eq!(
            errno(&[&bytes[..], &bytes[4..12]].concat()),
            Errno::INVAL,
            "twice"
        );
    }
}
