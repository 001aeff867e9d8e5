//! Takeover of a mount.
//!
//! Nothing is fenced by an operation that is refused, be it for another mount that stays.

use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::SessionId;

/// What happens to other sessions that have the realm mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Takeover {
    /// They keep the realm, and the operation is refused if the mounts cannot share.
    Refused,
    /// All whose mounts cannot share with the new one are fenced, whichever sessions they are.
    OfAny,
    /// This one is fenced, whose process has ended, as the caller knows. Any other session, which
    /// may have taken the realm over in the meantime, keeps it.
    Of(SessionId),
}

impl Takeover {
    /// Whether `holder` loses the realm, which may be in the way of the new mount.
    #[must_use]
    pub fn fences(self, holder: SessionId, in_the_way: bool) -> bool {
        match self {
            Self::Refused => false,
            Self::OfAny => in_the_way,
            Self::Of(session) => session == holder,
        }
    }
}
