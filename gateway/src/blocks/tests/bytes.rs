//! The bytes of objects: pinned, rebuilt from every k, refused after any change.

use super::harness::{VOLUME, content, key, object_id, policies, policy, secrets, slice_id};
use crate::blocks::object::{
    Buffers, CloudKeys, Code, Content, HeaderBytes, Layout, Rebuilt, SEGMENT_BYTES, ShardBytes,
    SliceCipher, StoredObject, cells_range, check_cells, check_whole, encode, sealed_length,
};
use crate::keys::Sealing;
use proptest::prelude::*;
use quorumfs_bft::identity::Digest;
use quorumfs_metadata::identity::{CloudIndex, Codec, ObjectClass};
use quorumfs_metadata::operation::NewObject;
use quorumfs_metadata::placement::{Policy, Shard};

struct Made {
    object: StoredObject,
    headers: Vec<HeaderBytes>,
    shards: Vec<ShardBytes>,
}

fn make(policy: Policy, plain: &[u8]) -> Made {
    make_pack(policy, &[plain])
}

/// An object of slices that are numbered from 1.
fn make_pack(policy: Policy, plains: &[&[u8]]) -> Made {
    let sealed = |plain: &&[u8]| sealed_length(plain.len() as u32).unwrap();
    let length = plains.iter().map(sealed).sum();
    let layout = Layout::new(length, policy.data());
    let mut new = NewObject {
        id: object_id(1),
        class: ObjectClass::BLOCK,
        policy,
        length,
        shard_length: layout.stored_length(0) as u32,
        shards: (0..policy.clouds())
            .map(|i| Shard {
                digest: Digest([0; 32]),
                cloud: CloudIndex(i),
                attempt: 0,
                acknowledged: true,
                withdrawn: false,
                receipt: None,
                coded_for: None,
            })
            .collect(),
    };
    let object = StoredObject::of_new(&new).unwrap();
    let headers: Vec<_> = secrets(policy.clouds())
        .iter()
        .enumerate()
        .map(|(i, secret)| {
            object
                .header(VOLUME, i)
                .unwrap()
                .encode(&CloudKeys::derive(secret))
        })
        .collect();
    let cipher = |(number, plain): (u32, &&[u8])| {
        let (length, none) = (plain.len() as u32, Codec::NONE);
        let (key, id) = (key(number), slice_id(number));
        SliceCipher::new(&key, VOLUME, id, length, none, Sealing::On).unwrap()
    };
    let ciphers: Vec<_> = (1..).zip(plains).map(cipher).collect();
    let contents: Vec<_> = ciphers
        .iter()
        .zip(plains)
        .map(|(cipher, plain)| Content {
            cipher,
            plain,
            squeezed: None,
        })
        .collect();
    let shards = encode(
        layout,
        &Code::new(policy).unwrap(),
        &headers,
        &contents,
        &Buffers::new(1 << 20),
    )
    .unwrap();
    for (row, shard) in new.shards.iter_mut().zip(&shards) {
        row.digest = shard.digest;
    }
    Made {
        object: StoredObject::of_new(&new).unwrap(),
        headers,
        shards,
    }
}

impl Made {
    fn payload(&self, shard: usize) -> Option<Vec<u8>> {
        self.check(shard, &self.shards[shard].body)
    }

    fn check(&self, shard: usize, body: &[u8]) -> Option<Vec<u8>> {
        let digest = self.object.digest(shard).unwrap();
        check_whole(
            self.object.layout(),
            shard as u64,
            &self.headers[shard],
            digest,
            body,
        )
    }
}

/// All ways to choose k of n.
fn choices(n: usize, k: usize) -> impl Iterator<Item = Vec<usize>> {
    (0u32..1 << n)
        .filter(move |set| set.count_ones() as usize == k)
        .map(move |set| (0..n).filter(|i| set >> i & 1 == 1).collect())
}

fn every_choice_rebuilds(policy: Policy, plain: &[u8]) {
    let made = make(policy, plain);
    let code = Code::new(policy).unwrap();
    let (n, k) = (made.shards.len(), usize::from(policy.data()));
    for chosen in choices(n, k) {
        let mut payloads = vec![None; n];
        for shard in &chosen {
            payloads[*shard] = made.payload(*shard);
            assert!(payloads[*shard].is_some());
        }
        let rebuilt = Rebuilt::new(&made.object, &code, &made.headers, payloads, false).unwrap();
        assert!(rebuilt.wrong_parity.is_empty());
        for (i, shard) in made.shards.iter().enumerate() {
            let again = rebuilt.shard(i, &made.headers[i], &Buffers::new(0));
            assert_eq!(again.digest, shard.digest, "{policy:?} {chosen:?} {i}");
            assert!(again.body == shard.body, "{policy:?} {chosen:?} {i}");
        }
    }
}

#[test]
fn any_k_of_n_rebuild_every_shard_of_every_edge_size() {
    let segment = SEGMENT_BYTES as usize;
    for policy in policies() {
        for length in [
            0,
            1,
            15,
            segment - 1,
            segment,
            segment + 1,
            5 * segment,
            4 << 20,
        ] {
            every_choice_rebuilds(policy, &content(length as u64, length));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_k_of_n_rebuild_every_shard_of_any_size(
        length in 0usize..1_000_000, which in 0usize..5, seed: u64,
    ) {
        let all = [(4, 1, 2), (3, 1, 1), (5, 1, 3), (6, 1, 4), (7, 2, 3)];
        let (n, f, k) = all[which];
        every_choice_rebuilds(policy(n, f, k), &content(seed, length));
    }
}

#[test]
fn every_flipped_bit_of_a_stored_shard_is_refused() {
    let made = make(policy(4, 1, 2), &content(3, 300));
    for shard in 0..4 {
        let body = &made.shards[shard].body;
        for bit in 0..body.len() * 8 {
            let mut bad = body.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(made.check(shard, &bad).is_none(), "shard {shard} bit {bit}");
        }
        assert!(made.check(shard, &body[1..]).is_none());
        assert!(made.check((shard + 1) % 4, body).is_none());
    }
}

#[test]
fn a_run_of_cells_is_proved_alone_and_refused_when_anything_in_it_changes() {
    let made = make(
        policy(4, 1, 2),
        &content(4, 9 * SEGMENT_BYTES as usize + 77),
    );
    let layout = made.object.layout();
    assert!(layout.depth() > 2);
    for shard in 0..4usize {
        for rows in [0..1, 1..3, 0..layout.shard_cells(shard as u64)] {
            let range = cells_range(layout, shard as u64, &rows);
            let bytes = made.shards[shard]
                .body
                .slice(range.start as usize..range.end as usize);
            let (header, digest) = (&made.headers[shard], made.object.digest(shard).unwrap());
            let check = |bytes: &_| check_cells(layout, shard as u64, &rows, header, digest, bytes);
            let cells = check(&bytes).unwrap();
            assert_eq!(cells.len() as u64, rows.end - rows.start);
            for byte in (0..bytes.len())
                .step_by(997)
                .chain(bytes.len() - 40..bytes.len())
            {
                let mut bad = bytes.to_vec();
                bad[byte] ^= 0x10;
                assert!(check(&bad.into()).is_none(), "shard {shard} byte {byte}");
            }
            assert!(check(&bytes.slice(1..)).is_none());
            let shifted = rows.start + 1..rows.end + 1;
            assert!(check_cells(layout, shard as u64, &shifted, header, digest, &bytes).is_none());
        }
    }
}

#[test]
fn parity_that_does_not_fit_its_data_convicts_the_writer() {
    let policy = policy(4, 1, 2);
    let (mut made, other) = (
        make(policy, &content(1, 5000)),
        make(policy, &content(2, 5000)),
    );
    // The writer describes the parity of something else.
    let mut shards = made.object.shards().to_vec();
    shards[2].digest = other.object.shards()[2].digest;
    let new = NewObject {
        id: object_id(1),
        class: ObjectClass::BLOCK,
        policy,
        length: made.object.length(),
        shard_length: made.object.layout().stored_length(0) as u32,
        shards,
    };
    made.object = StoredObject::of_new(&new).unwrap();
    made.shards[2] = other.shards[2].clone();
    let code = Code::new(policy).unwrap();
    let from = |chosen: [usize; 2]| {
        let mut payloads = vec![None; 4];
        for shard in chosen {
            payloads[shard] = made.payload(shard);
        }
        Rebuilt::new(&made.object, &code, &made.headers, payloads, false)
    };
    assert_eq!(from([0, 1]).unwrap().wrong_parity, [2]);
    let error = from([0, 2]).unwrap_err();
    assert!(
        error.to_string().contains("no cloud is to blame"),
        "{error}"
    );
}

#[test]
fn the_bytes_of_an_object_never_change() {
    let made = make(
        policy(4, 1, 2),
        &content(9, 2 * SEGMENT_BYTES as usize + 1000),
    );
    let digests: Vec<String> = made
        .shards
        .iter()
        .map(|shard| blake3::hash(&shard.body).to_hex()[..16].to_owned())
        .collect();
    assert_eq!(
        digests,
        [
            "7e66f4501ad549dc",
            "99c99a56ea1868cc",
            "1553235c47a3865f",
            "c45c11cf46616182"
        ]
    );
    let roots: Vec<String> = made
        .shards
        .iter()
        .map(|shard| format!("{}", shard.digest)[..16].to_owned())
        .collect();
    assert_eq!(
        roots,
        [
            "66d77cae53ea421e",
            "06efe3fbd1efd80e",
            "2671bb05d8858b25",
            "81ddbb84b67552a4"
        ]
    );
}

/// The stored shards of a small object in format 1, one line of hexadecimal for each.
#[test]
fn a_fixture_of_format_1_is_still_what_is_written_and_still_read() {
    let made = make(policy(4, 1, 2), b"quorumfs object fixture, format 1");
    is_still_written_and_read(&made, include_str!("object_format_1.hex"));
}

/// The same of an object with three slices.
#[test]
fn a_fixture_of_a_pack_is_still_what_is_written_and_still_read() {
    let plains: [&[u8]; 3] = [b"first", b"the second", b"and a third slice"];
    let made = make_pack(policy(4, 1, 2), &plains);
    is_still_written_and_read(&made, include_str!("pack_format_1.hex"));
}

fn is_still_written_and_read(made: &Made, fixture: &str) {
    let written: Vec<String> = made.shards.iter().map(|shard| hex(&shard.body)).collect();
    assert_eq!(fixture.lines().collect::<Vec<_>>(), written);
    for (shard, line) in fixture.lines().enumerate() {
        assert!(made.check(shard, &unhex(line)).is_some());
    }
}

pub(super) fn unhex(line: &str) -> Vec<u8> {
    let digits = line.bytes().map(|b| (b as char).to_digit(16).unwrap());
    let digits: Vec<u8> = digits.map(|digit| digit as u8).collect();
    let pairs = digits.chunks(2);
    pairs.map(|pair| pair[0] << 4 | pair[1]).collect()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
