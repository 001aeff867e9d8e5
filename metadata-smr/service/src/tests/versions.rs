//! Versions of answers: an answer has been the same at every state since its version.

use super::harness::{OWNER, TestService, mount};
use super::locks::any_operation;
use super::model::chance;
use crate::Metadata;
use crate::attributes::Credentials;
use crate::identity::{InodeId, LogPosition, ObjectId, RealmId};
use crate::locks::{LockKind, LockRange};
use crate::operation::{Operation, Takeover};
use crate::query::{Query, Question};
use crate::row::MountMode;
use crate::simulation::place;
use crate::simulation::workload::{Call, Workload};
use proptest::prelude::*;
use quorumfs_bft::identity::Sequence;
use quorumfs_bft::service::{Caller, Service};
use quorumfs_bft::state::{Area, LastChange};
use std::collections::BTreeMap;

/// The answer and its version in each state.
pub(super) type Answers = Vec<(u64, Vec<u8>)>;

pub(super) fn ask(world: &TestService, caller: &Caller, query: &[u8]) -> (u64, Vec<u8>) {
    let last = LastChange::of_state_after(Sequence(world.sequence));
    let view = world.space.view(Area::Service);
    let answer = Metadata.read(&view.noting(&last), caller, query).unwrap();
    (last.sequence().0, answer.to_vec())
}

/// The version of an answer.
pub(super) fn version_of(world: &TestService, caller: &Caller, question: Question) -> u64 {
    let credentials = Credentials::root();
    let query = Query {
        credentials,
        question,
    };
    ask(world, caller, &query.to_bytes()).0
}

/// Questions about rows that appear and disappear, and about all lists.
fn standing_questions() -> Vec<Vec<u8>> {
    let inodes = (1..12).map(|number| InodeId::new(crate::identity::Home(0), number).unwrap());
    let mut questions: Vec<Question> = inodes
        .flat_map(|inode| {
            let directory = Question::Directory {
                inode,
                after: crate::identity::Cookie::START,
                limit: 100,
                by_handle: false,
            };
            let content = Question::Content {
                inode,
                from: 0,
                to: u64::MAX,
                limit: 100,
            };
            let name = Question::Lookup(place(inode, "a"));
            [Question::Attributes(inode), directory, content, name]
        })
        .collect();
    questions.extend([
        Question::Usage(RealmId::ROOT),
        Question::Object(ObjectId {
            allocation: crate::identity::AllocationId(1),
            counter: 0,
        }),
        Question::UnderReplicated {
            after: None,
            limit: 100,
        },
        Question::Unreferenced {
            after: None,
            limit: 100,
        },
        Question::Orphans {
            after: None,
            limit: 100,
        },
        Question::Objects {
            after: None,
            limit: 100,
        },
        Question::Volume,
        Question::Realm(RealmId::ROOT),
        Question::Mounted(RealmId::ROOT),
        Question::Mounts(RealmId::ROOT),
        Question::WhoAmI,
        Question::Principal(crate::identity::PrincipalNumber(0)),
        Question::Evidence(crate::identity::CloudIndex(0)),
    ]);
    questions.extend(
        [None, Some(0), Some(3), Some(9), Some(40)].map(|after| Question::News {
            realm: RealmId::ROOT,
            after: after.map(LogPosition),
        }),
    );
    questions.extend((0..4).flat_map(|inode| {
        [LockKind::Ranges, LockKind::Whole].map(|kind| Question::Lock {
            inode: InodeId(inode),
            kind,
            owner: 0,
            range: LockRange::WHOLE,
            exclusive: kind == LockKind::Whole,
        })
    }));
    questions.push(Question::Locks {
        realm: RealmId::ROOT,
        after: None,
        limit: 100,
    });
    let query = |question| Query {
        credentials: Credentials::root(),
        question,
    };
    let bytes = |question| query(question).to_bytes();
    questions.into_iter().map(bytes).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn an_answer_has_not_changed_since_its_version(seed in any::<u64>()) {
        let mut chance = chance(seed);
        // A short log, so that it is used up.
        let mut world = super::news::with_slots(16);
        let caller = world.open(OWNER);
        let other = world.open(OWNER);
        let mut workload = Workload::of_one_session();
        let mut asked: BTreeMap<Vec<u8>, Answers> = standing_questions()
            .into_iter()
            .map(|query| (query, Answers::new()))
            .collect();
        let first = world.sequence;
        for _ in 0..200 {
            let states = usize::try_from(world.sequence - first).unwrap();
            for (query, answers) in &mut asked {
                // A state without an operation is the one before it.
                while answers.len() <= states {
                    let (version, answer) = ask(&world, &caller, query);
                    prop_assert!(version <= world.sequence);
                    let since = usize::try_from(version.saturating_sub(first)).unwrap();
                    for (_, before) in answers.iter().skip(since) {
                        prop_assert!(
                            *before == answer,
                            "{:?} was answered {:?} and then, as of {version}, {:?}",
                            Query::from_bytes(query),
                            crate::reply::Answer::from_bytes(before),
                            crate::reply::Answer::from_bytes(&answer),
                        );
                    }
                    answers.push((version, answer));
                }
            }
            match chance(12) {
                10 | 11 => {
                    let by = if chance(2) == 0 { &caller } else { &other };
                    // Refused if it has no mount.
                    let _ = world.run(by, &any_operation(&mut chance));
                }
                0 => {
                    let by = if chance(2) == 0 { &caller } else { &other };
                    let operation = match chance(3) {
                        0 => Operation::UnmountRealm { realm: RealmId::ROOT },
                        _ => {
                            let modes = [MountMode::Exclusive, MountMode::Alone, MountMode::Shared];
                            mount(Takeover::Refused, modes[chance(3) as usize])
                        }
                    };
                    // Refused if the mounts cannot share.
                    let _ = world.run(by, &operation);
                }
                1 => world.tick(),
                2 => world.wait(1),
                kind => loop {
                    let by = if kind < 6 { &other } else { &caller };
                    if let Call::Execute(bytes) = workload.next(&mut chance) {
                        let answer = world.run_bytes(by, &bytes);
                        workload.learn(&answer);
                        break;
                    }
                },
            }
        }
    }
}
