//! Making and opening volumes, and refusals.

use super::*;
use crate::keys::RecoveryKit;

pub(crate) fn new_volume() -> NewVolume {
    NewVolume::in_process().unwrap()
}

#[test]
fn the_owner_and_the_recovery_kit_hold_the_same_keys() {
    let created = create(new_volume()).unwrap();
    let owner = Volume::open(&created.genesis, &created.owner).unwrap();
    let kit = RecoveryKit::from_text(&created.recovery_kit.to_text()).unwrap();
    let key = KeyFile {
        root: kit.root.public(),
        principal: kit.recovery.clone(),
    };
    let recovery = Volume::open(&kit.genesis, &key).unwrap();
    let (slice, salt) = (SliceId::default(), SliceSalt::default());
    assert_eq!(
        owner
            .slice_key(RealmEpoch(0), slice, &salt)
            .unwrap()
            .expose(),
        recovery
            .slice_key(RealmEpoch(0), slice, &salt)
            .unwrap()
            .expose()
    );
    let secrets = |volume: &Volume| -> Vec<[u8; 32]> {
        volume
            .clouds()
            .map(|(_, secret)| *secret.expose())
            .collect()
    };
    assert_eq!(secrets(&owner), secrets(&recovery));
    assert_eq!(secrets(&owner).len(), 4);
}

#[test]
fn a_stranger_and_another_volumes_key_are_refused_with_the_reason() {
    let (one, other) = (create(new_volume()).unwrap(), create(new_volume()).unwrap());
    let error = Volume::open(&one.genesis, &other.owner)
        .unwrap_err()
        .to_string();
    assert!(error.contains("another volume"), "{error}");
    let stranger = KeyFile {
        principal: Principal::random().unwrap(),
        root: one.owner.root,
    };
    let error = Volume::open(&one.genesis, &stranger)
        .unwrap_err()
        .to_string();
    assert!(error.contains("not a member"), "{error}");
}

#[test]
fn any_changed_byte_of_the_genesis_is_noticed() {
    let created = create(new_volume()).unwrap();
    for at in 0..created.genesis.len() {
        let mut changed = created.genesis.clone();
        changed[at] ^= 1;
        assert!(Volume::open(&changed, &created.owner).is_err(), "byte {at}");
    }
}

#[test]
fn no_secret_lies_open_in_the_genesis() {
    let created = create(new_volume()).unwrap();
    let volume = Volume::open(&created.genesis, &created.owner).unwrap();
    for (_, secret) in volume.clouds() {
        let found = created
            .genesis
            .windows(32)
            .any(|window| window == secret.expose());
        assert!(!found);
    }
}
