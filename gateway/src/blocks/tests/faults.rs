//! Clouds that fail and lie while slices are written and read.

use super::harness::{PATIENCE, Volume, content, foreign_row, key, object_id, policies, policy};
use crate::blocks::{BlockError, BlockErrorKind, SEGMENT_BYTES, Sealing, StoredObject};
use bytes::Bytes;
use proptest::prelude::*;
use quorumfs_backends::StoreErrorKind as Kind;
use quorumfs_backends::faulty::{Fault, Plan};
use quorumfs_bft::identity::SessionId;
use std::time::{Duration, Instant};

fn lies() -> Vec<Plan> {
    let mut plans: Vec<Plan> = [
        Fault::Refuse(Kind::Unavailable),
        Fault::Refuse(Kind::NotFound),
        Fault::Refuse(Kind::AlreadyExists),
        Fault::Refuse(Kind::Full),
        Fault::Hang,
        Fault::Delay(300),
        Fault::AcknowledgeWithoutStoring,
        Fault::LoseTheAnswer,
        Fault::Overwrite,
        Fault::FlipBit,
        Fault::Truncate,
        Fault::Extend,
        Fault::Zeros,
        Fault::WrongObject,
        Fault::Stale,
    ]
    .into_iter()
    .map(Plan::always)
    .collect();
    plans.push(Plan::of_everything(700));
    plans
}

async fn reads_right(volume: &Volume, number: u32, plain: &Bytes) {
    let slice = crate::blocks::SealedSlice {
        id: super::harness::slice_id(number),
        object: object_id(number),
        offset: 0,
        length: plain.len() as u32,
        sealed_length: volume.log.row(object_id(number)).length,
        codec: quorumfs_metadata::identity::Codec::NONE,
    };
    let length = plain.len() as u32;
    for range in [
        0..length,
        length / 3..length / 2,
        length.saturating_sub(1)..length,
    ] {
        let wanted = plain.slice(range.start as usize..range.end as usize);
        match volume.read(number, &slice, range.clone()).await {
            Ok(found) => assert!(found == wanted, "wrong bytes at {range:?}"),
            Err(error) => panic!("object {number} {range:?}: {error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn written_slices_are_read_back_in_any_range() {
    for policy in policies() {
        let volume = Volume::new(policy);
        let segment = SEGMENT_BYTES as usize;
        for (number, length) in [0, 1, segment - 1, segment, segment + 1, 700_000]
            .into_iter()
            .enumerate()
        {
            let plain = content(number as u64, length);
            volume.write(number as u32, &plain).await.unwrap();
            reads_right(&volume, number as u32, &plain).await;
        }
        volume.drain().await;
        let counters = volume.blocks.status().counters;
        assert_eq!((counters.shards_refused, counters.shards_repaired), (0, 0));
        for row in volume.log.rows.lock().unwrap().values() {
            let there = row.shards.iter().filter(|shard| shard.acknowledged);
            assert!(there.count() >= usize::from(policy.target()), "{policy:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloud_that_lies_in_any_way_after_the_write_never_changes_what_is_read() {
    for policy in policies() {
        let volume = Volume::new(policy);
        let plains: Vec<Bytes> = (0..6u64)
            .map(|i| content(i, 90_000 + 40_000 * i as usize))
            .collect();
        for (number, plain) in plains.iter().enumerate() {
            volume.write(number as u32, plain).await.unwrap();
        }
        volume.drain().await;
        for (liar, plan) in lies().into_iter().enumerate() {
            volume.plan(liar % volume.clouds.len(), plan.clone());
            for (number, plain) in plains.iter().enumerate() {
                let read = reads_right(&volume, number as u32, plain);
                tokio::time::timeout(PATIENCE, read)
                    .await
                    .unwrap_or_else(|_| panic!("{plan:?}"));
            }
            volume.heal();
        }
        assert!(volume.blocks.status().counters.shards_replaced > 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloud_that_lies_in_any_way_during_the_write_never_loses_it() {
    for policy in policies() {
        let mut volume = Volume::new(policy);
        for (i, plan) in lies().into_iter().enumerate() {
            let liar = i % volume.clouds.len();
            volume.plan(liar, plan.clone());
            let plain = content(i as u64, 200_000);
            let write = tokio::time::timeout(PATIENCE, volume.write(i as u32, &plain)).await;
            write
                .unwrap_or_else(|_| panic!("{plan:?}"))
                .unwrap_or_else(|e| panic!("{plan:?} {e}"));
            // The liar goes on lying, and another cloud vanishes.
            reads_right(&volume, i as u32, &plain).await;
            volume.heal();
            volume.restart();
            volume.drain().await;
            reads_right(&volume, i as u32, &plain).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fewer_than_w_acknowledgements_are_an_error_that_names_the_clouds() {
    for policy in policies() {
        let volume = Volume::new(policy);
        let w = usize::from(policy.write_quorum());
        let plain = content(1, 1000);
        for cloud in w..volume.clouds.len() {
            volume.plan(cloud, Plan::always(Fault::Refuse(Kind::Unavailable)));
        }
        volume.write(1, &plain).await.unwrap();
        volume.plan(0, Plan::always(Fault::Refuse(Kind::Full)));
        let error = volume.write(2, &plain).await.unwrap_err();
        assert_eq!(error.kind(), BlockErrorKind::NoSpace, "{error}");
        let text = error.to_string();
        assert!(
            text.contains(&format!("only {} of the {w} clouds", w - 1)),
            "{text}"
        );
        assert!(text.contains("free space or raise the quota"), "{text}");
        volume.plan(0, Plan::always(Fault::Refuse(Kind::Denied)));
        let error = volume.write(3, &plain).await.unwrap_err();
        // The unreachable clouds would be enough.
        let kind = match volume.clouds.len() > w {
            true => BlockErrorKind::Unreachable,
            false => BlockErrorKind::Io,
        };
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(volume.blocks.status().counters.objects_written, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fewer_than_k_good_shards_are_an_error_and_never_wrong_bytes() {
    let volume = Volume::new(policy(4, 1, 2));
    let plain = content(1, 300_000);
    let stored = volume.write(1, &plain).await.unwrap();
    volume.drain().await;
    for cloud in 0..3 {
        volume.memories[cloud].alter(|bytes| {
            for byte in bytes.iter_mut().step_by(1000) {
                *byte ^= 1;
            }
        });
    }
    let error = volume.read(1, &stored.slice, 0..300_000).await.unwrap_err();
    assert_eq!(error.kind(), BlockErrorKind::Io);
    let text = error.to_string();
    assert!(text.contains("only 1 of the 2 good shards"), "{text}");
    assert!(text.contains("bytes that are not the shard's"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_cloud_delays_neither_writes_nor_reads() {
    let volume = Volume::new(policy(4, 1, 2));
    for number in 0..8 {
        volume
            .write(number, &content(number.into(), 100_000))
            .await
            .unwrap();
    }
    volume.drain().await;
    volume.plan(1, Plan::always(Fault::Hang));
    for number in 8..24 {
        let begin = Instant::now();
        volume
            .write(number, &content(number.into(), 100_000))
            .await
            .unwrap();
        assert!(
            begin.elapsed() < Duration::from_secs(1),
            "{:?}",
            begin.elapsed()
        );
    }
    for number in 0..24 {
        let begin = Instant::now();
        reads_right(&volume, number, &content(number.into(), 100_000)).await;
        assert!(
            begin.elapsed() < Duration::from_secs(1),
            "{:?}",
            begin.elapsed()
        );
    }
    let status = volume.blocks.status();
    let hung = &status.clouds[1];
    assert!(!hung.reachable && hung.last_error.is_some(), "{hung:?}");
    assert!(status.clouds.iter().filter(|cloud| cloud.reachable).count() == 3);
    // It answers again: everything is completed.
    volume.heal();
    volume.drain().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_of_a_newer_format_is_refused() {
    let volume = Volume::new(policy(4, 1, 2));
    let stored = volume.write(1, &content(1, 100_000)).await.unwrap();
    volume.drain().await;
    let newer = |bytes: &mut Vec<u8>| bytes[9] = 2;
    // One cloud alone may lie about that: the others are read.
    volume.memories[0].alter(newer);
    volume.read(1, &stored.slice, 0..100_000).await.unwrap();
    volume.drain().await;
    for memory in &volume.memories {
        memory.alter(|bytes| {
            newer(bytes);
            bytes[100] ^= 1;
        });
    }
    let mut fresh = volume;
    fresh.restart();
    let error = fresh.read(1, &stored.slice, 0..100_000).await.unwrap_err();
    assert_eq!(error.kind(), BlockErrorKind::NewerFormat, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("has format 2") && text.contains("use a newer one"),
        "{text}"
    );
    assert_eq!(
        fresh.blocks.status().counters.shards_repaired,
        0,
        "it is left alone"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planted_words_are_found_on_the_clouds_only_when_sealing_is_off() {
    let needle = b"a needle that no cloud may ever see";
    let mut plain = content(1, 200_000).to_vec();
    for at in [0, 70_000, 190_000] {
        plain[at..at + needle.len()].copy_from_slice(needle);
    }
    for (sealing, expected) in [(Sealing::On, false), (Sealing::Off, true)] {
        let volume = Volume::with(policy(4, 1, 2), sealing, 64 << 20);
        let plain = Bytes::from(plain.clone());
        volume.write(1, &plain).await.unwrap();
        volume.drain().await;
        reads_right(&volume, 1, &plain).await;
        let found = volume.memories.iter().any(|memory| {
            let objects = memory.objects.lock().unwrap();
            objects
                .values()
                .any(|body| body.windows(needle.len()).any(|window| window == needle))
        });
        assert_eq!(found, expected, "{sealing:?}");
    }
}

/// The object as another principal sees it: its row names the writer's session.
fn row_of(volume: &Volume, number: u32, writer: SessionId) -> StoredObject {
    foreign_row(&volume.log.row(object_id(number)), writer, false)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_writer_of_an_unreadable_object_is_named_unless_clouds_alone_can_be_to_blame() {
    let mut volume = Volume::new(policy(4, 1, 2));
    let stored = volume.write(1, &content(1, 100_000)).await.unwrap();
    volume.drain().await;
    let writer = SessionId(7);
    let named = |error: &BlockError| error.writer().map(|writer| writer.session);
    let object = row_of(&volume, 1, writer);
    let blocks = &volume.blocks;
    let slice = &stored.slice;
    let error = blocks.read(&object, slice, &key(2), 0..100_000).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), BlockErrorKind::Corrupt, "{error}");
    assert_eq!(named(&error), Some(writer));
    assert!(error.to_string().contains("session 7"), "{error}");

    // A reader that has not read it whole.
    volume.restart();
    let blocks = &volume.blocks;
    // One cloud denies it, which is allowed, and two are unreachable.
    volume.plan(0, Plan::always(Fault::Refuse(Kind::NotFound)));
    for cloud in [1, 2] {
        volume.plan(cloud, Plan::always(Fault::Refuse(Kind::Unavailable)));
    }
    let error = blocks.read(&object, slice, &key(1), 0..100_000).await;
    let error = error.unwrap_err();
    assert_eq!(error.writer(), None, "{error}");
    assert!(!error.to_string().contains("session 7"), "{error}");

    // Two deny it, and one of them at most lies.
    volume.plan(1, Plan::always(Fault::Refuse(Kind::NotFound)));
    let error = blocks.read(&object, slice, &key(1), 0..100_000).await;
    let error = error.unwrap_err();
    // The last one has the missing shard, once it is reachable.
    assert_eq!(error.kind(), BlockErrorKind::Unreachable, "{error}");
    assert_eq!(named(&error), Some(writer), "{error}");
    let said = "shards that principal `mallory`";
    assert!(error.to_string().contains(said), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn with_f_clouds_lying_at_random_all_the_time_reads_are_right_or_errors(
        seed: u64,
        liar in 0usize..4,
        odds in 50u16..900,
        sizes in prop::collection::vec(0usize..400_000, 1..8),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let volume = Volume::new(policy(4, 1, 2));
            volume.plan(liar, Plan::of_everything(odds));
            for (number, size) in sizes.iter().enumerate() {
                let plain = content(seed ^ number as u64, *size);
                volume.write(number as u32, &plain).await.unwrap();
                reads_right(&volume, number as u32, &plain).await;
            }
            for (number, size) in sizes.iter().enumerate() {
                reads_right(&volume, number as u32, &content(seed ^ number as u64, *size)).await;
            }
        });
    }
}
