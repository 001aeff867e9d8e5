//! Sealed key files: their readable part, their passphrase, and the remains of a replacement.

use super::super::{VolumeRoot, volume_root};
use super::*;
use std::os::unix::fs::PermissionsExt;

const CHEAP: Cost = Cost {
    memory_kib: 32,
    passes: 1,
    lanes: 1,
};

fn file() -> KeyFile {
    KeyFile {
        principal: Principal::from_seed(Secret::from_bytes([1; 32])),
        root: VolumeRoot::from_seed(Secret::from_bytes([5; 32])).public(),
    }
}

fn passphrase(text: &str) -> Passphrase {
    Passphrase::from_bytes(Zeroizing::new(text.into())).unwrap()
}

fn sealed() -> SealedKey {
    SealedKey::seal(&file(), &passphrase("open"), CHEAP).unwrap()
}

fn read_back(text: &str) -> SealedKey {
    match StoredKey::from_text(text).unwrap() {
        StoredKey::Sealed(sealed) => sealed,
        StoredKey::Plain(_) => panic!("it is not sealed"),
    }
}

#[test]
fn a_sealed_key_opens_with_its_passphrase_alone() {
    let read = read_back(&sealed().to_text());
    let opened = read.open(&passphrase("open")).unwrap();
    assert_eq!(opened.principal.id(), file().principal.id());
    assert_eq!(opened.root, file().root);
    for other in ["opem", "open ", "Open", "o"] {
        let refused = read.open(&passphrase(other));
        assert!(matches!(refused, Err(KeyError::WrongPassphrase)), "{other}");
    }
    assert_ne!(sealed().to_text(), sealed().to_text(), "each has its salt");
}

#[test]
fn the_readable_part_of_a_sealed_key_is_public_and_cannot_be_changed() {
    let good = sealed();
    let secret = volume_root::public_key(&Secret::from_bytes([9; 32]));
    let changes: [fn(&mut SealedKey, PublicKey); 6] = [
        |key, other| key.root = RootKey(other),
        |key, other| key.signing = other,
        |key, _| key.cost.passes += 1,
        |key, _| key.salt[0] ^= 1,
        |key, _| key.sealed[0] ^= 1,
        |key, _| key.sealed[SEALED_BYTES - 1] ^= 1,
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut changed = good.clone();
        change(&mut changed, secret);
        let opened = read_back(&changed.to_text()).open(&passphrase("open"));
        assert!(opened.is_err(), "change {number}");
    }
    let text = good.to_text().replace([' ', '\n'], "");
    let seed = super::super::lines::hex(&[1; 32]);
    assert!(!text.contains(&seed), "{text}");
    let plain = file().to_text().replace([' ', '\n'], "");
    assert!(plain.contains(&seed), "the search finds nothing");
}

#[test]
fn a_key_of_a_newer_format_is_refused_clearly() {
    let newer = sealed().to_text().replace("format 2", "format 3");
    let error = StoredKey::from_text(&newer).unwrap_err().to_string();
    assert!(
        error.contains("format 3") && error.contains("update"),
        "{error}"
    );
    // A reader of the first format alone reports the format, not a missing line.
    let error = KeyFile::from_text(&sealed().to_text()).unwrap_err();
    assert!(matches!(error, KeyError::Sealed), "{error}");
}

#[test]
fn one_form_replaces_the_other_whole_and_the_old_bytes_are_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    file().save(&path).unwrap();
    let before = File::open(&path).unwrap();
    sealed().replace(&path).unwrap();
    let mut left = String::new();
    std::io::Read::read_to_string(&mut &before, &mut left).unwrap();
    assert!(
        !left.is_empty() && left.bytes().all(|byte| byte == 0),
        "{left}"
    );
    assert!(matches!(StoredKey::load(&path), Ok(StoredKey::Sealed(_))));
    assert!(matches!(KeyFile::load(&path), Err(KeyError::Sealed)));
    file().replace(&path).unwrap();
    assert!(matches!(StoredKey::load(&path), Ok(StoredKey::Plain(_))));
    assert_eq!(
        path.metadata().unwrap().permissions().mode() & 0o7777,
        0o600
    );
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_key_with_a_second_name_is_not_sealed_under_the_first_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (path, other) = (directory.path().join("key"), directory.path().join("copy"));
    file().save(&path).unwrap();
    fs::hard_link(&path, &other).unwrap();
    let error = sealed().replace(&path).unwrap_err().to_string();
    assert!(error.contains("second name"), "{error}");
    assert!(KeyFile::load(&path).is_ok() && KeyFile::load(&other).is_ok());
}

#[test]
fn the_remains_of_an_interrupted_replacement_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    sealed().save(&path).unwrap();
    file().save(&next_to(&path)).unwrap();
    let left = File::open(next_to(&path)).unwrap();
    clear_replacement(&path).unwrap();
    clear_replacement(&path).unwrap();
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut &left, &mut text).unwrap();
    assert!(!text.is_empty() && text.iter().all(|byte| *byte == 0));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn the_sealed_form_is_pinned_to_its_golden_bytes() {
    let made = SealedKey::seal_with(&file(), &passphrase("open"), CHEAP, [3; 16]).unwrap();
    super::super::lines::assert_golden("sealed_key", &made.sealed);
    let digest = blake3::hash(made.to_text().as_bytes());
    super::super::lines::assert_golden("sealed_key_file_digest", digest.as_bytes());
}
