//! Whose mount a session may take.

use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::SessionId;

/// What becomes of the session that has the realm mounted, if another one has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Takeover {
    /// It keeps the realm, and the operation is refused.
    Refused,
    /// It is fenced, whoever it is.
    OfAny,
    /// It is fenced if it is this one, of which the caller knows that its process has ended;
    /// another, which may have taken the realm over meanwhile, keeps it.
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
