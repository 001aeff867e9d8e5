//! The lies of a cloud: how it may violate its contract, and for which requests.

use quorumfs_bft_simulator::random::Random;

/// A violation of the contract of an object store. The counters are named after these.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Lie {
    /// A put is done, and reported as failed.
    DropAcknowledgement,
    /// A put is acknowledged and not stored.
    AcknowledgeWithoutStoring,
    /// A put is done, acknowledged, and lost after a while.
    LoseLater,
    /// A put is done, and its receipt is for something else.
    WrongReceipt,
    /// A put accepts a name that is taken: both writers get a success.
    BothWin,
    /// A put or a get is refused for a false reason.
    Refuse,
    /// One bit is flipped, at rest or in transit.
    FlipBit,
    /// The end is missing, at rest or in transit.
    Truncate,
    /// There is more than was written.
    Extend,
    /// All bytes are zero.
    Zeros,
    /// Another object's bytes.
    Swap,
    /// The same shard, stored under another of its names.
    OtherVersion,
    /// An existing object is reported as missing.
    Deny,
    /// Every second client gets other bytes.
    Equivocate,
    /// Whole objects are right, and ranges of them are wrong.
    RangedOnly,
    /// A wrong length.
    WrongLength,
    /// The names of some time ago.
    OldList,
    /// A name is left out.
    OmitFromList,
    /// A name that was never written.
    PhantomInList,
    /// A name is there twice.
    DuplicateInList,
    /// An object disappears without a request to delete it.
    DeleteSpontaneously,
    /// A deleted object returns.
    Resurrect,
    /// Returns the bytes that another liar holds for the same object.
    Collude,
}

/// A request to a cloud.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum CloudRequest {
    /// Create an object.
    Put,
    /// All of an object.
    Get,
    /// A range of an object.
    GetRange,
    /// An object's length.
    Head,
    /// A list of names.
    List,
}

impl Lie {
    /// All of them.
    pub(super) const ALL: [Self; 23] = [
        Self::DropAcknowledgement,
        Self::AcknowledgeWithoutStoring,
        Self::LoseLater,
        Self::WrongReceipt,
        Self::BothWin,
        Self::Refuse,
        Self::FlipBit,
        Self::Truncate,
        Self::Extend,
        Self::Zeros,
        Self::Swap,
        Self::OtherVersion,
        Self::Deny,
        Self::Equivocate,
        Self::RangedOnly,
        Self::WrongLength,
        Self::OldList,
        Self::OmitFromList,
        Self::PhantomInList,
        Self::DuplicateInList,
        Self::DeleteSpontaneously,
        Self::Resurrect,
        Self::Collude,
    ];

    /// The name of its counter.
    #[must_use]
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::DropAcknowledgement => "lie_drop_acknowledgement",
            Self::AcknowledgeWithoutStoring => "lie_acknowledge_without_storing",
            Self::LoseLater => "lie_lose_later",
            Self::WrongReceipt => "lie_wrong_receipt",
            Self::BothWin => "lie_both_win",
            Self::Refuse => "lie_refuse",
            Self::FlipBit => "lie_flip_bit",
            Self::Truncate => "lie_truncate",
            Self::Extend => "lie_extend",
            Self::Zeros => "lie_zeros",
            Self::Swap => "lie_swap",
            Self::OtherVersion => "lie_other_version",
            Self::Deny => "lie_deny",
            Self::Equivocate => "lie_equivocate",
            Self::RangedOnly => "lie_ranged_only",
            Self::WrongLength => "lie_wrong_length",
            Self::OldList => "lie_old_list",
            Self::OmitFromList => "lie_omit_from_list",
            Self::PhantomInList => "lie_phantom_in_list",
            Self::DuplicateInList => "lie_duplicate_in_list",
            Self::DeleteSpontaneously => "lie_delete_spontaneously",
            Self::Resurrect => "lie_resurrect",
            Self::Collude => "lie_collude",
        }
    }

    /// Whether it is possible in answer to such a request.
    #[must_use]
    pub(super) fn fits(self, request: CloudRequest) -> bool {
        use CloudRequest::{Get, GetRange, Head, List, Put};
        match self {
            Self::DropAcknowledgement
            | Self::AcknowledgeWithoutStoring
            | Self::LoseLater
            | Self::WrongReceipt
            | Self::BothWin => request == Put,
            Self::Refuse => matches!(request, Put | Get | GetRange),
            Self::FlipBit | Self::Truncate | Self::Zeros => matches!(request, Put | Get | GetRange),
            Self::Extend
            | Self::Swap
            | Self::OtherVersion
            | Self::Equivocate
            | Self::DeleteSpontaneously
            | Self::Collude => matches!(request, Get | GetRange),
            Self::RangedOnly => request == GetRange,
            Self::Deny | Self::Resurrect => matches!(request, Get | GetRange | Head),
            Self::WrongLength => request == Head,
            Self::OldList | Self::OmitFromList | Self::PhantomInList | Self::DuplicateInList => {
                matches!(request, List)
            }
        }
    }
}

/// The character of a lying cloud: which lies it tells, and how often.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Character {
    lies: Vec<Lie>,
    /// The number of lies in a thousand answers.
    per_mille: u64,
}

impl Character {
    /// Draws one: a few lies told often, or all of them sometimes.
    pub(super) fn draw(random: &mut Random) -> Self {
        let mut lies = Lie::ALL.to_vec();
        if random.chance(2, 3) {
            random.shuffle(&mut lies);
            lies.truncate(1 + random.index(4));
        }
        let per_mille = match random.below(3) {
            0 => 1000,
            1 => random.between(300, 900),
            _ => random.between(50, 300),
        };
        Self { lies, per_mille }
    }

    /// The lie that such a request is answered with, if any.
    pub(super) fn choose(&self, request: CloudRequest, random: &mut Random) -> Option<Lie> {
        if !random.chance(self.per_mille, 1000) {
            return None;
        }
        let fitting: Vec<Lie> = self
            .lies
            .iter()
            .copied()
            .filter(|lie| lie.fits(request))
            .collect();
        random.pick(&fitting).copied()
    }
}
