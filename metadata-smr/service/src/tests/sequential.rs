//! The judge must find a wrong answer; otherwise it proves nothing.

use super::harness::{OWNER, TestService};
use crate::error::Error;
use crate::reply::{Done, Response, StepDone};
use crate::simulation::model::Model;
use crate::simulation::workload::{Call, Workload};

#[test]
fn the_model_refuses_a_reply_that_is_wrong_in_one_number() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let mut workload = Workload::default();
    let mut model = Model::default();
    let mut state = 7_u64;
    let mut chance = move |bound: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % bound.max(1)
    };
    let mut spoiled = 0;
    for _ in 0..400 {
        let Call::Execute(bytes) = workload.next(&mut chance) else {
            continue;
        };
        let answer = world.run_bytes(&caller, &bytes);
        let mut response = Response::from_bytes(&answer).unwrap();
        let spoils = match &mut response.0 {
            Err(refusal) if refusal.error == Error::NotFound => {
                refusal.error = Error::Exists;
                true
            }
            Err(refusal) => {
                refusal.error = Error::NotFound;
                true
            }
            Ok(Done::Compound(steps)) => match steps.last_mut() {
                Some(StepDone::Created { inode, .. }) => {
                    inode.inode.0 += 1;
                    true
                }
                Some(StepDone::Removed { parent, .. }) => {
                    parent.links += 1;
                    true
                }
                Some(StepDone::Set(inode)) => {
                    inode.mode.0 ^= 1;
                    true
                }
                Some(StepDone::Renamed { to_parent, .. }) => {
                    to_parent.uid.0 += 1;
                    true
                }
                _ => false,
            },
            Ok(_) => false,
        };
        workload.learn(&answer);
        if !spoils {
            assert!(model.execute(&bytes, Some(&answer)));
            continue;
        }
        assert!(
            !model.clone().execute(&bytes, Some(&response.to_bytes())),
            "{:?} {response:?}",
            crate::operation::Operation::from_bytes(&bytes)
        );
        assert!(model.execute(&bytes, Some(&answer)));
        spoiled += 1;
    }
    assert!(spoiled > 150, "{spoiled}");
}
