//! Several sessions that share the realm, against the model that judges the simulator's runs.

use super::harness::{OWNER, TestService};
use super::model::chance;
use crate::simulation::model::Model;
use crate::simulation::workload::mounts::Mounts;
use crate::simulation::workload::{Call, Workload};
use proptest::prelude::*;

/// Runs calls of three clients; some answers get lost.
fn judged(seed: u64, loses: bool) -> Result<(), TestCaseError> {
    let mut chance = chance(seed);
    let mut world = TestService::of(&crate::simulation::genesis(&[OWNER], (1, 1, 4)).unwrap());
    let callers = [(); 3].map(|()| world.open(OWNER));
    let mut workload = Workload::default();
    let mut mounts = Mounts::default();
    let mut models = vec![Model::shared_in_order()];
    for _ in 0..250 {
        let client = chance(3) as usize;
        let caller = callers[client];
        let next = mounts.next(client, &mut chance);
        let call = next.unwrap_or_else(|| workload.next(&mut chance));
        let (bytes, answer) = match &call {
            Call::Execute(bytes) => {
                let answer = world.run_bytes(&caller, bytes);
                let lost = loses && chance(8) == 0;
                let answer = (!lost).then_some(answer);
                let mut after: Vec<Model> = Vec::new();
                for model in &models {
                    for model in model.after(client, bytes, answer.as_deref()) {
                        if !after.contains(&model) {
                            after.push(model);
                        }
                    }
                }
                prop_assert!(
                    !after.is_empty(),
                    "{:?} {:?}",
                    crate::operation::Operation::from_bytes(bytes),
                    answer.map(|answer| crate::reply::Response::from_bytes(&answer)),
                );
                models = after;
                (bytes, answer)
            }
            Call::Query(bytes) => {
                let answer = world.ask_bytes(&caller, bytes);
                models.retain(|model| model.answers(client, bytes, &answer));
                prop_assert!(
                    !models.is_empty(),
                    "{:?} {:?}",
                    crate::query::Query::from_bytes(bytes),
                    crate::reply::Answer::from_bytes(&answer),
                );
                (bytes, Some(answer))
            }
        };
        mounts.learn(client, bytes, answer.as_deref());
        if let Some(answer) = &answer {
            workload.learn(answer);
        }
        match chance(6) {
            0 => world.wait(1),
            1 => {
                world.drain();
            }
            _ => {}
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
