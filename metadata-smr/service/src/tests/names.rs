//! Names: atomic compounds, holders of unlinked files, refusals of renames.

use super::harness::*;
use crate::attributes::Credentials;
use crate::error::{Error, FailedAt};
use crate::identity::{InodeId, RealmId};
use crate::limits::DEPTH_MAX;
use crate::operation::{Compound, Create, NewInode, Operation, Precondition, RenameMode, Step};
use crate::query::Question;
use crate::reply::{QueryResult, StepDone};
use crate::row::MountMode;
use crate::simulation::place;

fn create_step(parent: InodeId, name: &str) -> Step {
    Step::Create(Create {
        place: place(parent, name),
        kind: NewInode::File,
        mode: crate::attributes::Mode(0o644),
        umask: crate::attributes::Mode(0),
        exclusive: true,
        number: None,
    })
}

#[test]
fn a_step_that_fails_in_the_middle_leaves_nothing_of_the_others() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    world.create(&caller, InodeId::ROOT, "taken");
    let root = world.root();
    let operation = Operation::Compound(Compound {
        credentials: Credentials::root(),
        time: Default::default(),
        preconditions: vec![Precondition::Absent(place(InodeId::ROOT, "new"))],
        steps: vec![
            create_step(InodeId::ROOT, "new"),
            Step::Unlink(removal(InodeId::ROOT, "taken", false)),
            create_step(InodeId::ROOT, "new"),
            create_step(InodeId::ROOT, "other"),
        ],
    });
    let refusal = world.run(&caller, &operation).unwrap_err();
    assert_eq!(refusal.at, FailedAt::Step(2));
    assert_eq!(refusal.error, Error::Exists);
    assert_eq!(root, world.root());
}

#[test]
fn a_precondition_that_fails_is_named() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let inode = world.create(&caller, InodeId::ROOT, "a");
    let version = world.attributes(&caller, inode).unwrap().version;
    let compound = |version| {
        Operation::Compound(Compound {
            credentials: Credentials::root(),
            time: Default::default(),
            preconditions: vec![
                Precondition::Absent(place(InodeId::ROOT, "b")),
                Precondition::Unchanged {
                    inode,
                    version: Some(version),
                    ctime: None,
                },
            ],
            steps: vec![create_step(InodeId::ROOT, "b")],
        })
    };
    let stale = crate::identity::InodeVersion(version.0 + 1);
    let refusal = world.run(&caller, &compound(stale)).unwrap_err();
    assert_eq!(refusal.at, FailedAt::Precondition(1));
    assert_eq!(refusal.error, Error::Changed);
    world.run(&caller, &compound(version)).unwrap();
    let refusal = world.run(&caller, &compound(version)).unwrap_err();
    assert_eq!(refusal.at, FailedAt::Precondition(0));
}

#[test]
fn an_unlinked_file_lives_until_its_last_holder_lets_go() {
    let mut world = TestService::new();
    let mount = world.open(OWNER);
    let other = world.open(OWNER);
    let realm = RealmId::ROOT;
    let takeover = crate::operation::Takeover::Refused;
    world
        .run(
            &mount,
            &Operation::MountRealm {
                realm,
                takeover,
                mode: MountMode::Exclusive,
                label: String::new(),
            },
        )
        .unwrap();
    let inode = world.create(&mount, InodeId::ROOT, "f");
    // Another session removes it: the servers cannot know whether the mount has it open.
    let step = Step::Unlink(removal(InodeId::ROOT, "f", true));
    let done = world.step(&other, &Credentials::root(), step).unwrap();
    assert!(matches!(done, StepDone::Removed { removed, .. } if removed.held));
    let orphans = |world: &mut TestService, caller| {
        let question = Question::Orphans {
            after: None,
            limit: 10,
        };
        match world.ask(caller, question) {
            Ok(QueryResult::Orphans { inodes, .. }) => inodes,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(orphans(&mut world, &mount), [inode]);
    assert_eq!(orphans(&mut world, &other), [inode]);

    let allocation = world.allocate(&mount, 4);
    let write = Step::Commit(commit(inode, allocation, 0, &[(0, 10)]));
    world.step(&mount, &Credentials::root(), write).unwrap();
    let link = Step::Link {
        inode,
        place: place(InodeId::ROOT, "again"),
    };
    let refused = world.step(&mount, &Credentials::root(), link);
    assert_eq!(refused, Err(Error::NotFound), "it does not come back");

    let release = Step::Release { inode };
    world
        .step(&other, &Credentials::root(), release.clone())
        .unwrap();
    assert!(world.attributes(&mount, inode).is_some());
    let refused = world.step(&other, &Credentials::root(), release.clone());
    assert_eq!(refused, Err(Error::Stale(inode)));
    world.step(&mount, &Credentials::root(), release).unwrap();
    assert_eq!(world.attributes(&mount, inode), None);
    assert_eq!(world.rows(b"OG/").len(), 1);
}

#[test]
fn a_tree_deeper_than_a_rename_looks_can_be_removed_but_not_moved_into() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let mut directories = vec![InodeId::ROOT];
    for _ in 0..=DEPTH_MAX {
        let below = *directories.last().unwrap();
        directories.push(world.mkdir(&caller, below, "d"));
    }
    world.mkdir(&caller, InodeId::ROOT, "e");
    let deepest = *directories.last().unwrap();
    let step = Step::Rename(rename_of((InodeId::ROOT, "e"), (deepest, "e")));
    let refused = world.step(&caller, &Credentials::root(), step);
    assert_eq!(refused, Err(Error::TooDeep));
    let remove = Step::RemoveDirectory(removal(directories[DEPTH_MAX], "d", false));
    world.step(&caller, &Credentials::root(), remove).unwrap();
}

#[test]
fn an_exchange_keeps_names_and_cookies_and_swaps_the_inodes() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let directory = world.mkdir(&caller, InodeId::ROOT, "d");
    let file = world.create(&caller, InodeId::ROOT, "f");
    let below = world.mkdir(&caller, directory, "below");
    let mut step = rename_of((InodeId::ROOT, "f"), (directory, "below"));
    step.mode = RenameMode::Exchange;
    let done = world
        .step(&caller, &Credentials::root(), Step::Rename(step))
        .unwrap();
    let StepDone::Renamed {
        moved,
        exchanged,
        from_parent,
        to_parent,
        ..
    } = done
    else {
        panic!()
    };
    assert_eq!(moved.inode, file);
    assert_eq!(exchanged.map(|attributes| attributes.inode), Some(below));
    assert_eq!((from_parent.links, to_parent.links), (4, 2));
    let Ok(QueryResult::Entry { inode, .. }) =
        world.ask(&caller, Question::Lookup(place(InodeId::ROOT, "f")))
    else {
        panic!()
    };
    assert_eq!(inode.inode, below);
}

#[test]
fn inode_numbers_are_never_used_again() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        assert!(seen.insert(world.create(&caller, InodeId::ROOT, "f")));
        let remove = Step::Unlink(removal(InodeId::ROOT, "f", false));
        world.step(&caller, &Credentials::root(), remove).unwrap();
    }
}
