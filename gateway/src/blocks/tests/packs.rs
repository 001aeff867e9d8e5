//! Objects that hold several slices: each is read alone, at any position.

use super::harness::{Volume, content, key, object_id, policy, slice_id};
use crate::blocks::{
    BlockError, CELL_BYTES, PlainSlice, SEGMENT_BYTES, SealedSlice, StoredObject, TAG_BYTES,
};
use proptest::prelude::*;
use quorumfs_backends::StoreErrorKind;
use quorumfs_backends::faulty::{Fault, Plan};
use quorumfs_metadata::identity::ObjectClass;
use std::ops::Range;

pub(super) const POLICIES: [(u8, u8, u8); 5] =
    [(3, 1, 1), (4, 1, 2), (5, 1, 3), (6, 1, 4), (7, 2, 3)];

pub(super) fn plain(number: u32, length: usize) -> PlainSlice {
    PlainSlice {
        id: slice_id(number),
        key: key(number),
        plain: content(u64::from(number), length),
    }
}

pub(super) async fn pack(
    volume: &Volume,
    slices: &[PlainSlice],
) -> (StoredObject, Vec<SealedSlice>) {
    let written = volume
        .blocks
        .write_slices(object_id(1), ObjectClass::BLOCK, slices.to_vec());
    let (object, sealed) = written.await.unwrap();
    volume
        .log
        .rows
        .lock()
        .unwrap()
        .insert(object.id, object.clone());
    volume.blocks.committed(object.id);
    (StoredObject::of_new(&object).unwrap(), sealed)
}

pub(super) fn run(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(future);
}

/// Slices of a writer with many files: most small, some around a segment's end.
fn lengths() -> impl Strategy<Value = Vec<usize>> {
    let segment = SEGMENT_BYTES as usize;
    let length = prop_oneof![
        4 => 0..3000_usize,
        2 => 0..3 * segment,
        1 => segment - 20..segment + 20,
        1 => Just(segment),
        1 => Just(segment - TAG_BYTES as usize),
    ];
    proptest::collection::vec(length, 1..9)
}

pub(super) fn cut(length: u32, (from, to): (f64, f64)) -> Range<u32> {
    let at = |part: f64| (f64::from(length) * part) as u32;
    at(from.min(to))..at(from.max(to))
}

/// Packs slices and reads ranges of all, with all clouds and without one.
pub(super) async fn reads_all(
    volume: &Volume,
    slices: &[PlainSlice],
    parts: &[(f64, f64)],
    lost: usize,
) {
    let (object, sealed) = pack(volume, slices).await;
    let mut end = 0;
    for slice in &sealed {
        assert_eq!(
            slice.offset, end,
            "slices follow each other without padding"
        );
        end += slice.sealed_length;
    }
    assert_eq!(object.length(), end);
    volume.drain().await;
    for is_lost in [false, true] {
        if is_lost {
            let missing = Plan::always(Fault::Refuse(StoreErrorKind::NotFound));
            volume.plan(lost, missing);
        }
        for (slice, wanted) in sealed.iter().zip(slices) {
            let ranges = parts.iter().map(|parts| cut(slice.length, *parts));
            for range in ranges.chain(std::iter::once(0..slice.length)) {
                let read = volume
                    .blocks
                    .read(&object, slice, &wanted.key, range.clone());
                let read = read.await.unwrap();
                let (begin, end) = (range.start as usize, range.end as usize);
                assert!(
                    read == wanted.plain.slice(begin..end),
                    "{slice:?} {range:?}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_range_of_any_slice_of_a_pack_is_read_with_and_without_its_data_shards(
        lengths in lengths(),
        which in 0..POLICIES.len(),
        lost in 0..7_usize,
        parts in proptest::collection::vec((0.0..=1.0, 0.0..=1.0), 3),
    ) {
        let (n, f, k) = POLICIES[which];
        let policy = policy(n, f, k);
        let slices: Vec<_> = (1..).zip(&lengths).map(|(i, length)| plain(i, *length)).collect();
        run(async {
            reads_all(&Volume::new(policy), &slices, &parts, lost % usize::from(n)).await;
        });
    }
}

#[tokio::test]
async fn a_slice_of_a_pack_opens_with_its_own_key_and_only_where_it_lies() {
    let volume = Volume::new(policy(4, 1, 2));
    let slices = [plain(1, 40_000), plain(2, 40_000), plain(3, 100_000)];
    let (object, sealed) = pack(&volume, &slices).await;
    let all = 0..40_000;
    let read =
        async |slice: SealedSlice, key| volume.blocks.read(&object, &slice, key, all.clone()).await;
    let found = read(sealed[1], &slices[1].key).await.unwrap();
    assert!(found == slices[1].plain);
    let is_forged = |read| matches!(read, Err(BlockError::Forged { .. }));
    assert!(is_forged(read(sealed[1], &slices[0].key).await));
    for offset in [sealed[0].offset, sealed[1].offset - 1, sealed[2].offset] {
        let moved = SealedSlice {
            offset,
            ..sealed[1]
        };
        assert!(is_forged(read(moved, &slices[1].key).await), "{offset}");
    }
    let offset = object.length() - sealed[1].sealed_length + 1;
    let behind = SealedSlice {
        offset,
        ..sealed[1]
    };
    let read = read(behind, &slices[1].key).await;
    assert!(matches!(read, Err(BlockError::Row { .. })), "{read:?}");
}

#[tokio::test]
async fn a_small_slice_of_a_large_pack_is_read_by_its_own_cells_alone() {
    let volume = Volume::new(policy(4, 1, 2));
    let cell = CELL_BYTES as usize;
    let slices: Vec<_> = (1..=40).map(|i| plain(i, 30_000)).collect();
    let (object, sealed) = pack(&volume, &slices).await;
    volume.drain().await;
    let got = || {
        let bytes = |it: &std::sync::Arc<super::harness::MemoryStore>| {
            it.bytes_got.load(std::sync::atomic::Ordering::Relaxed)
        };
        volume.memories.iter().map(bytes).sum::<u64>() as usize
    };
    let before = got();
    let read = volume
        .blocks
        .read(&object, &sealed[20], &slices[20].key, 0..30_000);
    assert!(read.await.unwrap() == slices[20].plain);
    assert!(got() - before < 3 * cell, "{}", got() - before);
}

#[tokio::test]
async fn a_pack_of_nothing_or_of_too_much_is_refused() {
    let volume = Volume::new(policy(4, 1, 2));
    let write = async |slices| {
        let (id, class) = (object_id(1), ObjectClass::BLOCK);
        volume.blocks.write_slices(id, class, slices).await
    };
    let nothing = write(vec![]).await;
    assert!(
        matches!(nothing, Err(BlockError::Row { .. })),
        "{nothing:?}"
    );
    let much = write(vec![plain(1, 3 << 20), plain(2, (1 << 20) + 1)]).await;
    assert!(matches!(much, Err(BlockError::Length { .. })), "{much:?}");
}
