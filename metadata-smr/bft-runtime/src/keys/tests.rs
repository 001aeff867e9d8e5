//! The guarantees of keys and their files, and the verdict on crafted signatures.

use super::*;
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt;

/// The eight points of small order, in every encoding that decompresses, canonical or not.
/// Source: <https://hdevalence.ca/blog/2020-10-04-its-25519am>.
pub(super) const SMALL_ORDER: [&str; 14] = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
];

#[test]
fn a_key_survives_its_file() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("node.key");
    let key = NodeKey::generate().expect("randomness");
    key.store(&path).expect("store");
    let mode = std::fs::metadata(&path).expect("file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let names = std::fs::read_dir(directory.path()).expect("list").count();
    assert_eq!(names, 1, "nothing else is left");
    let again = NodeKey::load(&path).expect("load");
    assert_eq!(again.public(), key.public());
    assert!(Zip215.verify(&key.public(), b"words", &again.sign(b"words")));
}

#[test]
fn a_key_is_never_overwritten() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("node.key");
    let first = NodeKey::generate().expect("randomness");
    first.store(&path).expect("store");
    let second = NodeKey::generate().expect("randomness");
    assert!(matches!(second.store(&path), Err(KeyError::Exists { .. })));
    assert_eq!(NodeKey::load(&path).expect("load").public(), first.public());
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("node.key");
    NodeKey::generate()
        .expect("randomness")
        .store(&path)
        .expect("store");
    for mode in [0o640, 0o604, 0o644, 0o660] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("chmod");
        let error = NodeKey::load(&path).expect_err("exposed");
        assert!(matches!(error, KeyError::Exposed { .. }), "{error}");
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
}

#[test]
fn any_damage_to_a_key_file_is_noticed() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("node.key");
    NodeKey::generate()
        .expect("randomness")
        .store(&path)
        .expect("store");
    let good = std::fs::read(&path).expect("read");
    for place in 0..good.len() - 1 {
        let mut bad = good.clone();
        bad[place] ^= 1;
        std::fs::write(&path, &bad).expect("write");
        // Only a change that does not change the key's meaning could pass: there is none, because
        // hexadecimal digits that differ in the lowest bit alone have different values.
        assert!(NodeKey::load(&path).is_err(), "byte {place}");
    }
    std::fs::write(&path, &good[..good.len() / 2]).expect("write");
    assert!(matches!(NodeKey::load(&path), Err(KeyError::Format { .. })));
}

#[test]
fn a_secret_is_not_printed() {
    let key = NodeKey::generate().expect("randomness");
    let printed = format!("{key:?}");
    assert!(!printed.contains(hex(key.seed.as_slice()).as_str()));
}

#[test]
fn small_order_points_get_the_verdict_of_zip_215() {
    // Under ZIP-215 a signature of a small-order R and s = 0 holds under every small-order key and
    // for every message. A library with cofactorless rules would refuse some of them.
    for key in SMALL_ORDER {
        for r in SMALL_ORDER {
            let key = PublicKey(*unhex(key).expect("hex"));
            let mut bytes = [0_u8; 64];
            bytes[..32].copy_from_slice(unhex(r).expect("hex").as_slice());
            assert!(
                Zip215.verify(&key, b"Zcash", &Signature(bytes)),
                "{key} {r}"
            );
            // The order of the base point is not a reduced scalar and is refused.
            let order = "edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010";
            bytes[32..].copy_from_slice(unhex(order).expect("hex").as_slice());
            assert!(!Zip215.verify(&key, b"Zcash", &Signature(bytes)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_mutated_signature_or_key_is_refused(
        seed in any::<[u8; 32]>(), message in any::<Vec<u8>>(),
        place in 0_usize..96, bit in 0_u8..9,
    ) {
        let key = NodeKey::from_seed(Zeroizing::new(seed)).expect("key");
        let mut signature = key.sign(&message);
        let mut public = key.public();
        if bit < 8 {
            let byte = match place {
                0..64 => &mut signature.0[place],
                _ => &mut public.0[place - 64],
            };
            *byte ^= 1 << bit;
        }
        let single = Zip215.verify(&public, &message, &signature);
        prop_assert_eq!(single, bit == 8);
    }

    #[test]
    fn bytes_that_are_not_a_key_or_signature_never_panic(
        key in any::<[u8; 32]>(), low in any::<[u8; 32]>(), high in any::<[u8; 32]>(),
    ) {
        let mut signature = [0_u8; 64];
        signature[..32].copy_from_slice(&low);
        signature[32..].copy_from_slice(&high);
        prop_assert!(!Zip215.verify(&PublicKey(key), b"", &Signature(signature)));
    }
}
