//! The membership's rows, and operations on them.

use super::rows::{decode, encode};
use crate::identity::{PublicKey, Sequence};
use crate::membership::{Announcement, Answer, Applied, Command, Membership, Refusal, apply};
use crate::service::Credit;
use crate::state::{StateError, Txn, View};
use crate::wire::limits::MEMBERSHIP_CREDIT;
use bytes::Bytes;

/// What whoever the membership knows is granted where the service grants nothing.
pub(super) const CREDIT: Credit = Credit {
    lanes: 1,
    bytes: MEMBERSHIP_CREDIT,
};

/// The key of the one membership row.
const MEMBERSHIP_KEY: &[u8] = b"m";

fn announcement_key(key: &PublicKey) -> Vec<u8> {
    [b"a", key.0.as_slice()].concat()
}

fn announcement(view: &View<'_>, key: &PublicKey) -> Result<Announcement, StateError> {
    let row = announcement_key(key);
    match view.get(&row)? {
        Some(bytes) => decode(&row, &bytes),
        None => Ok(Announcement {
            behaviour: 1,
            ..Announcement::default()
        }),
    }
}

/// The membership.
pub(super) fn read(view: &View<'_>) -> Result<Membership, StateError> {
    let damaged = |reason: &str| StateError::Damaged {
        place: "the membership".to_owned(),
        reason: reason.to_owned(),
    };
    let row = view.get(MEMBERSHIP_KEY)?;
    let row = row.ok_or_else(|| damaged("there is none"))?;
    Membership::decode(&row).map_err(|error| damaged(&error.to_string()))
}

pub(super) fn write(txn: &mut Txn<'_>, membership: &Membership) -> Result<(), StateError> {
    txn.put(MEMBERSHIP_KEY, membership.encode())
}

/// Whether this is the key of an administrator or of a replica.
pub(super) fn knows(view: &View<'_>, key: &PublicKey) -> Result<bool, StateError> {
    Ok(read(view)?.knows(key))
}

/// Carries out a command. The answer, and whether the epoch ends with it.
pub(super) fn administer(
    txn: &mut Txn<'_>,
    command: &Bytes,
    principal: &PublicKey,
    sequence: Sequence,
) -> Result<(Bytes, bool), StateError> {
    let now = read(&txn.view())?;
    let applied = match Command::decode(command) {
        Ok(command) => {
            let mut said = Vec::with_capacity(now.peers());
            for member in now.members() {
                said.push((member.key, announcement(&txn.view(), &member.key)?));
            }
            let said = |key: &PublicKey| {
                let found = said.iter().find(|(member, _)| member == key);
                found.map(|(_, said)| *said).unwrap_or_default()
            };
            apply(&now, &command, principal, sequence, &said)
        }
        Err(_) => Err(Refusal::Unknown),
    };
    let answer = match applied {
        Ok(Applied::Next(next)) => {
            write(txn, &next)?;
            for member in now.members().filter(|it| next.place(&it.key).is_none()) {
                txn.delete(&announcement_key(&member.key))?;
            }
            return Ok((Answer::Begins(next.epoch).encode(), true));
        }
        Ok(Applied::Noted(said)) => {
            txn.put(&announcement_key(principal), encode(&said)?)?;
            Answer::Noted
        }
        Ok(Applied::Shown) => Answer::Shown(now.encode()),
        Err(refusal) => refusal.into(),
    };
    Ok((answer.encode(), false))
}
