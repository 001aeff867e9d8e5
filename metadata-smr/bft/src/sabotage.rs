//! Defects that a simulation plants in every honest replica, to show that it would find them.
//!
//! No release has them: the feature `sabotage`, which the simulator switches on, adds the only
//! fields that can hold one. Without it [`Planted`] and [`Flag`] have no bytes and answer "no" at
//! compile time, so that the branches of a defect are not compiled at all. Crate-level tests have
//! the feature's code too.

/// A defect that a simulation has to find.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sabotage {
    /// The medium quorum is one too small.
    QuorumOneShort,
    /// COMMIT leaves when the own vote is durable, though the prepared certificate is not.
    VoteWithoutPreparedCertificate,
    /// PREPARE leaves without the bodies.
    PrepareWithoutBody,
    /// A proposal that a view change carried over is refused because of its time.
    ReproposalRefusedByClock,
    /// A vote that comes twice counts twice.
    DuplicateSignerCounted,
    /// A retry of the last request of a lane is executed again.
    RetryExecutedTwice,
    /// Messages do not wait for the disk.
    ForgottenFsync,
    /// Nodes of a transferred state are not compared with the digest that their parent names.
    TransferUnverified,
    /// A view begins with the certificates of the lowest views that are shown.
    LockOnLowerView,
    /// COMMIT is given for a batch before the one that it follows upon is prepared.
    CommitBeforePredecessor,
    /// Queries are answered without saying when their data last changed.
    ReadWithoutVersion,
    /// No STATUS is sent, so lost messages are not sent again.
    MissingStatus,
    /// A state is transferred without the replies that were given in it: a client that asks again
    /// is told that they are gone.
    ReplyCacheOutsideState,
    /// A leader's throughput is compared however little there is to do.
    ThroughputComparedIdle,
    /// Clients accept a single replica's report that a watched row has changed.
    WatchOnOneCopy,
    /// Proposals and votes of an earlier epoch count in this one.
    OldEpochVoteCounted,
    /// A batch that one replica claims to have prepared is chosen though too few have accepted it.
    ClaimNotAccepted,
    /// A view begins with nothing where it is not known yet what it begins with.
    NothingInsteadOfWaiting,
    /// A committed batch is accepted from one replica alone.
    OneVoucher,
    /// A certificate that lacks a vote is accepted.
    CertificateOneShort,
    /// Where votes are not signed, one in another replica's name is accepted.
    VoteInAnothersName,
    /// A leader that restarts goes on in the view that it led.
    OldViewLedAgain,
    /// A leader hands over to any replica that is well, also to one that comes after it.
    HandoverLoops,
    /// A client waits for answers to queries as long over any way.
    PatienceFixed,
    /// A client drops answers to an earlier try of a query, and does not measure them.
    EarlierTryDropped,
}

impl Sabotage {
    /// Every defect.
    pub const ALL: [Self; 25] = [
        Self::QuorumOneShort,
        Self::VoteWithoutPreparedCertificate,
        Self::PrepareWithoutBody,
        Self::ReproposalRefusedByClock,
        Self::DuplicateSignerCounted,
        Self::RetryExecutedTwice,
        Self::ForgottenFsync,
        Self::TransferUnverified,
        Self::LockOnLowerView,
        Self::CommitBeforePredecessor,
        Self::ReadWithoutVersion,
        Self::MissingStatus,
        Self::ReplyCacheOutsideState,
        Self::ThroughputComparedIdle,
        Self::WatchOnOneCopy,
        Self::OldEpochVoteCounted,
        Self::ClaimNotAccepted,
        Self::NothingInsteadOfWaiting,
        Self::OneVoucher,
        Self::CertificateOneShort,
        Self::VoteInAnothersName,
        Self::OldViewLedAgain,
        Self::HandoverLoops,
        Self::PatienceFixed,
        Self::EarlierTryDropped,
    ];
}

/// The defect that is planted, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planted {
    #[cfg(any(test, feature = "sabotage"))]
    defect: Option<Sabotage>,
}

impl Planted {
    /// No defect: the setting of every program but a simulation.
    pub const NONE: Self = Self {
        #[cfg(any(test, feature = "sabotage"))]
        defect: None,
    };

    /// This defect, or none.
    #[cfg(any(test, feature = "sabotage"))]
    #[must_use]
    pub const fn new(defect: Option<Sabotage>) -> Self {
        Self { defect }
    }

    /// Whether it is this one.
    #[cfg(any(test, feature = "sabotage"))]
    #[must_use]
    pub fn is(self, defect: Sabotage) -> bool {
        self.defect == Some(defect)
    }

    /// Whether it is this one: never.
    #[cfg(not(any(test, feature = "sabotage")))]
    #[must_use]
    #[inline(always)]
    pub const fn is(self, _defect: Sabotage) -> bool {
        false
    }

    /// The same, to be stored in the part that has the defect.
    #[must_use]
    pub fn flag(self, defect: Sabotage) -> Flag {
        match self.is(defect) {
            #[cfg(any(test, feature = "sabotage"))]
            true => Flag::SET,
            _ => Flag::CLEAR,
        }
    }
}

/// Whether a part has a planted defect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flag {
    #[cfg(any(test, feature = "sabotage"))]
    set: bool,
}

impl Flag {
    /// It has none.
    pub const CLEAR: Self = Self {
        #[cfg(any(test, feature = "sabotage"))]
        set: false,
    };

    /// It has one.
    #[cfg(any(test, feature = "sabotage"))]
    pub const SET: Self = Self { set: true };

    /// Whether it has one.
    #[cfg(any(test, feature = "sabotage"))]
    #[must_use]
    pub const fn is_set(self) -> bool {
        self.set
    }

    /// Whether it has one: never.
    #[cfg(not(any(test, feature = "sabotage")))]
    #[must_use]
    #[inline(always)]
    pub const fn is_set(self) -> bool {
        false
    }
}
