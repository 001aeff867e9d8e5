//! What can be wrong with a disk.

use quorumfs_bft::state::StateError;
use std::io;
use std::path::{Path, PathBuf};

/// A disk that cannot be used, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// There is nothing to open.
    #[error(
        "{path} is not the data directory of a replica: initialise it first, or correct the path; \
         if a replica has run here, its data are gone: initialised again, it follows and serves, \
         and votes once the others have taken it up as a new one"
    )]
    NotInitialised {
        /// The directory.
        path: PathBuf,
    },
    /// There is something already.
    #[error("{path} is the data directory of a replica already: choose another one")]
    AlreadyInitialised {
        /// The directory.
        path: PathBuf,
    },
    /// Two processes.
    #[error("{path} is in use by another process: stop that replica first")]
    Locked {
        /// The lock.
        path: PathBuf,
    },
    /// Written by a newer release, or not by us.
    #[error("{path} has format {found}, this release knows {known}: run the release that wrote it")]
    Format {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What is known here.
        known: u32,
    },
    /// Nobody knows which of the replica's disks this is.
    #[error(
        "{path} is missing or damaged, so it is not known which disk of its replica this is: move \
         the data directory away and make the replica another disk, with which it is taken up again"
    )]
    Nameless {
        /// The file.
        path: PathBuf,
    },
    /// The file system is full.
    #[error("no space is left while {doing} {path}: free some")]
    Full {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
    },
    /// The medium failed.
    #[error("{doing} {path} failed: {source}; check the disk")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The database failed.
    #[error(transparent)]
    State(StateError),
    /// A record came out of turn: a defect.
    #[error("record {found} was appended where {expected} was due")]
    OutOfTurn {
        /// Its token.
        found: u64,
        /// The token that was due.
        expected: u64,
    },
    /// A record that could not be read back: a defect.
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

/// Names the file and the deed.
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
