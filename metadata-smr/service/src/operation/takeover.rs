//! Takeover of a mount.
//!
//! Nothing is fenced by an operation that is refused, be it for another mount that stays.

use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::SessionId;

/// What happens to other sessions that have the realm mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Takeover {
    /// They keep the realm. The operation is refused if the mounts cannot share, and waits for one
    /// that is alone for as long as that takes.
    Refused,
    /// All whose mounts cannot share with the new one are fenced, whichever sessions they are.
    OfAny,
    /// This one is fenced, whose process has ended, as the caller knows. Any other session, which
    /// may have taken the realm over in the meantime, keeps it.
    Of(SessionId),
    /// One is fenced that is alone, was recalled, and has not shared in time. After that the other
    /// variants but `Refused` fence it too.
    OfUnresponsive,
}

impl Takeover {
    /// Whether `holder` loses the realm: it may be in the way of the new mount, or `unresponsive`,
    /// since it was to share with the new mount by now.
    #[must_use]
    pub fn fences(self, holder: SessionId, in_the_way: bool, unresponsive: bool) -> bool {
        match self {
            Self::Refused => false,
            Self::OfAny => in_the_way || unresponsive,
            Self::Of(session) => session == holder || unresponsive,
            Self::OfUnresponsive => unresponsive,
        }
    }
}
