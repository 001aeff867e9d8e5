//! Files on disks and clouds, bytes of a new connection, and files that people exchange.

use super::formats::{kept_key, kept_keys};
use quorumfs_backends::ObjectName;
use quorumfs_backends::marker::Marker;
use quorumfs_bft::identity::{ClusterId, ReplicaId};
use quorumfs_bft_runtime::link::frame::{Frame, Kind, Reader};
use quorumfs_bft_runtime::link::hello::{Hello, Role};
use quorumfs_gateway::keys::{
    ChangedClouds, CloudSecret, JoinKey, KeyFile, Principal, PrincipalId, RecoveryKit, Secret,
    SignedCard, VolumeCard, VolumeRoot,
};
use quorumfs_metadata::fleet::Fleet;
use quorumfs_metadata::identity::CloudIndex;
use quorumfs_metadata::row::Cloud;

/// The limit of a payload for the reader of a connection.
const PAYLOAD_BYTES_MAX: usize = 4096;

/// A connection that delivers these bytes: cut into frames, and as a greeting.
///
/// # Panics
/// If a frame exceeds the reader's limit.
pub fn link(bytes: &[u8]) {
    if let Ok(hello) = Hello::decode(bytes) {
        let again = Hello::decode(&hello.encode());
        assert_eq!(format!("{again:?}"), format!("Ok({hello:?})"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let Ok(runtime) = runtime else {
        return;
    };
    runtime.block_on(async {
        let mut reader = Reader::new(bytes, PAYLOAD_BYTES_MAX);
        while let Ok(frame) = reader.next().await {
            assert!(frame.payload.len() <= PAYLOAD_BYTES_MAX);
        }
    });
}

/// Greetings and frames.
#[must_use]
pub fn link_seeds() -> Vec<Vec<u8>> {
    let greeting = |role| {
        Hello::new(ClusterId([7; 16]), role, ReplicaId(2))
            .encode()
            .to_vec()
    };
    let mut seeds = vec![
        greeting(Role::Client),
        greeting(Role::Replica(ReplicaId(1))),
    ];
    let mut stream = Vec::new();
    for length in [0, 1, 300] {
        let frame = Frame::message(vec![5; length].into());
        stream.extend(frame.header().into_iter().flatten());
        stream.extend_from_slice(&frame.payload);
        stream.extend(Frame::empty(Kind::Keepalive).header().into_iter().flatten());
    }
    seeds.push(stream);
    seeds
}

/// A store's marker, and object names.
pub fn store(bytes: &[u8]) {
    if let Ok(marker) = Marker::decode(bytes) {
        assert_eq!(marker.encode(), bytes);
    }
    if let Ok(name) = std::str::from_utf8(bytes)
        && let Ok(parsed) = ObjectName::parse(name)
    {
        assert_eq!(parsed.as_str(), name);
        let (directory, file) = parsed.parts();
        assert!(!directory.contains('/') && !file.contains('/') && !name.contains(".."));
    }
}

/// A marker and a name.
#[must_use]
pub fn store_seeds() -> Vec<Vec<u8>> {
    let name = "3f/3f6c2a90b1d4e8f73f6c2a90b1d4e8f73f6c2a90b1d4e8f73f6c2a90b1d4e8f7";
    let marker = Marker {
        volume: [7; 16],
        cloud: 3,
    };
    vec![marker.encode(), name.as_bytes().to_vec()]
}

/// A key file, a recovery kit that was typed in, what a guest and an administrator hand each other,
/// and the keys that this host stores.
pub fn keys(bytes: &[u8]) {
    kept_key(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(file) = KeyFile::from_text(text) {
        assert!(KeyFile::from_text(&file.to_text()).is_ok());
    }
    if let Ok(kit) = RecoveryKit::from_text(text) {
        assert!(RecoveryKit::from_text(&kit.to_text()).is_ok());
    }
    if let Ok(card) = SignedCard::from_text(text) {
        let again = SignedCard::from_text(&card.to_text());
        assert!(again.is_ok_and(|again| again == card));
    }
    if let Ok(keys) = PrincipalId::from_join_line(text) {
        assert_eq!(keys.fingerprint().len(), 24);
    }
}

/// One of each.
#[must_use]
pub fn key_seeds() -> Vec<Vec<u8>> {
    let root = VolumeRoot::from_seed(Secret::from_bytes([1; 32]));
    let principal = Principal::from_seed(Secret::from_bytes([2; 32]));
    let file = KeyFile {
        principal: principal.clone(),
        root: root.public(),
    };
    let kit = RecoveryKit {
        root,
        recovery: principal,
        genesis: vec![3; 100],
        clouds: vec![("a".into(), "/b".into())],
        changed: None,
    };
    let added = Cloud {
        index: CloudIndex(1),
        kind: "local".into(),
        failure_domain: "d".into(),
        name: "c".into(),
    };
    let changed = ChangedClouds {
        fleet: Fleet::default(),
        added: vec![(added, CloudSecret::from_secret(Secret::from_bytes([4; 32])))],
    };
    let renewed = RecoveryKit {
        changed: Some(changed),
        ..kit.clone()
    };
    let guest = JoinKey {
        principal: file.principal.clone(),
    };
    let card = VolumeCard {
        root: file.root,
        genesis: vec![5; 40],
        successions: Vec::new(),
        people: vec![vec![6; 40], Vec::new()],
        replicas: vec!["key@host:1".into()],
        clouds: vec![("a".into(), "/b".into())],
    };
    let card = SignedCard::of(card, &file.principal);
    let texts = [file.to_text(), kit.to_text(), renewed.to_text()];
    let mut seeds: Vec<_> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    seeds.extend([guest.line(), card.to_text()].map(String::into_bytes));
    seeds.extend(kept_keys());
    seeds
}
