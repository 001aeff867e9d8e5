//! What can go wrong between a slice and its clouds.

use super::writer::Writer;
use quorumfs_backends::{StoreError, StoreErrorKind};
use quorumfs_metadata::identity::{ObjectId, SliceId};
use quorumfs_metadata::placement::Receipt;
use std::fmt;

/// What a caller decides on; the edge of the file system turns it into an errno.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockErrorKind {
    /// Too many clouds have no space left: ENOSPC.
    NoSpace,
    /// The clouds do not have the bytes, or do not take them: EIO.
    Io,
    /// So many clouds cannot be reached now that it cannot be done: worth another try, then EIO.
    Unreachable,
    /// What the clouds or the metadata hold cannot be right: EIO.
    Corrupt,
    /// A newer version wrote it: EIO, and exit code of its own where a command fails.
    NewerFormat,
    /// The caller asked for what makes no sense: EINVAL.
    Invalid,
    /// The store has been shut: EIO.
    Shut,
    /// This machine cannot run it.
    Unsupported,
}

/// The clouds' answers that led to a failure, one line each.
#[derive(Clone, Debug, Default)]
pub struct Failures(pub Vec<String>);

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.0 {
            write!(f, "\n  {failure}")?;
        }
        Ok(())
    }
}

/// A failure of the block store.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// Fewer than w clouds took an object.
    #[error(
        "object {object}: only {acknowledged} of the {wanted} clouds that a write needs took it; \
         mend one of these and write again:{failures}"
    )]
    TooFewAcknowledged {
        /// Which object.
        object: ObjectId,
        /// Clouds that acknowledged.
        acknowledged: usize,
        /// w = k + f.
        wanted: usize,
        /// Whether lack of space is why.
        full: bool,
        /// Whether enough of the others may take it in a moment.
        passing: bool,
        /// What the others said.
        failures: Failures,
    },
    /// Fewer than k good shards were to be had.
    #[error(
        "object {object}: only {good} of the {wanted} good shards that reading needs were to be \
         had; bring one of these clouds back{denied}:{failures}",
        denied = Denied(.writer)
    )]
    TooFewShards {
        /// Which object.
        object: ObjectId,
        /// Good ones.
        good: usize,
        /// k.
        wanted: usize,
        /// Who brought it in, if more clouds than may lie deny what it said that they
        /// had acknowledged.
        writer: Option<Writer>,
        /// Whether enough of the others may have theirs in a moment.
        passing: bool,
        /// What was wrong with the others.
        failures: Failures,
    },
    /// More than f clouds hold the object in a newer format.
    #[error(
        "object {object} has format {format}, and this version of quorumfs knows up to {known}; \
         use a newer one",
        known = super::header::FORMAT
    )]
    NewerFormat {
        /// Which object.
        object: ObjectId,
        /// Its format.
        format: u16,
    },
    /// The shards are as the metadata describes them, and do not fit each other.
    #[error(
        "object {object}: shard {shard}, rebuilt from shards that agree with the metadata, does \
         not: {writer} wrote the object wrong, and no cloud is to blame; restore the file"
    )]
    WrittenWrong {
        /// Which object.
        object: ObjectId,
        /// Who brought it in.
        writer: Writer,
        /// The first shard that does not fit.
        shard: usize,
    },
    /// A segment that the clouds returned as it was written does not open.
    #[error(
        "slice {slice}, segment {segment}: does not open with the slice's key; {writer} named \
         another key or slice than it was written with; restore the file"
    )]
    Forged {
        /// Which slice.
        slice: SliceId,
        /// Which segment.
        segment: u32,
        /// Who brought it in.
        writer: Writer,
    },
    /// What the clouds returned as it was written was sealed with the slice's key, and is not what
    /// it has to be.
    #[error(
        "slice {slice}: {what}; {writer} sealed it wrong, and no cloud is to blame; restore the \
         file"
    )]
    SealedWrong {
        /// Which slice.
        slice: SliceId,
        /// What is wrong with it.
        what: &'static str,
        /// Who brought it in.
        writer: Writer,
    },
    /// A row of the metadata that no writer can have meant.
    #[error("object {object}: the metadata's row cannot be right: {reason}; restore the file")]
    Row {
        /// Which object.
        object: ObjectId,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// More bytes than a block may have, or a range beyond the slice.
    #[error("{what} of {length} bytes where at most {most} are possible")]
    Length {
        /// What it is.
        what: &'static str,
        /// Its length or end.
        length: u64,
        /// The bound.
        most: u64,
    },
    /// The configuration does not hold together.
    #[error("the volume's clouds cannot be used: {reason}; correct the configuration")]
    Configuration {
        /// What is wrong.
        reason: String,
    },
    /// The processor is too old.
    #[error(
        "this processor lacks {feature}; quorumfs needs an x86-64-v3 processor (Intel Haswell, AMD \
         Excavator or newer) or another architecture"
    )]
    Processor {
        /// What it lacks.
        feature: &'static str,
    },
    /// The cipher refused.
    #[error("slice {slice}: the cipher failed; this is a defect")]
    Cipher {
        /// Which slice.
        slice: SliceId,
    },
    /// The name cipher refused.
    #[error("object {object}: no name could be made; this is a defect")]
    Naming {
        /// Which object.
        object: ObjectId,
    },
    /// The erasure code refused.
    #[error("the erasure code could not {doing}: {error}; this is a defect")]
    Code {
        /// What was being done.
        doing: &'static str,
        /// What it said.
        error: reed_solomon_erasure::Error,
    },
    /// It has been shut, or its runtime has.
    #[error("the block store has been shut down; open the volume again")]
    Shut,
}

/// Whom else to blame when more clouds than may lie say the same.
struct Denied<'a>(&'a Option<Writer>);

impl fmt::Display for Denied<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => Ok(()),
            Some(writer) => write!(
                f,
                ", or restore the file: more clouds than may lie do not have what {} said that \
                 they had acknowledged, so it never wrote that, or they have lost it",
                writer
            ),
        }
    }
}

impl BlockError {
    /// Whose fault it is, if it is a writer's: no f clouds can bring it about.
    #[must_use]
    pub fn writer(&self) -> Option<&Writer> {
        match self {
            Self::WrittenWrong { writer, .. }
            | Self::Forged { writer, .. }
            | Self::SealedWrong { writer, .. } => Some(writer),
            Self::TooFewShards { writer, .. } => writer.as_ref(),
            _ => None,
        }
    }

    pub(super) fn writer_mut(&mut self) -> Option<&mut Writer> {
        match self {
            Self::WrittenWrong { writer, .. }
            | Self::Forged { writer, .. }
            | Self::SealedWrong { writer, .. } => Some(writer),
            Self::TooFewShards { writer, .. } => writer.as_mut(),
            _ => None,
        }
    }

    /// Says who wrote what does not open.
    pub(super) fn written_by(self, by: Writer) -> Self {
        match self {
            Self::Forged { slice, segment, .. } => Self::Forged {
                slice,
                segment,
                writer: by,
            },
            Self::SealedWrong { slice, what, .. } => Self::SealedWrong {
                slice,
                what,
                writer: by,
            },
            other => other,
        }
    }

    /// What a caller decides on.
    #[must_use]
    pub fn kind(&self) -> BlockErrorKind {
        match self {
            Self::TooFewAcknowledged { full: true, .. } => BlockErrorKind::NoSpace,
            Self::TooFewAcknowledged { passing: true, .. }
            | Self::TooFewShards { passing: true, .. } => BlockErrorKind::Unreachable,
            Self::TooFewAcknowledged { .. } | Self::TooFewShards { .. } => BlockErrorKind::Io,
            Self::NewerFormat { .. } => BlockErrorKind::NewerFormat,
            Self::WrittenWrong { .. }
            | Self::Forged { .. }
            | Self::SealedWrong { .. }
            | Self::Row { .. }
            | Self::Cipher { .. }
            | Self::Naming { .. }
            | Self::Code { .. } => BlockErrorKind::Corrupt,
            Self::Length { .. } | Self::Configuration { .. } => BlockErrorKind::Invalid,
            Self::Processor { .. } => BlockErrorKind::Unsupported,
            Self::Shut => BlockErrorKind::Shut,
        }
    }
}

/// Why one shard was not had.
#[derive(Clone, Debug)]
pub(super) enum ShardFault {
    /// The cloud answered with bytes that are not the shard's: a lie.
    Refused {
        /// The cloud.
        cloud: String,
        /// The newer format that the bytes claim to have.
        newer: Option<u16>,
    },
    /// The cloud acknowledged a put, and says that it took something else: no acknowledgement.
    WrongReceipt {
        /// The cloud.
        cloud: String,
        /// What it says.
        said: Receipt,
        /// What it was sent.
        sent: Receipt,
    },
    /// The cloud says that it failed.
    Store(StoreError),
    /// The cloud was not asked, because it failed just before.
    Suspended {
        /// The cloud.
        cloud: String,
        /// How it failed.
        error: String,
    },
    /// There is no such cloud any more.
    NoCloud(u8),
    /// The name could not be made, or a task was lost.
    Defect,
}

impl ShardFault {
    /// Whether the cloud vouched for wrong bytes or denied an object that it had acknowledged: the
    /// shard has to be written again.
    pub(super) fn wants_repair(&self) -> bool {
        match self {
            Self::Refused { newer, .. } => newer.is_none(),
            Self::Store(error) => {
                matches!(
                    error.kind,
                    StoreErrorKind::NotFound | StoreErrorKind::Corrupt
                )
            }
            Self::WrongReceipt { .. }
            | Self::Suspended { .. }
            | Self::NoCloud(_)
            | Self::Defect => false,
        }
    }

    /// Whether the cloud may answer well in a moment: it is not there now, or has too much to do.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Store(error) => error.kind.is_transient(),
            _ => false,
        }
    }

    /// The same fault once another shard of the object was proved to be of a format that this
    /// version knows: then bytes that look like a newer one are just wrong. A single flipped bit in
    /// a header looks like that.
    pub(super) fn disproved(self) -> Self {
        match self {
            Self::Refused { cloud, .. } => Self::Refused { cloud, newer: None },
            other => other,
        }
    }

    /// Whether the bytes claim to be of a newer format.
    pub(super) fn claims_newer(&self) -> bool {
        self.newer().is_some()
    }

    /// The newer format that the bytes claim to be of.
    pub(super) const fn newer(&self) -> Option<u16> {
        match self {
            Self::Refused { newer, .. } => *newer,
            _ => None,
        }
    }

    pub(super) fn is_refused(&self) -> bool {
        match self {
            Self::Refused { .. } => true,
            Self::Store(error) => error.kind == StoreErrorKind::Corrupt,
            _ => false,
        }
    }
}

impl fmt::Display for ShardFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { cloud, newer: None } => {
                write!(f, "{cloud}: answered with bytes that are not the shard's")
            }
            Self::Refused {
                cloud,
                newer: Some(format),
            } => {
                write!(
                    f,
                    "{cloud}: holds an object of format {format}, which is newer"
                )
            }
            Self::WrongReceipt { cloud, said, sent } => {
                write!(f, "{cloud}: was sent {sent}, and says that it took {said}")
            }
            Self::Store(error) => write!(f, "{error}"),
            Self::Suspended { cloud, error } => {
                write!(
                    f,
                    "{cloud}: not asked, because it failed just before: {error}"
                )
            }
            Self::NoCloud(index) => write!(f, "cloud {index}: not in this volume's configuration"),
            Self::Defect => write!(f, "a task was lost; this is a defect"),
        }
    }
}
