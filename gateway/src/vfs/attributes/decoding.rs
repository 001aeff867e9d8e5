//! Extended attributes as programs set them, and access control lists as servers store them.
//!
//! | Piece | What it is read as |
//! |---|---|
//! | 0 | a name |
//! | 1 | a list in the form of Linux |
//! | 2 | a whole list in the form of the metadata |
//! | 3 | a mode (2); the rest of a list, in the form of the metadata |
//! | 4 | a tier |

use super::acl;
use crate::decoders::{Piece, Seed};
use crate::vfs::known::Name;
use crate::vfs::services::Tier;
use borsh::BorshDeserialize;
use quorumfs_metadata::acl::{AccessAcl, Acl, Named};
use quorumfs_metadata::attributes::Mode;
use quorumfs_metadata::identity::{Gid, Uid};

fn name(bytes: &[u8]) -> bool {
    let Ok(name) = Name::parse(bytes) else {
        return false;
    };
    let mut whole = Vec::new();
    name.write(&mut whole);
    assert_eq!(whole, bytes);
    true
}

/// An accepted list: it is written as it was read, and divides into mode and rest.
fn is_a_list(list: &Acl) {
    assert!(list.check().is_ok());
    let again = acl::parse(&acl::write(list)).ok().flatten();
    assert_eq!(again.as_ref(), Some(list));
    let mode = Mode(list.mode());
    if let Some(rest) = list.clone().beyond_mode() {
        assert_eq!(&rest.with_mode(mode), list);
    }
    let (own, given) = list.inherited(Mode(0o7777));
    assert_eq!(given.0, 0o7000 | list.mode());
    assert_eq!(own.is_some(), list.mask.is_some());
}

fn of_linux(bytes: &[u8]) -> bool {
    match acl::parse(bytes) {
        Ok(Some(list)) => {
            is_a_list(&list);
            true
        }
        _ => false,
    }
}

fn of_metadata(bytes: &[u8]) -> bool {
    match Acl::try_from_slice(bytes) {
        Ok(list) if list.check().is_ok() => {
            is_a_list(&list);
            true
        }
        _ => false,
    }
}

fn apart_from_a_mode(mode: u16, bytes: &[u8]) -> bool {
    let Ok(rest) = AccessAcl::try_from_slice(bytes) else {
        return false;
    };
    let list = rest.with_mode(Mode(mode));
    assert_eq!(list.mode(), mode & 0o777);
    let bytes = acl::write(&list);
    // Servers checked the lists that they store; a list that they would refuse is refused when it
    // is read again.
    if list.check().is_ok() {
        assert_eq!(acl::parse(&bytes).ok().flatten(), Some(list));
    }
    true
}

/// Reads each piece; returns how many are valid.
///
/// # Panics
/// If a piece is accepted and does not read back the same.
pub(crate) fn read(pieces: &[Piece<'_>]) -> usize {
    let held = pieces
        .iter()
        .filter(|(kind, piece)| match (kind % 5, *piece) {
            (0, bytes) => name(bytes),
            (1, bytes) => of_linux(bytes),
            (2, bytes) => of_metadata(bytes),
            (3, [high, low, rest @ ..]) => {
                apart_from_a_mode(u16::from_be_bytes([*high, *low]), rest)
            }
            (4, bytes) => Tier::named(bytes).is_some_and(|tier| tier.name().as_bytes() == bytes),
            _ => false,
        });
    held.count()
}

/// Some of each.
pub(crate) fn seeds() -> Vec<Seed> {
    let plain = Acl {
        owner: 6,
        group: 4,
        other: 0,
        mask: None,
        named: Named::default(),
    };
    let wide = Acl {
        mask: Some(6),
        named: Named {
            users: vec![(Uid(1000), 6), (Uid(1001), 4)],
            groups: vec![(Gid(27), 5)],
        },
        ..plain.clone()
    };
    let encoded = |list: &Acl| borsh::to_vec(list).unwrap_or_default();
    let apart = wide.clone().beyond_mode();
    let apart = apart.and_then(|it| borsh::to_vec(&it).ok());
    let apart = [&[1, 0xa4][..], &apart.unwrap_or_default()].concat();
    vec![
        vec![(0, b"user.comment".to_vec()), (4, b"local".to_vec())],
        vec![(0, b"security.capability".to_vec())],
        vec![(1, acl::write(&plain)), (2, encoded(&plain))],
        vec![(1, acl::write(&wide)), (2, encoded(&wide))],
        vec![(3, apart)],
    ]
}
