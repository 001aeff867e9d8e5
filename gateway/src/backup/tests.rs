//! Recovery points: who can make one, and who can open it.

use super::{Layer, RecoveryError, RecoveryPoint};
use crate::keys::{KeyFile, Principal};
use crate::volume::{Created, NewServers, NewVolume, Volume, create, recovered_genesis};
use quorumfs_bft::identity::{Digest, Sequence, Time};
use quorumfs_metadata::identity::VolumeIncarnation;

fn created() -> Created {
    create(NewVolume::in_process().unwrap()).unwrap()
}

fn point(genesis: &[u8]) -> RecoveryPoint {
    RecoveryPoint {
        incarnation: VolumeIncarnation(0),
        sequence: Sequence(77),
        taken: Time(5),
        genesis: genesis.to_vec(),
        successions: Vec::new(),
        root: Digest([3; 32]),
        certificate: b"certificate".to_vec(),
        records: vec![b"record".to_vec()],
        proof: b"proof".to_vec(),
        layers: vec![Layer {
            sequence: Sequence(77),
            rows: 1,
            bytes: 2,
            parts: Vec::new(),
        }],
        people: Vec::new(),
    }
}

fn kit_key(created: &Created) -> KeyFile {
    KeyFile {
        principal: created.recovery_kit.recovery.clone(),
        root: created.owner.root,
    }
}

fn refused(body: &[u8], key: &KeyFile) -> RecoveryError {
    RecoveryPoint::open(body, key).unwrap_err()
}

#[test]
fn owner_and_kit_open_a_point_and_others_do_not() {
    let created = super::tests::created();
    let volume = Volume::open(&created.genesis, &created.owner).unwrap();
    let point = point(&created.genesis);
    let body = point.seal(&volume).unwrap();
    for key in [created.owner.clone(), kit_key(&created)] {
        let (opened, of) = RecoveryPoint::open(&body, &key).unwrap();
        assert_eq!(opened, point);
        assert_eq!(of.id(), volume.id());
    }
    let stranger = KeyFile {
        principal: Principal::random().unwrap(),
        root: created.owner.root,
    };
    let error = refused(&body, &stranger);
    assert!(
        error.to_string().contains("not sealed for this key"),
        "{error}"
    );
    let other = super::tests::created();
    let error = refused(&body, &other.owner);
    assert!(error.to_string().contains("another volume"), "{error}");
}

#[test]
fn a_point_that_was_changed_anywhere_does_not_open() {
    let created = super::tests::created();
    let volume = Volume::open(&created.genesis, &created.owner).unwrap();
    let body = point(&created.genesis).seal(&volume).unwrap();
    for at in 0..body.len() {
        let mut changed = body.to_vec();
        changed[at] ^= 1;
        refused(&changed, &created.owner);
    }
    for length in [0, 10, 25, 26, 100, body.len() - 1] {
        refused(&body[..length], &created.owner);
    }
}

#[test]
fn a_principal_of_another_volume_cannot_make_a_point() {
    let (created, stranger) = (super::tests::created(), super::tests::created());
    // Of a stranger's volume, but for this one's readers: the signer is no principal here.
    let theirs = Volume::open(&stranger.genesis, &stranger.owner).unwrap();
    let body = point(&created.genesis).seal(&theirs).unwrap();
    refused(&body, &created.owner);
    // A genesis of another volume inside.
    let volume = Volume::open(&created.genesis, &created.owner).unwrap();
    let body = point(&stranger.genesis).seal(&volume).unwrap();
    refused(&body, &created.owner);
    // A genesis of another incarnation.
    let servers = NewServers {
        up: 0,
        right: 0,
        replicas: volume.genesis().replicas[..1].to_vec(),
        created: Time(9),
    };
    let by = created.recovery_kit.recovery.id().signing;
    let root = &created.recovery_kit.root;
    let next = VolumeIncarnation(1);
    let later = recovered_genesis(root, volume.genesis(), next, by, servers).unwrap();
    let body = point(&later).seal(&volume).unwrap();
    let error = refused(&body, &created.owner);
    assert!(error.to_string().contains("another incarnation"), "{error}");
    let right = RecoveryPoint {
        incarnation: next,
        ..point(&later)
    };
    let opened = Volume::open(&later, &created.owner).unwrap();
    let (_, of) = RecoveryPoint::open(&right.seal(&opened).unwrap(), &created.owner).unwrap();
    assert_eq!(of.lineage().incarnation, next);
}

#[test]
fn a_newer_format_is_said_to_be_newer() {
    let created = super::tests::created();
    let volume = Volume::open(&created.genesis, &created.owner).unwrap();
    let mut body = point(&created.genesis).seal(&volume).unwrap().to_vec();
    body[24] = 3;
    let error = refused(&body, &created.owner);
    assert!(
        matches!(error, RecoveryError::Newer { format: 3 }),
        "{error}"
    );
}

#[test]
fn a_point_without_people_is_read_as_before() {
    let created = super::tests::created();
    let volume = Volume::open(&created.genesis, &created.owner).unwrap();
    let point = point(&created.genesis);
    let plain = super::point::encode(&point);
    let without = &plain[..plain.len() - 4];
    let body = point.seal_as(&volume, (1, without)).unwrap();
    let (read, _) = RecoveryPoint::open(&body, &created.owner).unwrap();
    assert_eq!(read, point);
    let cut = point.seal_as(&volume, (2, without)).unwrap();
    assert!(RecoveryPoint::open(&cut, &created.owner).is_err());
}

#[test]
fn points_of_a_later_incarnation_come_behind_all_earlier_ones() {
    let id = |incarnation, sequence| {
        RecoveryPoint::id_of(VolumeIncarnation(incarnation), Sequence(sequence))
    };
    assert!(id(0, 1) < id(0, 2) && id(0, (1 << 48) - 1) < id(1, 0));
}
