//! What nothing needs is forgotten, and nothing else; one session does a job at a time.

use super::harness::*;
use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::*;
use crate::limits::{FORGET_OBJECTS_MAX, JOB_SECONDS_MAX, RETENTIONS_MAX};
use crate::operation::*;
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, Fate, Garbage, QueryResult, Response};
use crate::row::{Job, JobHolder, Object, Retention, RetentionKind, Row, key};
use quorumfs_bft::identity::{Sequence, SessionId, Time};
use quorumfs_bft::service::Caller;

mod capsules;

/// Rows, questions and answers, for the fixtures of the format.
pub(super) fn fixtures() -> Vec<(&'static str, Vec<u8>)> {
    let new = object(AllocationId(5), 6, 3);
    let row = super::fixtures::object_row(&new);
    let garbage = Garbage {
        object: new.id,
        since: Time(4),
        open: false,
        retained: true,
        row: row.clone(),
    };
    let fate = Fate {
        granted: true,
        open: true,
        row: Some(row),
    };
    let query = Query {
        credentials: Credentials::root(),
        question: Question::Fates {
            objects: vec![new.id],
        },
    };
    let answer = |found| Answer(Ok(found)).to_bytes();
    let done = |done| Response(Ok(done)).to_bytes();
    let until = Time(9);
    vec![
        (
            "row-job",
            JobHolder {
                session: SessionId(5),
                until: Time(6),
            }
            .to_bytes(),
        ),
        (
            "row-retention",
            Retention {
                kind: RetentionKind::RecoveryPoint,
                from: Sequence(5),
                to: Some(Sequence(6)),
                at: Time(6),
                until: Some(Time(7)),
            }
            .to_bytes(),
        ),
        ("key-job", key::job(Job::Collection)),
        ("key-retention", key::retention(258)),
        ("key-mount", key::mount(RealmId(1), SessionId(2))),
        ("operation-forget", forgetting(&[new.id]).to_bytes()),
        ("operation-take-job", taking(Job::Collection, 60).to_bytes()),
        (
            "operation-release-job",
            Operation::ReleaseJob { job: Job::Sweep }.to_bytes(),
        ),
        (
            "operation-retain",
            Operation::Retain {
                kind: RetentionKind::Link,
                open: false,
                seconds: Some(60),
            }
            .to_bytes(),
        ),
        (
            "operation-release",
            Operation::Release { number: 7 }.to_bytes(),
        ),
        (
            "operation-narrow",
            Operation::Narrow {
                number: 7,
                to: Sequence(8),
            }
            .to_bytes(),
        ),
        (
            "reply-retained",
            done(Done::Retained {
                number: 7,
                point: Sequence(8),
            }),
        ),
        ("reply-narrowed", done(Done::Narrowed)),
        ("reply-released", done(Done::Released)),
        ("query-fates", query.to_bytes()),
        ("reply-forgotten", done(Done::Forgotten { objects: 1 })),
        (
            "reply-job-taken",
            done(Done::JobTaken { until, now: until }),
        ),
        ("reply-job-released", done(Done::JobReleased)),
        ("answer-fates", answer(QueryResult::Fates(vec![fate]))),
        (
            "answer-unreferenced",
            answer(QueryResult::Unreferenced {
                objects: vec![garbage],
                more: false,
            }),
        ),
    ]
}

fn forgetting(objects: &[ObjectId]) -> Operation {
    let objects = objects.to_vec();
    Operation::Forget { objects }
}

fn taking(job: Job, seconds: u32) -> Operation {
    Operation::TakeJob { job, seconds }
}

struct GarbageWorld {
    service: TestService,
    caller: Caller,
    allocation: AllocationId,
}

impl GarbageWorld {
    fn new() -> Self {
        let mut service = TestService::new();
        let caller = service.open(OWNER);
        let allocation = service.allocate(&caller, 1000);
        Self {
            service,
            caller,
            allocation,
        }
    }

    /// A file with an object of its own.
    fn file(&mut self, name: &str, counter: u32) -> ObjectId {
        let inode = self.service.create(&self.caller, InodeId::ROOT, name);
        let step = commit(inode, self.allocation, counter, &[(0, 10)]);
        let id = step.objects[0].id;
        let root = Credentials::root();
        let step = Step::Commit(step);
        self.service.step(&self.caller, &root, step).unwrap();
        id
    }

    fn remove(&mut self, name: &str) {
        let step = Step::Unlink(removal(InodeId::ROOT, name, false));
        let root = Credentials::root();
        self.service.step(&self.caller, &root, step).unwrap();
        self.service.drain();
    }

    fn close(&mut self) {
        let allocation = self.allocation;
        let close = Operation::CloseAllocation { allocation };
        self.service.run(&self.caller, &close).unwrap();
    }

    fn forget(&mut self, objects: &[ObjectId]) -> u32 {
        match self.service.run(&self.caller, &forgetting(objects)) {
            Ok(Done::Forgotten { objects }) => objects,
            other => panic!("{other:?}"),
        }
    }

    fn garbage(&mut self) -> Vec<Garbage> {
        let question = Question::Unreferenced {
            after: None,
            limit: 1000,
        };
        match self.service.ask(&self.caller, question) {
            Ok(QueryResult::Unreferenced { objects, .. }) => objects,
            other => panic!("{other:?}"),
        }
    }

    fn row(&mut self, id: ObjectId) -> Option<Object> {
        self.fates(&[id]).remove(0).row
    }

    fn fates(&mut self, objects: &[ObjectId]) -> Vec<Fate> {
        let objects = objects.to_vec();
        match self.service.ask(&self.caller, Question::Fates { objects }) {
            Ok(QueryResult::Fates(fates)) => fates,
            other => panic!("{other:?}"),
        }
    }

    /// Retains the present point; the number and the point.
    fn retain_as(&mut self, open: bool, seconds: Option<u32>) -> (u64, Sequence) {
        let kind = RetentionKind::RecoveryPoint;
        let retain = Operation::Retain {
            kind,
            open,
            seconds,
        };
        match self.service.run(&self.caller, &retain) {
            Ok(Done::Retained { number, point }) => (number, point),
            other => panic!("{other:?}"),
        }
    }

    fn retain(&mut self, seconds: Option<u32>) -> u64 {
        self.retain_as(false, seconds).0
    }
}

#[test]
fn an_object_is_forgotten_once_it_has_no_reference_and_its_allocation_is_closed() {
    let mut world = GarbageWorld::new();
    let (dead, live) = (world.file("dead", 1), world.file("live", 2));
    let both = [dead, live];
    assert_eq!(world.forget(&both), 0, "both are referenced");
    world.remove("dead");
    assert_eq!(world.forget(&both), 0, "a commit may name it again");
    assert!(world.garbage()[0].open);
    world.close();
    assert!(world.garbage()[0].is_forgettable());
    assert_eq!(world.forget(&both), 1);
    assert_eq!(world.row(dead), None);
    assert!(world.row(live).is_some());
    assert_eq!(world.garbage(), []);
    assert_eq!(world.forget(&both), 0, "twice is no error");
    assert_eq!(world.forget(&[ObjectId::FOUNDING]), 0);
}

#[test]
fn a_session_that_ends_closes_its_allocations() {
    let mut world = GarbageWorld::new();
    let dead = world.file("dead", 1);
    world.remove("dead");
    let first = world.caller;
    world.caller = world.service.open(OWNER);
    assert_eq!(world.forget(&[dead]), 0);
    world.service.close(&first);
    assert_eq!(world.forget(&[dead]), 1);
}

#[test]
fn a_point_between_creation_and_the_last_reference_retains_an_object() {
    let mut world = GarbageWorld::new();
    let before = world.retain(None);
    let id = world.file("f", 1);
    let during = world.retain(None);
    world.remove("f");
    let after = world.retain(None);
    world.close();
    for (released, retained) in [(before, true), (after, true), (during, false)] {
        assert!(world.garbage()[0].retained);
        assert_eq!(world.forget(&[id]), 0);
        let release = Operation::Release { number: released };
        world.service.run(&world.caller, &release).unwrap();
        assert_eq!(world.garbage()[0].retained, retained, "{released} released");
    }
    assert_eq!(world.forget(&[id]), 1);
}

#[test]
fn while_points_are_open_what_was_needed_at_any_of_them_is_retained() {
    let mut world = GarbageWorld::new();
    let early = world.file("early", 1);
    world.remove("early");
    let (number, first) = world.retain_as(true, Some(60));
    let (one, two) = (world.file("one", 2), world.file("two", 3));
    world.remove("one");
    let chosen = Sequence(world.service.sequence);
    world.remove("two");
    let late = world.file("late", 4);
    world.remove("late");
    world.close();
    let all = [early, one, two, late];
    assert_eq!(world.forget(&all), 1, "what was needed before alone goes");
    let narrow = |world: &mut GarbageWorld, to| {
        let narrow = Operation::Narrow { number, to };
        let refused = world.service.run(&world.caller, &narrow);
        refused.map_err(|refused| refused.error)
    };
    let before = Sequence(first.0 - 1);
    assert_eq!(narrow(&mut world, before), Err(Error::Invalid));
    let future = Sequence(world.service.sequence + 9);
    assert_eq!(narrow(&mut world, future), Err(Error::Invalid));
    for _ in 0..2 {
        assert_eq!(narrow(&mut world, chosen), Ok(Done::Narrowed));
    }
    assert_eq!(narrow(&mut world, first), Err(Error::NotRetained));
    assert_eq!(
        world.forget(&all),
        2,
        "all but what was needed at the chosen point"
    );
    assert!(world.row(two).is_some());
    // It has no end any more.
    world.service.sequence += 120_000;
    let take = taking(Job::Collection, 60);
    world.service.run(&world.caller, &take).unwrap();
    assert_eq!(world.forget(&all), 0);
    world
        .service
        .run(&world.caller, &Operation::Release { number })
        .unwrap();
    assert_eq!(world.forget(&all), 1);
    assert_eq!(narrow(&mut world, chosen), Err(Error::NotRetained));
}

#[test]
fn points_are_bounded_and_make_room_when_their_time_is_over() {
    let mut world = GarbageWorld::new();
    for _ in 0..RETENTIONS_MAX {
        world.retain(Some(1));
    }
    let kind = RetentionKind::Link;
    let retain = Operation::Retain {
        kind,
        open: false,
        seconds: None,
    };
    let refused = world.service.run(&world.caller, &retain).unwrap_err();
    let limit = RETENTIONS_MAX as u32;
    assert_eq!(refused.error, Error::TooMany { limit });
    // A millisecond a batch.
    world.service.sequence += 2_000;
    world.retain(None);
}

#[test]
fn a_collection_releases_the_points_whose_time_is_over() {
    let mut world = GarbageWorld::new();
    let id = world.file("f", 1);
    world.retain(Some(1));
    world.remove("f");
    world.close();
    let take = taking(Job::Collection, 60);
    world.service.run(&world.caller, &take).unwrap();
    assert!(world.garbage()[0].retained);
    world.service.sequence += 2_000;
    world.service.run(&world.caller, &take).unwrap();
    assert!(!world.garbage()[0].retained);
    assert_eq!(world.forget(&[id]), 1);
}

#[test]
fn as_many_objects_as_one_operation_may_name_are_forgotten_together() {
    let mut world = GarbageWorld::new();
    let mut objects = Vec::new();
    for number in 0..FORGET_OBJECTS_MAX as u32 {
        let name = format!("f{number}");
        objects.push(world.file(&name, number));
        world.remove(&name);
    }
    world.close();
    assert_eq!(world.forget(&objects), FORGET_OBJECTS_MAX as u32);
    objects.push(ObjectId::FOUNDING);
    let limit = FORGET_OBJECTS_MAX as u32;
    let refused = world.service.run(&world.caller, &forgetting(&objects));
    assert_eq!(refused.unwrap_err().error, Error::TooMany { limit });
}

#[test]
fn the_fate_of_an_id_says_whether_it_was_granted_and_may_be_used() {
    let mut world = GarbageWorld::new();
    let id = world.file("f", 1);
    let unused = ObjectId { counter: 900, ..id };
    let later = ObjectId {
        allocation: AllocationId(id.allocation.0 + 1),
        counter: 0,
    };
    let fate = |fate: &Fate| (fate.granted, fate.open, fate.row.is_some());
    let asked = [id, unused, later, ObjectId::FOUNDING];
    let fates: Vec<_> = world.fates(&asked).iter().map(fate).collect();
    let never = (false, false, false);
    assert_eq!(
        fates,
        [(true, true, true), (true, true, false), never, never]
    );
    world.close();
    let fates: Vec<_> = world.fates(&asked[..2]).iter().map(fate).collect();
    assert_eq!(fates, [(true, false, true), (true, false, false)]);
}

#[test]
fn one_session_does_a_job_until_its_time_is_over() {
    let mut service = TestService::new();
    let (one, other) = (service.open(OWNER), service.open(OWNER));
    let take = taking(Job::Collection, 60);
    let taken = |done| matches!(done, Ok(Done::JobTaken { .. }));
    assert!(taken(service.run(&one, &take)));
    assert!(taken(service.run(&one, &take)), "it may take it again");
    let refused = service.run(&other, &take).unwrap_err().error;
    assert!(matches!(refused, Error::JobTaken { by, .. } if by == one.session));
    assert!(taken(service.run(&other, &taking(Job::Sweep, 60))));
    // Giving back what another has has no effect.
    let release = Operation::ReleaseJob {
        job: Job::Collection,
    };
    service.run(&other, &release).unwrap();
    assert!(service.run(&other, &take).is_err());
    // A millisecond a batch.
    service.sequence += 60_000;
    assert!(taken(service.run(&other, &take)));
    service.run(&other, &release).unwrap();
    assert!(taken(service.run(&one, &take)));
    service.close(&one);
    assert!(taken(service.run(&other, &take)), "its session has ended");
}

#[test]
fn jobs_and_forgetting_need_the_right_and_a_bounded_time() {
    let mut service = TestService::new();
    let (owner, alice) = (service.open(OWNER), service.open(ALICE));
    let (number, to) = (1, Sequence(1));
    let release = Operation::Release { number };
    let narrow = Operation::Narrow { number, to };
    for operation in [
        taking(Job::Collection, 60),
        forgetting(&[]),
        release,
        narrow,
    ] {
        let refused = service.run(&alice, &operation).unwrap_err();
        assert_eq!(refused.error, Error::NoRight);
    }
    let asked = Question::Fates { objects: vec![] };
    let refused = service.ask_as(&alice, super::harness::alice(), asked);
    assert_eq!(refused, Err(Error::NoRight));
    for seconds in [0, JOB_SECONDS_MAX + 1] {
        let refused = service.run(&owner, &taking(Job::Collection, seconds));
        assert_eq!(refused.unwrap_err().error, Error::Invalid);
    }
}
