//! Errors of fetching and storing shares.

use crate::blocks::object::{BlockError, FORMAT, Failures};
use quorumfs_metadata::identity::CloudIndex;
use std::sync::Arc;

/// Errors of fetching and storing shares.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ShareError {
    /// Fewer than f + 1 good shares.
    #[error(
        "the second lock of the volume: only {good} of the {wanted} clouds that it takes gave \
         their share of the key; bring one of these clouds back:{failures}"
    )]
    TooFew {
        /// The number of good shares.
        good: usize,
        /// f + 1.
        wanted: usize,
        /// Whether enough of the other clouds may give theirs soon.
        passing: bool,
        /// The faults of the others.
        failures: Failures,
    },
    /// More than f clouds hold theirs in a newer format.
    #[error(
        "the second lock of the volume has format {format}; this version of quorumfs reads \
         formats up to {known}; use a newer one",
        known = FORMAT
    )]
    NewerFormat {
        /// Its format.
        format: u16,
    },
    /// Fewer than n − f clouds hold theirs.
    #[error(
        "the second lock of the volume: only {confirmed} of the {wanted} clouds that it takes hold \
         their share of the key, so nothing was begun; fix one of these clouds and try \
         again:{failures}"
    )]
    TooFewPlaced {
        /// The clouds that hold theirs.
        confirmed: usize,
        /// n − f.
        wanted: usize,
        /// The faults of the others.
        failures: Failures,
    },
    /// The shares have their digests and are not of one secret.
    #[error(
        "the second lock of the volume: the share of cloud {cloud}, made from the others', does \
         not have the digest in the epoch's row: the administrator that began the epoch made it \
         wrong, and no cloud is to blame; `quorumfs volume rekey` begins another epoch"
    )]
    WrittenWrong {
        /// The cloud of the wrong share.
        cloud: CloudIndex,
    },
    /// A share could not be made.
    #[error("the second lock of the volume: {0}")]
    Made(Arc<BlockError>),
}

impl ShareError {
    pub(in crate::blocks) fn made(error: BlockError) -> Self {
        Self::Made(Arc::new(error))
    }
}
