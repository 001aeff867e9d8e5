//! The errors of backups and recoveries.

use crate::blocks::{BackupError, BlockError, PlacementError};
use crate::error::VfsError;
use crate::keys::KeyError;
use crate::volume::VolumeError;
use quorumfs_bft::state::{ProofError, StateError};
use quorumfs_bft::state_copy::Unproved;
use quorumfs_bft_runtime::state_copy::CopyError;
use std::path::PathBuf;
use std::sync::Arc;

/// A backup or a recovery that failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RecoveryError {
    /// Something on a cloud is not what it should be.
    #[error("a recovery point on the clouds is not valid: {reason}")]
    Damaged {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A newer program made it.
    #[error("the recovery point has format {format}, which is newer than this program: upgrade it")]
    Newer {
        /// Its format.
        format: u16,
    },
    /// The clouds hold no point that opens.
    #[error("the clouds hold no backup of the metadata of this volume that this key opens")]
    NoPoint,
    /// Too few clouds were listed.
    #[error(
        "only {listed} clouds could be listed, and {wanted} are needed to be sure that no newer \
         backup is overlooked: {failures}"
    )]
    TooFewListed {
        /// Those that were.
        listed: usize,
        /// n − f.
        wanted: usize,
        /// What the others said.
        failures: String,
    },
    /// The rows of a point are not those that the servers certified.
    #[error("the rows of the recovery point are not those of the volume: {0}")]
    Rows(#[from] ProofError),
    /// The certificate of a point proves nothing.
    #[error("the recovery point is not proved: {0}")]
    Unproved(#[from] Unproved),
    /// A part of a point has damaged rows.
    #[error("a part of the backup has its digest and does not decode: its maker wrote it wrong")]
    Malformed,
    /// Too few clouds say which incarnations have begun.
    #[error(
        "only {answered} clouds answer whether the volume was recovered before, and {wanted} are \
         needed"
    )]
    TooFewAnswer {
        /// Those that do.
        answered: usize,
        /// n − f.
        wanted: usize,
    },
    /// The servers could not be copied.
    #[error(transparent)]
    Copy(Arc<CopyError>),
    /// An operation or a question failed.
    #[error(transparent)]
    Metadata(Arc<VfsError>),
    /// The clouds.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// The clouds, while a part was read.
    #[error(transparent)]
    Blocks(Arc<BlockError>),
    /// The job could not be taken.
    #[error(transparent)]
    Job(#[from] PlacementError),
    /// A key.
    #[error(transparent)]
    Key(Arc<KeyError>),
    /// The genesis or a succession.
    #[error(transparent)]
    Volume(Arc<VolumeError>),
    /// A file on this machine.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: String,
    },
}

impl RecoveryError {
    pub(super) const fn damaged(reason: &'static str) -> Self {
        Self::Damaged { reason }
    }

    pub(super) fn file(path: &std::path::Path, error: &std::io::Error) -> Self {
        Self::File {
            path: path.to_path_buf(),
            reason: error.to_string(),
        }
    }
}

macro_rules! shared {
    ($($error:ty => $variant:ident),* $(,)?) => {
        $(impl From<$error> for RecoveryError {
            fn from(error: $error) -> Self {
                Self::$variant(Arc::new(error))
            }
        })*
    };
}

shared! {
    CopyError => Copy,
    VfsError => Metadata,
    BlockError => Blocks,
    KeyError => Key,
    VolumeError => Volume,
}

impl From<StateError> for RecoveryError {
    fn from(error: StateError) -> Self {
        CopyError::from(error).into()
    }
}
