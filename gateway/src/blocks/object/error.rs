//! Errors between a slice and its clouds.

use super::writer::Writer;
use quorumfs_backends::{StoreError, StoreErrorKind};
use quorumfs_metadata::identity::{ObjectId, SliceId};
use quorumfs_metadata::placement::Receipt;
use std::fmt;

/// The kinds that a caller distinguishes; the file system maps them to an errno.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockErrorKind {
    /// Too many clouds have no space left: ENOSPC.
    NoSpace,
    /// The clouds do not have the bytes, or do not take them: EIO.
    Io,
    /// Too many clouds are unreachable now: worth another try, then EIO.
    Unreachable,
    /// The data of the clouds or the metadata are invalid: EIO.
    Corrupt,
    /// A newer version wrote it: EIO; a command fails with an exit code of its own.
    NewerFormat,
    /// An invalid argument: EINVAL.
    Invalid,
    /// The store has been shut down: EIO.
    Shut,
    /// This machine lacks something required.
    Unsupported,
}

/// The clouds' answers that caused a failure, one line each.
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
         fix one of these clouds and write again:{failures}"
    )]
    TooFewAcknowledged {
        /// The object.
        object: ObjectId,
        /// Clouds that acknowledged.
        acknowledged: usize,
        /// w = k + f.
        wanted: usize,
        /// Whether lack of space is the reason.
        full: bool,
        /// Whether enough of the other clouds may take it soon.
        passing: bool,
        /// The answers of the other clouds.
        failures: Failures,
    },
    /// Fewer than k good shards were found.
    #[error(
        "object {object}: only {good} of the {wanted} good shards that a read needs were \
         found; bring one of these clouds back{denied}:{failures}",
        denied = Denied(.writer)
    )]
    TooFewShards {
        /// The object.
        object: ObjectId,
        /// The number of good shards.
        good: usize,
        /// k.
        wanted: usize,
        /// The writer, if more clouds than may lie deny having acknowledged the object.
        writer: Option<Writer>,
        /// Whether enough of the other clouds may have their shards soon.
        passing: bool,
        /// The faults of the others.
        failures: Failures,
    },
    /// Fewer than k + f shards can be linked.
    #[error(
        "object {object}: a link can be made for {linked} of its shards, and {wanted} are needed, \
         so that any of the clouds that may fail can; `quorumfs serve` serves links for every \
         cloud:{failures}"
    )]
    Unlinkable {
        /// The object.
        object: ObjectId,
        /// Shards that can be linked.
        linked: usize,
        /// k + f.
        wanted: usize,
        /// Why the others cannot.
        failures: Failures,
    },
    /// More than f clouds hold the object in a newer format.
    #[error(
        "object {object} has format {format}; this version of quorumfs reads up to {known}; \
         use a newer one",
        known = super::header::FORMAT
    )]
    NewerFormat {
        /// The object.
        object: ObjectId,
        /// Its format.
        format: u16,
    },
    /// The shards are as the metadata describes them, and are inconsistent.
    #[error(
        "object {object}: shard {shard}, rebuilt from shards that agree with the metadata, does \
         not agree: {writer} wrote the object wrong, and no cloud is to blame; restore the file"
    )]
    WrittenWrong {
        /// The object.
        object: ObjectId,
        /// Its writer.
        writer: Writer,
        /// The first shard that contradicts the others.
        shard: usize,
    },
    /// A segment has its digest and does not open.
    #[error(
        "slice {slice}, segment {segment}: does not open with the slice's key; {writer} named \
         another key or slice than it was sealed with; restore the file"
    )]
    Forged {
        /// The slice.
        slice: SliceId,
        /// The segment.
        segment: u32,
        /// The writer.
        writer: Writer,
    },
    /// The bytes have their digest and open with the slice's key, but their content is invalid.
    #[error(
        "slice {slice}: {what}; {writer} sealed it wrong, and no cloud is to blame; restore the \
         file"
    )]
    SealedWrong {
        /// The slice.
        slice: SliceId,
        /// The defect.
        what: &'static str,
        /// The writer.
        writer: Writer,
    },
    /// The metadata's row of an object contradicts itself.
    #[error("object {object}: the metadata's row cannot be right: {reason}; restore the file")]
    Row {
        /// The object.
        object: ObjectId,
        /// The contradiction.
        reason: &'static str,
    },
    /// More bytes than a block may have, or a range beyond the slice.
    #[error("{what} of {length} bytes where at most {most} are possible")]
    Length {
        /// The thing that is too long.
        what: &'static str,
        /// Its length or end.
        length: u64,
        /// The bound.
        most: u64,
    },
    /// The configuration contradicts itself.
    #[error("the volume's clouds cannot be used: {reason}; correct the configuration")]
    Configuration {
        /// The contradiction.
        reason: String,
    },
    /// The processor is too old.
    #[error(
        "this processor lacks {feature}; quorumfs needs an x86-64-v3 processor (Intel Haswell, AMD \
         Excavator or newer) or another architecture"
    )]
    Processor {
        /// The missing feature.
        feature: &'static str,
    },
    /// The cipher refused.
    #[error("slice {slice}: the cipher failed; this is a defect")]
    Cipher {
        /// The slice.
        slice: SliceId,
    },
    /// The name cipher refused.
    #[error("object {object}: no name could be made; this is a defect")]
    Naming {
        /// The object.
        object: ObjectId,
    },
    /// The erasure code refused.
    #[error("the erasure code could not {doing}: {error}; this is a defect")]
    Code {
        /// The attempted operation.
        doing: &'static str,
        /// The library's error.
        error: reed_solomon_erasure::Error,
    },
    /// The store, or its runtime, has been shut down.
    #[error("the block store has been shut down; open the volume again")]
    Shut,
}

/// The writer, as a suspect when more clouds than may lie agree.
struct Denied<'a>(&'a Option<Writer>);

impl fmt::Display for Denied<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => Ok(()),
            Some(writer) => write!(
                f,
                ", or restore the file: more clouds than may lie deny shards that {} recorded as \
                 acknowledged, so it never wrote these, or the clouds have lost them",
                writer
            ),
        }
    }
}

impl BlockError {
    /// The writer at fault, if it is a writer's fault: no f clouds can cause it.
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

    pub(in crate::blocks) fn writer_mut(&mut self) -> Option<&mut Writer> {
        match self {
            Self::WrittenWrong { writer, .. }
            | Self::Forged { writer, .. }
            | Self::SealedWrong { writer, .. } => Some(writer),
            Self::TooFewShards { writer, .. } => writer.as_mut(),
            _ => None,
        }
    }

    /// Sets the writer of bytes that do not open.
    pub(in crate::blocks) fn written_by(self, by: Writer) -> Self {
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

    /// The kind that a caller distinguishes.
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
            Self::Processor { .. } | Self::Unlinkable { .. } => BlockErrorKind::Unsupported,
            Self::Shut => BlockErrorKind::Shut,
        }
    }
}

/// The reason why one shard is unavailable.
#[derive(Clone, Debug)]
pub(in crate::blocks) enum ShardFault {
    /// The cloud answered with bytes that are not the shard's: a lie.
    Refused {
        /// The cloud.
        cloud: String,
        /// The newer format that the bytes claim to have.
        newer: Option<u16>,
    },
    /// The cloud acknowledged a put with the receipt of other bytes: no acknowledgement.
    WrongReceipt {
        /// The cloud.
        cloud: String,
        /// The receipt.
        said: Receipt,
        /// The receipt of the bytes that were sent.
        sent: Receipt,
    },
    /// The cloud reported an error.
    Store(StoreError),
    /// The cloud was bypassed because it had just failed.
    Suspended {
        /// The cloud.
        cloud: String,
        /// Its last error.
        error: String,
    },
    /// The cloud has not acknowledged it yet.
    Awaited {
        /// The cloud.
        cloud: String,
    },
    /// The cloud is not configured.
    NoCloud(u8),
    /// The name could not be made, or a task was lost.
    Defect,
}

impl ShardFault {
    /// Whether the cloud answered with wrong bytes or denied a shard that it had acknowledged: the
    /// shard has to be written again.
    pub(in crate::blocks) fn wants_repair(&self) -> bool {
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
            | Self::Awaited { .. }
            | Self::NoCloud(_)
            | Self::Defect => false,
        }
    }

    /// Whether the cloud may answer soon: it is unreachable or overloaded now.
    pub(in crate::blocks) fn is_passing(&self) -> bool {
        match self {
            Self::Store(error) => error.kind.is_transient(),
            _ => false,
        }
    }

    /// The same fault, once another shard of the object was proved to be of a known format: bytes
    /// that look like a newer format are then simply wrong. A single flipped bit in a header looks
    /// like that.
    pub(in crate::blocks) fn disproved(self) -> Self {
        match self {
            Self::Refused { cloud, .. } => Self::Refused { cloud, newer: None },
            other => other,
        }
    }

    /// Whether the bytes claim a newer format.
    pub(in crate::blocks) fn claims_newer(&self) -> bool {
        self.newer().is_some()
    }

    /// The newer format that the bytes claim.
    pub(in crate::blocks) const fn newer(&self) -> Option<u16> {
        match self {
            Self::Refused { newer, .. } => *newer,
            _ => None,
        }
    }

    pub(in crate::blocks) fn is_refused(&self) -> bool {
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
                write!(f, "{cloud}: not asked, because it had just failed: {error}")
            }
            Self::Awaited { cloud } => write!(f, "{cloud}: does not have its shard yet"),
            Self::NoCloud(index) => write!(f, "cloud {index}: not in this volume's configuration"),
            Self::Defect => write!(f, "a task was lost; this is a defect"),
        }
    }
}
