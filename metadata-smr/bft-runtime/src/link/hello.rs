//! The greeting: the first frame in each direction, before anything else is read.
//!
//! TLS has shown whose keys are at both ends; the greeting states the cluster, the versions and the
//! role, and carries the acceptor's verdict, so that a refusal names its reason instead of being a
//! closed connection.
//!
//! ```text
//!   offset  bytes  what
//!   0       4      "QFSL"
//!   4       2      newest link version spoken, big-endian
//!   6       2      oldest link version spoken
//!   8       1      role: 1 replica, 2 client
//!   9       1      verdict: 0 from the dialer, or 0 welcome, else the reason of the refusal
//!   10      2      the sender's replica index; 65535 if it is a client or has none
//!   12      2      the replica index that the dialer wants to reach
//!   14      2      what authenticates votes in the sender's cluster: 0 signatures (and from
//!                  clients, which need not know), 1 the channels
//!   16      16     cluster
//!   32      8      a random number that the sending process drew at its start; 0 from clients
//! ```
//!
//! Indices are positions in the sender's epoch and serve only for logs: the two sides may be in
//! different epochs, and TLS has shown the keys. The number of the process distinguishes a replica
//! that dials again from a second process with the same key.

use super::LinkError;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::identity::{ClusterId, ReplicaId};

/// The version of frames and greeting of this program.
pub const LINK_VERSION: u16 = 2;
/// The oldest version that it supports.
pub const LINK_VERSION_OLDEST: u16 = 2;
/// The length of a greeting.
pub const HELLO_BYTES: usize = 40;
/// The length in version 1, which is read so that it can be refused by name.
const HELLO_BYTES_1: usize = 32;

const MAGIC: [u8; 4] = *b"QFSL";

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A replica, with this number in its epoch.
    Replica(ReplicaId),
    /// A client.
    Client,
}

/// Why an acceptor refused a dialer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It belongs to another cluster.
    #[error("it belongs to another cluster")]
    WrongCluster,
    /// No common version.
    #[error("it supports no protocol version that this program supports; upgrade the older one")]
    Version,
    /// The dialer claims to be a replica, with the acceptor's own key.
    #[error("it has the same key as this replica; give each replica a key of its own")]
    NotThatReplica,
    /// All connections are in use, for clients or for unknown replicas.
    #[error("all its connections are in use; try again later")]
    Full,
    /// This principal has as many connections as one may have.
    #[error("this principal has as many connections as one may have; close some")]
    FullForPrincipal,
    /// The key is blacklisted for a while.
    #[error("it ignores this key for a while, because of a message with an invalid signature")]
    Blacklisted,
    /// Votes are authenticated in another way here.
    #[error(
        "its cluster authenticates votes in another way; start all replicas of a cluster with the \
         same `authentication`"
    )]
    Authentication,
    /// Another process with the dialer's key is connected.
    #[error(
        "another process with the same key is connected to it; no two may share a key: stop one \
         of them"
    )]
    DuplicateProcess,
}

impl Refusal {
    const ALL: [Self; 8] = [
        Self::WrongCluster,
        Self::Version,
        Self::NotThatReplica,
        Self::Full,
        Self::FullForPrincipal,
        Self::Blacklisted,
        Self::Authentication,
        Self::DuplicateProcess,
    ];

    const fn byte(self) -> u8 {
        match self {
            Self::WrongCluster => 1,
            Self::Version => 2,
            Self::NotThatReplica => 3,
            Self::Full => 4,
            Self::FullForPrincipal => 5,
            Self::Blacklisted => 6,
            Self::Authentication => 7,
            Self::DuplicateProcess => 8,
        }
    }
}

/// A greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The newest version that the sender supports.
    pub newest: u16,
    /// The oldest version that it supports.
    pub oldest: u16,
    /// Its role.
    pub role: Role,
    /// The replica that the dialer wants to reach, by its number in the dialer's epoch.
    pub wanted: ReplicaId,
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// What authenticates votes, if the sender is a replica.
    pub authentication: Authentication,
    /// The number of its process, if it is a replica.
    pub process: u64,
    /// The acceptor's verdict.
    pub refusal: Option<Refusal>,
}

impl Hello {
    /// This program's greeting.
    #[must_use]
    pub fn new(cluster: ClusterId, role: Role, wanted: ReplicaId) -> Self {
        Self {
            newest: LINK_VERSION,
            oldest: LINK_VERSION_OLDEST,
            role,
            wanted,
            cluster,
            authentication: Authentication::Sig,
            process: 0,
            refusal: None,
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let (role, replica) = match self.role {
            Role::Replica(id) => (1, id.0),
            Role::Client => (2, ReplicaId::NONE.0),
        };
        let mut bytes = [0_u8; HELLO_BYTES];
        let fields = MAGIC
            .into_iter()
            .chain(self.newest.to_be_bytes())
            .chain(self.oldest.to_be_bytes())
            .chain([role, self.refusal.map_or(0, Refusal::byte)])
            .chain(replica.to_be_bytes())
            .chain(self.wanted.0.to_be_bytes())
            .chain(u16::from(self.authentication == Authentication::Mac).to_be_bytes())
            .chain(self.cluster.0)
            .chain(self.process.to_be_bytes());
        for (to, from) in bytes.iter_mut().zip(fields) {
            *to = from;
        }
        bytes
    }

    /// Reads a greeting.
    ///
    /// # Errors
    /// If the bytes are not a greeting.
    pub fn decode(bytes: &[u8]) -> Result<Self, LinkError> {
        let malformed = LinkError::Malformed("the greeting is malformed");
        let Some((bytes, process)) = bytes.split_first_chunk::<HELLO_BYTES_1>() else {
            return Err(malformed);
        };
        let process = match <[u8; 8]>::try_from(process) {
            Ok(process) => u64::from_be_bytes(process),
            Err(_) if process.is_empty() => 0,
            Err(_) => return Err(malformed),
        };
        let &[
            m0,
            m1,
            m2,
            m3,
            n0,
            n1,
            o0,
            o1,
            role,
            verdict,
            r0,
            r1,
            w0,
            w1,
            a0,
            a1,
            cluster @ ..,
        ] = bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(malformed);
        }
        let replica = u16::from_be_bytes([r0, r1]);
        let role = match role {
            1 => Role::Replica(ReplicaId(replica)),
            2 => Role::Client,
            _ => return Err(malformed),
        };
        let authentication = match u16::from_be_bytes([a0, a1]) {
            0 => Authentication::Sig,
            1 => Authentication::Mac,
            _ => return Err(malformed),
        };
        let refusal = match verdict {
            0 => None,
            byte => Some(
                Refusal::ALL
                    .into_iter()
                    .find(|refusal| refusal.byte() == byte)
                    .ok_or(malformed)?,
            ),
        };
        Ok(Self {
            newest: u16::from_be_bytes([n0, n1]),
            oldest: u16::from_be_bytes([o0, o1]),
            role,
            wanted: ReplicaId(u16::from_be_bytes([w0, w1])),
            cluster: ClusterId(cluster),
            authentication,
            process,
            refusal,
        })
    }

    /// Whether the other side supports a version that this program supports.
    #[must_use]
    pub fn is_compatible(&self) -> bool {
        self.oldest <= LINK_VERSION && LINK_VERSION_OLDEST <= self.newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_survives_its_bytes() {
        for refusal in [None].into_iter().chain(Refusal::ALL.map(Some)) {
            for role in [Role::Client, Role::Replica(ReplicaId(3))] {
                let mut hello = Hello::new(ClusterId([9; 16]), role, ReplicaId(2));
                hello.refusal = refusal;
                hello.process = 77;
                hello.authentication = match role {
                    Role::Client => Authentication::Sig,
                    Role::Replica(_) => Authentication::Mac,
                };
                assert_eq!(Hello::decode(&hello.encode()).expect("own bytes"), hello);
            }
        }
    }

    #[test]
    fn the_greeting_has_the_released_bytes() {
        let mut hello = Hello::new(
            ClusterId([0xab; 16]),
            Role::Replica(ReplicaId(1)),
            ReplicaId(2),
        );
        hello.process = 0x0102_0304_0506_0708;
        let hex: String = hello
            .encode()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            hex,
            "5146534c0002000201000001000200 00".replace(' ', "")
                + &"ab".repeat(16)
                + "0102030405060708"
        );
    }

    #[test]
    fn bytes_that_are_not_a_greeting_are_refused() {
        let good = Hello::new(ClusterId([9; 16]), Role::Client, ReplicaId(2)).encode();
        assert!(Hello::decode(&good[..31]).is_err());
        assert!(Hello::decode(&good[..39]).is_err());
        let mut first = good;
        first[..8].copy_from_slice(b"QFSL\0\x01\0\x01");
        let first = Hello::decode(&first[..32]).expect("of version 1");
        assert!(!first.is_compatible());
        for (place, value) in [(0, b'X'), (8, 0), (8, 3), (9, 9), (9, 255), (15, 2)] {
            let mut bad = good;
            bad[place] = value;
            assert!(Hello::decode(&bad).is_err(), "{place}");
        }
    }
}
