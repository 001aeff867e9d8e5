//! Names as servers see them: a ciphertext and a cookie.
//!
//! The ciphertext is AES-SIV (RFC 5297). It is deterministic, so that one name has one ciphertext
//! in one directory, by which the servers compare names; and it is authenticated, so that a name
//! that no member made does not decrypt. The cookie is a 60-bit keyed hash of the name followed by
//! three bits that tell collisions apart; it is the entry's key and its readdir position. A client
//! checks the hash of each name that the servers show.
//!
//! A name that does not decrypt (a damaged row, a forger inside the volume) is shown as a safe
//! stand-in made from the cookie, by which the entry can be removed.

use super::sealing::TAG_BYTES;
use super::{KeyError, Sealing, Secret};
use aes_siv::KeyInit;
use aes_siv::siv::Aes256Siv;
use quorumfs_metadata::identity::{Cookie, InodeId, RealmEpoch};
use std::fmt;
use zeroize::Zeroizing;

/// The longest name in bytes, as in every Linux file system.
pub const NAME_BYTES_MAX: usize = 255;
/// How much longer a ciphertext is than its name.
pub const NAME_OVERHEAD_BYTES: usize = TAG_BYTES;
/// The prefix of a stand-in. The byte after it cannot occur in text that people type.
const STAND_IN_PREFIX: &str = ".quorumfs-undecryptable-";

/// A name's bytes as servers keep them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct NameCiphertext(pub Vec<u8>);

impl fmt::Debug for NameCiphertext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NameCiphertext({} bytes)", self.0.len())
    }
}

/// The keys of the names in one directory, of one generation.
#[derive(Clone)]
pub struct NameKeys {
    cipher: Zeroizing<[u8; 64]>,
    cookie: Secret,
    sealing: Sealing,
}

impl fmt::Debug for NameKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NameKeys(…)")
    }
}

impl NameKeys {
    pub(super) fn derive(
        epoch_key: &Secret,
        directory: InodeId,
        generation: RealmEpoch,
        sealing: Sealing,
    ) -> Self {
        let place: [&[u8]; 2] = [&directory.0.to_be_bytes(), &generation.0.to_be_bytes()];
        Self {
            cipher: epoch_key.derive_wide("quorumfs 2026 names cipher", &place),
            cookie: epoch_key.derive("quorumfs 2026 names cookie", &place),
            sealing,
        }
    }

    /// The hash of `name`: a cookie whose collision bits are zero and that is never reserved.
    #[must_use]
    pub fn cookie(&self, name: &[u8]) -> Cookie {
        let hash = blake3::keyed_hash(self.cookie.expose(), name);
        let mut first = [0; 8];
        first.copy_from_slice(hash.as_bytes().first_chunk::<8>().unwrap_or(&[0; 8]));
        Cookie::from_prf(u64::from_be_bytes(first))
    }

    /// Encrypts `name`; equal names give equal ciphertexts.
    ///
    /// # Errors
    /// If it is too long.
    pub fn seal(&self, name: &[u8]) -> Result<NameCiphertext, KeyError> {
        let too_long = || KeyError::TooLong {
            what: "name",
            length: name.len(),
            most: NAME_BYTES_MAX,
        };
        if name.len() > NAME_BYTES_MAX {
            return Err(too_long());
        }
        if self.sealing == Sealing::Off {
            return Ok(NameCiphertext([&[0; TAG_BYTES], name].concat()));
        }
        let mut cipher = Aes256Siv::new((&*self.cipher).into());
        let sealed = cipher
            .encrypt::<_, &[u8]>([], name)
            .map_err(|_| too_long())?;
        Ok(NameCiphertext(sealed))
    }

    /// Decrypts a name and checks that it belongs under `cookie`.
    ///
    /// # Errors
    /// If it was not made with these keys, belongs elsewhere, or could not be a name.
    pub fn open(&self, name: &[u8], cookie: Cookie) -> Result<Vec<u8>, KeyError> {
        const FORGED: KeyError = KeyError::Forged { what: "name" };
        let plain = match self.sealing {
            Sealing::On => {
                let mut cipher = Aes256Siv::new((&*self.cipher).into());
                cipher.decrypt::<_, &[u8]>([], name).map_err(|_| FORGED)?
            }
            Sealing::Off => {
                let (_, plain) = name.split_first_chunk::<TAG_BYTES>().ok_or(FORGED)?;
                plain.to_vec()
            }
        };
        let sane = !plain.is_empty()
            && plain.len() <= NAME_BYTES_MAX
            && plain != b"."
            && plain != b".."
            && !plain.contains(&b'/')
            && !plain.contains(&0);
        if sane && self.cookie(&plain).base() == cookie.base() {
            Ok(plain)
        } else {
            Err(FORGED)
        }
    }
}

/// The name that stands in for one that does not decrypt.
#[must_use]
pub fn stand_in(cookie: Cookie) -> Vec<u8> {
    format!("{STAND_IN_PREFIX}{:016x}", cookie.0).into_bytes()
}

/// The entry that a stand-in stands for.
#[must_use]
pub fn stand_in_cookie(name: &[u8]) -> Option<Cookie> {
    let digits = name.strip_prefix(STAND_IN_PREFIX.as_bytes())?;
    if digits.len() != 16 || digits.iter().any(|digit| digit.is_ascii_uppercase()) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16)
        .ok()
        .map(Cookie)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(directory: u64) -> NameKeys {
        NameKeys::derive(
            &Secret::from_bytes([2; 32]),
            InodeId(directory),
            RealmEpoch(0),
            Sealing::On,
        )
    }

    proptest! {
        #[test]
        fn a_name_comes_back_and_only_in_its_directory(
            name in proptest::collection::vec(1u8..=255, 1..=NAME_BYTES_MAX)
                .prop_filter("no name", |n| !n.contains(&b'/') && n != b"." && n != b".."),
            flip in any::<proptest::sample::Index>(),
        ) {
            let sealed = keys(1).seal(&name).unwrap();
            let cookie = keys(1).cookie(&name);
            prop_assert_eq!(&sealed, &keys(1).seal(&name).unwrap());
            prop_assert_eq!(sealed.0.len(), name.len() + NAME_OVERHEAD_BYTES);
            prop_assert!(cookie.is_base());
            for collision in 0..8 {
                prop_assert_eq!(
                    keys(1).open(&sealed.0, Cookie(cookie.0 | collision)).unwrap(), name.clone());
            }
            prop_assert!(keys(1).open(&sealed.0, Cookie(cookie.0 ^ 8)).is_err());
            prop_assert!(keys(2).open(&sealed.0, cookie).is_err());
            let mut changed = sealed.0.clone();
            let at = flip.index(changed.len());
            changed[at] ^= 1;
            prop_assert!(keys(1).open(&changed, cookie).is_err());
        }

        #[test]
        fn a_stand_in_finds_its_entry(cookie in any::<u64>()) {
            prop_assert_eq!(stand_in_cookie(&stand_in(Cookie(cookie))), Some(Cookie(cookie)));
        }
    }

    #[test]
    fn names_that_would_escape_the_directory_are_not_shown() {
        for name in [&b"."[..], b"..", b"a/b", b"a\0b", b""] {
            let mut cipher = Aes256Siv::new((&*keys(1).cipher).into());
            let sealed = cipher.encrypt::<_, &[u8]>([], name).unwrap();
            assert!(
                keys(1).open(&sealed, keys(1).cookie(name)).is_err(),
                "{name:?}"
            );
        }
    }

    #[test]
    fn a_name_of_a_control_run_is_readable_and_no_name_to_a_real_client() {
        let control = NameKeys {
            sealing: Sealing::Off,
            ..keys(1)
        };
        let sealed = control.seal(b"planted").unwrap();
        assert!(sealed.0.ends_with(b"planted"));
        assert_eq!(sealed.0.len(), keys(1).seal(b"planted").unwrap().0.len());
        let cookie = control.cookie(b"planted");
        assert_eq!(control.open(&sealed.0, cookie).unwrap(), b"planted");
        assert!(keys(1).open(&sealed.0, cookie).is_err());
    }

    #[test]
    fn a_name_beyond_the_bound_is_refused() {
        assert!(keys(1).seal(&[b'a'; NAME_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn a_sealed_name_is_pinned_to_its_golden_bytes() {
        crate::keys::lines::assert_golden("name", &keys(1).seal(b"hello.txt").unwrap().0);
        let cookie = keys(1).cookie(b"hello.txt");
        crate::keys::lines::assert_golden("name_cookie", &cookie.0.to_be_bytes());
    }
}
