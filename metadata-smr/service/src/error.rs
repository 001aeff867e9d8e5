//! Reasons of refusals: ordinary results with stable bytes, each with its errno.

use crate::identity::{CloudIndex, InodeId, ObjectId, PrincipalId, RealmEpoch, SliceId, Uid};
use crate::row::Resource;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::{SessionId, Time};

/// A refused operation, which changed nothing.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize, thiserror::Error)]
#[error("{error} ({at})")]
pub struct OperationError {
    /// The part that failed.
    pub at: FailedAt,
    /// The reason.
    pub error: Error,
}

impl OperationError {
    /// The errno of the reason.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        self.error.errno()
    }
}

/// The part of an operation that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum FailedAt {
    /// The operation as such.
    Operation,
    /// A compound's precondition, counted from 0.
    Precondition(u16),
    /// A compound's step, counted from 0.
    Step(u16),
}

impl std::fmt::Display for FailedAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Operation => f.write_str("the operation"),
            Self::Precondition(index) => write!(f, "precondition {index}"),
            Self::Step(index) => write!(f, "step {index}"),
        }
    }
}

/// The reason of a refusal. Variants are only ever added at the end: their order is their bytes.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize, thiserror::Error)]
pub enum Error {
    /// No such entry.
    #[error("no such entry")]
    NotFound,
    /// The entry exists.
    #[error("the entry exists")]
    Exists,
    /// An inode that should be a directory is not one.
    #[error("not a directory")]
    NotDirectory,
    /// An inode that should not be a directory is one.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The mode does not allow it.
    #[error("permission denied")]
    Denied,
    /// Only an owner or the superuser may.
    #[error("operation not permitted")]
    NotPermitted,
    /// The inode does not exist, or no longer.
    #[error("inode {0} does not exist")]
    Stale(InodeId),
    /// The operation would cross a realm's boundary.
    #[error("cannot cross realms")]
    CrossRealm,
    /// The inode has the maximum of links.
    #[error("too many links")]
    TooManyLinks,
    /// A directory cannot become its own descendant.
    #[error("a directory cannot be moved below itself")]
    IntoItself,
    /// The target lies deeper than a rename searches.
    #[error("the directory lies too deep")]
    TooDeep,
    /// The sealed name or target is too long.
    #[error("the name is too long")]
    NameTooLong,
    /// Eight names of the directory have the same hash already, or a counter has reached its
    /// maximum.
    #[error("a limit of the metadata is reached")]
    LimitReached,
    /// Larger than the largest file.
    #[error("the file would be too large")]
    FileTooLarge,
    /// The kind of inode does not support it.
    #[error("the kind of inode does not allow it")]
    WrongKind,
    /// An expectation about an inode or entry no longer holds.
    #[error("something changed since it was seen")]
    Changed,
    /// The operation would write more rows than one operation may: split it.
    #[error("too many rows for one operation: split it")]
    TooManyRows,
    /// An earlier truncation of this range is still being executed: retry.
    #[error("an earlier truncation is still being executed: retry")]
    Reaping,
    /// The session's mount was taken over; none of its operations is executed any more.
    #[error("this session was fenced by session {by}")]
    Fenced {
        /// The session that took over.
        by: SessionId,
    },
    /// The realm is mounted by another session.
    #[error("mounted on {label} by session {session} of {principal} since {since}")]
    Mounted {
        /// The session.
        session: SessionId,
        /// Its principal.
        principal: PrincipalId,
        /// The time of its mount.
        since: Time,
        /// Its host, for people.
        label: String,
    },
    /// The session has not mounted the realm.
    #[error("not mounted by this session")]
    NotMounted,
    /// The principal may not act for these credentials, or lacks the right to this operation.
    #[error("the principal has no right to this")]
    NoRight,
    /// The service does not know the session.
    #[error("no such session")]
    NoSession,
    /// No such realm.
    #[error("no such realm")]
    NoRealm,
    /// No such object.
    #[error("no such object {0}")]
    NoObject(ObjectId),
    /// The id is not of a live allocation of this session.
    #[error("object {0} is not of a live allocation of this session")]
    ObjectNotOwned(ObjectId),
    /// The id was used before.
    #[error("object {0} exists or existed")]
    ObjectUsed(ObjectId),
    /// The id is not of a live allocation of this session, or there is no such slice.
    #[error("slice {0} is not of a live allocation of this session")]
    SliceNotOwned(SliceId),
    /// The id was used before.
    #[error("slice {0} exists or existed")]
    SliceUsed(SliceId),
    /// The allocation is not this session's, or no longer.
    #[error("no such allocation of this session")]
    NoAllocation,
    /// The session has the maximum of live allocations.
    #[error("too many live allocations")]
    TooManyAllocations,
    /// Fewer clouds have acknowledged than a commit needs, or two shards share a cloud or a failure
    /// domain, or a cloud is unknown, or the policy is not the realm's.
    #[error("object {0} is not placed as its policy requires")]
    BadPlacement(ObjectId),
    /// Lengths or offsets contradict each other.
    #[error("the content is inconsistent")]
    BadContent,
    /// The name is not sealed under a generation of its directory, or its cookie is invalid.
    #[error("the name does not belong to a generation of its directory")]
    BadName,
    /// A value that no correct client sends.
    #[error("invalid argument")]
    Invalid,
    /// A count exceeds its bound.
    #[error("more than the bound of {limit}")]
    TooMany {
        /// The bound.
        limit: u32,
    },
    /// The bytes are not an operation or query of this version.
    #[error("the request does not decode")]
    Malformed,
    /// The operation is newer than the replicas.
    #[error("the request is of a newer version")]
    NewerVersion,
    /// Another epoch was begun before this one, or it is not the next.
    #[error("the realm is in key epoch {current}: this is not the next one")]
    WrongEpoch {
        /// The realm's current key epoch.
        current: RealmEpoch,
    },
    /// Too few clouds have confirmed that they hold their share.
    #[error("{confirmed} clouds have confirmed their shares, and {wanted} are needed")]
    TooFewConfirmed {
        /// The clouds that have confirmed.
        confirmed: u8,
        /// The number needed: n − f.
        wanted: u8,
    },
    /// The key epoch does not fit its lock, or its members are not principals, or an administrator
    /// is missing.
    #[error("the key epoch does not fit its lock or its members")]
    BadEpoch,
    /// No such extended attribute.
    #[error("no such extended attribute")]
    NoAttribute,
    /// This kind of inode does not have it.
    #[error("not supported by this kind of inode")]
    NotSupported,
    /// The user would exceed the quota.
    #[error("the quota of user {uid} leaves {remaining} more {of}, which is not enough")]
    UserQuota {
        /// The user.
        uid: Uid,
        /// The resource.
        of: Resource,
        /// The amount that is left.
        remaining: u64,
    },
    /// The realm would exceed its quota.
    #[error("the realm's quota leaves {remaining} more {of}, which is not enough")]
    RealmQuota {
        /// The resource.
        of: Resource,
        /// The amount that is left.
        remaining: u64,
    },
    /// The servers' own disks are nearly full.
    #[error("the disks of the metadata replicas are nearly full: only removals are accepted")]
    ServersFull,
    /// The volume root has not signed this replacement of a principal.
    #[error("the volume root has not signed this succession, or it is invalid")]
    BadSuccession,
    /// Another session does the job.
    #[error("session {by} does this job until {until}")]
    JobTaken {
        /// The session.
        by: SessionId,
        /// Until when, by the agreed time.
        until: Time,
    },
    /// Nothing is being recovered, or the session is not of the principal that recovers.
    #[error("this volume is not being recovered by this principal")]
    NotLoading,
    /// The open retained points are not there any more.
    #[error("the points are not retained any more, or one was chosen already")]
    NotRetained,
    /// The inode is not in the trash, or no longer.
    #[error("inode {0} is not in the trash")]
    NotTrashed(InodeId),
    /// The change of the clouds is not its sender's, or contradicts the volume's clouds.
    #[error("the change of the clouds is not signed by its sender, or contradicts the clouds")]
    BadCloudChange,
    /// The cloud holds a share of the newest key epoch's second lock.
    #[error("cloud {0} holds a share of the newest key: begin another key epoch first")]
    CloudHoldsShare(CloudIndex),
    /// The change of the principals is not its sender's, exceeds a bound, or is about a principal
    /// that is not an administrator's to change.
    #[error("the change of the principals is not signed by its sender, or not its to make")]
    BadPeopleChange,
    /// The principal is no member of the realm: its key epoch was begun without it.
    #[error("the principal is no member of the realm")]
    NotMember,
    /// What is to be stored is sealed under a key epoch that seals nothing any more.
    #[error(
        "key epoch {current} has begun, and what was sealed before it is not accepted any more"
    )]
    OldKeys {
        /// The realm's key epoch.
        current: RealmEpoch,
    },
    /// The names of the directory are sealed under another key epoch than this one.
    #[error("new names of this directory are sealed under key epoch {current}")]
    OtherGeneration {
        /// The generation of its new names.
        current: RealmEpoch,
    },
}

/// A Linux error number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Errno(pub i32);

#[allow(missing_docs)] // the names of errno(3)
impl Errno {
    pub const EPERM: Self = Self(1);
    pub const ENOENT: Self = Self(2);
    pub const EIO: Self = Self(5);
    pub const E2BIG: Self = Self(7);
    pub const EAGAIN: Self = Self(11);
    pub const EACCES: Self = Self(13);
    pub const EBUSY: Self = Self(16);
    pub const EEXIST: Self = Self(17);
    pub const EXDEV: Self = Self(18);
    pub const ENOTDIR: Self = Self(20);
    pub const EISDIR: Self = Self(21);
    pub const EINVAL: Self = Self(22);
    pub const EFBIG: Self = Self(27);
    pub const ENOSPC: Self = Self(28);
    pub const EMLINK: Self = Self(31);
    pub const ENAMETOOLONG: Self = Self(36);
    pub const ENOTEMPTY: Self = Self(39);
    pub const ELOOP: Self = Self(40);
    pub const ENODATA: Self = Self(61);
    pub const EPROTO: Self = Self(71);
    pub const EOPNOTSUPP: Self = Self(95);
    pub const ESTALE: Self = Self(116);
    pub const EDQUOT: Self = Self(122);
}

impl Error {
    /// The errno of a system call that fails with this error.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self {
            Self::NotFound | Self::NoRealm | Self::NotTrashed(_) => Errno::ENOENT,
            Self::Exists => Errno::EEXIST,
            Self::NotDirectory => Errno::ENOTDIR,
            Self::IsDirectory => Errno::EISDIR,
            Self::NotEmpty => Errno::ENOTEMPTY,
            Self::Denied => Errno::EACCES,
            Self::NotPermitted
            | Self::NoRight
            | Self::NotMember
            | Self::BadSuccession
            | Self::NotLoading => Errno::EPERM,
            Self::Stale(_) | Self::Fenced { .. } | Self::NoSession => Errno::ESTALE,
            Self::CrossRealm => Errno::EXDEV,
            Self::TooManyLinks => Errno::EMLINK,
            Self::IntoItself
            | Self::WrongKind
            | Self::Invalid
            | Self::BadCloudChange
            | Self::BadPeopleChange => Errno::EINVAL,
            Self::TooDeep => Errno::ELOOP,
            Self::NameTooLong => Errno::ENAMETOOLONG,
            Self::LimitReached | Self::RealmQuota { .. } | Self::ServersFull => Errno::ENOSPC,
            Self::UserQuota { .. } => Errno::EDQUOT,
            Self::FileTooLarge => Errno::EFBIG,
            Self::NotRetained => Errno::EAGAIN,
            Self::Changed
            | Self::Reaping
            | Self::WrongEpoch { .. }
            | Self::OldKeys { .. }
            | Self::OtherGeneration { .. } => Errno::EAGAIN,
            Self::TooManyRows | Self::TooMany { .. } => Errno::E2BIG,
            Self::Mounted { .. }
            | Self::NotMounted
            | Self::TooManyAllocations
            | Self::JobTaken { .. }
            | Self::CloudHoldsShare(_) => Errno::EBUSY,
            Self::NoObject(_)
            | Self::ObjectNotOwned(_)
            | Self::ObjectUsed(_)
            | Self::SliceNotOwned(_)
            | Self::SliceUsed(_)
            | Self::NoAllocation
            | Self::BadPlacement(_)
            | Self::BadContent
            | Self::BadName
            | Self::TooFewConfirmed { .. }
            | Self::BadEpoch => Errno::EIO,
            Self::NoAttribute => Errno::ENODATA,
            Self::NotSupported => Errno::EOPNOTSUPP,
            Self::Malformed | Self::NewerVersion => Errno::EPROTO,
        }
    }
}
