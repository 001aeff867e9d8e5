//! Invitations of machines.

use crate::identity::PrincipalId;
use borsh::{BorshDeserialize, BorshSerialize};

/// An invitation of a further machine.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct InviteMachine {
    /// The invitation's key, which is new.
    pub key: PrincipalId,
    /// How long it lasts: at most
    /// [`INVITATION_SECONDS_MAX`](crate::limits::INVITATION_SECONDS_MAX).
    pub seconds: u64,
    /// What the machine needs to know of the volume, at most
    /// [`INVITATION_CARD_BYTES_MAX`](crate::limits::INVITATION_CARD_BYTES_MAX) bytes: opaque to
    /// the servers.
    pub card: Vec<u8>,
}
