//! Names that are resealed: none is lost, shown twice or found under another's name, whatever
//! happens meanwhile.

use super::epochs::members_only;
use super::harness::*;
use crate::attributes::{Credentials, Detail, Mode, NameGenerations};
use crate::error::Error;
use crate::identity::*;
use crate::limits::{RESEAL_DIRECTORIES_MAX, RESEAL_NAMES_MAX};
use crate::operation::*;
use crate::query::Question;
use crate::reply::{Done, OldNames, QueryResult, StepDone};
use crate::row::{Inode, Row, SealedName, key};
use proptest::prelude::*;
use quorumfs_bft::service::Caller;
use std::collections::{BTreeMap, BTreeSet};

pub(super) mod format;

/// A name as a client of this generation seals it. Few hashes, so that names collide.
fn sealed(generation: RealmEpoch, name: &str) -> SealedName {
    let mixed = name.bytes().fold(u64::from(generation.0), |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(u64::from(byte))
    });
    SealedName {
        cookie: Cookie::from_prf(1 + mixed % 4096),
        generation,
        bytes: format!("{}:{name}", generation.0).into_bytes(),
    }
}

fn plain(bytes: &[u8]) -> (u32, String) {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let (generation, name) = text.split_once(':').unwrap();
    (generation.parse().unwrap(), name.to_owned())
}

/// A volume with one directory, and what a client knows of it.
struct NamesWorld {
    service: TestService,
    owner: Caller,
    directory: InodeId,
    epoch: u32,
}

impl NamesWorld {
    fn new() -> Self {
        let mut service = TestService::new();
        let owner = service.open(OWNER);
        let directory = service.mkdir(&owner, InodeId::ROOT, "directory");
        Self {
            service,
            owner,
            directory,
            epoch: 0,
        }
    }

    fn generations(&mut self) -> NameGenerations {
        let attributes = self.service.attributes(&self.owner, self.directory);
        match attributes.unwrap().detail {
            Detail::Directory { generations, .. } => generations,
            _ => panic!("no directory"),
        }
    }

    fn place(&mut self, name: &str) -> EntryPlace {
        let generations = self.generations();
        let previous = generations.previous;
        EntryPlace {
            parent: self.directory,
            name: EntryName {
                current: sealed(generations.current, name),
                previous: previous.map(|it| sealed(it.epoch, name)),
            },
        }
    }

    fn create(&mut self, name: &str) -> Result<InodeId, Error> {
        let create = Create {
            place: self.place(name),
            kind: NewInode::File,
            mode: Mode(0o644),
            umask: Mode(0),
            exclusive: true,
            number: None,
        };
        match self.step(Step::Create(create))? {
            StepDone::Created { inode, .. } => Ok(inode.inode),
            other => panic!("{other:?}"),
        }
    }

    fn step(&mut self, step: Step) -> Result<StepDone, Error> {
        self.service.step(&self.owner, &Credentials::root(), step)
    }

    fn unlink(&mut self, name: &str) -> Result<(), Error> {
        let remove = Remove {
            place: self.place(name),
            expected: None,
            held: false,
        };
        self.step(Step::Unlink(remove)).map(|_| ())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), Error> {
        let rename = Rename {
            from: self.place(from),
            to: self.place(to),
            mode: RenameMode::Replace,
            expected_source: None,
            expected_target: None,
            held: false,
        };
        self.step(Step::Rename(rename)).map(|_| ())
    }

    fn lookup(&mut self, name: &str) -> Option<InodeId> {
        let question = Question::Lookup(self.place(name));
        match self.service.ask(&self.owner, question) {
            Ok(QueryResult::Entry { inode, .. }) => Some(inode.inode),
            Err(Error::NotFound) => None,
            other => panic!("{other:?}"),
        }
    }

    /// All entries: position, generation, name, inode.
    fn list(&mut self) -> Vec<(Cookie, u32, String, InodeId)> {
        let (mut all, mut after) = (Vec::new(), Cookie::START);
        loop {
            let question = Question::Directory {
                inode: self.directory,
                after,
                limit: 100,
                by_handle: true,
            };
            let Ok(QueryResult::Directory(page)) = self.service.ask(&self.owner, question) else {
                panic!("no page");
            };
            for entry in &page.entries {
                let (generation, name) = plain(&entry.name);
                assert_eq!(generation, entry.generation.0);
                all.push((entry.cookie, generation, name, entry.inode.inode));
                after = entry.cookie;
            }
            if !page.more {
                return all;
            }
        }
    }

    fn begin_epoch(&mut self) {
        self.epoch += 1;
        let begin = Operation::BeginEpoch(members_only(self.epoch));
        self.service.run(&self.owner, &begin).unwrap();
        self.service.wait(200);
    }

    fn begin_reseal(&mut self) -> Result<StepDone, Error> {
        let directory = self.directory;
        self.step(Step::BeginReseal { directory })
    }

    /// The next names to reseal, as the client that reseals finds them.
    fn next_names(&mut self, most: usize) -> Vec<ResealedName> {
        let generations = self.generations();
        let current = RealmEpoch(match generations.previous {
            Some(_) => generations.current.0,
            None => self.epoch,
        });
        let (mut found, mut after) = (Vec::new(), Some(Cookie::START));
        while let Some(from) = after {
            let question = Question::NamesToReseal {
                directory: self.directory,
                after: from,
                limit: 100,
            };
            let answer = self.service.ask_as(&self.owner, alice(), question);
            let Ok(QueryResult::NamesToReseal { names, next }) = answer else {
                panic!("{answer:?}");
            };
            found.extend(names);
            after = next;
        }
        let resealed = found.into_iter().take(most).map(|old| ResealedName {
            at: old.at,
            name: sealed(current, &plain(&old.bytes).1),
        });
        resealed.collect()
    }

    fn reseal(&mut self, names: Vec<ResealedName>) -> Result<Done, Error> {
        let directory = self.directory;
        let operation = ResealNames {
            realm: RealmId::ROOT,
            directories: vec![DirectoryNames { directory, names }],
        };
        let operation = Operation::ResealNames(operation);
        let done = self.service.run(&self.owner, &operation);
        done.map_err(|refused| refused.error)
    }

    fn old(&mut self) -> Vec<OldNames> {
        let question = Question::NamesByEpoch {
            realm: RealmId::ROOT,
            after: None,
            limit: 4096,
        };
        match self.service.ask(&self.owner, question) {
            Ok(QueryResult::NamesByEpoch { directories, next }) => {
                assert_eq!(next, None);
                let directory = self.directory;
                let mut found = directories;
                found.retain(|it| it.directory == directory);
                found
            }
            other => panic!("{other:?}"),
        }
    }

    fn queued(&self) -> usize {
        self.service.rows(b"DR/").len()
    }
}

#[derive(Clone, Debug)]
enum Act {
    Create(u8),
    Unlink(u8),
    Rename(u8, u8),
    Epoch,
    Begin,
    /// So many names, by a client whose list is so old.
    Reseal(u8, bool),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let name = 0_u8..24;
    let act = prop_oneof![
        6 => name.clone().prop_map(Act::Create),
        2 => name.clone().prop_map(Act::Unlink),
        2 => (name.clone(), name).prop_map(|(from, to)| Act::Rename(from, to)),
        1 => Just(Act::Epoch),
        1 => Just(Act::Begin),
        3 => (0_u8..6, any::<bool>()).prop_map(|(most, stale)| Act::Reseal(most, stale)),
    ];
    proptest::collection::vec(act, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// The worst that could happen: a name that is there and not found, or found twice.
    #[test]
    fn names_stay_what_they_are_while_they_are_resealed(acts in acts()) {
        let mut world = NamesWorld::new();
        let mut model: BTreeMap<String, InodeId> = BTreeMap::new();
        let mut stale = Vec::new();
        for act in acts {
            match act {
                Act::Create(name) => {
                    let name = format!("name {name}");
                    match world.create(&name) {
                        Ok(inode) => prop_assert!(model.insert(name, inode).is_none()),
                        Err(Error::Exists) => prop_assert!(model.contains_key(&name)),
                        // Its generation seals nothing any more: the client begins to reseal.
                        Err(Error::OldKeys { current }) => {
                            prop_assert_eq!(current, RealmEpoch(world.epoch));
                            world.begin_reseal().unwrap();
                        }
                        Err(error) => prop_assert!(false, "{}", error),
                    }
                }
                Act::Unlink(name) => {
                    let name = format!("name {name}");
                    let done = world.unlink(&name);
                    prop_assert_eq!(done.is_ok(), model.remove(&name).is_some());
                }
                Act::Rename(from, to) => {
                    let (from, to) = (format!("name {from}"), format!("name {to}"));
                    match world.rename(&from, &to) {
                        Ok(()) => {
                            let inode = model.remove(&from).unwrap();
                            model.insert(to, inode);
                        }
                        Err(Error::NotFound) => prop_assert!(!model.contains_key(&from)),
                        Err(Error::OldKeys { .. }) => {}
                        Err(error) => prop_assert!(false, "{}", error),
                    }
                }
                Act::Epoch => world.begin_epoch(),
                Act::Begin => {
                    world.begin_reseal().unwrap();
                }
                Act::Reseal(most, use_stale) => {
                    let fresh = world.next_names(usize::from(most));
                    let names = match use_stale {
                        true => std::mem::replace(&mut stale, fresh),
                        false => fresh,
                    };
                    match world.reseal(names) {
                        Ok(_) | Err(Error::OtherGeneration { .. }) => {}
                        Err(error) => prop_assert!(false, "{}", error),
                    }
                }
            }
            let listed = world.list();
            let shown: BTreeMap<_, _> =
                listed.iter().map(|(_, _, name, inode)| (name.clone(), *inode)).collect();
            prop_assert_eq!(shown.len(), listed.len());
            prop_assert_eq!(&shown, &model);
            for (name, inode) in &model {
                prop_assert_eq!(world.lookup(name), Some(*inode));
            }
            let generations = world.generations();
            let kinds: BTreeSet<u32> = listed.iter().map(|(_, it, ..)| *it).collect();
            let allowed = [Some(generations.current.0), generations.previous.map(|it| it.epoch.0)];
            prop_assert!(kinds.iter().all(|it| allowed.contains(&Some(*it))));
            prop_assert_eq!(world.queued(), usize::from(generations.previous.is_some()));
        }
        // It comes to an end, whatever state it was left in.
        for _ in 0..200 {
            if world.old().is_empty() {
                break;
            }
            let names = world.next_names(5);
            world.reseal(names).unwrap();
        }
        prop_assert!(world.old().is_empty());
        let epoch = world.epoch;
        prop_assert!(world.list().iter().all(|(_, it, ..)| *it == epoch));
        prop_assert_eq!(world.queued(), 0);
    }
}

#[test]
fn a_large_directory_is_resealed_in_several_operations_within_their_bounds() {
    let mut world = NamesWorld::new();
    for number in 0..1500 {
        world.create(&format!("name {number}")).unwrap();
    }
    let before = world.service.attributes(&world.owner, world.directory);
    world.begin_epoch();
    let usage = world.service.rows(b"QU/");
    let mut operations = 0;
    while !world.old().is_empty() {
        let names = world.next_names(RESEAL_NAMES_MAX);
        let rows = world.service.rows(b"");
        world.reseal(names).unwrap();
        let changed = changed_rows(&rows, &world.service.rows(b""));
        assert!(changed <= 1000, "{changed} rows");
        operations += 1;
        assert!(operations < 20, "it does not end");
    }
    assert_eq!(operations, 6, "256 names each");
    let listed = world.list();
    assert_eq!(listed.len(), 1500);
    assert!(listed.iter().all(|(_, generation, ..)| *generation == 1));
    let after = world
        .service
        .attributes(&world.owner, world.directory)
        .unwrap();
    let before = before.unwrap();
    assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime));
    assert!(after.version > before.version, "listings are invalid");
    assert_eq!(world.service.rows(b"QU/"), usage);
}

#[test]
fn a_client_that_knows_the_old_generation_is_told_the_new_one() {
    let mut world = NamesWorld::new();
    world.create("old").unwrap();
    let stale = world.place("old");
    world.begin_epoch();
    world.begin_reseal().unwrap();
    let told = Err(Error::OtherGeneration {
        current: RealmEpoch(1),
    });
    let lookup = Question::Lookup(stale.clone());
    assert_eq!(world.service.ask(&world.owner, lookup), told);
    let remove = Step::Unlink(Remove {
        place: stale,
        expected: None,
        held: false,
    });
    assert_eq!(world.step(remove).err(), told.err());
    assert!(world.lookup("old").is_some());
}

#[test]
fn an_empty_directory_and_one_that_comes_back_have_nothing_to_reseal() {
    let mut world = NamesWorld::new();
    world.begin_epoch();
    world.begin_reseal().unwrap();
    assert_eq!(world.generations().previous, None);
    assert_eq!((world.queued(), world.old().len()), (0, 0));
    world.create("a").unwrap();
    world.begin_epoch();
    world.begin_reseal().unwrap();
    assert_eq!(world.queued(), 1);
    // It goes while its names wait, and its row in the queue with it.
    world.unlink("a").unwrap();
    let remove = Step::RemoveDirectory(Remove {
        place: crate::simulation::place(InodeId::ROOT, "directory"),
        expected: None,
        held: false,
    });
    world.step(remove).unwrap();
    assert_eq!(world.queued(), 0);
}

#[test]
fn who_may_create_begins_and_only_administrators_and_reconcilers_reseal() {
    let mut world = NamesWorld::new();
    world.create("a").unwrap();
    world.begin_epoch();
    let guest = world.service.open(ALICE);
    let directory = world.directory;
    let begin = Step::BeginReseal { directory };
    let refused = world.service.step(&guest, &alice(), begin.clone());
    assert_eq!(refused.err(), Some(Error::Denied), "not hers to write");
    let names = world.next_names(5);
    let operation = Operation::ResealNames(ResealNames {
        realm: RealmId::ROOT,
        directories: vec![DirectoryNames { directory, names }],
    });
    let refused = world.service.run(&guest, &operation);
    assert_eq!(refused.unwrap_err().error, Error::NoRight);
    let mut open = SetAttributes::of(directory);
    open.mode = Some(Mode(0o777));
    world.step(Step::SetAttributes(open)).unwrap();
    world.service.step(&guest, &alice(), begin).unwrap();
    assert_eq!(world.generations().current, RealmEpoch(1));
    let refused = world.service.run(&guest, &operation);
    assert_eq!(refused.unwrap_err().error, Error::NoRight);
    assert!(world.service.run(&world.owner, &operation).is_ok());
}

#[test]
fn what_no_correct_client_sends_is_refused_or_changes_no_other_name() {
    let mut world = NamesWorld::new();
    for name in ["a", "b", "c"] {
        world.create(name).unwrap();
    }
    world.begin_epoch();
    let names = world.next_names(3);
    let many = vec![names[0].clone(); RESEAL_NAMES_MAX + 1];
    let limit = RESEAL_NAMES_MAX as u32;
    assert_eq!(world.reseal(many), Err(Error::TooMany { limit }));
    let mut other = names.clone();
    other[0].name.generation = RealmEpoch(0);
    let current = RealmEpoch(1);
    assert_eq!(world.reseal(other), Err(Error::OtherGeneration { current }));
    let mut empty = names.clone();
    empty[0].name.bytes.clear();
    assert_eq!(world.reseal(empty), Err(Error::BadName));
    // The first one is left out: nothing behind it is resealed, and it is not lost.
    let done = world.reseal(names[1..].to_vec());
    let nothing = Done::NamesResealed {
        names: 0,
        directories: 0,
    };
    assert_eq!(done, Ok(nothing));
    // The same name for all of them: entries stay apart.
    let mut same = names;
    let first = same[0].name.clone();
    same.iter_mut().for_each(|it| it.name = first.clone());
    world.reseal(same).unwrap();
    assert_eq!(world.list().len(), 3);
    let directories = |count: usize| {
        let parts = (0..count as u64).map(|number| DirectoryNames {
            directory: InodeId(number),
            names: Vec::new(),
        });
        Operation::ResealNames(ResealNames {
            realm: RealmId::ROOT,
            directories: parts.collect(),
        })
    };
    let too_many = directories(RESEAL_DIRECTORIES_MAX + 1);
    let limit = RESEAL_DIRECTORIES_MAX as u32;
    let refused = world
        .service
        .run(&world.owner, &too_many)
        .unwrap_err()
        .error;
    assert_eq!(refused, Error::TooMany { limit });
    // Inodes that are no directories, or are not there, are skipped.
    let skipped = directories(RESEAL_DIRECTORIES_MAX);
    assert!(world.service.run(&world.owner, &skipped).is_ok());
}

#[test]
fn the_root_is_resealed_like_every_directory() {
    let mut world = NamesWorld::new();
    let root = world.service.rows(&key::inode(InodeId::ROOT));
    assert!(Inode::from_bytes(&root[0].1).unwrap().is_directory());
    world.directory = InodeId::ROOT;
    world.begin_epoch();
    let old = world.old();
    assert_eq!(old.len(), 1);
    assert_eq!(old[0].entries, 1);
    // Its name was sealed by another helper: as it stands there.
    let question = Question::Directory {
        inode: InodeId::ROOT,
        after: Cookie::START,
        limit: 1,
        by_handle: true,
    };
    let Ok(QueryResult::Directory(page)) = world.service.ask(&world.owner, question) else {
        panic!("no page");
    };
    let name = ResealedName {
        at: page.entries[0].cookie,
        name: sealed(RealmEpoch(1), "directory"),
    };
    let done = world.reseal(vec![name]).unwrap();
    let all = Done::NamesResealed {
        names: 1,
        directories: 1,
    };
    assert_eq!(done, all);
    assert!(world.lookup("directory").is_some());
}
