//! All decoders of bytes that another party may have chosen, as functions from bytes.
//!
//! A [`Target`] accepts any bytes at all; it must neither panic nor allocate memory out of
//! proportion to the bytes. Further checks are assertions. The same functions are driven twice:
//!
//! * `fuzz/` has a libFuzzer target for each of them (`scripts/fuzz`, docs/TESTING.md);
//! * `tests/tests/simulated/corpora.rs` replays their seeds, cut and with flipped bits, and every
//!   file under `fuzz/corpus/`, where inputs that once failed are kept.
//!
//! | Module | Input |
//! |---|---|
//! | [`replica`] | frames and timers of a running replica; the journal of a starting one |
//! | [`client`] | frames of replicas to a client |
//! | [`state`] | the key space, over a store in which one value was replaced |
//! | [`recording`] | a recording of a replica, or the content of a block whose checks hold |
//! | [`files`] | files on clouds and disks, and files that people exchange |
//! | [`formats`] | the same where most of it is sealed: what a gateway stores and reads |
//! | [`http`] | requests to a server of links |
//! | [`people`] | lines and cards that people exchange, and changes of principals |

pub mod client;
pub mod files;
pub mod formats;
pub mod http;
pub mod people;
pub mod recording;
pub mod replica;
pub mod state;

use bytes::Bytes;
use quorumfs_bft::authentication::{KeyDirectory, Signer, Verifier};
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{
    ClusterId, Epoch, Monotonic, Now, PublicKey, ReplicaId, SessionId, Signature, Time,
};
use quorumfs_bft::wire::Envelope;
use quorumfs_metadata::genesis::SignedGenesis;
use quorumfs_metadata::operation::Operation;
use quorumfs_metadata::query::Query;
use quorumfs_metadata::reply::{Answer, Response};
use std::path::PathBuf;

/// A decoder.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The target's name, which is also the name of its corpus.
    pub name: &'static str,
    /// Decodes the bytes.
    pub run: fn(&[u8]),
    /// Valid inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [Target; 17] = [
    Target {
        name: "capsule",
        run: formats::capsule,
        seeds: formats::capsules,
    },
    Target {
        name: "frame",
        run: frame,
        seeds: wire_fixtures,
    },
    Target {
        name: "replica",
        run: replica::frames,
        seeds: replica::seeds,
    },
    Target {
        name: "journal",
        run: replica::journal,
        seeds: replica::journal_seeds,
    },
    Target {
        name: "client",
        run: client::frames,
        seeds: client::seeds,
    },
    Target {
        name: "state",
        run: state::stored,
        seeds: state::seeds,
    },
    Target {
        name: "metadata",
        run: metadata,
        seeds: metadata_fixtures,
    },
    Target {
        name: "link",
        run: files::link,
        seeds: files::link_seeds,
    },
    Target {
        name: "store",
        run: files::store,
        seeds: files::store_seeds,
    },
    Target {
        name: "recording",
        run: recording::recording,
        seeds: recording::seeds,
    },
    Target {
        name: "keys",
        run: files::keys,
        seeds: files::key_seeds,
    },
    Target {
        name: "mount_journal",
        run: formats::mount_journal,
        seeds: formats::mount_journals,
    },
    Target {
        name: "segment",
        run: formats::segment,
        seeds: formats::segments,
    },
    Target {
        name: "object",
        run: formats::object,
        seeds: formats::objects,
    },
    Target {
        name: "attribute",
        run: formats::attribute,
        seeds: formats::attributes,
    },
    Target {
        name: "http",
        run: http::request,
        seeds: http::requests,
    },
    Target {
        name: "people",
        run: people::people,
        seeds: people::lives,
    },
];

/// The target of this name.
#[must_use]
pub fn find(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}

/// A frame of the ordering library: encoding the decoded frame gives the same bytes.
fn frame(bytes: &[u8]) {
    if let Ok(envelope) = Envelope::decode(Bytes::copy_from_slice(bytes)) {
        assert_eq!(envelope.frame().as_ref(), bytes);
        assert!(!format!("{:?}", envelope.message()).is_empty());
    }
}

/// Operations, queries, answers and genesis of the metadata service: each value has one encoding.
fn metadata(bytes: &[u8]) {
    if let Ok(value) = Operation::from_bytes(bytes) {
        assert_eq!(value.to_bytes(), bytes);
        // What the volume root signs lies inside as bytes of its own.
        if let Operation::Succeed(succeed) = &value {
            let _ = succeed.signed.verified(CLUSTER, &PublicKey([1; 32]));
        }
    }
    if let Ok(value) = Query::from_bytes(bytes) {
        assert_eq!(value.to_bytes(), bytes);
    }
    if let Ok(value) = Response::from_bytes(bytes) {
        assert_eq!(value.to_bytes(), bytes);
    }
    if let Ok(value) = Answer::from_bytes(bytes) {
        assert_eq!(value.to_bytes(), bytes);
    }
    if let Ok((signed, genesis)) = SignedGenesis::from_bytes(bytes) {
        assert_eq!(signed.to_bytes(), bytes);
        let _ = genesis.validate();
        let _ = genesis.fault_model();
    }
}

/// The cluster and the membership epoch of the fixtures.
const CLUSTER: ClusterId = ClusterId(*b"a cluster's name");
const EPOCH: Epoch = Epoch(7);

/// Four replicas, one of which may lie.
///
/// # Panics
/// Never: the numbers are right.
fn four() -> FaultModel {
    match FaultModel::new(1, 1, 4) {
        Ok(model) => model,
        Err(error) => unreachable!("{error}"),
    }
}

fn at(nanos: u64) -> Now {
    Now {
        clock: Time(1_700_000_000_000_000_000 + nanos),
        monotonic: Monotonic(nanos),
    }
}

/// Knows every key and accepts every signature, so that the code after verification is reached.
struct Credulous;

impl Verifier for Credulous {
    fn verify(&self, _: &PublicKey, _: &[u8], _: &Signature) -> bool {
        true
    }
}

impl Signer for Credulous {
    fn public_key(&self) -> PublicKey {
        PublicKey([1; 32])
    }

    fn sign(&self, _: &[u8]) -> Signature {
        Signature([0; 64])
    }
}

impl KeyDirectory for Credulous {
    fn replica(&self, id: ReplicaId) -> Option<PublicKey> {
        (id.0 < 4).then_some(PublicKey([id.0 as u8; 32]))
    }

    fn session(&self, id: SessionId) -> Option<PublicKey> {
        (id.0 < 1000).then_some(PublicKey([9; 32]))
    }
}

fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The bytes that a text holds in hexadecimal.
fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let digits: Vec<u8> = text.bytes().filter_map(digit).collect();
    let (pairs, _) = digits.as_chunks::<2>();
    pairs.iter().map(|[high, low]| high << 4 | low).collect()
}

/// Every fixture in a folder of the ordering library, ordered by name.
fn fixtures(folder: &str) -> Vec<Vec<u8>> {
    let folder = repository().join("metadata-smr/bft/fixtures").join(folder);
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    let texts = paths.iter().map(std::fs::read_to_string);
    texts.map_while(Result::ok).map(|it| unhex(&it)).collect()
}

fn wire_fixtures() -> Vec<Vec<u8>> {
    fixtures("wire")
}

/// The values of a file with one `name value` in each line.
fn listed(path: &str) -> Vec<Vec<u8>> {
    let text = std::fs::read_to_string(repository().join(path)).unwrap_or_default();
    let values = text.lines().filter_map(|line| line.split_once(' '));
    values.map(|(_, value)| unhex(value)).collect()
}

fn metadata_fixtures() -> Vec<Vec<u8>> {
    listed("metadata-smr/service/fixtures/format-3.txt")
}

/// Cuts an input into pieces: `kind u8 ‖ length u16 ‖ bytes`, again and again.
struct Pieces<'a>(&'a [u8]);

impl<'a> Iterator for Pieces<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let ([kind, high, low], rest) = self.0.split_first_chunk::<3>()?;
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (piece, rest) = rest.split_at(length);
        self.0 = rest;
        Some((*kind, piece))
    }
}

/// The inverse of [`Pieces`].
fn pieces<'a>(parts: impl IntoIterator<Item = (u8, &'a [u8])>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, part) in parts {
        let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
        bytes.push(kind);
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend(part.iter().take(length.into()));
    }
    bytes
}
