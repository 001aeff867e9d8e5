//! Access control lists: the right to set them, their decisions, and inheritance.

use super::harness::*;
use crate::acl::{AccessAcl, Acl, AclKind, Named};
use crate::attributes::{Access, Attributes, Credentials, Mode};
use crate::error::Error;
use crate::identity::{Gid, InodeId, Uid};
use crate::limits::ACL_ENTRIES_MAX;
use crate::operation::{Create, NewInode, SetAcl, SetAttributes, Step};
use crate::query::Question;
use crate::reply::{QueryResult, StepDone};
use crate::row::Sealed;
use crate::simulation::place;
use quorumfs_bft::service::Caller;

fn list(mode: u16, users: &[(u32, u8)], groups: &[(u32, u8)]) -> Acl {
    let named = Named {
        users: users.iter().map(|(uid, it)| (Uid(*uid), *it)).collect(),
        groups: groups.iter().map(|(gid, it)| (Gid(*gid), *it)).collect(),
    };
    let is_mode = users.is_empty() && groups.is_empty();
    Acl {
        owner: (mode >> 6) as u8 & 7,
        group: (mode >> 3) as u8 & 7,
        other: mode as u8 & 7,
        mask: (!is_mode).then_some((mode >> 3) as u8 & 7),
        named,
    }
}

fn user(uid: u32) -> Credentials {
    Credentials::user(Uid(uid), Gid(uid))
}

impl TestService {
    fn set_acl(
        &mut self,
        caller: &Caller,
        who: &Credentials,
        (inode, kind): (InodeId, AclKind),
        acl: Option<Acl>,
    ) -> Result<Attributes, Error> {
        match self.step(caller, who, Step::SetAcl(SetAcl { inode, kind, acl }))? {
            StepDone::Set(attributes) => Ok(attributes),
            other => panic!("{other:?}"),
        }
    }

    fn lists(&mut self, caller: &Caller, inode: InodeId) -> (Option<AccessAcl>, Option<Acl>) {
        match self.ask(caller, Question::Extended(inode)) {
            Ok(QueryResult::Extended {
                acl, default_acl, ..
            }) => (acl, default_acl),
            other => panic!("{other:?}"),
        }
    }

    fn may(&mut self, caller: &Caller, who: Credentials, inode: InodeId, access: u8) -> bool {
        let access = Access(access);
        let question = Question::Access { inode, access };
        match self.ask_as(caller, who, question) {
            Ok(QueryResult::Allowed) => true,
            Err(Error::Denied) => false,
            other => panic!("{other:?}"),
        }
    }

    fn made(
        &mut self,
        caller: &Caller,
        parent: InodeId,
        name: &str,
        (kind, mode, umask): (NewInode, u16, u16),
    ) -> Attributes {
        let create = Step::Create(Create {
            place: place(parent, name),
            kind,
            mode: Mode(mode),
            umask: Mode(umask),
            exclusive: true,
            number: None,
        });
        match self.step(caller, &Credentials::root(), create) {
            Ok(StepDone::Created { inode, .. }) => inode,
            other => panic!("{other:?}"),
        }
    }

    fn chmod(&mut self, caller: &Caller, inode: InodeId, mode: u16) {
        let step = SetAttributes {
            mode: Some(Mode(mode)),
            ..SetAttributes::of(inode)
        };
        self.step(caller, &Credentials::root(), Step::SetAttributes(step))
            .unwrap();
    }
}

#[test]
fn a_list_lets_in_whom_it_names_and_chmod_moves_its_mask() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let file = world.create(&caller, InodeId::ROOT, "file");
    let root = Credentials::root();
    let acl = list(0o660, &[(7, 6)], &[(9, 4)]);
    let set = world.set_acl(&caller, &root, (file, AclKind::Access), Some(acl.clone()));
    let set = set.unwrap();
    assert_eq!((set.mode, set.acl.access), (Mode(0o660), true));
    assert_eq!(world.lists(&caller, file).0, acl.beyond_mode());
    assert!(world.may(&caller, user(7), file, 6));
    assert!(world.may(&caller, user(9), file, 4) && !world.may(&caller, user(9), file, 2));
    assert!(!world.may(&caller, user(8), file, 4));
    world.chmod(&caller, file, 0o640);
    assert!(world.may(&caller, user(7), file, 4) && !world.may(&caller, user(7), file, 2));
    let step = SetAttributes {
        size: Some(5),
        ..SetAttributes::of(file)
    };
    let refused = world.step(&caller, &user(7), Step::SetAttributes(step.clone()));
    assert_eq!(refused, Err(Error::Denied));
    world.chmod(&caller, file, 0o660);
    world
        .step(&caller, &user(7), Step::SetAttributes(step))
        .unwrap();
    let plain = world
        .set_acl(&caller, &root, (file, AclKind::Access), None)
        .unwrap();
    assert_eq!((plain.mode, plain.acl.access), (Mode(0o660), false));
    assert!(!world.may(&caller, user(7), file, 4));
}

#[test]
fn a_list_that_a_mode_can_say_is_a_mode() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let file = world.create(&caller, InodeId::ROOT, "file");
    let access = (file, AclKind::Access);
    world.chmod(&caller, file, 0o4711);
    let named = Some(list(0o750, &[(7, 6)], &[]));
    world
        .set_acl(&caller, &Credentials::root(), access, named)
        .unwrap();
    let plain = Some(list(0o640, &[], &[]));
    let set = world
        .set_acl(&caller, &Credentials::root(), access, plain)
        .unwrap();
    assert_eq!((set.mode, set.acl.access), (Mode(0o4640), false));
    assert_eq!(world.lists(&caller, file), (None, None));
}

#[test]
fn only_owners_set_lists_and_only_where_there_can_be_some() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let root = Credentials::root();
    let file = world.create(&caller, InodeId::ROOT, "file");
    let target = Sealed {
        epoch: crate::identity::RealmEpoch(0),
        bytes: b"target".to_vec(),
    };
    let link = NewInode::Symlink { length: 1, target };
    let link = world.make(&caller, InodeId::ROOT, "link", link);
    let give = SetAttributes {
        uid: Some(Uid(7)),
        gid: Some(Gid(70)),
        mode: Some(Mode(0o2777)),
        ..SetAttributes::of(file)
    };
    world
        .step(&caller, &root, Step::SetAttributes(give))
        .unwrap();
    let acl = || Some(list(0o777, &[(8, 7)], &[]));
    let access = (file, AclKind::Access);
    let refused = world.set_acl(&caller, &user(8), access, acl());
    assert_eq!(refused, Err(Error::NotPermitted));
    let set = world.set_acl(&caller, &user(7), access, acl()).unwrap();
    assert_eq!(set.mode, Mode(0o777), "set-gid goes as with chmod");
    let default = (file, AclKind::Default);
    let refused = world.set_acl(&caller, &user(7), default, acl());
    assert_eq!(refused, Err(Error::Denied));
    world.set_acl(&caller, &user(7), default, None).unwrap();
    let refused = world.set_acl(&caller, &root, (link, AclKind::Access), acl());
    assert_eq!(refused, Err(Error::NotSupported));
    let mut unsorted = list(0o777, &[(8, 7), (7, 7)], &[]);
    let refused = world.set_acl(&caller, &root, access, Some(unsorted.clone()));
    assert_eq!(refused, Err(Error::Invalid));
    unsorted.named.users = (0..=ACL_ENTRIES_MAX as u32)
        .map(|uid| (Uid(uid), 1))
        .collect();
    let refused = world.set_acl(&caller, &root, access, Some(unsorted));
    assert_eq!(refused, Err(Error::LimitReached));
}

#[test]
fn new_inodes_begin_with_the_default_list_of_their_directory() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let root = Credentials::root();
    let directory = world.mkdir(&caller, InodeId::ROOT, "directory");
    let before = world.made(&caller, directory, "before", (NewInode::File, 0o666, 0o027));
    assert_eq!((before.mode, before.acl.access), (Mode(0o640), false));
    let default = list(0o770, &[(7, 7)], &[]);
    let of = (directory, AclKind::Default);
    let set = world
        .set_acl(&caller, &root, of, Some(default.clone()))
        .unwrap();
    assert_eq!(
        (set.mode, set.acl.access, set.acl.default),
        (Mode(0o755), false, true)
    );
    let file = world.made(&caller, directory, "file", (NewInode::File, 0o644, 0o077));
    assert_eq!(
        (file.mode, file.acl.access),
        (Mode(0o640), true),
        "no umask"
    );
    let below = world.made(
        &caller,
        directory,
        "below",
        (NewInode::Directory, 0o777, 0o077),
    );
    assert_eq!(
        (below.mode, below.acl.access, below.acl.default),
        (Mode(0o770), true, true)
    );
    let deep = world.made(
        &caller,
        below.inode,
        "deep",
        (NewInode::Directory, 0o700, 0o077),
    );
    assert_eq!(deep.mode, Mode(0o700));
    assert!(
        world.may(&caller, user(7), file.inode, 4),
        "within the mask"
    );
    assert!(!world.may(&caller, user(7), file.inode, 2));
    assert!(world.may(&caller, user(7), below.inode, 7));
    let (access, inherited) = world.lists(&caller, deep.inode);
    assert_eq!(inherited, Some(default.clone()));
    assert_eq!(access, default.beyond_mode());
    let target = Sealed {
        epoch: crate::identity::RealmEpoch(0),
        bytes: b"target".to_vec(),
    };
    let link = NewInode::Symlink { length: 1, target };
    let link = world.make(&caller, directory, "link", link);
    let link = world.attributes(&caller, link).unwrap();
    assert_eq!((link.mode, link.acl.access), (Mode(0o777), false));
}

/// Rows and messages of access control lists, for the fixtures.
pub(super) fn fixtures() -> Vec<(&'static str, Vec<u8>)> {
    let step = |kind, acl| {
        let inode = InodeId(258);
        let step = Step::SetAcl(SetAcl { inode, kind, acl });
        let time = crate::attributes::Timestamp::default();
        crate::simulation::compound(Credentials::root(), time, vec![step]).to_bytes()
    };
    let acl = list(0o754, &[(1000, 6)], &[(100, 5)]);
    vec![
        ("operation-set-acl", step(AclKind::Access, Some(acl))),
        ("operation-remove-acl", step(AclKind::Default, None)),
    ]
}
