//! New key epochs of a realm, and its members from then on.
//!
//! The servers hold no key and verify no signature: members do both. The servers ensure that key
//! epochs follow each other one by one, so that of two principals that begin one concurrently only
//! one succeeds; that n − f clouds were confirmed to hold their shares, as far as the caller can be
//! trusted; and that no administrator excludes itself or the recovery kit.
//!
//! An answer may be lost and the operation repeated: the same bytes are the same success, as long
//! as no later epoch was begun.

mod sealing;

pub(crate) use sealing::require_sealing;

use crate::change::{Asker, Change};
use crate::content;
use crate::error::Error;
use crate::identity::{ObjectId, PrincipalId, RealmId};
use crate::limits::{MEMBERS_MAX, PRINCIPALS_READ_MAX, WRAPPED_KEY_BYTES_MAX};
use crate::log;
use crate::operation::BeginEpoch;
use crate::placement::Policy;
use crate::reply::Done;
use crate::row::{Epoch, Member, Principal, Shares, key};
use crate::rows::{Outcome, Rows, decode, require};
use std::collections::BTreeMap;

/// Begins an epoch.
pub(crate) fn begin(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    begin: &BeginEpoch,
) -> Outcome<Done> {
    require(asker.rights.administer, Error::NoRight)?;
    let mut realm = change.realm(begin.realm)?;
    let limit = MEMBERS_MAX as u32;
    let fits = begin.members.len() <= MEMBERS_MAX;
    require(fits, Error::TooMany { limit })?;
    let before: BTreeMap<_, _> = members(change, begin.realm)?.into_iter().collect();
    let done = Done::EpochBegun {
        number: begin.number,
    };
    if realm.epoch == begin.number && is_begun(change, begin, &before)? {
        return Ok(done);
    }
    let current = realm.epoch;
    let is_next = current.0.checked_add(1) == Some(begin.number.0);
    require(is_next, Error::WrongEpoch { current })?;
    check_epoch(begin, &realm.policy)?;
    let members = check_members(change, begin)?;
    if let Some(shares) = &begin.epoch.shares {
        require(shares.object != ObjectId::FOUNDING, Error::BadEpoch)?;
        content::claim_object(change, asker, shares.object)?;
    }
    for principal in before.keys().filter(|key| !members.contains_key(key)) {
        change.delete(key::member(begin.realm, principal))?;
    }
    for (principal, member) in members {
        change.put(key::member(begin.realm, &principal), member)?;
    }
    change.put(key::epoch(begin.realm, begin.number), &begin.epoch)?;
    realm.epoch = begin.number;
    sealing::replaced(change, begin.realm)?;
    log::note_everything(change, begin.realm);
    change.put(key::realm(begin.realm), &realm)?;
    Ok(done)
}

/// The members.
pub(crate) fn members(rows: &impl Rows, realm: RealmId) -> Outcome<Vec<(PrincipalId, Member)>> {
    let prefix = key::members(realm);
    let mut members = Vec::new();
    for (row_key, bytes) in rows.scan(&prefix, &prefix, MEMBERS_MAX)? {
        if let Some(principal) = key::trailing_principal(&row_key) {
            members.push((principal, decode(&row_key, &bytes)?));
        }
    }
    Ok(members)
}

/// Whether exactly this epoch was begun.
fn is_begun(
    change: &Change<'_, '_>,
    begin: &BeginEpoch,
    members: &BTreeMap<PrincipalId, Member>,
) -> Outcome<bool> {
    let epoch: Epoch = change.expect_row(&key::epoch(begin.realm, begin.number))?;
    let is_member = |(key, member): &(PrincipalId, Member)| members.get(key) == Some(member);
    Ok(epoch == begin.epoch
        && members.len() == begin.members.len()
        && begin.members.iter().all(is_member))
}

fn check_epoch(begin: &BeginEpoch, policy: &Policy) -> Outcome<()> {
    require(begin.epoch.is_sound(begin.number, policy), Error::BadEpoch)?;
    let Some(shares) = &begin.epoch.shares else {
        return Ok(());
    };
    let few = Error::TooFewConfirmed {
        confirmed: u8::try_from(shares.confirmed.len()).unwrap_or(u8::MAX),
        wanted: Shares::wanted(policy),
    };
    require(shares.is_confirmed(policy), few)
}

/// Checks the members that the epoch names: principals, each once and in the role of its rights,
/// including all administrators.
fn check_members<'a>(
    change: &Change<'_, '_>,
    begin: &'a BeginEpoch,
) -> Outcome<BTreeMap<PrincipalId, &'a Member>> {
    let members: BTreeMap<_, _> = begin.members.iter().map(|(key, row)| (*key, row)).collect();
    let fits = |row: &&Member| {
        row.epoch == begin.number && (1..=WRAPPED_KEY_BYTES_MAX).contains(&row.wrapped.len())
    };
    let sound = members.len() == begin.members.len() && members.values().all(fits);
    require(sound, Error::BadEpoch)?;
    let mut known = 0;
    let prefix = key::principals();
    for (row_key, bytes) in change.scan(&prefix, &prefix, PRINCIPALS_READ_MAX)? {
        let principal: Principal = decode(&row_key, &bytes)?;
        let member = key::trailing_principal(&row_key).and_then(|it| members.get(&it));
        let is_member = member.is_some();
        let fits = member.is_none_or(|row| row.fits(&principal.rights));
        require(fits, Error::BadEpoch)?;
        require(is_member || !principal.rights.administer, Error::BadEpoch)?;
        known += usize::from(is_member);
    }
    require(known == members.len(), Error::BadEpoch)?;
    Ok(members)
}
