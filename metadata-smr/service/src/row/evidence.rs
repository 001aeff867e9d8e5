//! Faults of clouds, as far as they can be shown to the providers.
//!
//! Each cloud has a ring of the newest findings and a counter of all. A finding is a claim of the
//! principal that ordered it; the values to compare it with (the ordered digest, the receipt, the
//! time of the object's commit) come from the object's row at that moment.

use crate::identity::{ObjectClass, ObjectId, PrincipalNumber, ShardIndex};
use crate::placement::Receipt;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::{Digest, Time};

/// The fault of a cloud's answer about a shard.
///
/// There is no kind for *stale* answers: names are used once and objects never change, so an object
/// that a cloud has rolled back is missing. There is none for listings either, because nothing
/// relies on them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, BorshSerialize, BorshDeserialize)]
pub enum FaultKind {
    /// It denies a shard that it had acknowledged.
    Missing,
    /// It answers with bytes, or a length, that the ordered digest does not cover.
    WrongBytes,
    /// It acknowledged a put with a receipt for other bytes than those sent.
    WrongReceipt,
}

/// The party at fault, as far as the receipt shows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// The cloud lost or altered the data that it acknowledged.
    Cloud,
    /// The cloud stores the data that it acknowledged: the object's writer ordered another digest.
    Writer,
    /// There is no receipt, or nothing to compare with it.
    Undecided,
}

/// A recorded finding. The cloud and the place in its ring are in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Evidence {
    /// The object.
    pub object: ObjectId,
    /// Its class, which is part of its name on the cloud.
    pub class: ObjectClass,
    /// The shard.
    pub shard: ShardIndex,
    /// The object's generation, which is part of the name.
    pub generation: u8,
    /// The attempt, which is part of the name too.
    pub attempt: u8,
    /// The fault.
    pub fault: FaultKind,
    /// The digest that was ordered.
    pub digest: Digest,
    /// The cloud's receipt from its acknowledgement.
    pub receipt: Option<Receipt>,
    /// The checksum of its present answer.
    pub found: Option<Receipt>,
    /// When the object was committed. A shard with an attempt above 0 was put later.
    pub committed: Time,
    /// The object's principal.
    pub writer: PrincipalNumber,
    /// The principal that reports it.
    pub witness: PrincipalNumber,
    /// When the finding was ordered.
    pub testified: Time,
}

impl FaultKind {
    /// The party at fault, from the old receipt and the present answer.
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
    /// The party at fault.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.fault.verdict(self.receipt, self.found)
    }

    /// Whether two findings are of the same fault.
    #[must_use]
    pub fn is_same_fault(&self, other: &Self) -> bool {
        let about = |it: &Self| (it.object, it.shard, it.generation, it.attempt, it.fault);
        about(self) == about(other)
    }
}

/// The number of findings of a cloud, from which the next one's slot in the ring follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct EvidenceCount {
    /// All findings, recorded or replaced.
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
