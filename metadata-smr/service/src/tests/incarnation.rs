//! Ids of a volume that was recovered: none was assigned before the recovery.

use super::harness::*;
use super::load::{genesis, recovered};
use crate::Metadata;
use crate::attributes::{Credentials, Mode};
use crate::error::Error;
use crate::identity::*;
use crate::limits::LABEL_BYTES_MAX;
use crate::operation::*;
use crate::row::{HomeCounters, MountMode, Row, key};
use crate::simulation::place;
use quorumfs_bft::identity::SessionId;
use quorumfs_bft::service::Service;
use quorumfs_bft::state::Area;

/// A volume of this incarnation.
fn volume(incarnation: u8) -> TestService {
    let first = TestService::of(&genesis(0));
    match incarnation {
        0 => first,
        later => recovered(&first, later),
    }
}

fn create(name: &str, number: Option<InodeId>) -> Step {
    Step::Create(Create {
        place: place(InodeId::ROOT, name),
        kind: NewInode::File,
        mode: Mode(0o644),
        umask: Mode(0),
        exclusive: true,
        number,
    })
}

#[test]
fn ids_of_two_incarnations_differ_in_their_first_bits() {
    for incarnation in [0, 3, u8::MAX] {
        let bytes = genesis(incarnation);
        let begin = u64::from(incarnation) << 48;
        assert_eq!(Metadata.sessions_begin_after(&bytes), SessionId(begin));
        let mut world = volume(incarnation);
        let owner = world.open(OWNER);
        let allocation = world.allocate(&owner, 4);
        assert_eq!(allocation, AllocationId(begin));
        let file = world.create(&owner, InodeId::ROOT, "f");
        let found = VolumeIncarnation::of_inode(file.counter());
        assert_eq!(found, VolumeIncarnation(incarnation));
        assert_eq!(file.home(), Home(0));
    }
    // An allocation of no incarnation has the number of the founding objects.
    let last = VolumeIncarnation(u8::MAX).first_id();
    assert!(last < ObjectId::FOUNDING.allocation.0 - (1 << 48));
}

#[test]
fn inodes_of_one_incarnation_end_before_those_of_the_next_begin() {
    let mut world = volume(3);
    let owner = world.open(OWNER);
    let (row_key, row) = world.rows(&key::home(Home(0))).remove(0);
    let mut counters = HomeCounters::from_bytes(&row).unwrap();
    counters.next_inode = VolumeIncarnation(4).first_inode() - 2;
    let context = world.context();
    let mut txn = world.space.begin(Area::Service, context.sequence);
    txn.put(&row_key, counters.to_bytes()).unwrap();
    txn.commit();
    let last = world.create(&owner, InodeId::ROOT, "last");
    let of = VolumeIncarnation::of_inode(last.counter());
    assert_eq!(of, VolumeIncarnation(3));
    let refused = world.step(&owner, &Credentials::root(), create("next", None));
    assert_eq!(refused.unwrap_err(), Error::LimitReached);
}

#[test]
fn what_is_not_in_use_yet_is_refused_unless_it_is_empty() {
    let mut world = TestService::new();
    let owner = world.open(OWNER);
    let mount = |label: &str| Operation::MountRealm {
        realm: RealmId::ROOT,
        takeover: Takeover::Refused,
        mode: MountMode::Exclusive,
        label: label.into(),
    };
    let refused = world.run(&owner, &mount(&"x".repeat(LABEL_BYTES_MAX + 1)));
    assert_eq!(refused.unwrap_err().error, Error::Invalid);
    world.run(&owner, &mount("host")).unwrap();
    let root = Credentials::root();
    let refused = world.step(&owner, &root, create("f", Some(InodeId(77))));
    assert_eq!(refused.unwrap_err(), Error::Invalid);
    world.step(&owner, &root, create("f", None)).unwrap();
}
