//! What clouds were found to have done wrong, as far as it can be shown to them.
//!
//! Of each cloud a ring is kept: the newest findings, and how many there were in all. A finding is
//! the word of the principal that ordered it; what it can be compared with (the ordered digest, the
//! receipt, when the object was committed) comes from the object's row at that moment.

use crate::identity::{ObjectClass, ObjectId, PrincipalNumber, ShardIndex};
use crate::placement::Receipt;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::{Digest, Time};

/// What was wrong with a cloud's answer about a shard.
///
/// There is no kind for what is *stale*: names are used once and objects never change, so what a
/// cloud has rolled back is missing. And none for listings, which nothing relies on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, BorshSerialize, BorshDeserialize)]
pub enum FaultKind {
    /// It denies what it had acknowledged.
    Missing,
    /// It answers with bytes, or a length, that the ordered digest does not cover.
    WrongBytes,
    /// It acknowledged a put, and says that it stored something else than it was sent.
    WrongReceipt,
}

/// Whose fault it is, as far as the receipt tells.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// The cloud does not keep what it acknowledged.
    Cloud,
    /// The cloud keeps what it acknowledged: whoever wrote the object ordered another digest.
    Writer,
    /// There is no receipt, or nothing to compare with it.
    Undecided,
}

/// A finding as it is kept. The cloud and the place in its ring are in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Evidence {
    /// Of which object.
    pub object: ObjectId,
    /// What that is for; a part of its name at the cloud.
    pub class: ObjectClass,
    /// Which shard.
    pub shard: ShardIndex,
    /// Under which of its names.
    pub attempt: u8,
    /// What was wrong.
    pub fault: FaultKind,
    /// The digest that was ordered.
    pub digest: Digest,
    /// What the cloud said when it acknowledged the shard.
    pub receipt: Option<Receipt>,
    /// The checksum of what it answers now.
    pub found: Option<Receipt>,
    /// When the object was committed. What has an attempt above 0 was put later.
    pub committed: Time,
    /// Whose the object is.
    pub writer: PrincipalNumber,
    /// Who says so.
    pub witness: PrincipalNumber,
    /// When that was ordered.
    pub testified: Time,
}

impl FaultKind {
    /// Whose fault it is, by what the cloud said then and what it answers now.
    #[must_use]
    pub fn verdict(self, receipt: Option<Receipt>, found: Option<Receipt>) -> Verdict {
        match (self, receipt, found) {
            (Self::WrongReceipt, ..) | (Self::Missing, Some(_), _) => Verdict::Cloud,
            (Self::WrongBytes, Some(then), Some(now)) if then.is_like(&now) => match then == now {
                true => Verdict::Writer,
                false => Verdict::Cloud,
            },
            (Self::Missing | Self::WrongBytes, ..) => Verdict::Undecided,
        }
    }
}

impl Evidence {
    /// Whose fault it is.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.fault.verdict(self.receipt, self.found)
    }

    /// Whether two findings are of the same fault.
    #[must_use]
    pub fn is_same_fault(&self, other: &Self) -> bool {
        (self.object, self.shard, self.attempt, self.fault)
            == (other.object, other.shard, other.attempt, other.fault)
    }
}

/// How many findings there were of a cloud; the next one's place in the ring follows from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct EvidenceCount {
    /// All of them, whether they are still kept or not.
    pub total: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_tells_the_cloud_s_fault_from_the_writer_s_and_none_tells_nothing() {
        let (then, other) = (Receipt::Crc32c([1; 4]), Receipt::Crc32c([2; 4]));
        let unlike = Receipt::Crc32([1; 4]);
        use FaultKind::{Missing, WrongBytes, WrongReceipt};
        use Verdict::{Cloud, Undecided, Writer};
        for (fault, receipt, found, verdict) in [
            (WrongBytes, Some(then), Some(then), Writer),
            (WrongBytes, Some(then), Some(other), Cloud),
            (WrongBytes, Some(then), Some(unlike), Undecided),
            (WrongBytes, Some(then), None, Undecided),
            (WrongBytes, None, Some(then), Undecided),
            (Missing, Some(then), None, Cloud),
            (Missing, None, None, Undecided),
            (WrongReceipt, Some(other), Some(then), Cloud),
        ] {
            let found = fault.verdict(receipt, found);
            assert_eq!(found, verdict, "{fault:?} {receipt:?} {found:?}");
        }
    }
}
