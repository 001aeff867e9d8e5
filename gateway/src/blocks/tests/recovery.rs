//! Completion and repair: work left by a crash, a full queue or a bad cloud is done again.

use super::harness::{Volume, content, key, object_id, policies, policy, slice_id};
use crate::blocks::{BlockError, Sealing, StoredObject, TaskStatus};
use quorumfs_backends::StoreErrorKind as Kind;
use quorumfs_backends::faulty::{Fault, Plan};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_k_clouds_are_enough_once_completion_is_done() {
    for policy in policies() {
        let volume = Volume::new(policy);
        let mut slices = Vec::new();
        for number in 0..6u32 {
            let plain = content(number.into(), 130_000 * number as usize);
            slices.push((
                plain.clone(),
                volume.write(number, &plain).await.unwrap().slice,
            ));
        }
        volume.drain().await;
        // Of t shards that are kept, n − t clouds have none.
        let n = volume.clouds.len();
        let enough = u32::from(policy.data() + policy.clouds() - policy.target());
        for kept in (0u32..1 << n).filter(|set| set.count_ones() == enough) {
            let mut again = Volume::new(policy);
            again.clouds = volume.clouds.clone();
            again.log = volume.log.clone();
            for cloud in 0..n {
                let gone = Plan::always(Fault::Refuse(Kind::Unavailable));
                volume.plan(
                    cloud,
                    if kept >> cloud & 1 == 1 {
                        Plan::honest()
                    } else {
                        gone
                    },
                );
            }
            again.restart();
            for (number, (plain, slice)) in slices.iter().enumerate() {
                let found = again
                    .read(number as u32, slice, 0..plain.len() as u32)
                    .await;
                assert!(found.unwrap() == plain, "{policy:?} {kept:b}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_between_w_acknowledgements_and_completion_is_made_good() {
    for policy in policies() {
        let mut volume = Volume::new(policy);
        let last = volume.clouds.len() - 1;
        volume.plan(last, Plan::always(Fault::Hang));
        for number in 0..5 {
            volume
                .write(number, &content(number.into(), 150_000))
                .await
                .unwrap();
        }
        volume.restart();
        volume.heal();
        volume.drain().await;
        let counters = volume.blocks.status().counters;
        let whole = policy.target() == policy.clouds();
        assert!(counters.shards_completed >= 5 || !whole, "{counters:?}");
        for number in 0..5 {
            let row = volume.log.row(object_id(number));
            let there = row.shards.iter().filter(|shard| shard.acknowledged);
            assert!(there.count() >= usize::from(policy.target()), "{policy:?}");
        }
        let held = volume.memories[last].objects.lock().unwrap().len();
        assert!(held == 5 || !whole, "{held}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_that_was_lost_is_found_without_rebuilding() {
    let mut volume = Volume::new(policy(4, 1, 2));
    volume.plan(2, Plan::always(Fault::LoseTheAnswer));
    volume.write(1, &content(1, 150_000)).await.unwrap();
    // The others were enough; a restart before this one has it would lose it.
    let arrives = async {
        while volume.memories[2].objects.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let arrived = tokio::time::timeout(Duration::from_secs(30), arrives).await;
    arrived.unwrap();
    volume.restart();
    volume.heal();
    volume.drain().await;
    let counters = volume.blocks.status().counters;
    assert_eq!(
        (counters.shards_completed, counters.objects_rebuilt),
        (1, 0),
        "{counters:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_beyond_the_background_budget_is_completed_later() {
    let volume = Volume::with(policy(4, 1, 2), Sealing::On, 0);
    volume.plan(3, Plan::always(Fault::Delay(150)));
    for number in 0..4 {
        volume
            .write(number, &content(number.into(), 150_000))
            .await
            .unwrap();
    }
    assert!(volume.blocks.status().counters.puts_dropped > 0);
    assert_eq!(volume.blocks.status().background_bytes, 0);
    volume.heal();
    volume.drain().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_taken_by_the_same_bytes_is_a_success_and_by_others_takes_the_next() {
    let volume = Volume::new(policy(4, 1, 2));
    let plain = content(1, 100_000);
    let first = volume.write(1, &plain).await.unwrap();
    volume.drain().await;
    // The same again, like a retry after a lost answer.
    let again = volume.write(1, &plain).await.unwrap();
    volume.drain().await;
    assert_eq!(again.object.shards[0].digest, first.object.shards[0].digest);
    assert!(
        volume
            .log
            .row(object_id(1))
            .shards
            .iter()
            .all(|shard| shard.attempt == 0)
    );
    // Other bytes lie under one of the names.
    let taken = first.object.shards[1].cloud;
    volume.memories[usize::from(taken.0)].alter(|bytes| bytes[90] ^= 1);
    let third = volume.write(1, &plain).await.unwrap();
    volume.drain().await;
    let row = volume.log.row(object_id(1));
    let attempts: Vec<_> = row.shards.iter().map(|shard| shard.attempt).collect();
    assert_eq!(attempts, [0, 1, 0, 0]);
    let found = volume.read(1, &third.slice, 0..100_000).await.unwrap();
    assert!(found == plain);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_byte_flipped_in_every_shard_of_a_cloud_is_refused_replaced_and_repaired() {
    let mut volume = Volume::new(policy(4, 1, 2));
    let mut slices = Vec::new();
    for number in 0..8u32 {
        let plain = content(number.into(), 200_000);
        slices.push((
            plain.clone(),
            volume.write(number, &plain).await.unwrap().slice,
        ));
    }
    volume.drain().await;
    volume.memories[2].alter(|bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x40;
    });
    for round in 0..2 {
        volume.restart();
        for (number, (plain, slice)) in slices.iter().enumerate() {
            let found = volume.read(number as u32, slice, 0..200_000).await.unwrap();
            assert!(found == plain);
        }
        volume.drain().await;
        let counters = volume.blocks.status().counters;
        if round == 0 {
            assert!(counters.shards_refused >= 4, "{counters:?}");
            assert!(counters.shards_replaced >= 4, "{counters:?}");
            assert!(counters.shards_repaired >= 4, "{counters:?}");
        } else {
            assert_eq!(
                counters.shards_refused, 0,
                "repaired for good: {counters:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_with_an_old_row_finds_a_repaired_shard_under_its_new_name() {
    let volume = Volume::new(policy(4, 1, 2));
    let plain = content(1, 200_000);
    let stored = volume.write(1, &plain).await.unwrap();
    volume.drain().await;
    let old = StoredObject::of_new(&volume.log.row(object_id(1))).unwrap();
    let cloud = usize::from(old.shards()[0].cloud.0);
    volume.memories[cloud].objects.lock().unwrap().clear();
    for _ in 0..3 {
        let found = volume
            .blocks
            .read(&old, &stored.slice, &key(1), 0..200_000)
            .await
            .unwrap();
        assert!(found == plain);
        volume.drain().await;
    }
    let counters = volume.blocks.status().counters;
    assert_eq!(
        (counters.shards_missing, counters.shards_repaired),
        (2, 1),
        "{counters:?}"
    );
    assert_eq!(volume.log.row(object_id(1)).shards[0].attempt, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_ends_early_when_only_an_unreachable_cloud_is_lacking() {
    let volume = Volume::new(policy(4, 1, 2));
    volume.plan(3, Plan::always(Fault::Refuse(Kind::Unavailable)));
    volume.write(1, &content(1, 1000)).await.unwrap();
    let begin = std::time::Instant::now();
    let drained = volume.blocks.drain(Duration::from_secs(20)).await;
    assert_eq!(
        (drained.lacking, drained.unreachable),
        (1, 1),
        "{drained:?}"
    );
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_write_leaves_nothing_that_is_waited_for() {
    let volume = Volume::new(policy(4, 1, 2));
    volume.plan(3, Plan::always(Fault::Hang));
    let stored = volume
        .blocks
        .write(object_id(1), slice_id(1), &key(1), content(1, 1000))
        .await
        .unwrap();
    volume.blocks.abandoned(stored.object.id);
    assert_eq!(volume.blocks.status().puts_outstanding, 0);
    volume.blocks.shutdown();
    let refused = volume
        .blocks
        .write(object_id(2), slice_id(2), &key(2), content(1, 1))
        .await;
    assert!(matches!(refused, Err(BlockError::Shut)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_shows_every_task_of_the_reconciler_until_shutting_down_ends_it() {
    let volume = Volume::new(policy(4, 1, 2));
    volume.write(1, &content(1, 1000)).await.unwrap();
    volume.drain().await;
    let names = |of: fn(&TaskStatus) -> bool| {
        let tasks = volume.blocks.status().tasks.into_iter();
        let names = tasks.filter(of).map(|task| task.name);
        names.collect::<Vec<_>>().join(" ")
    };
    let all = "confirm repair completion probe testify compact collection sweep drain";
    assert_eq!(names(|_| true), all);
    assert_eq!(names(|task| task.entries().contains(&("waiting", 0))), all);
    assert_eq!(
        names(|task| task.name == "completion" && task.rounds > 0),
        "completion"
    );
    // This volume neither compacts nor deletes by itself.
    assert_eq!(names(|task| task.ended), "compact collection sweep drain");
    volume.blocks.shutdown();
    while names(|task| task.ended) != all {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
