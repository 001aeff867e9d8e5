//! Small values that live in metadata rows: inline content, symlink targets, where something was
//! when it was shared, and the values of extended attributes, which are bound to their names too.
//!
//! AES-256-GCM-SIV (RFC 8452) with a random nonce; a repeated nonce would reveal only equality. A
//! value is bound to its place, so that even if all servers lie they cannot show one file's content
//! as another's. A symlink's target is the exception: it is sealed before its inode's number is
//! ordered, and is bound to its field and realm epoch only.

use super::sealing::TAG_BYTES;
use super::{KeyError, Sealing, Secret};
use aes_gcm_siv::aead::{Aead, KeyInit, Payload};
use aes_gcm_siv::{Aes256GcmSiv, Nonce};
use quorumfs_metadata::attributes::Namespace;
use quorumfs_metadata::identity::{AttributeHash, InodeId, InodeVersion};
use std::fmt;

/// The version in front of the nonce.
const VERSION_BYTES: usize = 8;
/// The nonce in front of the ciphertext.
const NONCE_BYTES: usize = 12;
/// How much longer a sealed value is than its plain one.
pub const SMALL_VALUE_OVERHEAD_BYTES: usize = VERSION_BYTES + NONCE_BYTES + TAG_BYTES;

/// The kind of a small value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Field {
    /// The content of a tiny file.
    Content = 1,
    /// The target of a symbolic link.
    SymlinkTarget = 2,
    /// The value of an extended attribute.
    Attribute = 3,
    /// Where an inode was when it was shared.
    SharePlace = 4,
}

/// The place of a small value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValueBinding {
    /// Its kind.
    pub field: Field,
    /// Its inode; 0 while that has no number.
    pub inode: InodeId,
    /// The extended attribute, if it is one's value.
    pub attribute: Option<(Namespace, AttributeHash)>,
}

impl ValueBinding {
    /// The content of a tiny file.
    #[must_use]
    pub const fn content(inode: InodeId) -> Self {
        Self {
            field: Field::Content,
            inode,
            attribute: None,
        }
    }

    /// The target of a symbolic link.
    #[must_use]
    pub const fn symlink_target() -> Self {
        Self {
            field: Field::SymlinkTarget,
            inode: InodeId(0),
            attribute: None,
        }
    }

    /// The value of an extended attribute.
    #[must_use]
    pub const fn attribute(inode: InodeId, namespace: Namespace, hash: AttributeHash) -> Self {
        Self {
            field: Field::Attribute,
            inode,
            attribute: Some((namespace, hash)),
        }
    }

    /// Where an inode was when it was shared.
    #[must_use]
    pub const fn share_place(inode: InodeId) -> Self {
        Self {
            field: Field::SharePlace,
            inode,
            attribute: None,
        }
    }

    fn bytes(self, version: [u8; VERSION_BYTES]) -> Vec<u8> {
        let inode = self.inode.0.to_be_bytes();
        let mut bytes = [&[self.field as u8], inode.as_slice(), &version].concat();
        if let Some((namespace, hash)) = self.attribute {
            bytes.push(namespace.number());
            bytes.extend_from_slice(&hash.0);
        }
        bytes
    }
}

/// The key of a realm epoch's small values.
#[derive(Clone)]
pub struct SmallValueKey {
    secret: Secret,
    sealing: Sealing,
}

impl fmt::Debug for SmallValueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SmallValueKey(…)")
    }
}

impl SmallValueKey {
    pub(super) fn derive(epoch_key: &Secret, sealing: Sealing) -> Self {
        let secret = epoch_key.derive("quorumfs 2026 small values", &[]);
        Self { secret, sealing }
    }

    /// Seals `plain` for one place, for the `version` of the inode that will contain it.
    ///
    /// # Errors
    /// If there is no randomness for the nonce.
    pub fn seal(
        &self,
        binding: ValueBinding,
        version: InodeVersion,
        plain: &[u8],
    ) -> Result<Vec<u8>, KeyError> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|error| KeyError::Random {
            reason: error.to_string(),
        })?;
        self.seal_with(nonce, binding, version, plain)
    }

    fn seal_with(
        &self,
        nonce: [u8; NONCE_BYTES],
        binding: ValueBinding,
        version: InodeVersion,
        plain: &[u8],
    ) -> Result<Vec<u8>, KeyError> {
        let version = version.0.to_be_bytes();
        if self.sealing == Sealing::Off {
            return Ok([version.as_slice(), &nonce, plain, &[0; TAG_BYTES]].concat());
        }
        let payload = Payload {
            msg: plain,
            aad: &binding.bytes(version),
        };
        let sealed = self
            .cipher()
            .encrypt(&Nonce::from(nonce), payload)
            .map_err(|_| KeyError::TooLong {
                what: "small value",
                length: plain.len(),
                most: u32::MAX as usize,
            })?;
        Ok([version.as_slice(), &nonce, &sealed].concat())
    }

    /// Opens a value that [`SmallValueKey::seal`] sealed for the same place.
    ///
    /// # Errors
    /// If it was made for another place or with another key, or was changed.
    pub fn open(&self, binding: ValueBinding, sealed: &[u8]) -> Result<Vec<u8>, KeyError> {
        const FORGED: KeyError = KeyError::Forged {
            what: "small value",
        };
        let (version, rest) = sealed.split_first_chunk::<VERSION_BYTES>().ok_or(FORGED)?;
        let (nonce, body) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(FORGED)?;
        if self.sealing == Sealing::Off {
            let (plain, _) = body.split_last_chunk::<TAG_BYTES>().ok_or(FORGED)?;
            return Ok(plain.to_vec());
        }
        let payload = Payload {
            msg: body,
            aad: &binding.bytes(*version),
        };
        self.cipher()
            .decrypt(&Nonce::from(*nonce), payload)
            .map_err(|_| FORGED)
    }

    fn cipher(&self) -> Aes256GcmSiv {
        Aes256GcmSiv::new(self.secret.expose().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: ValueBinding = ValueBinding::content(InodeId(7));
    const NEXT: InodeVersion = InodeVersion(3);

    fn key() -> SmallValueKey {
        SmallValueKey::derive(&Secret::from_bytes([2; 32]), Sealing::On)
    }

    #[test]
    fn a_value_opens_only_where_it_was_put() {
        let sealed = key().seal(HERE, NEXT, b"content").unwrap();
        assert_eq!(sealed.len(), 7 + SMALL_VALUE_OVERHEAD_BYTES);
        assert_eq!(key().open(HERE, &sealed).unwrap(), b"content");
        for elsewhere in [
            ValueBinding {
                field: Field::SymlinkTarget,
                ..HERE
            },
            ValueBinding {
                inode: InodeId(8),
                ..HERE
            },
        ] {
            assert!(key().open(elsewhere, &sealed).is_err(), "{elsewhere:?}");
        }
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(key().open(HERE, &changed).is_err(), "byte {at}");
        }
        assert!(key().open(HERE, &sealed[..5]).is_err());
    }

    #[test]
    fn an_attributes_value_opens_only_under_its_name() {
        let binding = |inode, namespace, name: u8| {
            ValueBinding::attribute(InodeId(inode), namespace, AttributeHash([name; 16]))
        };
        let here = binding(7, Namespace::User, 1);
        let sealed = key().seal(here, InodeVersion(0), b"value").unwrap();
        assert_eq!(key().open(here, &sealed).unwrap(), b"value");
        for elsewhere in [
            binding(8, Namespace::User, 1),
            binding(7, Namespace::Trusted, 1),
            binding(7, Namespace::User, 2),
            HERE,
        ] {
            assert!(key().open(elsewhere, &sealed).is_err(), "{elsewhere:?}");
        }
    }

    #[test]
    fn a_value_of_a_control_run_is_readable_and_a_forgery_to_a_real_client() {
        let control = SmallValueKey {
            sealing: Sealing::Off,
            ..key()
        };
        let sealed = control.seal(HERE, NEXT, b"planted").unwrap();
        assert!(sealed.windows(7).any(|window| window == b"planted"));
        assert_eq!(sealed.len(), 7 + SMALL_VALUE_OVERHEAD_BYTES);
        assert_eq!(control.open(HERE, &sealed).unwrap(), b"planted");
        assert!(key().open(HERE, &sealed).is_err());
    }

    #[test]
    fn equal_values_look_different() {
        let sealed = || key().seal(HERE, NEXT, b"same").unwrap();
        assert_ne!(sealed(), sealed());
    }

    #[test]
    fn a_sealed_value_is_pinned_to_its_golden_bytes() {
        let sealed = key()
            .seal_with([1; NONCE_BYTES], HERE, NEXT, b"content")
            .unwrap();
        crate::keys::lines::assert_golden("small_value", &sealed);
    }
}
