//! The keys of principals that come and go.

use crate::identity::PrincipalId;
use quorumfs_bft::identity::Time;

pub(super) const PEOPLE_CHANGE: &[u8] = b"PH/";
pub(super) const PEOPLE_CHANGES: &[u8] = b"PL/";
pub(super) const EXPIRY: &[u8] = b"PX/";
pub(super) const FORMER: &[u8] = b"PF/";

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

/// The last 40 bytes of a key as a time and the principal that expires then.
#[must_use]
pub fn trailing_expiry(key: &[u8]) -> Option<(Time, PrincipalId)> {
    let (at, principal) = key.last_chunk::<40>()?.split_first_chunk::<8>()?;
    let principal = principal.try_into().ok()?;
    let principal = quorumfs_bft::identity::PublicKey(principal);
    Some((Time(u64::from_be_bytes(*at)), principal))
}
