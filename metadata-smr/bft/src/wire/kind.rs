//! Kinds of messages, and who may send which.

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Kind {
    Request,
    OpenSession,
    CloseSession,
    Proposal,
    Prepare,
    Commit,
    ViewChange,
    NewView,
    Suspect,
    Status,
    Reply,
    FetchBodies,
    Bodies,
    FetchCommitted,
    Committed,
    StatusQuery,
    StatusAnswer,
    Checkpoint,
    Stable,
    FetchNodes,
    Nodes,
    Read,
    ReadAnswer,
    Observe,
    Observed,
    Report,
    WatchEvent,
    FetchEpochs,
    Epochs,
    Claims,
    FetchCopy,
    CopyPart,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 32] = [
        Self::Request,
        Self::OpenSession,
        Self::CloseSession,
        Self::Proposal,
        Self::Prepare,
        Self::Commit,
        Self::ViewChange,
        Self::NewView,
        Self::Suspect,
        Self::Status,
        Self::Reply,
        Self::FetchBodies,
        Self::Bodies,
        Self::FetchCommitted,
        Self::Committed,
        Self::StatusQuery,
        Self::StatusAnswer,
        Self::Checkpoint,
        Self::Stable,
        Self::FetchNodes,
        Self::Nodes,
        Self::Read,
        Self::ReadAnswer,
        Self::Observe,
        Self::Observed,
        Self::Report,
        Self::WatchEvent,
        Self::FetchEpochs,
        Self::Epochs,
        Self::Claims,
        Self::FetchCopy,
        Self::CopyPart,
    ];

    /// The domain tag that begins its frames and signed bytes.
    #[must_use]
    pub const fn tag(self) -> [u8; 8] {
        *match self {
            Self::Request => b"QFS:REQU",
            Self::OpenSession => b"QFS:OPEN",
            Self::CloseSession => b"QFS:CLOS",
            Self::Proposal => b"QFS:PROP",
            Self::Prepare => b"QFS:PREP",
            Self::Commit => b"QFS:COMM",
            Self::ViewChange => b"QFS:VCHG",
            Self::NewView => b"QFS:NEWV",
            Self::Suspect => b"QFS:SUSP",
            Self::Status => b"QFS:STAT",
            Self::Reply => b"QFS:REPL",
            Self::FetchBodies => b"QFS:FBOD",
            Self::Bodies => b"QFS:BODS",
            Self::FetchCommitted => b"QFS:FCOM",
            Self::Committed => b"QFS:CMTD",
            Self::StatusQuery => b"QFS:SQRY",
            Self::StatusAnswer => b"QFS:SANS",
            Self::Checkpoint => b"QFS:CKPT",
            Self::Stable => b"QFS:STBL",
            Self::FetchNodes => b"QFS:FNOD",
            Self::Nodes => b"QFS:NODS",
            Self::Read => b"QFS:READ",
            Self::ReadAnswer => b"QFS:RANS",
            Self::Observe => b"QFS:OBSV",
            Self::Observed => b"QFS:OBSD",
            Self::Report => b"QFS:RPRT",
            Self::WatchEvent => b"QFS:EVNT",
            Self::FetchEpochs => b"QFS:FEPO",
            Self::Epochs => b"QFS:EPOC",
            Self::Claims => b"QFS:CLMS",
            Self::FetchCopy => b"QFS:FCPY",
            Self::CopyPart => b"QFS:COPY",
        }
    }

    /// The kind with this tag.
    #[must_use]
    pub fn of_tag(tag: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.tag() == tag)
    }

    /// Whether its frames end with a signature.
    #[must_use]
    pub const fn signed(self) -> bool {
        matches!(
            self,
            Self::Request
                | Self::OpenSession
                | Self::CloseSession
                | Self::Proposal
                | Self::Prepare
                | Self::Commit
                | Self::ViewChange
                | Self::NewView
                | Self::Suspect
                | Self::Checkpoint
                | Self::Claims
        )
    }

    /// Whether a client's connection may carry it towards a replica.
    #[must_use]
    pub const fn from_clients(self) -> bool {
        matches!(
            self,
            Self::Request
                | Self::OpenSession
                | Self::CloseSession
                | Self::StatusQuery
                | Self::Read
                | Self::Observe
                | Self::FetchEpochs
                | Self::FetchCopy
        )
    }

    /// Whether its frames mean something in other epochs than their own: messages that clients
    /// sign, which are sent again unchanged in any epoch, and messages that help replicas in
    /// another epoch. These prove themselves, or promise nothing.
    #[must_use]
    pub const fn crosses_epochs(self) -> bool {
        self.from_clients()
            || matches!(
                self,
                Self::Status | Self::FetchCommitted | Self::FetchNodes | Self::Nodes | Self::Epochs
            )
    }
}
