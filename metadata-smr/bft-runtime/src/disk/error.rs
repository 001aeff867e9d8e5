//! The errors of a disk.

use quorumfs_bft::state::StateError;
use std::io;
use std::path::{Path, PathBuf};

/// A disk that cannot be used, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// There is no replica's disk.
    #[error(
        "{path} is not the data directory of a replica: initialise it first, or correct the path; \
         if a replica has run here, its data are gone: after another initialisation it follows and \
         serves, and it votes once the other replicas have admitted it as a new one"
    )]
    NotInitialised {
        /// The directory.
        path: PathBuf,
    },
    /// There is a disk already.
    #[error("{path} is the data directory of a replica already: choose another one")]
    AlreadyInitialised {
        /// The directory.
        path: PathBuf,
    },
    /// Another process uses it.
    #[error("{path} is in use by another process: stop that replica first")]
    Locked {
        /// The lock.
        path: PathBuf,
    },
    /// Written by a newer release, or not by quorumfs.
    #[error("{path} has format {found}, this release knows {known}: use the release that wrote it")]
    Format {
        /// The file.
        path: PathBuf,
        /// The format that it names.
        found: String,
        /// The format of this release.
        known: u32,
    },
    /// It is unknown which of the replica's disks this is.
    #[error(
        "{path} is missing or damaged, so it is unknown which disk of its replica this is: move \
         the data directory away and initialise a new one, with which the replica is admitted again"
    )]
    Nameless {
        /// The file.
        path: PathBuf,
    },
    /// The file system is full.
    #[error("no space is left while {doing} {path}: free some")]
    Full {
        /// The failed action.
        doing: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The medium failed.
    #[error("{doing} {path} failed: {source}; check the disk")]
    Io {
        /// The failed action.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The database failed.
    #[error(transparent)]
    State(StateError),
    /// A record was appended out of turn: a defect.
    #[error("record {found} was appended where {expected} was due")]
    OutOfTurn {
        /// Its token.
        found: u64,
        /// The token that was due.
        expected: u64,
    },
    /// A record is too long to be read back: a defect.
    #[error("a record of {length} bytes was appended; {max} is the most")]
    RecordTooLong {
        /// Its length.
        length: usize,
        /// The limit.
        max: usize,
    },
    /// An earlier failure, already reported, has stopped the disk.
    #[error("the disk has stopped after an earlier failure")]
    Stopped,
}

/// Adds the file and the action to an error.
pub(crate) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DiskError {
    move |source| {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                DiskError::Full { doing, path }
            }
            _ => DiskError::Io {
                doing,
                path,
                source,
            },
        }
    }
}
