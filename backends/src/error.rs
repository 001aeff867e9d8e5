//! Errors that a store reports: the kind for programs, the rest for people.
//!
//! Every error names the operation, the cloud and the object, the cause, and what to do. Callers
//! decide on the [`StoreErrorKind`]. Nothing here is trusted: a lying cloud may return any kind for
//! any reason, and the caller only ever uses it to choose what to try next.

use crate::name::ObjectName;
use std::fmt;

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Opening the store.
    Open,
    /// Creating the store.
    Create,
    /// Creating an object.
    Put,
    /// Reading an object, or a range of one.
    Get,
    /// Asking for an object's length.
    Head,
    /// Listing names.
    List,
    /// Deleting an object.
    Delete,
    /// Signing a URL at which anyone reads an object.
    Presign,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Create => "create",
            Self::Put => "put",
            Self::Get => "get",
            Self::Head => "head",
            Self::List => "list",
            Self::Delete => "delete",
            Self::Presign => "presign",
        })
    }
}

/// The kind that a caller decides on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreErrorKind {
    /// There is no such object.
    NotFound,
    /// There is an object of this name already; nothing was written.
    AlreadyExists,
    /// The store is unreachable or missing.
    Unavailable,
    /// The cloud asks for fewer requests.
    Throttled,
    /// The deadline passed; the operation may yet take effect.
    Timeout,
    /// No space or quota left.
    Full,
    /// The store can be read only.
    ReadOnly,
    /// The credentials or permissions do not allow it.
    Denied,
    /// The cloud considers this machine's clock wrong, and so every signature invalid.
    Clock,
    /// The cloud is reachable but has no such bucket or container.
    NoContainer,
    /// The store belongs to another volume, or to none: it holds something else.
    Foreign,
    /// The store or object was written by a newer version.
    NewerFormat,
    /// The store's content cannot be right.
    Corrupt,
    /// This store or these credentials cannot do it, whatever its state; nothing was tried.
    Unsupported,
    /// Any other failure; the text gives the reason.
    Other,
}

impl StoreErrorKind {
    /// The advice for a person.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::NotFound => {
                "if the object should exist, repair restores it from the other clouds"
            }
            Self::AlreadyExists => "names are used once; take another",
            Self::Unavailable => {
                "check that the cloud is reachable or, if it is a directory, that it exists"
            }
            Self::Throttled => {
                "it recovers by itself; if not, lower this cloud's limits or raise its quota"
            }
            Self::Timeout => "check the cloud's health and the network to it",
            Self::Full => "free space or raise the quota on this cloud",
            Self::ReadOnly => "make the cloud writable: remount it or change its permissions",
            Self::Denied => {
                "check the permissions or credentials for this cloud, and whether they expired"
            }
            Self::Clock => "set this machine's clock: let it follow a time server",
            Self::NoContainer => {
                "check the bucket's or container's name and region, or create it at the provider"
            }
            Self::Foreign => {
                "point this cloud at where its volume was created, or at an empty place"
            }
            Self::NewerFormat => "use a newer quorumfs",
            Self::Corrupt => {
                "objects are repaired from the other clouds; restore a marker from a \
                 backup, or empty the place and adopt it again with `quorumfs cloud adopt`"
            }
            Self::Unsupported => "it is the same at each try: choose what the message offers",
            Self::Other => "see the message of the operating system or of the cloud",
        }
    }

    /// Whether the same operation may succeed later without a person's intervention.
    #[must_use]
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            Self::Unavailable | Self::Throttled | Self::Timeout | Self::Other
        )
    }

    /// Whether the fault concerns the whole cloud rather than one object.
    #[must_use]
    pub fn concerns_the_cloud(self) -> bool {
        !matches!(
            self,
            Self::NotFound | Self::AlreadyExists | Self::Corrupt | Self::Unsupported
        )
    }
}

/// A store's refusal or failure.
#[derive(Clone, Debug, thiserror::Error)]
pub struct StoreError {
    /// The kind that a caller decides on.
    pub kind: StoreErrorKind,
    /// The operation that failed.
    pub operation: Operation,
    /// The cloud: its index and place.
    pub cloud: String,
    /// The object, if one was concerned.
    pub object: Option<ObjectName>,
    /// The cause.
    pub detail: String,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.cloud, self.operation)?;
        if let Some(object) = &self.object {
            write!(f, " {object}")?;
        }
        write!(f, ": {}; {}", self.detail, self.kind.advice())
    }
}
