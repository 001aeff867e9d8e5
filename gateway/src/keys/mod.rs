//! Keys: they give principals access to realms, and servers and clouds none.
//!
//! ```text
//! volume root (Ed25519, only in the recovery kit) ──signs──► genesis
//! principal (one 32-byte seed) ──► Ed25519 signing key + X25519 wrapping key
//! realm epoch e: M_e, random, wrapped for each member with HPKE        (lock 1)
//!                C_e, random, a Shamir share on each cloud             (lock 2)
//!     └─► REK_e ─┬─► slice data keys        one for each slice
//!                ├─► names keys             one for each directory and generation
//!                ├─► attribute names        one for each inode and generation
//!                └─► small values           inline content, symlink targets, attributes' values
//! key file: the principal's seed, to be read, or sealed under a passphrase
//! cloud i: a random secret, wrapped for each writer ──► object names, header MACs
//! ```
//!
//! Invariants:
//! * A client takes keys from a genesis whose signature it has checked under the root key that its
//!   own key file pins, or from a key epoch that an administrator named in genesis has signed for
//!   it; never on a server's word alone.
//! * One derivation function, BLAKE3 in derive-key mode with a context that names the use; inputs
//!   are of fixed length, so that no two uses can collide.
//! * Secrets are wiped when they are dropped and never printed by `Debug`.
//!
//! The errors are in [`KeyError`]. The formats are in docs/FORMAT.md, "Keys and names".

mod attributes;
mod cloud;
#[cfg(any(test, feature = "decoders"))]
pub(crate) mod decoding;
mod epoch;
mod error;
mod given;
mod host;
mod joining;
mod lines;
mod machine_line;
mod names;
mod passphrase;
mod principal;
mod recovery_kit;
mod sealed_key;
mod sealing;
mod secret;
mod shamir;
mod share_cache;
mod small_value;
mod volume_root;
mod wrap;

#[cfg(test)]
pub(crate) use lines::assert_golden;

pub use attributes::AttributeKeys;
pub use cloud::CloudSecret;
pub use epoch::{EpochSecret, RealmEpochKey, SharedSecret, SliceKey};
pub use error::KeyError;
pub use given::CredentialsPlace;
pub use host::HostKey;
pub use joining::{JoinKey, SignedCard, VolumeCard};
pub use machine_line::{MachineAnswer, MachineLine};
pub use names::{
    NAME_BYTES_MAX, NAME_OVERHEAD_BYTES, NameCiphertext, NameKeys, stand_in, stand_in_cookie,
};
pub use passphrase::{Cost, PASSPHRASE_BYTES_MAX, Passphrase};
pub use principal::{KeyFile, Principal, PrincipalId};
pub use recovery_kit::{ChangedClouds, RecoveryKit};
pub use sealed_key::{SealedKey, StoredKey, clear_replacement};
pub use sealing::Sealing;
pub use secret::Secret;
pub use shamir::Share;
pub use share_cache::ShareCache;
pub use small_value::{Field, SMALL_VALUE_OVERHEAD_BYTES, SmallValueKey, ValueBinding};
pub use volume_root::{RootKey, VolumeRoot, verify};
pub use wrap::{WRAPPED_BYTES, Wrapped, WrappingKey, wrap};
