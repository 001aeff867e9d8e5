//! Extended attributes: permissions, bounds, removal.

use super::harness::*;
use crate::attributes::{Attributes, Credentials, Mode, Namespace};
use crate::error::Error;
use crate::identity::{AttributeHash, Gid, InodeId, RealmEpoch, Uid};
use crate::limits::{
    EXTENDED_BYTES_MAX, EXTENDED_DROPPED_MAX, EXTENDED_MAX, EXTENDED_VALUE_BYTES_MAX,
    SEAL_OVERHEAD_MAX, SEALED_NAME_BYTES_MAX,
};
use crate::operation::{
    AttributePlace, NewContent, NewInode, SetAttributes, SetExtended, SetMode, Step,
};
use crate::query::{Query, Question};
use crate::reply::{Answer, ListedExtended, QueryResult, StepDone};
use crate::row::{ExtendedAttribute, Inline, Row, Sealed, key};
use proptest::prelude::*;
use quorumfs_bft::service::Caller;
use std::collections::BTreeMap;

fn place(inode: InodeId, namespace: Namespace, name: u8) -> AttributePlace {
    let hash = match namespace {
        Namespace::Capability => AttributeHash::ONLY,
        _ => AttributeHash([name; 16]),
    };
    AttributePlace {
        inode,
        namespace,
        hash,
        generation: RealmEpoch(0),
    }
}

fn sealed(bytes: Vec<u8>) -> Sealed {
    Sealed {
        epoch: RealmEpoch(0),
        bytes,
    }
}

fn set(inode: InodeId, namespace: Namespace, name: u8, value: &[u8]) -> SetExtended {
    SetExtended {
        place: place(inode, namespace, name),
        name: vec![name; 20],
        value: sealed(value.to_vec()),
        mode: SetMode::Any,
    }
}

impl TestService {
    fn set_extended(&mut self, caller: &Caller, step: SetExtended) -> Result<Attributes, Error> {
        self.change_extended(caller, &Credentials::root(), Step::SetExtended(step))
    }

    fn change_extended(
        &mut self,
        caller: &Caller,
        who: &Credentials,
        step: Step,
    ) -> Result<Attributes, Error> {
        match self.step(caller, who, step)? {
            StepDone::Set(attributes) => Ok(attributes),
            other => panic!("{other:?}"),
        }
    }

    fn extended(&mut self, caller: &Caller, who: Credentials, of: InodeId) -> Vec<ListedExtended> {
        match self.ask_as(caller, who, Question::Extended(of)) {
            Ok(QueryResult::Extended { listed, .. }) => listed,
            other => panic!("{other:?}"),
        }
    }
}

fn user(uid: u32) -> Credentials {
    Credentials::user(Uid(uid), Gid(uid))
}

fn chmod(inode: InodeId, mode: u16) -> Step {
    Step::SetAttributes(SetAttributes {
        mode: Some(Mode(mode)),
        uid: Some(Uid(7)),
        gid: Some(Gid(7)),
        ..SetAttributes::of(inode)
    })
}

#[test]
fn user_attributes_take_write_permission_and_lie_on_files_and_directories_alone() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let file = world.create(&caller, InodeId::ROOT, "file");
    let directory = world.mkdir(&caller, InodeId::ROOT, "directory");
    let root = Credentials::root();
    for (inode, mode) in [(file, 0o620), (directory, 0o777)] {
        world.step(&caller, &root, chmod(inode, mode)).unwrap();
    }
    let step = |inode, who: &Credentials, world: &mut TestService| {
        let step = Step::SetExtended(set(inode, Namespace::User, 1, b"value"));
        world.change_extended(&caller, who, step).map(|_| ())
    };
    assert_eq!(step(file, &user(7), &mut world), Ok(()));
    assert_eq!(step(file, &user(8), &mut world), Err(Error::Denied));
    assert_eq!(step(directory, &user(8), &mut world), Ok(()));
    world
        .step(&caller, &root, chmod(directory, 0o1777))
        .unwrap();
    assert_eq!(
        step(directory, &user(8), &mut world),
        Err(Error::NotPermitted)
    );
    assert_eq!(step(directory, &user(7), &mut world), Ok(()));
    for (name, kind) in [
        ("pipe", NewInode::Fifo),
        (
            "link",
            NewInode::Symlink {
                length: 1,
                target: sealed(b"target".to_vec()),
            },
        ),
    ] {
        let special = world.make(&caller, InodeId::ROOT, name, kind);
        assert_eq!(step(special, &root, &mut world), Err(Error::NotPermitted));
    }
    let removal = Step::RemoveExtended(place(file, Namespace::User, 1));
    let refused = world.change_extended(&caller, &user(8), removal.clone());
    assert_eq!(refused, Err(Error::Denied));
    let gone = world
        .change_extended(&caller, &user(7), removal.clone())
        .unwrap();
    assert_eq!((gone.extended.count, gone.extended.bytes), (0, 0));
    let again = world.change_extended(&caller, &user(7), removal);
    assert_eq!(again, Err(Error::NoAttribute));
}

#[test]
fn the_other_namespaces_are_the_superusers_to_write() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let file = world.create(&caller, InodeId::ROOT, "file");
    world
        .step(&caller, &Credentials::root(), chmod(file, 0o777))
        .unwrap();
    for namespace in [
        Namespace::Trusted,
        Namespace::Security,
        Namespace::Capability,
    ] {
        let step = Step::SetExtended(set(file, namespace, 1, b"value"));
        let refused = world.change_extended(&caller, &user(7), step.clone());
        assert_eq!(refused, Err(Error::NotPermitted), "{namespace:?}");
        let removal = Step::RemoveExtended(place(file, namespace, 1));
        world
            .change_extended(&caller, &Credentials::root(), step)
            .unwrap();
        let refused = world.change_extended(&caller, &user(7), removal);
        assert_eq!(refused, Err(Error::NotPermitted), "{namespace:?}");
    }
    let seen = world.extended(&caller, Credentials::root(), file);
    assert_eq!(seen.len(), 3);
}

#[test]
fn a_principal_sees_only_permitted_information() {
    let mut world = TestService::new();
    let (owner, other) = (world.open(OWNER), world.open(ALICE));
    let file = world.create(&owner, InodeId::ROOT, "file");
    for namespace in [Namespace::User, Namespace::Trusted, Namespace::Security] {
        world
            .set_extended(&owner, set(file, namespace, 1, b"value"))
            .unwrap();
    }
    let mut seen = |mode| {
        world
            .step(&owner, &Credentials::root(), chmod(file, mode))
            .unwrap();
        world.extended(&other, alice(), file)
    };
    let shown = |listed: Vec<ListedExtended>| -> Vec<_> {
        let listed = listed.into_iter();
        listed
            .map(|it| (it.namespace, it.value.is_some()))
            .collect()
    };
    let readable = vec![(Namespace::User, true), (Namespace::Security, true)];
    assert_eq!(shown(seen(0o604)), readable);
    let secret = vec![(Namespace::User, false), (Namespace::Security, true)];
    assert_eq!(
        shown(seen(0o660)),
        secret,
        "names are no secret, values are"
    );
}

#[test]
fn create_and_replace_check_the_existing_attribute() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let file = world.create(&caller, InodeId::ROOT, "file");
    let step = |mode, value: &[u8]| SetExtended {
        mode,
        ..set(file, Namespace::User, 1, value)
    };
    let none = world.set_extended(&caller, step(SetMode::Replace, b"0"));
    assert_eq!(none, Err(Error::NoAttribute));
    world
        .set_extended(&caller, step(SetMode::Create, b"1"))
        .unwrap();
    let there = world.set_extended(&caller, step(SetMode::Create, b"2"));
    assert_eq!(there, Err(Error::Exists));
    let before = world.attributes(&caller, file).unwrap();
    let after = world
        .set_extended(&caller, step(SetMode::Replace, b"333"))
        .unwrap();
    assert!(after.ctime > before.ctime && after.mtime == before.mtime);
    assert_eq!(after.extended.changed, after.version);
    assert_eq!((after.extended.count, after.extended.bytes), (1, 23));
    let seen = world.extended(&caller, Credentials::root(), file);
    assert_eq!(seen[0].value, Some(sealed(b"333".to_vec())));
}

#[test]
fn an_inode_bounds_the_number_and_size_of_its_attributes() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let (file, full) = (
        world.create(&caller, InodeId::ROOT, "file"),
        world.create(&caller, InodeId::ROOT, "full"),
    );
    let long = EXTENDED_VALUE_BYTES_MAX + SEAL_OVERHEAD_MAX;
    let at = |name, length| set(file, Namespace::User, name, &vec![7; length]);
    let refused = world.set_extended(&caller, at(1, long + 1));
    let limit = EXTENDED_VALUE_BYTES_MAX as u32;
    assert_eq!(refused, Err(Error::TooMany { limit }));
    world.set_extended(&caller, at(1, long)).unwrap();
    let rest = EXTENDED_BYTES_MAX as usize - long - 40;
    let refused = world.set_extended(&caller, at(2, rest + 1));
    assert_eq!(refused, Err(Error::LimitReached));
    world.set_extended(&caller, at(2, rest)).unwrap();
    assert_eq!(
        world.set_extended(&caller, at(3, 1)),
        Err(Error::LimitReached)
    );
    world.set_extended(&caller, at(1, 10)).unwrap();
    world.set_extended(&caller, at(3, 1)).unwrap();

    let short = |number: u16| {
        let mut step = set(full, Namespace::User, 0, b"v");
        step.place.hash.0[..2].copy_from_slice(&number.to_be_bytes());
        step
    };
    for number in 0..EXTENDED_MAX {
        world.set_extended(&caller, short(number)).unwrap();
    }
    let refused = world.set_extended(&caller, short(EXTENDED_MAX));
    assert_eq!(refused, Err(Error::LimitReached));
    let listed = world.extended(&caller, Credentials::root(), full);
    assert_eq!(listed.len(), usize::from(EXTENDED_MAX));
}

#[test]
fn malformed_operations_are_refused() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let file = world.create(&caller, InodeId::ROOT, "file");
    let good = || set(file, Namespace::User, 1, b"value");
    let mut refused = |change: fn(&mut SetExtended), error: Error| {
        let mut step = good();
        change(&mut step);
        assert_eq!(world.set_extended(&caller, step), Err(error));
    };
    refused(|step| step.name.clear(), Error::Invalid);
    refused(|step| step.value.bytes.clear(), Error::Invalid);
    refused(|step| step.value.epoch = RealmEpoch(1), Error::Invalid);
    refused(|step| step.place.generation = RealmEpoch(1), Error::Invalid);
    refused(
        |step| step.place.namespace = Namespace::Capability,
        Error::Invalid,
    );
    refused(
        |step| step.name = vec![1; SEALED_NAME_BYTES_MAX + 1],
        Error::NameTooLong,
    );
    refused(
        |step| step.place.inode = InodeId(99),
        Error::Stale(InodeId(99)),
    );
    world.set_extended(&caller, good()).unwrap();
    let mut other = set(file, Namespace::User, 2, b"value");
    other.place.generation = RealmEpoch(3);
    assert_eq!(world.set_extended(&caller, other), Err(Error::Changed));
}

#[test]
fn capabilities_go_with_a_write_a_truncation_and_a_new_owner() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let file = world.create(&caller, InodeId::ROOT, "file");
    let allocation = world.allocate(&caller, 8);
    let root = Credentials::root();
    let mut write = commit(file, allocation, 0, &[(0, 100)]);
    let touch = SetAttributes {
        mode: Some(Mode(0o755)),
        mtime: Some(crate::operation::SetTime::Now),
        ..SetAttributes::of(file)
    };
    let kept = |world: &mut TestService| {
        let listed = world.extended(&caller, Credentials::root(), file);
        let capability = |it: &ListedExtended| it.namespace == Namespace::Capability;
        assert_eq!(
            listed.len() - 1,
            listed.iter().filter(|it| capability(it)).count()
        );
        listed.iter().any(capability)
    };
    world
        .set_extended(&caller, set(file, Namespace::Security, 1, b"label"))
        .unwrap();
    let changes = [
        Step::Commit(write.clone()),
        Step::SetAttributes(SetAttributes {
            size: Some(5),
            ..SetAttributes::of(file)
        }),
        Step::SetAttributes(SetAttributes {
            uid: Some(Uid(7)),
            ..SetAttributes::of(file)
        }),
    ];
    for change in changes {
        world
            .set_extended(&caller, set(file, Namespace::Capability, 0, b"cap"))
            .unwrap();
        world
            .step(&caller, &root, Step::SetAttributes(touch.clone()))
            .unwrap();
        assert!(kept(&mut world), "neither mode nor times matter");
        world.step(&caller, &root, change.clone()).unwrap();
        assert!(!kept(&mut world), "{change:?}");
    }
    write.content = NewContent::Inline(Inline {
        length: 1,
        sealed: sealed(b"inline".to_vec()),
    });
    (write.objects, write.slices) = (Vec::new(), Vec::new());
    world
        .set_extended(&caller, set(file, Namespace::Capability, 0, b"cap"))
        .unwrap();
    world.step(&caller, &root, Step::Commit(write)).unwrap();
    assert!(!kept(&mut world));
    let attributes = world.attributes(&caller, file).unwrap();
    assert_eq!(attributes.extended.changed, attributes.version);
}

#[test]
fn attributes_go_with_their_inode() {
    for count in [1, EXTENDED_DROPPED_MAX, EXTENDED_DROPPED_MAX + 1, 200] {
        let mut world = TestService::new();
        let caller = world.open(OWNER);
        let file = world.create(&caller, InodeId::ROOT, "file");
        let other = world.create(&caller, InodeId::ROOT, "other");
        world
            .set_extended(&caller, set(other, Namespace::User, 1, b"v"))
            .unwrap();
        for number in 0..count {
            let step = set(file, Namespace::User, number as u8, b"v");
            world.set_extended(&caller, step).unwrap();
        }
        let unlink = Step::Unlink(removal(InodeId::ROOT, "file", false));
        world.step(&caller, &Credentials::root(), unlink).unwrap();
        let left = world.rows(&key::all_extended(file)).len();
        assert_eq!(
            left == 0,
            count <= EXTENDED_DROPPED_MAX,
            "{left} of {count}"
        );
        world.drain();
        assert_eq!(world.rows(&key::all_extended(file)), []);
        assert_eq!(world.rows(&key::all_extended(other)).len(), 1);
    }
}

#[test]
fn a_watcher_of_an_inode_is_notified_of_its_attributes() {
    use crate::Metadata;
    use quorumfs_bft::service::Service;
    use quorumfs_bft::state::Area;
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let file = world.create(&caller, InodeId::ROOT, "file");
    let query = Query {
        credentials: Credentials::root(),
        question: Question::Extended(file),
    };
    let view = world.space.view(Area::Service);
    let watched = Metadata.watch(&view, &caller, &query.to_bytes()).unwrap();
    assert_eq!(watched, Some(vec![key::inode(file).into()]));
    let before = world.rows(&key::inode(file));
    world
        .set_extended(&caller, set(file, Namespace::User, 1, b"v"))
        .unwrap();
    assert_ne!(world.rows(&key::inode(file)), before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// After any operation an inode's row has the number and bytes of its attributes.
    #[test]
    fn counts_are_those_of_the_rows(
        calls in proptest::collection::vec((0_u8..4, 0_u8..6, 0_usize..40, 0_u8..4), 1..60),
    ) {
        let mut world = TestService::new();
        let caller = world.open(OWNER);
        let file = world.create(&caller, InodeId::ROOT, "file");
        let mut model: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        for (call, name, length, mode) in calls {
            let value = vec![name; length + 1];
            if call == 0 {
                let step = Step::RemoveExtended(place(file, Namespace::User, name));
                let done = world.change_extended(&caller, &Credentials::root(), step);
                prop_assert_eq!(done.is_ok(), model.remove(&name).is_some());
                continue;
            }
            let mode = [SetMode::Any, SetMode::Any, SetMode::Create, SetMode::Replace]
                [usize::from(mode)];
            let step = SetExtended { mode, ..set(file, Namespace::User, name, &value) };
            let done = world.set_extended(&caller, step);
            let allowed = match mode {
                SetMode::Any => true,
                SetMode::Create => !model.contains_key(&name),
                SetMode::Replace => model.contains_key(&name),
            };
            prop_assert_eq!(done.is_ok(), allowed);
            if allowed {
                model.insert(name, value);
            }
        }
        let found = world.attributes(&caller, file).unwrap().extended;
        let bytes: usize = model.values().map(|value| value.len() + 20).sum();
        prop_assert_eq!((usize::from(found.count), found.bytes as usize), (model.len(), bytes));
        let listed = world.extended(&caller, Credentials::root(), file);
        let listed: BTreeMap<u8, Vec<u8>> = listed
            .into_iter()
            .map(|it| (it.hash.0[0], it.value.unwrap().bytes))
            .collect();
        prop_assert_eq!(listed, model);
    }
}

/// Rows and messages of extended attributes, for the fixtures.
pub(super) fn fixtures() -> Vec<(&'static str, Vec<u8>)> {
    let step = set(InodeId(258), Namespace::Security, 3, b"sealed value");
    let row = ExtendedAttribute {
        name: step.name.clone(),
        value: step.value.clone(),
    };
    let compound = |step| {
        let time = crate::attributes::Timestamp::default();
        crate::simulation::compound(Credentials::root(), time, vec![step])
    };
    let place = step.place;
    let listed = ListedExtended {
        namespace: place.namespace,
        hash: place.hash,
        name: step.name.clone(),
        value: Some(step.value.clone()),
    };
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let attributes = world.attributes(&caller, InodeId::ROOT).unwrap();
    let found = QueryResult::Extended {
        attributes,
        listed: vec![listed],
        acl: None,
        default_acl: None,
    };
    vec![
        ("row-extended", row.to_bytes()),
        (
            "key-extended",
            key::extended(place.inode, place.namespace, place.hash),
        ),
        (
            "operation-set-extended",
            compound(Step::SetExtended(step)).to_bytes(),
        ),
        (
            "operation-remove-extended",
            compound(Step::RemoveExtended(place)).to_bytes(),
        ),
        ("answer-extended", Answer(Ok(found)).to_bytes()),
    ]
}
