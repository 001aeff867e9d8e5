//! The operation: a change of the principals.

use super::machines::{are_left, check_added, check_dropped, of_person};
use super::{
    AddedMachine, BAD, ChangePeople, PeopleChange, PeopleStep, SignedPeopleChange, changes,
};
use crate::change::{Asker, Change};
use crate::error::Error;
use crate::fleet::known_clouds;
use crate::identity::{PrincipalId, RealmEpoch, RealmId};
use crate::limits::{PEOPLE_CHANGES_MAX, PRINCIPALS_MAX, WRAPPED_KEY_BYTES_MAX};
use crate::mount;
use crate::reply::Done;
use crate::row::{
    Format, FormerPrincipal, Machine, Member, MemberRole, PeopleChanges, Principal, Rights, key,
};
use crate::rows::{Halt, Outcome, Rows, require};
use crate::statement::{self, Statement};
use crate::succession;
use quorumfs_bft::identity::Time;

/// Orders a change.
pub(crate) fn change_people(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    ordered: &ChangePeople,
) -> Outcome<Done> {
    let format: Format = change.expect_row(&key::format())?;
    let signer = ordered.signed.signed.signer;
    let verified = ordered.signed.verified(format.volume);
    let may_be_own = verified.as_ref().is_some_and(|it| it.step.is_of_machines());
    require(asker.rights.administer || may_be_own, Error::NoRight)?;
    let Some(signed) = verified.filter(|_| signer == asker.caller.principal) else {
        return Err(BAD.into());
    };
    let number = signed.number;
    let done = Done::PeopleChanged { number };
    let row_key = key::people_change(number);
    if let Some(known) = change.find::<SignedPeopleChange>(&row_key)? {
        require(known == ordered.signed, Error::Changed)?;
        return Ok(done);
    }
    let last = changes(change)?.unwrap_or_default().last;
    require(last.checked_add(1) == Some(number), Error::Changed)?;
    // An administrator that has used them all up can still be dismissed.
    let limit = PEOPLE_CHANGES_MAX;
    let dismisses = matches!(
        signed.step,
        PeopleStep::Dismiss { .. } | PeopleStep::DropMachine { .. }
    );
    require(dismisses || number <= limit, Error::TooMany { limit })?;
    are_left(asker, &signed)?;
    let current = change.realm(RealmId::ROOT)?.epoch;
    require(signed.epoch == current, Error::WrongEpoch { current })?;
    take(change, asker, (ordered, &signed), current)?;
    change.put(row_key, &ordered.signed)?;
    change.put(key::people_changes(), &PeopleChanges { last: number })?;
    Ok(done)
}

/// Takes the step of a change.
fn take(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    (ordered, signed): (&ChangePeople, &PeopleChange),
    current: RealmEpoch,
) -> Outcome<()> {
    let clouds = known_clouds(change)?.len();
    let fits = signed.step.check(clouds).is_ok();
    let is_own = signed.step.principal() == Some(&asker.caller.principal);
    require(fits && !is_own, BAD)?;
    let member = ordered.member.as_ref();
    match &signed.step {
        PeopleStep::Admit(statement) => {
            // Without the secret of one cloud it could not follow the changes of the clouds.
            require(statement.cloud_secrets.len() == clouds, BAD)?;
            lasts(change, statement.expires)?;
            let member = joining(member, &statement.rights, current)?;
            admit(change, asker, (statement, member), ordered)
        }
        PeopleStep::Regrant {
            principal,
            label,
            rights,
            expires,
        } => {
            lasts(change, *expires)?;
            let member = joining(member, rights, current)?;
            let before = stated(change, principal)?;
            let row = Principal {
                label: label.clone(),
                rights: rights.clone(),
                expires: *expires,
                stated: Some(ordered.signed.signed),
                ..before.clone()
            };
            regrant(change, asker, (principal, &before), &row)?;
            change.put(key::member(RealmId::ROOT, principal), member)
        }
        PeopleStep::Dismiss { principal } => {
            require(member.is_none(), BAD)?;
            let machines = of_person(change, principal)?;
            let first = match machines.is_empty() {
                true => Some(stated(change, principal)?),
                // It may be gone already, and is no one's whom the root has stated.
                false => change.find(&key::principal(principal))?,
            };
            require(first.as_ref().is_none_or(|row| row.stated.is_some()), BAD)?;
            for machine in machines {
                let row: Option<Principal> = change.find(&key::principal(&machine))?;
                if let Some(row) = row {
                    send_away(change, asker, (&machine, &row))?;
                }
            }
            match first {
                Some(row) => send_away(change, asker, (principal, &row)),
                None => Ok(()),
            }
        }
        PeopleStep::DropMachine { principal } => {
            require(member.is_none(), BAD)?;
            let row = stated(change, principal)?;
            check_dropped(change, asker, principal)?;
            send_away(change, asker, (principal, &row))
        }
        PeopleStep::AddMachine(added) => {
            let AddedMachine { of, statement, .. } = added;
            require(statement.cloud_secrets.len() == clouds, BAD)?;
            lasts(change, statement.expires)?;
            check_added(change, asker, added)?;
            let member = joining(member, &statement.rights, current)?;
            admit(change, asker, (statement, member), ordered)?;
            change.put(key::machine(&statement.key), &Machine { of: *of })
        }
        PeopleStep::NameGroup { .. } => require(member.is_none(), BAD),
        PeopleStep::GiveCredentials { principal, .. } => {
            require(member.is_none(), BAD)?;
            stated(change, principal).map(drop)
        }
    }
}

/// Refuses an end that has come already.
fn lasts(change: &Change<'_, '_>, expires: Option<Time>) -> Outcome<()> {
    let now = change.time();
    require(expires.is_none_or(|at| at > now), BAD)
}

/// The membership that comes with rights, in the current key epoch.
fn joining<'a>(
    member: Option<&'a Member>,
    rights: &Rights,
    current: RealmEpoch,
) -> Outcome<&'a Member> {
    let member = member.ok_or(Halt::Refused(BAD))?;
    require(member.epoch == current, Error::WrongEpoch { current })?;
    let wrapped = (1..=WRAPPED_KEY_BYTES_MAX).contains(&member.wrapped.len());
    require(wrapped && member.fits(rights), BAD)?;
    Ok(member)
}

/// A principal that an administrator has stated.
fn stated(change: &Change<'_, '_>, principal: &PrincipalId) -> Outcome<Principal> {
    let row: Option<Principal> = change.find(&key::principal(principal))?;
    let row = row.ok_or(Halt::Refused(Error::NotFound))?;
    require(row.stated.is_some(), BAD)?;
    Ok(row)
}

fn admit(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    (statement, member): (&Statement, &Member),
    ordered: &ChangePeople,
) -> Outcome<()> {
    let key = statement.key;
    let taken: Option<Principal> = change.find(&key::principal(&key))?;
    require(taken.is_none(), Error::Exists)?;
    let is_replaced = succession::has_replaced(change, &key)?;
    require(!is_replaced, BAD)?;
    let prefix = key::principals();
    let count = change.scan(&prefix, &prefix, PRINCIPALS_MAX)?.len();
    let limit = PRINCIPALS_MAX as u32;
    require(count < PRINCIPALS_MAX, Error::TooMany { limit })?;
    // Mounts of its former life, which a tick has not fenced yet, are not those of this one.
    mount::fence_all_of(change, &key, asker.caller.session)?;
    let number = statement::next_number(change)?;
    let signed = ordered.signed.signed;
    statement::install(change, statement, number, Some(signed))?;
    change.delete(key::former(&key))?;
    change.put(key::member(RealmId::ROOT, &key), member)
}

/// Gives a principal other rights. Mounts that it could not begin any more are fenced, and so are
/// those that act for a user or a group that is none of its any more; what its other sessions may
/// do follows from its row.
fn regrant(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    (principal, before): (&PrincipalId, &Principal),
    row: &Principal,
) -> Outcome<()> {
    if let Some(at) = before.expires {
        change.delete(key::expiry(at, principal))?;
    }
    change.put(key::principal(principal), row)?;
    statement::expire_at(change, principal, row.expires)?;
    let writes = |rights: &Rights| rights.role() != MemberRole::Read;
    let (old, new) = (&before.rights, &row.rights);
    let keeps = new.uids.contains_all(&old.uids) && new.gids.contains_all(&old.gids);
    if (old.mount && !new.mount) || (writes(old) && !writes(new)) || !keeps {
        mount::fence_all_of(change, principal, asker.caller.session)?;
    }
    Ok(())
}

/// Removes the rows of a principal, and fences its mounts.
fn send_away(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    (principal, row): (&PrincipalId, &Principal),
) -> Outcome<()> {
    dismiss(change, principal, row)?;
    mount::fence_all_of(change, principal, asker.caller.session)
}

/// Removes the rows of a principal, by which all of its sessions are refused. Its number stays.
pub(super) fn dismiss(
    change: &mut Change<'_, '_>,
    principal: &PrincipalId,
    row: &Principal,
) -> Outcome<()> {
    statement::remove(change, principal, row)?;
    change.delete(key::member(RealmId::ROOT, principal))?;
    change.delete(key::machine(principal))?;
    let former = FormerPrincipal {
        number: row.number,
        until: change.time(),
    };
    change.put(key::former(principal), &former)
}
