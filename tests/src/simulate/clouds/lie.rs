//! What a cloud may do that it must not, and to which request.

use quorumfs_bft_simulator::random::Random;

/// One way of not being an object store. Their names are those of the counters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Lie {
    /// A put is done, and said to have failed.
    DropAcknowledgement,
    /// A put is acknowledged and forgotten.
    AcknowledgeWithoutStoring,
    /// A put is done, acknowledged, and lost after a while.
    LoseLater,
    /// A put is done, and acknowledged as a put of something else.
    WrongReceipt,
    /// A put takes a name that is taken: both writers are told that they won.
    BothWin,
    /// A put or a get is refused for a reason that is not true.
    Refuse,
    /// One bit is another, at rest or on the way.
    FlipBit,
    /// The end is missing, at rest or on the way.
    Truncate,
    /// There is more than was written.
    Extend,
    /// All bytes are zero.
    Zeros,
    /// Another object's bytes.
    Swap,
    /// The same shard as it lies under another of its names.
    OtherVersion,
    /// An object that is there is denied.
    Deny,
    /// Every second client is given other bytes.
    Equivocate,
    /// Whole objects are right, and ranges of them are not.
    RangedOnly,
    /// The length is another one.
    WrongLength,
    /// The names that there were some time ago.
    OldList,
    /// A name is left out.
    OmitFromList,
    /// A name that was never written.
    PhantomInList,
    /// A name is there twice.
    DuplicateInList,
    /// An object goes while nobody asked for that.
    DeleteSpontaneously,
    /// A deleted object is back.
    Resurrect,
    /// What another liar holds for the same object is handed out instead.
    Collude,
}

/// What is asked of a cloud.
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
    /// Names.
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

    /// Its counter.
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

    /// Whether it can be told in answer to such a request.
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

/// What a lying cloud is like: which lies it tells, and how often.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Character {
    lies: Vec<Lie>,
    /// Lies in a thousand answers.
    per_mille: u64,
}

impl Character {
    /// Draws one: a few lies told often, or all of them now and then.
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

    /// The lie that such a request is answered with, if it is to be one.
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
