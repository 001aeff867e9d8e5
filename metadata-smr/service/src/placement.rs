//! The spreading of an object over clouds.
//!
//! There are n clouds, of which f may be faulty, k data shards, and t shards that are kept. A
//! commit needs w = k + f acknowledgements from different clouds: whichever f of them lie or
//! vanish, k good shards remain. n ≥ 2f + k keeps w reachable with f clouds silent.

use crate::identity::CloudIndex;
use crate::limits::CLOUDS_MAX;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::Digest;
use std::{fmt, io};

/// n, f, k and t of an object or of a realm's new objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize)]
pub struct Policy {
    clouds: u8,
    faulty: u8,
    data: u8,
    target: u8,
}

/// Impossible numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a policy of n = {clouds}, f = {faulty}, k = {data}, t = {target} cannot work: it needs k ≥ 1, \
     n ≥ 2f + k, k + f ≤ t ≤ n and n ≤ {CLOUDS_MAX}"
)]
pub struct PolicyError {
    /// n: clouds.
    pub clouds: u8,
    /// f: faulty clouds.
    pub faulty: u8,
    /// k: data shards.
    pub data: u8,
    /// t: shards that are kept.
    pub target: u8,
}

impl Policy {
    /// Spreads over `clouds`, of which `faulty` may fail; any `data` shards rebuild, `target` are
    /// kept.
    ///
    /// # Errors
    /// If the numbers are impossible.
    pub fn new(clouds: u8, faulty: u8, data: u8, target: u8) -> Result<Self, PolicyError> {
        let (n, f, k, t) = (
            u32::from(clouds),
            u32::from(faulty),
            u32::from(data),
            u32::from(target),
        );
        let holds =
            k >= 1 && n >= 2 * f + k && t >= k + f && t <= n && usize::from(clouds) <= CLOUDS_MAX;
        if !holds {
            return Err(PolicyError {
                clouds,
                faulty,
                data,
                target,
            });
        }
        Ok(Self {
            clouds,
            faulty,
            data,
            target,
        })
    }

    /// n: shards that an object is coded into, one for each cloud.
    #[must_use]
    pub const fn clouds(&self) -> u8 {
        self.clouds
    }
    /// f: clouds that may fail in any way.
    #[must_use]
    pub const fn faulty(&self) -> u8 {
        self.faulty
    }
    /// k: shards that rebuild the object.
    #[must_use]
    pub const fn data(&self) -> u8 {
        self.data
    }
    /// t: shards that are kept once completion is done.
    #[must_use]
    pub const fn target(&self) -> u8 {
        self.target
    }
    /// w = k + f: acknowledgements before a commit.
    #[must_use]
    pub const fn write_quorum(&self) -> u8 {
        self.data + self.faulty
    }
}

impl BorshDeserialize for Policy {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        let [clouds, faulty, data, target] = <[u8; 4]>::deserialize_reader(reader)?;
        Self::new(clouds, faulty, data, target)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
    }
}

/// One shard of an object. Its index is its position in the object's list.
///
/// A shard is *awaited* until its cloud acknowledges it, and *withdrawn* when the acknowledgement
/// was found to be wrong. Restoring differs: an awaited shard's name was never taken, a withdrawn
/// one's was, and names are used once. The encoded state is one number: 0 awaited, 1 acknowledged,
/// 2 withdrawn; 3 to 5 are the same of a shard that has moved to another cloud, and the cloud that
/// it was coded for follows.
///
/// A shard that moves keeps its bytes, whose header names the cloud that it was coded for. So its
/// digest stays, and a process that moves shards can change nothing of any object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shard {
    /// The Merkle root over its header and cells.
    pub digest: Digest,
    /// Its present or future cloud.
    pub cloud: CloudIndex,
    /// Selects one of the shard's names there: a shard that is put again under create-only names
    /// uses the next one.
    pub attempt: u8,
    /// Whether the cloud has acknowledged it, as the writer or the reconciler claims.
    pub acknowledged: bool,
    /// Whether an acknowledgement was withdrawn since; never together with `acknowledged`.
    pub withdrawn: bool,
    /// The receipt of the cloud for this attempt's name, as the client that put it reports.
    pub receipt: Option<Receipt>,
    /// The cloud that its header names, if it has moved from there to another one.
    pub coded_for: Option<CloudIndex>,
}

/// What is claimed about a shard at the place that it moves to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum MovedClaim {
    /// Nothing: it is put there later, or enough other shards are kept.
    Awaited,
    /// Its new cloud has acknowledged it.
    Acknowledged,
    /// What was claimed about its old place, as a claim that was withdrawn: the writer is at fault,
    /// so no one can make the shard's bytes. Without this a writer would be rid of a claim that
    /// convicts it as soon as a cloud is replaced.
    Denied,
}

/// A checksum that a cloud reports for the data that it stored, of a kind that the cloud computes
/// itself.
///
/// It distinguishes a cloud's fault from a writer's. Bytes without the shard's digest but with the
/// receipt's checksum are those that the cloud acknowledged: another digest was ordered. Bytes with
/// neither are not those that it acknowledged. Only the client that put the shard attests the
/// receipt, and none of the kinds resists an attacker who searches for other content with the same
/// checksum. So a receipt serves to assign blame and for nothing more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, BorshSerialize, BorshDeserialize)]
pub enum Receipt {
    /// CRC-32 (ISO-HDLC), big-endian.
    Crc32([u8; 4]),
    /// CRC-32C (iSCSI), big-endian.
    Crc32c([u8; 4]),
    /// CRC-64/NVME, big-endian.
    Crc64([u8; 8]),
    /// MD5.
    Md5([u8; 16]),
}

impl Receipt {
    /// The name of the checksum's algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> &'static str {
        match self {
            Self::Crc32(_) => "crc32",
            Self::Crc32c(_) => "crc32c",
            Self::Crc64(_) => "crc64nvme",
            Self::Md5(_) => "md5",
        }
    }

    /// The checksum.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        match self {
            Self::Crc32(bytes) | Self::Crc32c(bytes) => bytes,
            Self::Crc64(bytes) => bytes,
            Self::Md5(bytes) => bytes,
        }
    }

    /// Whether both are of one kind and so comparable.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.algorithm())?;
        self.bytes()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Shard {
    /// Records the cloud's acknowledgement.
    pub fn acknowledge(&mut self) {
        self.acknowledged = true;
        self.withdrawn = false;
    }

    /// Withdraws an acknowledgement; has no effect on a shard without one.
    pub fn withdraw(&mut self) {
        self.withdrawn |= self.acknowledged;
        self.acknowledged = false;
    }

    /// The cloud that its header names.
    #[must_use]
    pub fn header_cloud(&self) -> CloudIndex {
        self.coded_for.unwrap_or(self.cloud)
    }

    /// Gives it a new place, about which this is claimed. Its header stays as it is.
    pub fn move_to(&mut self, cloud: CloudIndex, attempt: u8, claim: MovedClaim) {
        let was_claimed = self.is_claimed();
        let header_cloud = self.header_cloud();
        self.coded_for = (header_cloud != cloud).then_some(header_cloud);
        self.cloud = cloud;
        self.attempt = attempt;
        self.acknowledged = claim == MovedClaim::Acknowledged;
        self.withdrawn = claim == MovedClaim::Denied && was_claimed;
        self.receipt = None;
    }

    /// Whether its cloud is or was recorded as having acknowledged it.
    #[must_use]
    pub const fn is_claimed(&self) -> bool {
        self.acknowledged || self.withdrawn
    }
}

/// The number to add to a state if the shard has moved.
const MOVED: u8 = 3;

impl BorshSerialize for Shard {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        let state: u8 = match (self.acknowledged, self.withdrawn) {
            (true, _) => 1,
            (false, true) => 2,
            (false, false) => 0,
        };
        match self.coded_for {
            None => (self.digest, self.cloud, self.attempt, state).serialize(writer)?,
            Some(header_cloud) => {
                let state = state + MOVED;
                let place = (self.digest, self.cloud, self.attempt, state, header_cloud);
                place.serialize(writer)?;
            }
        }
        self.receipt.serialize(writer)
    }
}

impl BorshDeserialize for Shard {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        let (digest, cloud, attempt, state) =
            <(Digest, CloudIndex, u8, u8)>::deserialize_reader(reader)?;
        let invalid = |reason| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        let (state, coded_for) = match state {
            0..MOVED => (state, None),
            MOVED..=5 => {
                let header_cloud = CloudIndex::deserialize_reader(reader)?;
                (state - MOVED, Some(header_cloud))
            }
            _ => return invalid(format!("{state} is not a state of a shard")),
        };
        if coded_for == Some(cloud) {
            return invalid("a shard has moved to the cloud that it was coded for".to_owned());
        }
        Ok(Self {
            digest,
            cloud,
            attempt,
            acknowledged: state == 1,
            withdrawn: state == 2,
            receipt: BorshDeserialize::deserialize_reader(reader)?,
            coded_for,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policies_of_the_design_work_and_smaller_ones_do_not() {
        for (n, f, k) in [(4, 1, 2), (3, 1, 1), (5, 1, 3), (6, 1, 4), (7, 2, 3)] {
            let policy = Policy::new(n, f, k, n).expect("listed");
            assert_eq!(policy.write_quorum(), k + f);
            assert!(Policy::new(n - 1, f, k, n - 1).is_err());
            assert!(Policy::new(n, f, k, k + f - 1).is_err());
            assert!(Policy::new(n, f, k, n + 1).is_err());
        }
        assert!(Policy::new(255, 127, 0, 255).is_err());
    }

    #[test]
    fn a_shard_has_one_of_three_states_and_reads_back() {
        let mut shard = Shard {
            digest: Digest([7; 32]),
            cloud: CloudIndex(3),
            attempt: 2,
            acknowledged: false,
            withdrawn: false,
            receipt: None,
            coded_for: None,
        };
        let bytes = |shard: &Shard| borsh::to_vec(shard).expect("in memory");
        // After it comes one byte for the missing receipt.
        let last = |shard: &Shard| bytes(shard).iter().rev().nth(1).copied();
        shard.withdraw();
        assert_eq!(last(&shard), Some(0), "nothing was there to withdraw");
        for (state, change) in [
            (1, Shard::acknowledge as fn(&mut Shard)),
            (2, Shard::withdraw),
        ] {
            change(&mut shard);
            assert_eq!(last(&shard), Some(state));
            assert_eq!(borsh::from_slice(&bytes(&shard)).ok(), Some(shard));
        }
        shard.withdraw();
        assert_eq!(last(&shard), Some(2), "and it stays withdrawn");
        let mut bad = bytes(&shard);
        *bad.iter_mut().rev().nth(1).expect("not empty") = 6;
        assert!(borsh::from_slice::<Shard>(&bad).is_err());
    }

    #[test]
    fn a_shard_that_moves_keeps_the_cloud_of_its_header_and_forgets_it_when_it_is_back() {
        let mut shard = Shard {
            digest: Digest([7; 32]),
            cloud: CloudIndex(3),
            attempt: 2,
            acknowledged: true,
            withdrawn: false,
            receipt: Some(Receipt::Crc32([1; 4])),
            coded_for: None,
        };
        let bytes = |shard: &Shard| borsh::to_vec(shard).expect("in memory");
        let length = bytes(&shard).len();
        for cloud in [5, 6] {
            shard.move_to(CloudIndex(cloud), shard.attempt + 1, MovedClaim::Awaited);
            assert_eq!(shard.header_cloud(), CloudIndex(3));
            for change in [Shard::acknowledge as fn(&mut Shard), Shard::withdraw] {
                let moved = bytes(&shard);
                assert_eq!(borsh::from_slice(&moved).ok(), Some(shard));
                change(&mut shard);
            }
        }
        assert!(!shard.acknowledged && shard.receipt.is_none());
        shard.move_to(CloudIndex(3), shard.attempt + 1, MovedClaim::Awaited);
        assert_eq!((shard.coded_for, shard.attempt), (None, 5));
        assert_eq!(
            bytes(&shard).len(),
            length - 5,
            "no receipt and nothing else"
        );
        shard.coded_for = Some(shard.cloud);
        assert!(borsh::from_slice::<Shard>(&bytes(&shard)).is_err());
    }

    #[test]
    fn a_move_that_denies_keeps_a_claim_and_makes_none() {
        let mut shard = Shard {
            digest: Digest([7; 32]),
            cloud: CloudIndex(0),
            attempt: 0,
            acknowledged: true,
            withdrawn: false,
            receipt: None,
            coded_for: None,
        };
        let mut moved = |cloud, claim| {
            shard.move_to(CloudIndex(cloud), shard.attempt + 1, claim);
            (shard.acknowledged, shard.withdrawn)
        };
        assert_eq!(moved(1, MovedClaim::Denied), (false, true));
        assert_eq!(moved(2, MovedClaim::Denied), (false, true), "again");
        assert_eq!(moved(3, MovedClaim::Awaited), (false, false));
        assert_eq!(moved(4, MovedClaim::Denied), (false, false), "no claim");
        assert_eq!(moved(5, MovedClaim::Acknowledged), (true, false));
        // As the flag that it replaces was written.
        let claims = [MovedClaim::Awaited, MovedClaim::Acknowledged];
        assert_eq!(
            borsh::to_vec(&claims).ok(),
            borsh::to_vec(&[false, true]).ok()
        );
    }

    #[test]
    fn a_receipt_is_a_few_bytes_with_a_type() {
        for (receipt, bytes, text) in [
            (Receipt::Crc32([1, 2, 3, 4]), 5, "crc32 01020304"),
            (Receipt::Crc32c([0xff; 4]), 5, "crc32c ffffffff"),
            (Receipt::Crc64([0; 8]), 9, "crc64nvme 0000000000000000"),
            (
                Receipt::Md5([0xa; 16]),
                17,
                &format!("md5 {}", "0a".repeat(16)),
            ),
        ] {
            let written = borsh::to_vec(&receipt).expect("in memory");
            assert_eq!(written.len(), bytes);
            assert_eq!(borsh::from_slice::<Receipt>(&written).ok(), Some(receipt));
            assert_eq!(receipt.to_string(), text);
        }
        assert!(!Receipt::Crc32([0; 4]).is_like(&Receipt::Crc32c([0; 4])));
    }

    #[test]
    fn a_policy_that_cannot_work_does_not_decode() {
        assert!(borsh::from_slice::<Policy>(&[4, 1, 2, 4]).is_ok());
        assert!(borsh::from_slice::<Policy>(&[3, 1, 2, 3]).is_err());
    }
}
