//! A principal: one key pair to sign with and one that secrets are wrapped to, from one seed.
//!
//! Its key file is text with mode 0600 and pins the volume and its root key, so that a client with
//! the file can verify which volume it talks to. This module has the form with a readable secret;
//! the sealed form is in `sealed_key`.

use super::lines::{Lines, TextWriter};
use super::sealed_key::sync_parent;
use super::volume_root::{self, RootKey};
use super::wrap::{self, Wrapped, WrappingKey};
use super::{KeyError, Secret};
use quorumfs_bft::authentication::Signer;
use quorumfs_bft::identity::{ClusterId, PublicKey, Signature};
use std::fmt;
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use zeroize::Zeroizing;

pub(super) const TITLE: &str = "quorumfs principal key";
/// The secret is readable.
const FORMAT: u32 = 1;
/// The secret is sealed under a passphrase.
pub(super) const FORMAT_SEALED: u32 = 2;
/// The longest key file that is read.
pub(super) const FILE_BYTES_MAX: usize = 64 << 10;

/// The two public keys of a principal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrincipalId {
    /// Verifies its signatures; the servers know the principal by this key.
    pub signing: PublicKey,
    /// The key that secrets are wrapped to.
    pub wrapping: WrappingKey,
}

/// A principal's secret half.
#[derive(Clone)]
pub struct Principal {
    seed: Secret,
    signing: Secret,
    id: PrincipalId,
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Principal({})", self.id.signing)
    }
}

impl Principal {
    /// A new principal.
    ///
    /// # Errors
    /// If there is no randomness.
    pub fn random() -> Result<Self, KeyError> {
        Ok(Self::from_seed(Secret::random()?))
    }

    /// The principal with this seed.
    #[must_use]
    pub fn from_seed(seed: Secret) -> Self {
        let signing = seed.derive("quorumfs 2026 principal signing", &[]);
        let (_, wrapping) = wrap::key_pair(&seed);
        let id = PrincipalId {
            signing: volume_root::public_key(&signing),
            wrapping,
        };
        Self { seed, signing, id }
    }

    /// Its public keys.
    #[must_use]
    pub fn id(&self) -> PrincipalId {
        self.id
    }

    pub(super) fn seed(&self) -> &Secret {
        &self.seed
    }

    /// The Ed25519 secret key (RFC 8032) that it signs with, for the transport's identity.
    #[must_use]
    pub fn signing_secret(&self) -> &Secret {
        &self.signing
    }

    /// Opens a secret that was wrapped for it in the place that `info` names.
    ///
    /// # Errors
    /// If it was wrapped for another principal or another place, or was changed.
    pub fn unwrap(
        &self,
        what: &'static str,
        wrapped: &Wrapped,
        info: &[u8],
    ) -> Result<Secret, KeyError> {
        wrap::unwrap(what, wrapped, &self.seed, info)
    }
}

impl Signer for Principal {
    fn public_key(&self) -> PublicKey {
        self.id.signing
    }
    fn sign(&self, message: &[u8]) -> Signature {
        volume_root::sign(&self.signing, message)
    }
}

/// The content of a key file: a principal and its volume.
#[derive(Clone, Debug)]
pub struct KeyFile {
    /// The principal.
    pub principal: Principal,
    /// The volume's root key, the only one that can have signed its genesis.
    pub root: RootKey,
}

impl KeyFile {
    /// The volume that the key is for.
    #[must_use]
    pub fn volume(&self) -> ClusterId {
        self.root.volume()
    }

    /// As text.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut writer = TextWriter::new(TITLE, FORMAT);
        writer
            .remark("Whoever has the `principal` line can read this volume. Keep it to yourself.");
        writer.remark(&format!("principal {}", self.principal.id.signing));
        writer.value("volume", &self.volume().0);
        writer.value("root-key", &self.root.0.0);
        writer.value("principal", self.principal.seed.expose());
        writer.finish()
    }

    /// From text.
    ///
    /// # Errors
    /// If it is not a key file, or sealed, or damaged, or contradicts itself.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        let lines = Lines::parse(TITLE, FORMAT_SEALED, text)?;
        if lines.format() == FORMAT_SEALED {
            return Err(KeyError::Sealed);
        }
        let root = root_in(&lines)?;
        let principal = Principal::from_seed(Secret::from_bytes(lines.array("principal")?));
        Ok(Self { principal, root })
    }

    /// Writes a new file with mode 0600, durably. An existing file is never overwritten.
    ///
    /// # Errors
    /// If the file exists or cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), KeyError> {
        write_new(path, self.to_text().as_bytes())
    }

    /// Reads a file, if only its owner can.
    ///
    /// # Errors
    /// If it cannot be read, other users could read it, or it is no key file, or a sealed one.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        Self::from_text(&read_private(path)?)
    }
}

/// The root key in a key file, which has to match its volume id.
pub(super) fn root_in(lines: &Lines) -> Result<RootKey, KeyError> {
    let root = RootKey(PublicKey(lines.array("root-key")?));
    if root.volume().0 != lines.array::<16>("volume")? {
        return Err(KeyError::Untrusted {
            what: "the key file",
            reason: "its volume id does not belong to its root key; take it from a backup".into(),
        });
    }
    Ok(root)
}

/// Writes a new file with mode 0600, durably.
pub(super) fn write_new(path: &Path, content: &[u8]) -> Result<(), KeyError> {
    let fail = |doing, source: std::io::Error| KeyError::File {
        doing,
        path: path.to_owned(),
        source,
    };
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| fail("create the key file", error))?;
    file.write_all(content)
        .and_then(|()| file.sync_all())
        .and_then(|()| sync_parent(path))
        .map_err(|error| fail("write the key file", error))
}

/// Reads a file with a secret, if only its owner can.
pub(super) fn read_private(path: &Path) -> Result<Zeroizing<String>, KeyError> {
    let fail = |source: std::io::Error| KeyError::File {
        doing: "read the key file",
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(fail)?;
    let mode = file.metadata().map_err(fail)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    // Allocated in full at the start: a growing string leaves copies behind.
    let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX));
    file.take(FILE_BYTES_MAX as u64)
        .read_to_string(&mut text)
        .map_err(fail)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::VolumeRoot;
    use super::*;

    fn file() -> KeyFile {
        let root = VolumeRoot::from_seed(Secret::from_bytes([5; 32])).public();
        KeyFile {
            principal: Principal::from_seed(Secret::from_bytes([1; 32])),
            root,
        }
    }

    #[test]
    fn a_key_file_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        file().save(&path).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(
            KeyFile::load(&path).unwrap().principal.id(),
            file().principal.id()
        );
        for mode in [0o640, 0o604, 0o660, 0o602] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = KeyFile::load(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn a_key_file_is_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        file().save(&path).unwrap();
        assert!(matches!(file().save(&path), Err(KeyError::File { .. })));
    }

    #[test]
    fn a_key_file_with_another_root_is_refused() {
        let other = VolumeRoot::from_seed(Secret::from_bytes([6; 32])).public();
        let swapped = KeyFile {
            root: other,
            ..file()
        }
        .to_text();
        let (text, other) = (file().to_text(), swapped);
        let mixed: String = text
            .lines()
            .zip(other.lines())
            .map(|(mine, theirs)| {
                if mine.starts_with("root-key") {
                    theirs
                } else {
                    mine
                }
            })
            .fold(String::new(), |text, line| text + line + "\n");
        assert!(matches!(
            KeyFile::from_text(&mixed),
            Err(KeyError::Untrusted { .. })
        ));
    }

    #[test]
    fn the_derived_keys_are_pinned_to_their_golden_bytes() {
        let id = file().principal.id();
        crate::keys::lines::assert_golden("principal_signing_key", &id.signing.0);
        let text = file().to_text();
        let digest = blake3::hash(text.as_bytes());
        crate::keys::lines::assert_golden("key_file_digest", digest.as_bytes());
    }
}
