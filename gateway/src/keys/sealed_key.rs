//! A key file whose secret is sealed under a passphrase, and the replacement of one form by the
//! other.
//!
//! ```text
//! passphrase, salt ── Argon2id ──► key ── AES-256-GCM-SIV ──► sealed seed
//!                                   associated: volume, root key, signing key, cost, salt
//! ```
//!
//! Invariants: everything public is readable without the passphrase, so that a program knows which
//! one to ask for; none of it can be changed without breaking the seal. The disk holds one form or
//! the other, never both, and a crash leaves a complete one. The errors are [`KeyError`]s; the
//! format is in docs/FORMAT.md, "Keys and names".

use super::lines::{Lines, TextWriter};
use super::passphrase::{COST_BYTES, Cost, Passphrase, SALT_BYTES};
use super::principal::{FORMAT_SEALED, KeyFile, Principal, TITLE, read_private, root_in};
use super::volume_root::RootKey;
use super::{KeyError, Secret};
use aes_gcm_siv::aead::{Aead, KeyInit, Payload};
use aes_gcm_siv::{Aes256GcmSiv, Nonce};
use quorumfs_bft::identity::{ClusterId, PublicKey};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Bytes of a sealed seed: the seed and the tag.
const SEALED_BYTES: usize = 32 + 16;
const PLACE: &[u8] = b"quorumfs 2026 sealed principal key v1\0";

/// A stored key file: readable or sealed.
#[derive(Clone, Debug)]
pub enum StoredKey {
    /// The file alone gives the key.
    Plain(KeyFile),
    /// The passphrase is needed as well.
    Sealed(SealedKey),
}

impl StoredKey {
    /// From text.
    ///
    /// # Errors
    /// If it is not a key file, or damaged, or contradicts itself.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        let lines = Lines::parse(TITLE, FORMAT_SEALED, text)?;
        if lines.format() == FORMAT_SEALED {
            SealedKey::from_lines(&lines).map(Self::Sealed)
        } else {
            KeyFile::from_text(text).map(Self::Plain)
        }
    }

    /// Reads a file, if only its owner can.
    ///
    /// # Errors
    /// If it cannot be read, other users could read it, or it is no key file.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        Self::from_text(&read_private(path)?)
    }

    /// The volume that the key is for.
    #[must_use]
    pub fn volume(&self) -> ClusterId {
        match self {
            Self::Plain(key) => key.volume(),
            Self::Sealed(sealed) => sealed.volume(),
        }
    }

    /// Its principal's signing key, by which servers know it.
    #[must_use]
    pub fn signing(&self) -> PublicKey {
        match self {
            Self::Plain(key) => key.principal.id().signing,
            Self::Sealed(sealed) => sealed.signing,
        }
    }
}

/// A key file that a passphrase opens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SealedKey {
    root: RootKey,
    signing: PublicKey,
    cost: Cost,
    salt: [u8; SALT_BYTES],
    sealed: [u8; SEALED_BYTES],
}

impl SealedKey {
    /// Seals a key under a passphrase.
    ///
    /// # Errors
    /// If there is no randomness, or too little memory for `cost`.
    pub fn seal(key: &KeyFile, passphrase: &Passphrase, cost: Cost) -> Result<Self, KeyError> {
        let mut salt = [0; SALT_BYTES];
        getrandom::fill(&mut salt).map_err(|error| KeyError::Random {
            reason: error.to_string(),
        })?;
        Self::seal_with(key, passphrase, cost, salt)
    }

    fn seal_with(
        key: &KeyFile,
        passphrase: &Passphrase,
        cost: Cost,
        salt: [u8; SALT_BYTES],
    ) -> Result<Self, KeyError> {
        let mut made = Self {
            root: key.root,
            signing: key.principal.id().signing,
            cost,
            salt,
            sealed: [0; SEALED_BYTES],
        };
        let payload = Payload {
            msg: key.principal.seed().expose(),
            aad: &made.place(),
        };
        // This key seals nothing else: the salt is drawn anew for each sealing.
        let sealed = made.cipher(passphrase)?.encrypt(&Nonce::default(), payload);
        let sealed = sealed.map_err(|_| KeyError::Forged { what: "key file" })?;
        made.sealed = sealed
            .try_into()
            .map_err(|_| KeyError::Forged { what: "key file" })?;
        Ok(made)
    }

    /// Opens it.
    ///
    /// # Errors
    /// If the passphrase is wrong, or the file was changed.
    pub fn open(&self, passphrase: &Passphrase) -> Result<KeyFile, KeyError> {
        let payload = Payload {
            msg: &self.sealed,
            aad: &self.place(),
        };
        let opened = self.cipher(passphrase)?.decrypt(&Nonce::default(), payload);
        let opened = Zeroizing::new(opened.map_err(|_| KeyError::WrongPassphrase)?);
        let seed = <[u8; 32]>::try_from(opened.as_slice());
        let seed = Zeroizing::new(seed.map_err(|_| KeyError::WrongPassphrase)?);
        let principal = Principal::from_seed(Secret::from_bytes(*seed));
        if principal.id().signing != self.signing {
            return Err(KeyError::WrongPassphrase);
        }
        Ok(KeyFile {
            principal,
            root: self.root,
        })
    }

    /// The volume that the key is for.
    #[must_use]
    pub fn volume(&self) -> ClusterId {
        self.root.volume()
    }

    /// The cost of one guess of its passphrase.
    #[must_use]
    pub fn cost(&self) -> Cost {
        self.cost
    }

    fn cipher(&self, passphrase: &Passphrase) -> Result<Aes256GcmSiv, KeyError> {
        let key = passphrase.key(&self.salt, self.cost)?;
        Ok(Aes256GcmSiv::new(key.expose().into()))
    }

    /// The readable part.
    fn place(&self) -> Vec<u8> {
        let (volume, cost) = (self.root.volume(), self.cost.to_bytes());
        let (root, signing) = (&self.root.0.0, &self.signing.0);
        [PLACE, &volume.0, root, signing, &cost, &self.salt].concat()
    }

    /// As text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut writer = TextWriter::new(TITLE, FORMAT_SEALED);
        writer.remark("It takes its passphrase to be used. Keep both; one without the other");
        writer.remark("opens nothing.");
        writer.remark(&format!("principal {}", self.signing));
        writer.value("volume", &self.root.volume().0);
        writer.value("root-key", &self.root.0.0);
        writer.value("signing", &self.signing.0);
        writer.value("argon2id", &self.cost.to_bytes());
        writer.value("salt", &self.salt);
        writer.value("sealed", &self.sealed);
        writer.finish().to_string()
    }

    fn from_lines(lines: &Lines) -> Result<Self, KeyError> {
        Ok(Self {
            root: root_in(lines)?,
            signing: PublicKey(lines.array("signing")?),
            cost: Cost::from_bytes(lines.array::<COST_BYTES>("argon2id")?)?,
            salt: lines.array("salt")?,
            sealed: lines.array("sealed")?,
        })
    }

    /// Writes a new file with mode 0600, durably. An existing file is never overwritten.
    ///
    /// # Errors
    /// If the file exists or cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), KeyError> {
        super::principal::write_new(path, self.to_text().as_bytes())
    }

    /// Replaces the key file at `path` by this, and overwrites the old content.
    ///
    /// # Errors
    /// If it cannot be written, or the file has a second name, under which it would stay unchanged.
    pub fn replace(&self, path: &Path) -> Result<(), KeyError> {
        replace(path, self.to_text().as_bytes())
    }
}

impl KeyFile {
    /// Replaces the key file at `path` by this, unsealed.
    ///
    /// # Errors
    /// If it cannot be written, or the file has a second name, under which it would stay unchanged.
    pub fn replace(&self, path: &Path) -> Result<(), KeyError> {
        replace(path, self.to_text().as_bytes())
    }
}

/// The path of a temporary file for the new form of a key file.
fn next_to(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".new");
    path.with_file_name(name)
}

/// Overwrites and removes the remains of an interrupted replacement. The key file is complete.
///
/// # Errors
/// If the remains cannot be removed.
pub fn clear_replacement(path: &Path) -> Result<(), KeyError> {
    let next = next_to(path);
    let failed = |source| file_error("clear away", &next, source);
    let mut file = match OpenOptions::new().write(true).open(&next) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    overwrite(&mut file)
        .and_then(|()| fs::remove_file(&next))
        .map_err(failed)
}

fn replace(path: &Path, content: &[u8]) -> Result<(), KeyError> {
    let failed = |source| file_error("replace the key file", path, source);
    let mut before = OpenOptions::new().write(true).open(path).map_err(failed)?;
    if before.metadata().map_err(failed)?.nlink() > 1 {
        let reason = "it has a second name (a hard link), under which it would stay as it is; \
                      remove that name first";
        return Err(failed(std::io::Error::other(reason)));
    }
    clear_replacement(path)?;
    let next = next_to(path);
    super::principal::write_new(&next, content)?;
    fs::rename(&next, path).map_err(failed)?;
    sync_parent(path).map_err(failed)?;
    // Only after the new one is durable. The worth of this is described in the threat model.
    overwrite(&mut before).map_err(failed)
}

/// Overwrites every byte of a file that is not needed any more.
fn overwrite(file: &mut File) -> std::io::Result<()> {
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    file.rewind()?;
    file.write_all(&vec![0; length.min(super::principal::FILE_BYTES_MAX)])?;
    file.sync_all()
}

pub(super) fn sync_parent(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

fn file_error(doing: &'static str, path: &Path, source: std::io::Error) -> KeyError {
    let path = path.to_owned();
    KeyError::File {
        doing,
        path,
        source,
    }
}

#[cfg(test)]
mod tests;
