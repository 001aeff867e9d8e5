//! What is sealed under an older key epoch is refused, wherever it could be stored.

use super::epochs::members_only;
use super::harness::*;
use crate::attributes::{Credentials, Namespace};
use crate::error::Error;
use crate::identity::*;
use crate::limits::OLD_KEYS_TIME;
use crate::operation::*;
use crate::reply::StepDone;
use crate::row::{Inline, Sealed, SliceKey};
use crate::simulation::place;
use quorumfs_bft::service::Caller;

struct KeysWorld {
    service: TestService,
    owner: Caller,
    file: InodeId,
    allocation: AllocationId,
    counter: u32,
}

impl KeysWorld {
    fn new() -> Self {
        let mut service = TestService::new();
        let owner = service.open(OWNER);
        let file = service.create(&owner, InodeId::ROOT, "file");
        let allocation = service.allocate(&owner, 100);
        Self {
            service,
            owner,
            file,
            allocation,
            counter: 0,
        }
    }

    fn begin(&mut self, number: u32) {
        let begin = Operation::BeginEpoch(members_only(number));
        self.service.run(&self.owner, &begin).unwrap();
    }

    /// Each way to store something that is sealed under this key epoch.
    fn all(&mut self, epoch: u32) -> Vec<(&'static str, Step)> {
        let epoch = RealmEpoch(epoch);
        self.counter += 1;
        let sealed = |length| Sealed {
            epoch,
            bytes: vec![7; length],
        };
        let mut slice = commit(self.file, self.allocation, self.counter, &[(0, 100)]);
        let SliceKey::Derived { realm, salt, .. } = slice.slices[0].keys[0] else {
            panic!("no derived key");
        };
        slice.slices[0].keys = vec![SliceKey::Derived { realm, epoch, salt }];
        let inline = Commit {
            content: NewContent::Inline(Inline {
                length: 4,
                sealed: sealed(32),
            }),
            ..commit(self.file, self.allocation, 0, &[])
        };
        let link = Create {
            place: place(InodeId::ROOT, &format!("link {}", self.counter)),
            kind: NewInode::Symlink {
                length: 4,
                target: sealed(32),
            },
            mode: crate::attributes::Mode(0o777),
            umask: crate::attributes::Mode(0),
            exclusive: true,
            number: None,
        };
        let attribute = SetExtended {
            place: AttributePlace {
                inode: self.file,
                namespace: Namespace::User,
                generation: RealmEpoch(0),
                hash: AttributeHash([1; 16]),
            },
            name: vec![1; 20],
            value: sealed(32),
            mode: SetMode::Any,
        };
        vec![
            ("slice", Step::Commit(slice)),
            ("inline", Step::Commit(inline)),
            ("symlink", Step::Create(link)),
            ("attribute", Step::SetExtended(attribute)),
        ]
    }

    fn run(&mut self, step: Step) -> Result<StepDone, Error> {
        self.service.step(&self.owner, &Credentials::root(), step)
    }

    fn accepted(&mut self, epoch: u32, what: &str) {
        for (kind, step) in self.all(epoch) {
            let done = self.run(step);
            assert!(done.is_ok(), "{what}: {kind}: {done:?}");
        }
    }

    fn refused(&mut self, epoch: u32, error: &Error, what: &str) {
        for (kind, step) in self.all(epoch) {
            assert_eq!(self.run(step).as_ref(), Err(error), "{what}: {kind}");
        }
    }
}

fn seconds() -> u64 {
    OLD_KEYS_TIME.0 / 1_000_000_000
}

#[test]
fn the_key_epoch_before_seals_for_two_minutes_more_and_older_ones_not_at_all() {
    let mut world = KeysWorld::new();
    world.accepted(0, "the only one");
    for (kind, step) in world.all(1) {
        let refused = matches!(world.run(step), Err(Error::Invalid | Error::BadContent));
        assert!(refused, "{kind}: it has not begun");
    }
    world.begin(1);
    world.accepted(0, "it has just been replaced");
    world.accepted(1, "the newest");
    world.service.wait(seconds() - 1);
    world.accepted(0, "not two minutes ago");
    world.service.wait(2);
    let current = RealmEpoch(1);
    world.refused(0, &Error::OldKeys { current }, "two minutes ago");
    world.begin(2);
    world.refused(
        0,
        &Error::OldKeys {
            current: RealmEpoch(2),
        },
        "two epochs ago",
    );
}

#[test]
fn a_new_name_is_refused_in_a_directory_whose_generation_seals_no_more() {
    let mut world = KeysWorld::new();
    world.begin(1);
    world.service.wait(seconds() + 1);
    let old = |name: &str| place(InodeId::ROOT, name);
    let refused = Some(Error::OldKeys {
        current: RealmEpoch(1),
    });
    let create = Create {
        place: old("new"),
        kind: NewInode::File,
        mode: crate::attributes::Mode(0o644),
        umask: crate::attributes::Mode(0),
        exclusive: true,
        number: None,
    };
    assert_eq!(world.run(Step::Create(create)).err(), refused);
    let link = Step::Link {
        inode: world.file,
        place: old("link"),
    };
    assert_eq!(world.run(link).err(), refused);
    let rename = rename_of((InodeId::ROOT, "file"), (InodeId::ROOT, "moved"));
    assert_eq!(world.run(Step::Rename(rename)).err(), refused);
    // What is there can be removed.
    let remove = removal(InodeId::ROOT, "file", false);
    assert!(world.run(Step::Unlink(remove)).is_ok());
}
