//! The keys of principals that come and go.

use crate::identity::PrincipalId;
use quorumfs_bft::identity::Time;

pub(super) const PEOPLE_CHANGE: &[u8] = b"PH/";
pub(super) const PEOPLE_CHANGES: &[u8] = b"PL/";
pub(super) const EXPIRY: &[u8] = b"PX/";
pub(super) const FORMER: &[u8] = b"PF/";
pub(super) const MACHINE: &[u8] = b"PM/";
pub(super) const INVITATION: &[u8] = b"PI/";
pub(super) const DUE_INVITATION: &[u8] = b"PJ/";

/// All changes of the principals.
#[must_use]
pub fn all_people_changes() -> Vec<u8> {
    PEOPLE_CHANGE.to_vec()
}

/// A change of the principals, by its number.
#[must_use]
pub fn people_change(number: u32) -> Vec<u8> {
    key!(PEOPLE_CHANGE, number.to_be_bytes())
}

/// The number of changes of the principals.
#[must_use]
pub fn people_changes() -> Vec<u8> {
    PEOPLE_CHANGES.to_vec()
}

/// All principals that expire, the first one first.
#[must_use]
pub fn expiries() -> Vec<u8> {
    EXPIRY.to_vec()
}

/// A principal that expires then, by the agreed time.
#[must_use]
pub fn expiry(at: Time, principal: &PrincipalId) -> Vec<u8> {
    key!(EXPIRY, at.0.to_be_bytes(), principal.0)
}

/// A key that was a principal's until an administrator dismissed it, or it expired.
#[must_use]
pub fn former(principal: &PrincipalId) -> Vec<u8> {
    key!(FORMER, principal.0)
}

/// All further machines of members.
#[must_use]
pub fn machines() -> Vec<u8> {
    MACHINE.to_vec()
}

/// A further machine of a member, by its key.
#[must_use]
pub fn machine(principal: &PrincipalId) -> Vec<u8> {
    key!(MACHINE, principal.0)
}

/// An invitation of a member to a further machine, by the invitation's key.
#[must_use]
pub fn invitation(key: &PrincipalId) -> Vec<u8> {
    key!(INVITATION, key.0)
}

/// All invitations, the one first that ends first.
#[must_use]
pub fn due_invitations() -> Vec<u8> {
    DUE_INVITATION.to_vec()
}

/// An invitation that ends then, by the agreed time.
#[must_use]
pub fn due_invitation(at: Time, key: &PrincipalId) -> Vec<u8> {
    key!(DUE_INVITATION, at.0.to_be_bytes(), key.0)
}

/// The last 40 bytes of a key as a time and the principal that expires then.
#[must_use]
pub fn trailing_expiry(key: &[u8]) -> Option<(Time, PrincipalId)> {
    let (at, principal) = key.last_chunk::<40>()?.split_first_chunk::<8>()?;
    let principal = principal.try_into().ok()?;
    let principal = quorumfs_bft::identity::PublicKey(principal);
    Some((Time(u64::from_be_bytes(*at)), principal))
}
