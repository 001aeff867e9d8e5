//! Several sessions that share the realm, against the model that judges the simulator's runs.

use super::harness::{OWNER, TestService};
use super::model::chance;
use crate::simulation::locks::{LockCall, LockJudge, agreed_time};
use crate::simulation::model::Model;
use crate::simulation::workload::locks::Locking;
use crate::simulation::workload::mounts::Mounts;
use crate::simulation::workload::{Call, Workload};
use proptest::prelude::*;
use quorumfs_bft::identity::SessionId;

/// A call, and its answer unless that was lost.
struct SeenCall {
    client: usize,
    session: SessionId,
    call: Call,
    answer: Option<Vec<u8>>,
}

impl SeenCall {
    fn bytes(&self) -> &[u8] {
        match &self.call {
            Call::Execute(bytes) | Call::Query(bytes) => bytes,
        }
    }

    fn lock_call(&self, place: usize) -> LockCall<'_> {
        LockCall {
            place,
            at: 0,
            session: self.session,
            request: self.bytes(),
            answer: self.answer.as_deref(),
        }
    }
}

/// Runs calls of three clients; some answers get lost.
fn run(seed: u64, loses: bool) -> Vec<SeenCall> {
    let mut chance = chance(seed);
    let mut world = TestService::of(&crate::simulation::genesis(&[OWNER], (1, 1, 4)).unwrap());
    let callers = [(); 3].map(|()| world.open(OWNER));
    let mut workload = Workload::default();
    let mut mounts = Mounts::default();
    let mut locking = Locking::default();
    let mut seen = Vec::new();
    for _ in 0..250 {
        let client = chance(3) as usize;
        let caller = callers[client];
        let next = mounts.next(client, &mut chance);
        let next = next.or_else(|| locking.next(client, &mounts, &mut chance));
        let call = next.unwrap_or_else(|| workload.next(&mut chance));
        let answer = match &call {
            Call::Execute(bytes) => {
                let answer = world.run_bytes(&caller, bytes);
                let lost = loses && chance(8) == 0;
                (!lost).then_some(answer)
            }
            Call::Query(bytes) => Some(world.ask_bytes(&caller, bytes)),
        };
        let session = caller.session;
        let call = SeenCall {
            client,
            session,
            call,
            answer,
        };
        let answer = call.answer.as_deref();
        if answer.and_then(agreed_time).is_some() {
            // In a cluster a tick is as soon as it is due, and the bell is rung by that.
            world.drain();
        }
        mounts.learn(client, call.bytes(), answer);
        locking.learn(client, call.bytes(), answer);
        if let Some(answer) = answer {
            workload.learn(answer);
        }
        seen.push(call);
        match chance(6) {
            0 => world.wait(1),
            1 => {
                world.drain();
            }
            _ => {}
        }
    }
    seen
}

fn judged(seed: u64, loses: bool) -> Result<(), TestCaseError> {
    let seen = run(seed, loses);
    let mut models = vec![Model::shared_in_order()];
    let readings = seen.iter().enumerate();
    let readings =
        readings.filter_map(|(at, seen)| Some((at, agreed_time(seen.answer.as_ref()?)?)));
    let mut locks = LockJudge::new(readings);
    for (place, call) in seen.iter().enumerate() {
        let (client, bytes, answer) = (call.client, call.bytes(), call.answer.as_deref());
        let batch = place as u64 + 1;
        models.iter_mut().for_each(|it| it.begin_batch(batch));
        let told = match &call.call {
            Call::Execute(_) => {
                let told = locks.execute(&call.lock_call(place));
                let told = told.map_err(TestCaseError::fail)?;
                let mut after: Vec<Model> = Vec::new();
                for model in &models {
                    for model in model.after(client, bytes, answer) {
                        if !after.contains(&model) {
                            after.push(model);
                        }
                    }
                }
                prop_assert!(
                    !after.is_empty(),
                    "{:?} {:?}",
                    crate::operation::Operation::from_bytes(bytes),
                    answer.map(crate::reply::Response::from_bytes),
                );
                models = after;
                told
            }
            Call::Query(_) => locks.pass(place, 0),
        };
        for model in &mut models {
            for news in &told {
                model.tells_of_locks((client, answer.is_some()), news);
            }
        }
        if let (Call::Query(_), Some(answer)) = (&call.call, answer) {
            models.retain(|model| model.answers(client, bytes, answer));
            let allowed = locks.allows(&call.lock_call(place));
            prop_assert!(
                !models.is_empty() && allowed,
                "{:?} {:?}",
                crate::query::Query::from_bytes(bytes),
                crate::reply::Answer::from_bytes(answer),
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_to_clients_that_share_is_possible(seed in any::<u64>()) {
        judged(seed, false)?;
    }

    #[test]
    fn so_it_is_if_some_answers_are_lost(seed in any::<u64>()) {
        judged(seed, true)?;
    }
}
