//! Versions of what principals that come and go are answered or refused: that has been the same at
//! every state since its version.

use super::samples;
use crate::attributes::Credentials;
use crate::operation::Operation;
use crate::people::PeopleStep;
use crate::query::Query;
use crate::row::MemberRole;
use crate::tests::people::coming::epoch_with;
use crate::tests::people::world::*;
use crate::tests::versions::{Answers, ask};
use quorumfs_bft::identity::{Nanos, SessionId};
use quorumfs_bft::service::Caller;

#[test]
fn an_answer_has_been_the_same_since_its_version() {
    let mut world = PeopleWorld::new();
    let bob = Caller {
        session: SessionId(2),
        principal: id(BOB),
    };
    let callers = [world.owner, bob];
    let whose = [Credentials::root(), super::bob()];
    let questions = samples::questions();
    let queries: Vec<(Caller, Vec<u8>)> = callers
        .into_iter()
        .zip(whose)
        .flat_map(|(caller, credentials)| {
            questions.iter().map(move |question| {
                let query = Query {
                    credentials: credentials.clone(),
                    question: question.clone(),
                };
                (caller, query.to_bytes())
            })
        })
        .collect();
    let mut answers: Vec<Answers> = vec![Answers::new(); queries.len()];
    let mut look = |world: &PeopleWorld| {
        for ((caller, query), before) in queries.iter().zip(&mut answers) {
            let now = world.service.sequence;
            let (version, answer) = ask(&world.service, caller, query);
            let since = before.iter().filter(|(state, _)| *state >= version);
            for (state, earlier) in since {
                assert_eq!(
                    *earlier, answer,
                    "at {now}, since {version}, not at {state}"
                );
            }
            before.push((now, answer));
        }
    };
    let epoch = |world: &mut PeopleWorld, members: &[(u8, MemberRole)]| {
        let begin = Operation::BeginEpoch(epoch_with(world, members));
        let owner = world.owner;
        world.service.run(&owner, &begin).unwrap();
    };
    look(&world);
    world.change(admitting(BOB, MemberRole::Write)).unwrap();
    look(&world);
    assert_eq!(world.service.open(id(BOB)), bob);
    look(&world);
    for round in 0..3 {
        let role = [MemberRole::Read, MemberRole::Write, MemberRole::Administer][round];
        world.change(granting(BOB, role, None)).unwrap();
        look(&world);
        world.change(naming(50, "family")).unwrap();
        look(&world);
        world
            .change(granting(BOB, MemberRole::Write, None))
            .unwrap();
        look(&world);
        epoch(&mut world, &[]);
        look(&world);
        epoch(&mut world, &[(BOB, MemberRole::Write)]);
        look(&world);
        world.change(dismissing(BOB)).unwrap();
        look(&world);
        let mut statement = statement(BOB, MemberRole::Read);
        statement.expires = Some(world.service.now().plus(Nanos(9_000_000_000)));
        world.change(PeopleStep::Admit(statement)).unwrap();
        look(&world);
        world.service.wait(9);
        world.service.drain();
        look(&world);
        world.change(admitting(BOB, MemberRole::Write)).unwrap();
        look(&world);
    }
}
