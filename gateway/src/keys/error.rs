//! Errors of keys, with their remedies.

use quorumfs_metadata::identity::{RealmEpoch, RealmId};
use std::path::PathBuf;

/// A key that could not be made, read, unwrapped or verified.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The operating system gave no randomness.
    #[error("the operating system's random source failed ({reason}); no key can be made now")]
    Random {
        /// The system's error.
        reason: String,
    },
    /// A wrapped key is for another principal or has been changed.
    #[error(
        "a wrapped {what} does not open with this principal's key: the key file belongs to \
         another volume or member, or the genesis file was changed"
    )]
    Unwrap {
        /// The wrapped key.
        what: &'static str,
    },
    /// This key did not make the ciphertext for this place.
    #[error("a sealed {what} is damaged, forged, or was moved here from somewhere else")]
    Forged {
        /// The sealed value.
        what: &'static str,
    },
    /// Something is longer than its format allows.
    #[error("a {what} of {length} bytes is too long; at most {most} are possible")]
    TooLong {
        /// The value.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
        /// The bound in bytes.
        most: usize,
    },
    /// A key file or recovery kit cannot be understood.
    #[error("{what}, line {line}: {reason}")]
    Text {
        /// Which kind of text.
        what: &'static str,
        /// The line, counted from 1; 0 when the text as a whole is at fault.
        line: usize,
        /// The problem and its remedy.
        reason: String,
    },
    /// A newer format than this program knows.
    #[error("{what} has format {found}; this program knows formats up to {known}: update it")]
    Newer {
        /// Which kind of text.
        what: &'static str,
        /// The format found.
        found: u32,
        /// The newest format known.
        known: u32,
    },
    /// A key file's secret is sealed.
    #[error("the key file is protected by a passphrase: give the passphrase to open it")]
    Sealed,
    /// The passphrase is wrong, or the sealed file was changed.
    #[error(
        "the passphrase does not open the key file; if it is the right one, the file was changed"
    )]
    WrongPassphrase,
    /// An empty passphrase.
    #[error("the passphrase is empty and protects nothing; choose another one")]
    EmptyPassphrase,
    /// The key of a passphrase cannot be made.
    #[error("cannot make a key of the passphrase: {reason}")]
    Derivation {
        /// The reason.
        reason: String,
    },
    /// Other users could read a secret.
    #[error(
        "the key file {path} may be read or written by others (mode {mode:04o}): run \
         `chmod 600 {path}` and think about who may have copied it"
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A file could not be read or written.
    #[error("cannot {doing} {path}: {source}")]
    File {
        /// The attempted operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A signature or a pin is not valid.
    #[error("{what} is not to be trusted: {reason}")]
    Untrusted {
        /// The checked object.
        what: &'static str,
        /// The reason and the remedy.
        reason: String,
    },
    /// This principal is no member.
    #[error("principal {principal} is not a member of realm {realm}: ask an admin of the volume")]
    NoMember {
        /// The principal.
        principal: String,
        /// The realm.
        realm: RealmId,
    },
    /// This principal was not given the key of the epoch.
    #[error("this principal has no key of realm epoch {epoch}: ask an admin of the volume")]
    NoEpoch {
        /// The epoch.
        epoch: RealmEpoch,
    },
    /// No epoch was opened yet.
    #[error("realm epoch {epoch} is locked: the shares on the clouds are needed to open it")]
    Locked {
        /// The epoch.
        epoch: RealmEpoch,
    },
}
