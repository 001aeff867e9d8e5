//! Ed25519 keys of nodes and principals: generating, storing, signing and verifying.
//!
//! One key is a node's whole identity: its messages are signed with it, and its TLS certificate is
//! self-signed with it, so that a peer pins one thing. Signing uses aws-lc-rs, the fastest library
//! here; verifying uses ed25519-zebra, because its ZIP-215 rules define the verdict on *every* byte
//! string, including small-order points and non-canonical encodings. Replicas that disagreed about
//! one signature would disagree about the order.
//!
//! # The file
//!
//! One line: `quorumfs-key 1 ed25519 <public key, 64 hex digits> <secret seed, 64 hex digits>`. The
//! public half is redundant on purpose: a flipped bit makes the halves disagree and is refused
//! instead of becoming another identity. The file is created with mode 0600, never overwrites
//! another, is synced before its name appears, and is refused if users other than its owner could
//! have read it.
//!
//! # Invariants
//!
//! * The seed is in memory that is wiped when it is dropped, and is never printed.
//! * [`Zip215`] gives the verdict that every replica gives, and a [`Batch`] gives the same.

mod batch;

pub use batch::Batch;

use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsPoint};
use quorumfs_bft::authentication::{Signer, Verifier};
use quorumfs_bft::identity::{PublicKey, Signature};
use std::fmt;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use zeroize::Zeroizing;

const MAGIC: &str = "quorumfs-key";
const VERSION: &str = "1";
const ALGORITHM: &str = "ed25519";
const SEED_BYTES: usize = 32;
/// Key files are no longer than this: a larger file is something else.
const FILE_BYTES_MAX: u64 = 512;

/// A key that could not be made, read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The operating system provided no random numbers.
    #[error("the operating system gave no random bytes for a new key: {0}; try again")]
    Randomness(String),
    /// The file could not be read or written.
    #[error("cannot {doing} the key file {}: {source}", path.display())]
    Io {
        /// The action: read, create, …
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file exists, and is not overwritten.
    #[error(
        "the key file {} exists already and is not overwritten: \
         move it away first if it is not needed",
        path.display()
    )]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Other users may read the secret.
    #[error(
        "the key file {} may be read by others (mode {mode:03o}): \
         run `chmod 600 {}`, and replace the key if it has leaked",
        path.display(),
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It is not a key file of a version that this release reads.
    #[error(
        "the key file {} is not one of this version: {reason}; restore it from a copy",
        path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// The seed was refused by the cryptographic library.
    #[error("the seed is not an Ed25519 key: {0}")]
    Refused(String),
}

/// A key pair that can sign.
pub struct NodeKey {
    seed: Zeroizing<[u8; SEED_BYTES]>,
    pair: aws_lc_rs::signature::Ed25519KeyPair,
    public: PublicKey,
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeKey({:?})", self.public)
    }
}

impl NodeKey {
    /// Generates a key from the operating system's random numbers.
    ///
    /// # Errors
    /// If there are none.
    pub fn generate() -> Result<Self, KeyError> {
        let mut seed = Zeroizing::new([0_u8; SEED_BYTES]);
        getrandom::fill(seed.as_mut_slice())
            .map_err(|error| KeyError::Randomness(error.to_string()))?;
        Self::from_seed(seed)
    }

    /// The key with this secret seed.
    ///
    /// # Errors
    /// If the cryptographic library refuses it.
    pub fn from_seed(seed: Zeroizing<[u8; SEED_BYTES]>) -> Result<Self, KeyError> {
        use aws_lc_rs::signature::KeyPair as _;
        let pair = aws_lc_rs::signature::Ed25519KeyPair::from_seed_unchecked(seed.as_slice())
            .map_err(|error| KeyError::Refused(error.to_string()))?;
        let public = <[u8; 32]>::try_from(pair.public_key().as_ref())
            .map_err(|error| KeyError::Refused(error.to_string()))?;
        Ok(Self {
            seed,
            pair,
            public: PublicKey(public),
        })
    }

    /// The verification key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// The same key as PKCS #8 (RFC 8410), for the TLS library.
    pub(crate) fn pkcs8(&self) -> Result<Zeroizing<Vec<u8>>, KeyError> {
        let document = self
            .pair
            .to_pkcs8v1()
            .map_err(|error| KeyError::Refused(error.to_string()))?;
        Ok(Zeroizing::new(document.as_ref().to_vec()))
    }

    /// Writes the key to a new file that only its owner can read.
    ///
    /// # Errors
    /// If the file exists or cannot be written.
    pub fn store(&self, path: &Path) -> Result<(), KeyError> {
        let line = Zeroizing::new(format!(
            "{MAGIC} {VERSION} {ALGORITHM} {} {}\n",
            self.public,
            hex(self.seed.as_slice()).as_str()
        ));
        let failed = |doing| {
            move |source: std::io::Error| {
                if source.kind() == std::io::ErrorKind::AlreadyExists {
                    return KeyError::Exists { path: path.into() };
                }
                KeyError::Io {
                    doing,
                    path: path.into(),
                    source,
                }
            }
        };
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(format!(".{}.new", std::process::id()));
        let unfinished = PathBuf::from(unfinished);
        let write = || -> Result<(), KeyError> {
            let mut file = std::fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&unfinished)
                .map_err(failed("create"))?;
            file.write_all(line.as_bytes()).map_err(failed("write"))?;
            file.sync_all().map_err(failed("sync"))?;
            // A link, unlike a rename, never replaces an existing file.
            std::fs::hard_link(&unfinished, path).map_err(failed("create"))
        };
        let written = write();
        let removed = std::fs::remove_file(&unfinished).map_err(failed("finish"));
        written?;
        removed?;
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        std::fs::File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(failed("sync the directory of"))
    }

    /// Reads a key that [`NodeKey::store`] wrote.
    ///
    /// # Errors
    /// If it cannot be read, if other users may read it, or if it is damaged.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Io {
            doing: "read",
            path: path.into(),
            source,
        };
        let format = |reason| KeyError::Format {
            path: path.into(),
            reason,
        };
        let file = std::fs::File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let mode = metadata.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Exposed {
                path: path.into(),
                mode,
            });
        }
        let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX as usize + 1));
        file.take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        let line = std::str::from_utf8(&bytes).map_err(|_| format("it is not a text file"))?;
        let mut words = line.split_ascii_whitespace();
        if words.next() != Some(MAGIC) {
            return Err(format("it does not begin with `quorumfs-key`"));
        }
        if words.next() != Some(VERSION) || words.next() != Some(ALGORITHM) {
            return Err(format("it is not of version 1 with an Ed25519 key"));
        }
        let (Some(public), Some(seed), None) = (words.next(), words.next(), words.next()) else {
            return Err(format("it does not have one public and one secret half"));
        };
        let public = unhex(public).ok_or_else(|| format("its public half is damaged"))?;
        let seed = unhex(seed).ok_or_else(|| format("its secret half is damaged"))?;
        let key = Self::from_seed(seed)?;
        if key.public.0 != *public {
            return Err(format("its two halves do not belong together"));
        }
        Ok(key)
    }
}

/// The bytes of a message that are signed: its hash, because Ed25519's own (SHA-512, twice over at
/// the signer) costs several times as much, and a bundle of requests may be long. Nothing else that
/// a node's key signs has 32 bytes; the input of a TLS signature begins with 64 spaces.
fn hash_of(message: &[u8]) -> [u8; 32] {
    static EMPTY: LazyLock<blake3::Hasher> =
        LazyLock::new(|| blake3::Hasher::new_derive_key("quorumfs 2026 signed bytes"));
    *EMPTY.clone().update(message).finalize().as_bytes()
}

impl Signer for NodeKey {
    fn public_key(&self) -> PublicKey {
        self.public
    }

    fn sign(&self, message: &[u8]) -> Signature {
        let mut bytes = [0_u8; 64];
        let signature = self.pair.sign(&hash_of(message));
        for (to, from) in bytes.iter_mut().zip(signature.as_ref()) {
            *to = *from;
        }
        Signature(bytes)
    }
}

/// A public key with precomputed work that is the same for each of its signatures: finding its
/// point on the curve is an eighth of a verification.
#[derive(Clone, Copy, Debug)]
pub struct PreparedKey {
    public: PublicKey,
    key: ed25519_zebra::VerificationKey,
    point: EdwardsPoint,
}

impl PreparedKey {
    /// `None` if there is no such point; then no signature is valid.
    #[must_use]
    pub fn new(key: &PublicKey) -> Option<Self> {
        Some(Self {
            public: *key,
            key: ed25519_zebra::VerificationKey::try_from(key.0).ok()?,
            point: CompressedEdwardsY(key.0).decompress()?,
        })
    }

    /// Gives the same verdict as [`Zip215`].
    #[must_use]
    pub fn verify(&self, message: &[u8], signature: &Signature) -> bool {
        let signature = ed25519_zebra::Signature::from_bytes(&signature.0);
        self.key.verify(&signature, &hash_of(message)).is_ok()
    }
}

/// The verdict that every replica gives: ZIP-215.
#[derive(Clone, Copy, Debug, Default)]
pub struct Zip215;

impl Verifier for Zip215 {
    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
        let signature = ed25519_zebra::Signature::from_bytes(&signature.0);
        let key = ed25519_zebra::VerificationKey::try_from(key.0);
        key.is_ok_and(|key| key.verify(&signature, &hash_of(message)).is_ok())
    }
}

fn hex(bytes: &[u8]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(bytes.len() * 2));
    for byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
        }
    }
    text
}

fn unhex(text: &str) -> Option<Zeroizing<[u8; SEED_BYTES]>> {
    let mut bytes = Zeroizing::new([0_u8; SEED_BYTES]);
    let digits = text.as_bytes();
    if digits.len() != SEED_BYTES * 2 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        for digit in pair {
            let value = u8::try_from(char::from(*digit).to_digit(16)?).ok()?;
            *byte = *byte << 4 | value;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;
