//! Times of access: nothing else changes with them, and the rights to change them.

use super::harness::*;
use crate::attributes::{Attributes, Credentials, Mode, Timestamp};
use crate::error::Error;
use crate::identity::{InodeId, Uid};
use crate::limits::ACCESSED_MAX;
use crate::operation::{Accessed, SetAttributes, SetTime, Step};
use crate::reply::StepDone;
use crate::simulation::compound;
use quorumfs_bft::service::Caller;

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 5 }
}

/// The bytes of a step, for its fixture.
pub(super) fn fixtures() -> Vec<(&'static str, Vec<u8>)> {
    let step = Step::Accessed(vec![Accessed {
        inode: InodeId(2),
        time: at(7),
    }]);
    let operation = compound(Credentials::root(), at(9), vec![step]);
    vec![("operation-accessed", operation.to_bytes())]
}

impl TestService {
    fn accessed(&mut self, caller: &Caller, read: &[(InodeId, Timestamp)]) -> Result<(), Error> {
        let of = |(inode, time): &(InodeId, Timestamp)| Accessed {
            inode: *inode,
            time: *time,
        };
        let step = Step::Accessed(read.iter().map(of).collect());
        // The principal's rights decide, not the credentials.
        let done = self.step(caller, &Credentials::root(), step)?;
        assert_eq!(done, StepDone::Accessed);
        Ok(())
    }

    /// A file that was last read at the epoch.
    fn old(&mut self, caller: &Caller, name: &str) -> Attributes {
        let inode = self.create(caller, InodeId::ROOT, name);
        let step = SetAttributes {
            atime: Some(SetTime::To(at(0))),
            ..SetAttributes::of(inode)
        };
        self.step(caller, &Credentials::root(), Step::SetAttributes(step))
            .unwrap();
        self.attributes(caller, inode).unwrap()
    }
}

#[test]
fn a_time_of_access_moves_forward_and_nothing_else_does() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let (one, two) = (world.old(&caller, "one"), world.old(&caller, "two"));
    world
        .accessed(&caller, &[(one.inode, at(2)), (two.inode, at(3))])
        .unwrap();
    let expected = Attributes {
        atime: at(2),
        ..one
    };
    assert_eq!(world.attributes(&caller, one.inode), Some(expected));
    assert_eq!(world.attributes(&caller, two.inode).unwrap().atime, at(3));
    world.accessed(&caller, &[(one.inode, at(1))]).unwrap();
    assert_eq!(world.attributes(&caller, one.inode), Some(expected));
}

#[test]
fn an_access_time_is_never_in_the_future() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let file = world.old(&caller, "file");
    world
        .accessed(&caller, &[(file.inode, at(i64::MAX))])
        .unwrap();
    let atime = world.attributes(&caller, file.inode).unwrap().atime;
    assert!(atime > at(0) && atime < at(i64::MAX), "{atime:?}");
    let later = world.create(&caller, InodeId::ROOT, "later");
    let ctime = world.attributes(&caller, later).unwrap().ctime;
    assert!(atime <= ctime, "{atime:?} {ctime:?}");
}

#[test]
fn deleted_inodes_are_skipped_and_too_many_are_refused() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let file = world.old(&caller, "file");
    let gone = InodeId(u64::MAX >> 1);
    world
        .accessed(&caller, &[(gone, at(2)), (file.inode, at(2))])
        .unwrap();
    assert_eq!(world.attributes(&caller, file.inode).unwrap().atime, at(2));
    let invalid = Timestamp {
        seconds: 3,
        nanos: 1_000_000_000,
    };
    let refused = world.accessed(&caller, &[(file.inode, invalid)]);
    assert_eq!(refused, Err(Error::Invalid));
    let full = vec![(file.inode, at(3)); ACCESSED_MAX];
    world.accessed(&caller, &full).unwrap();
    let more = vec![(file.inode, at(4)); ACCESSED_MAX + 1];
    let limit = ACCESSED_MAX as u32;
    assert_eq!(
        world.accessed(&caller, &more),
        Err(Error::TooMany { limit })
    );
    assert_eq!(world.attributes(&caller, file.inode).unwrap().atime, at(3));
}

#[test]
fn a_principal_changes_no_access_time_of_a_file_that_it_could_not_read() {
    let mut world = TestService::new();
    let owner = world.open(OWNER);
    let file = world.old(&owner, "file");
    let step = SetAttributes {
        mode: Some(Mode(0o600)),
        uid: Some(Uid(77)),
        ..SetAttributes::of(file.inode)
    };
    world
        .step(&owner, &Credentials::root(), Step::SetAttributes(step))
        .unwrap();
    let user = world.open(ALICE);
    let step = Step::Accessed(vec![Accessed {
        inode: file.inode,
        time: at(2),
    }]);
    let done = world.step(&user, &alice(), step.clone());
    assert_eq!(done, Ok(StepDone::Accessed));
    assert_eq!(world.attributes(&owner, file.inode).unwrap().atime, at(0));
    world.step(&owner, &Credentials::root(), step).unwrap();
    assert_eq!(world.attributes(&owner, file.inode).unwrap().atime, at(2));
}
