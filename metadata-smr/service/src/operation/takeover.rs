//! Takeover of a mount.

use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::SessionId;

/// What happens to another session that has the realm mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Takeover {
    /// It keeps the realm, and the operation is refused.
    Refused,
    /// It is fenced, whichever session it is.
    OfAny,
    /// It is fenced if it is this one, whose process has ended, as the caller knows. Any other
    /// session, which may have taken the realm over in the meantime, keeps it.
    Of(SessionId),
}

impl Takeover {
    /// Whether `holder` loses the realm.
    #[must_use]
    pub fn fences(self, holder: SessionId) -> bool {
        match self {
            Self::Refused => false,
            Self::OfAny => true,
            Self::Of(session) => session == holder,
        }
    }
}
