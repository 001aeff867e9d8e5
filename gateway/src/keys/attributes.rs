//! Names of extended attributes as servers see them: a ciphertext and a hash.
//!
//! Like the names of a directory's entries, they are sealed with AES-SIV (RFC 5297) and found by a
//! keyed hash. The keys are an inode's own, and the namespace enters both: servers cannot tell that
//! two inodes have an attribute of the same name, and cannot show one of `trusted.` as one of
//! `user.`. A hash has 128 bits, so no two names of an inode share one.

use super::sealing::TAG_BYTES;
use super::{KeyError, NAME_BYTES_MAX, Sealing, Secret};
use aes_siv::KeyInit;
use aes_siv::siv::Aes256Siv;
use quorumfs_metadata::attributes::Namespace;
use quorumfs_metadata::identity::{AttributeHash, InodeId, RealmEpoch};
use std::fmt;
use zeroize::Zeroizing;

/// The keys of the names of one inode's attributes, of one generation.
#[derive(Clone)]
pub struct AttributeKeys {
    cipher: Zeroizing<[u8; 64]>,
    hash: Secret,
    sealing: Sealing,
}

impl fmt::Debug for AttributeKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AttributeKeys(…)")
    }
}

impl AttributeKeys {
    pub(super) fn derive(
        epoch_key: &Secret,
        inode: InodeId,
        generation: RealmEpoch,
        sealing: Sealing,
    ) -> Self {
        let place: [&[u8]; 2] = [&inode.0.to_be_bytes(), &generation.0.to_be_bytes()];
        Self {
            cipher: epoch_key.derive_wide("quorumfs 2026 attribute names cipher", &place),
            hash: epoch_key.derive("quorumfs 2026 attribute names hash", &place),
            sealing,
        }
    }

    /// The hash of `name`, which is without its namespace.
    #[must_use]
    pub fn hash(&self, namespace: Namespace, name: &[u8]) -> AttributeHash {
        if namespace == Namespace::Capability {
            return AttributeHash::ONLY;
        }
        let mut hasher = blake3::Hasher::new_keyed(self.hash.expose());
        hasher.update(&[namespace.number()]).update(name);
        let hash = hasher.finalize();
        let mut first = [0; 16];
        first.copy_from_slice(hash.as_bytes().first_chunk::<16>().unwrap_or(&[0; 16]));
        AttributeHash(first)
    }

    /// Encrypts `name`; equal names give equal ciphertexts.
    ///
    /// # Errors
    /// If it is too long.
    pub fn seal(&self, namespace: Namespace, name: &[u8]) -> Result<Vec<u8>, KeyError> {
        let too_long = || KeyError::TooLong {
            what: "name of an attribute",
            length: name.len(),
            most: NAME_BYTES_MAX,
        };
        if name.len() > NAME_BYTES_MAX {
            return Err(too_long());
        }
        if self.sealing == Sealing::Off {
            return Ok([&[0; TAG_BYTES], name].concat());
        }
        let mut cipher = Aes256Siv::new((&*self.cipher).into());
        cipher
            .encrypt([[namespace.number()]], name)
            .map_err(|_| too_long())
    }

    /// Decrypts a name and checks that it belongs under `hash`.
    ///
    /// # Errors
    /// If it was not made with these keys, belongs elsewhere, or could not be a name.
    pub fn open(
        &self,
        namespace: Namespace,
        hash: AttributeHash,
        sealed: &[u8],
    ) -> Result<Vec<u8>, KeyError> {
        const FORGED: KeyError = KeyError::Forged {
            what: "name of an attribute",
        };
        let plain = match self.sealing {
            Sealing::On => {
                let mut cipher = Aes256Siv::new((&*self.cipher).into());
                cipher
                    .decrypt([[namespace.number()]], sealed)
                    .map_err(|_| FORGED)?
            }
            Sealing::Off => {
                let (_, plain) = sealed.split_first_chunk::<TAG_BYTES>().ok_or(FORGED)?;
                plain.to_vec()
            }
        };
        let sane = !plain.is_empty() && plain.len() <= NAME_BYTES_MAX && !plain.contains(&0);
        if sane && self.hash(namespace, &plain) == hash {
            Ok(plain)
        } else {
            Err(FORGED)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HERE: Namespace = Namespace::User;

    fn keys(inode: u64) -> AttributeKeys {
        AttributeKeys::derive(
            &Secret::from_bytes([2; 32]),
            InodeId(inode),
            RealmEpoch(0),
            Sealing::On,
        )
    }

    proptest! {
        #[test]
        fn a_name_comes_back_and_only_on_its_inode_and_in_its_namespace(
            name in proptest::collection::vec(1_u8..=255, 1..=NAME_BYTES_MAX),
            flip in any::<proptest::sample::Index>(),
        ) {
            let (sealed, hash) = (keys(1).seal(HERE, &name).unwrap(), keys(1).hash(HERE, &name));
            prop_assert_eq!(keys(1).open(HERE, hash, &sealed).unwrap(), name.clone());
            prop_assert_ne!(keys(2).hash(HERE, &name), hash);
            prop_assert_ne!(keys(1).hash(Namespace::Trusted, &name), hash);
            let elsewhere = keys(1).hash(Namespace::Trusted, &name);
            prop_assert!(keys(1).open(Namespace::Trusted, elsewhere, &sealed).is_err());
            prop_assert!(keys(2).open(HERE, keys(2).hash(HERE, &name), &sealed).is_err());
            prop_assert!(keys(1).open(HERE, AttributeHash([7; 16]), &sealed).is_err());
            let mut changed = sealed.clone();
            let at = flip.index(changed.len());
            changed[at] ^= 1;
            prop_assert!(keys(1).open(HERE, hash, &changed).is_err());
        }
    }

    #[test]
    fn a_name_beyond_the_bound_is_refused() {
        assert!(keys(1).seal(HERE, &[b'a'; NAME_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn a_name_of_a_control_run_is_readable_and_no_name_to_a_real_client() {
        let control = AttributeKeys {
            sealing: Sealing::Off,
            ..keys(1)
        };
        let (sealed, hash) = (
            control.seal(HERE, b"planted").unwrap(),
            control.hash(HERE, b"planted"),
        );
        assert!(sealed.ends_with(b"planted"));
        assert_eq!(control.open(HERE, hash, &sealed).unwrap(), b"planted");
        assert!(keys(1).open(HERE, hash, &sealed).is_err());
    }

    #[test]
    fn a_sealed_name_is_pinned_to_its_golden_bytes() {
        let sealed = keys(1).seal(HERE, b"mime_type").unwrap();
        crate::keys::lines::assert_golden("attribute_name", &sealed);
        let hash = keys(1).hash(HERE, b"mime_type");
        crate::keys::lines::assert_golden("attribute_hash", &hash.0);
    }
}
