//! Texts of links and manifests for tests with arbitrary input.
//!
//! | Piece | Treatment |
//! |---|---|
//! | 0 | the text of a link |
//! | 1 | the bytes that a link leads to |
//! | 2 … | the same behind a valid beginning |
//!
//! Whatever is accepted says the same when it is encoded again, leads nowhere outside, and refers
//! only to what is there.

use super::content::{CapsuleTables, GivenKey, LinkedContent, LinkedSlice, Run, RunSource};
use super::manifest::{CapsuleEntry, EntryKind, Located, Manifest, Payload};
use super::text::CapsuleLink;
use crate::blocks::{LinkedObject, LinkedShard};
use crate::decoders::{Piece, Seed};
use quorumfs_bft::identity::{ClusterId, Digest};
use quorumfs_metadata::identity::{AllocationId, Codec, ObjectId, SliceId};
use quorumfs_metadata::placement::Policy;

const BEGINNING: &[u8] = b"QFSCAPSU\x00\x01";

fn link(text: &str) -> bool {
    let Ok(link) = CapsuleLink::parse(text) else {
        return false;
    };
    let again = link.to_text().map(|text| CapsuleLink::parse(&text));
    assert!(matches!(again, Ok(Ok(again)) if again == link));
    true
}

fn payload(bytes: &[u8]) -> bool {
    let Ok(payload) = Payload::decode(bytes) else {
        return false;
    };
    if let Payload::Manifest(manifest) = &payload {
        for entry in manifest.entries() {
            let path = manifest.path(entry);
            assert!(!path.starts_with(b"/") && !path.contains(&0));
            let mut names = path.split(|byte| *byte == b'/');
            assert!(names.all(|name| !name.is_empty() && name != b"." && name != b".."));
        }
    }
    let encoded = payload.encode().unwrap_or_default();
    assert_eq!(Payload::decode(&encoded), Ok(payload));
    true
}

/// Reads pieces.
pub(crate) fn read(pieces: &[Piece<'_>]) -> usize {
    let read = |(kind, bytes): &&Piece<'_>| match kind {
        0 => std::str::from_utf8(bytes).is_ok_and(link),
        1 => payload(bytes),
        _ => payload(&[BEGINNING, bytes].concat()),
    };
    pieces.iter().filter(read).count()
}

/// An object over four clouds, of which three are linked.
fn object(policy: Policy, counter: u32) -> LinkedObject {
    let shard = |cloud: u8| LinkedShard {
        digest: Digest([cloud; 32]),
        header: [cloud; 83],
        url: (cloud < 3)
            .then(|| format!("https://cloud-{cloud}.example/{counter}?signature={cloud}")),
    };
    LinkedObject {
        id: ObjectId {
            allocation: AllocationId(7),
            counter,
        },
        policy,
        length: 70_000,
        shards: (0..4).map(shard).collect(),
    }
}

pub(super) fn tables() -> CapsuleTables {
    let slice = |object| LinkedSlice {
        object,
        id: SliceId {
            allocation: AllocationId(7),
            counter: object,
        },
        offset: 0,
        length: 60_000,
        sealed_length: 60_016,
        codec: Codec::NONE,
        key: GivenKey([9; 32]),
    };
    CapsuleTables {
        // These numbers are possible.
        objects: Policy::new(4, 1, 2, 4)
            .map(|policy| vec![object(policy, 0), object(policy, 1)])
            .unwrap_or_default(),
        slices: vec![slice(0), slice(1)],
    }
}

pub(super) fn entry(parent: Option<u32>, name: &str, kind: EntryKind) -> CapsuleEntry {
    CapsuleEntry {
        parent,
        name: name.into(),
        mode: 0o644,
        modified: (1_700_000_000, 5),
        kind,
    }
}

pub(super) fn file() -> EntryKind {
    let run = |at, length, source| Run { at, length, source };
    EntryKind::File(LinkedContent {
        size: 200_000,
        runs: vec![
            run(0, 3, RunSource::Bytes(b"abc".to_vec())),
            run(10, 60_000, RunSource::Slice { slice: 0, begin: 0 }),
            run(100_000, 50, RunSource::Slice { slice: 1, begin: 9 }),
        ],
    })
}

pub(super) fn manifest() -> Manifest {
    Manifest {
        volume: ClusterId([3; 16]),
        entries: vec![
            entry(None, "Photos", EntryKind::Directory),
            entry(Some(0), "a.jpg", file()),
            entry(Some(0), "2024", EntryKind::Directory),
            entry(Some(2), "b.jpg", file()),
            entry(Some(2), "first", EntryKind::Symlink(b"../a.jpg".to_vec())),
        ],
        tables: tables(),
    }
}

pub(super) fn located() -> Located {
    let mut tables = tables();
    tables.objects.truncate(1);
    tables.slices.truncate(1);
    Located {
        volume: ClusterId([3; 16]),
        ends: 1_900_000_000,
        content: LinkedContent {
            size: 60_000,
            runs: vec![Run {
                at: 0,
                length: 60_000,
                source: RunSource::Slice { slice: 0, begin: 0 },
            }],
        },
        tables,
    }
}

/// Valid inputs.
pub(crate) fn seeds() -> Vec<Seed> {
    let text = CapsuleLink(located()).to_text().unwrap_or_default();
    let payloads = [Payload::Manifest(manifest()), Payload::Elsewhere(located())];
    let mut seeds = vec![vec![(0, text.into_bytes())]];
    for payload in payloads {
        let bytes = payload.encode().unwrap_or_default();
        let behind = bytes.get(BEGINNING.len()..).unwrap_or_default().to_vec();
        seeds.push(vec![(1, bytes), (2, behind)]);
    }
    seeds
}
