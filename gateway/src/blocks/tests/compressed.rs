//! Compressed slices: reads of any range, and the power of a hostile writer.

use super::bytes::{hex, unhex};
use super::harness::{
    VOLUME, Volume, content, foreign_row, key, object_id, policy, secrets, slice_id,
};
use super::packs::{POLICIES, pack, reads_all, run};
use crate::blocks::{
    BlockError, BlockErrorKind, CELL_BYTES, Compression, PlainSlice, SEGMENT_BYTES, SealedSlice,
    Sealer, Sealing,
};
use bytes::Bytes;
use proptest::prelude::*;
use quorumfs_bft::identity::{Digest, SessionId};
use quorumfs_metadata::identity::Codec;
use std::sync::atomic::Ordering;

/// Content in stretches: of one byte, of words, of noise.
fn mixed(number: u32, stretches: &[(u8, usize)]) -> PlainSlice {
    let mut plain = Vec::new();
    for (kind, length) in stretches {
        let noise = content(u64::from(number), *length);
        plain.extend(noise.iter().map(|byte| match kind {
            0 => 7,
            1 => b"etaoin shrdlu"[usize::from(byte % 13)],
            _ => *byte,
        }));
    }
    PlainSlice {
        id: slice_id(number),
        key: key(number),
        plain: plain.into(),
    }
}

fn words(number: u32, length: usize) -> PlainSlice {
    mixed(number, &[(1, length)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_range_of_any_compressed_slice_is_read_with_and_without_its_data_shards(
        contents in proptest::collection::vec(
            proptest::collection::vec((0_u8..3, 1..120_000_usize), 1..6), 1..4),
        which in 0..POLICIES.len(),
        lost in 0..7_usize,
        parts in proptest::collection::vec((0.0..=1.0, 0.0..=1.0), 4),
    ) {
        let (n, f, k) = POLICIES[which];
        let slices: Vec<_> = (1..).zip(&contents).map(|(i, it)| mixed(i, it)).collect();
        run(async {
            let volume = Volume::compressing(policy(n, f, k));
            reads_all(&volume, &slices, &parts, lost % usize::from(n)).await;
        });
    }
}

#[tokio::test]
async fn compressible_slices_take_less_of_the_clouds_and_others_stay_uncompressed() {
    let volume = Volume::compressing(policy(4, 1, 2));
    let noise = mixed(2, &[(2, 300_000)]);
    let (_, sealed) = pack(&volume, &[words(1, 300_000), noise]).await;
    assert_eq!(
        (sealed[0].codec, sealed[1].codec),
        (Codec::ZSTD, Codec::NONE)
    );
    assert!(sealed[0].sealed_length < 200_000, "{sealed:?}");
    assert_eq!(sealed[1].sealed_length, 300_000 + 5 * 16);
}

#[tokio::test]
async fn an_index_is_fetched_once_and_small_reads_fetch_little_else() {
    let volume = Volume::compressing(policy(4, 1, 2));
    let slice = words(1, 4 << 20);
    let (object, sealed) = pack(&volume, std::slice::from_ref(&slice)).await;
    assert_eq!(sealed[0].codec, Codec::ZSTD);
    volume.drain().await;
    let sum = |of: fn(&super::harness::MemoryStore) -> u64| {
        volume.memories.iter().map(|it| of(it)).sum::<u64>()
    };
    let gets = || sum(|it| it.gets.load(Ordering::Relaxed));
    let bytes = || sum(|it| it.bytes_got.load(Ordering::Relaxed));
    let step = 4096;
    let (mut begin, middle) = (gets(), 40 * SEGMENT_BYTES);
    let before = bytes();
    for at in (middle..middle + SEGMENT_BYTES).step_by(step as usize) {
        let read = volume
            .blocks
            .read(&object, &sealed[0], &slice.key, at..at + step);
        let wanted = slice.plain.slice(at as usize..(at + step) as usize);
        assert!(read.await.unwrap() == wanted);
        let now = gets();
        let most = if at == middle { 3 } else { 2 };
        assert!(now - begin <= most, "{} gets at {at}", now - begin);
        begin = now;
    }
    let most = (SEGMENT_BYTES / step + 1) * 2 * (CELL_BYTES + 200);
    assert!(bytes() - before < u64::from(most), "{}", bytes() - before);
}

/// Reads a slice whose writer stored `stream` for it. Without encryption the writer determines
/// every byte, as a writer with the slice's key does.
async fn read_hostile(stream: &[u8], length: u32) -> Result<Bytes, BlockError> {
    let volume = Volume::with(policy(4, 1, 2), Sealing::Off, 64 << 20);
    let (tag, sealed_length) = (16, stream.len() as u32);
    let plain = Bytes::copy_from_slice(&stream[..stream.len() - tag]);
    let stored = volume.write(1, &plain).await.unwrap();
    let object = foreign_row(&stored.object, SessionId(99), false);
    let slice = SealedSlice {
        length,
        sealed_length,
        codec: Codec::ZSTD,
        ..stored.slice
    };
    volume
        .blocks
        .read(&object, &slice, &key(1), 0..length)
        .await
}

/// An index and bodies, each with a tag behind it.
fn hostile(lengths: &[u32], bodies: &[&[u8]]) -> Vec<u8> {
    let mut stream: Vec<u8> = lengths.iter().flat_map(|it| it.to_be_bytes()).collect();
    stream.extend([0; 16]);
    for body in bodies {
        stream.extend_from_slice(body);
        stream.extend([0; 16]);
    }
    stream
}

#[tokio::test]
async fn a_writer_that_compressed_wrong_is_named_and_every_expansion_is_bounded() {
    let frame = |plain: &[u8]| zstd::bulk::compress(plain, 3).unwrap();
    let right = frame(&[5; 1000]);
    let length = right.len() as u32;
    let read = read_hostile(&hostile(&[length], &[&right]), 1000).await;
    assert!(read.unwrap() == vec![5; 1000]);

    let bomb = frame(&vec![0; 32 << 20]);
    let (bomb_length, mut torn) = (bomb.len() as u32, right.clone());
    torn[6] ^= 0xff;
    let too_long = vec![0; SEGMENT_BYTES as usize + 1];
    for (stream, plain_length) in [
        (hostile(&[bomb_length], &[&bomb]), SEGMENT_BYTES),
        (hostile(&[length], &[&torn]), 1000),
        (hostile(&[length], &[&right]), 999),
        (hostile(&[length], &[&right]), 1001),
        (hostile(&[length + 1], &[&right]), 1000),
        (hostile(&[u32::MAX], &[&right]), 1000),
        (
            hostile(&[SEGMENT_BYTES + 1, 0], &[&too_long, &[]]),
            SEGMENT_BYTES + 1,
        ),
        (hostile(&[0], &[&[]]), 1000),
        (hostile(&[length, 0], &[&right, &[]]), SEGMENT_BYTES + 1),
    ] {
        let error = read_hostile(&stream, plain_length).await.unwrap_err();
        assert!(
            matches!(error, BlockError::SealedWrong { .. }),
            "{plain_length}: {error:?}"
        );
        assert_eq!(error.writer().map(|it| it.session), Some(SessionId(99)));
        assert_eq!(error.kind(), BlockErrorKind::Corrupt);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn any_stored_stream_is_read_or_refused_with_its_writers_name(
        lengths in proptest::collection::vec(0_u32..3000, 1..4),
        noise in proptest::collection::vec(any::<u8>(), 0..9000),
        length in 1_u32..200_000,
    ) {
        let mut stream = hostile(&lengths, &[]);
        stream.extend(&noise);
        stream.extend([0; 16]);
        run(async {
            if let Err(error) = read_hostile(&stream, length).await {
                let is_row = matches!(error, BlockError::Row { .. });
                let by = error.writer().map(|it| it.session);
                assert!(is_row || by == Some(SessionId(99)), "{error:?}");
            }
        });
    }
}

#[tokio::test]
async fn a_row_with_impossible_lengths_or_codec_is_refused_before_anything_is_fetched() {
    let volume = Volume::compressing(policy(4, 1, 2));
    let slice = words(1, 200_000);
    let (object, sealed) = pack(&volume, std::slice::from_ref(&slice)).await;
    let right = sealed[0];
    for wrong in [
        SealedSlice {
            sealed_length: 4 * 4 + 16 + 4 * 16 - 1,
            ..right
        },
        SealedSlice {
            length: 100,
            ..right
        },
        SealedSlice {
            codec: Codec(2),
            ..right
        },
        SealedSlice {
            codec: Codec::NONE,
            ..right
        },
    ] {
        let read = volume.blocks.read(&object, &wrong, &slice.key, 0..10).await;
        assert!(
            matches!(read, Err(BlockError::Row { .. })),
            "{wrong:?} {read:?}"
        );
    }
}

/// The stored shards of a compressed slice and their digests, in hexadecimal. Another version of
/// the compressor may write other bytes; these have to be read for ever.
#[test]
fn a_fixture_of_a_compressed_slice_is_still_read() {
    let policy = policy(4, 1, 2);
    let sealer = Sealer::new(VOLUME, policy, &secrets(4)).unwrap();
    let sealer = sealer.compressing(Compression::Zstd);
    let mut plain = vec![b'q'; SEGMENT_BYTES as usize];
    plain.extend_from_slice(b"a segment that is stored as it is");
    let sealed = sealer.seal_slice(object_id(1), slice_id(1), &key(1), &plain);
    let (slice, shards) = sealed.unwrap();
    let lines = include_str!("compressed_format_1.hex").lines();
    let fixture: Vec<(Bytes, Digest)> = lines
        .map(|line| {
            let (body, digest) = line.split_once(' ').unwrap();
            (
                unhex(body).into(),
                Digest(unhex(digest).try_into().unwrap()),
            )
        })
        .collect();
    let written: Vec<String> = shards
        .iter()
        .map(|(body, digest)| format!("{} {}", hex(body), hex(&digest.0)))
        .collect();
    let fixed = SealedSlice {
        sealed_length: 109,
        ..slice
    };
    let opened = sealer.open_slice(&fixed, &key(1), &fixture);
    assert!(
        opened.is_ok_and(|opened| opened == plain),
        "{slice:?}\n{}",
        written.join("\n")
    );
    assert_eq!(sealer.open_slice(&slice, &key(1), &shards).unwrap(), plain);
}
