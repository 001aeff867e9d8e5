//! Invitations: how a further machine of a member hands its key over.
//!
//! A member that has a machine wants another one. The two can both reach the servers and, as a
//! rule, not each other. So the member makes a key for the purpose and carries it over, with the
//! servers' addresses, in one line of text. The servers keep the rest for both of them.
//!
//! ```text
//! member: InviteMachine(key, card) ──► open ──AnswerInvitation, as `key`──► answered
//!                                       │ EndInvitation, or another one of the member
//!                                       ▼
//!                                     ended ──its time has come──► (no row)
//! ```
//!
//! Invariants:
//! * **The key of an invitation is no principal's.** It opens sessions, in which it may answer
//!   once, look at its invitation, and ask who the principals are. Everything else is refused.
//! * **The first answer counts**; the member decides what it is worth. The answer admits no one:
//!   the member states its machine under its own signature ([`crate::people`]).
//! * **An invitation ends** within an hour, whatever happens, and is invalid as soon as its member
//!   is no principal any more.
//! * A member has one valid invitation at a time, and a few in an hour; the volume has a bounded
//!   number, and each opens few sessions. So no member takes the sessions of others.
//!
//! Failure modes: *someone else reads the line and answers first*. The machine that was meant is
//! refused and says so, and the member sees another fingerprint than that machine shows. *An answer
//! is lost*. The same again is the same success. *Servers lie*: both sides sign what they leave
//! here with the invitation's key, so that servers can hide it and not change it.

use crate::change::{Asker, Change};
use crate::error::Error;
use crate::identity::PrincipalId;
use crate::limits::{
    INVITATION_ANSWER_BYTES_MAX, INVITATION_CARD_BYTES_MAX, INVITATION_SECONDS_MAX,
    INVITATION_SESSIONS_MAX, INVITATIONS_MAX, INVITATIONS_OF_MEMBER_MAX, TICK_ROWS_MAX,
};
use crate::operation::{InviteMachine, Operation};
use crate::people;
use crate::query::Question;
use crate::reply::{Done, ListedInvitation, QueryResult};
use crate::row::{DueInvitation, FormerPrincipal, Invitation, Session, key};
use crate::rows::{Halt, Outcome, Rows, decode, require};
use quorumfs_bft::identity::{Nanos, PublicKey, Time};
use quorumfs_bft::service::Caller;

/// An invitation that is valid.
fn find(rows: &impl Rows, key: &PrincipalId) -> Outcome<Option<Invitation>> {
    let Some(invitation) = rows.find::<Invitation>(&key::invitation(key))? else {
        return Ok(None);
    };
    let lives = !invitation.ended && rows.has(&key::principal(&invitation.by))?;
    Ok(lives.then_some(invitation))
}

/// The invitations, by their ends.
fn all(rows: &impl Rows, limit: usize) -> Outcome<Vec<(Time, PrincipalId, PrincipalId)>> {
    let prefix = key::due_invitations();
    let mut found = Vec::new();
    for (row_key, bytes) in rows.scan(&prefix, &prefix, limit)? {
        let DueInvitation { by } = decode(&row_key, &bytes)?;
        let place = key::trailing_expiry(&row_key);
        found.extend(place.map(|(at, key)| (at, key, by)));
    }
    Ok(found)
}

/// It is no longer valid, and counts until its time is over.
fn revoke(change: &mut Change<'_, '_>, key: &PrincipalId) -> Outcome<()> {
    let row_key = key::invitation(key);
    if let Some(mut row) = change.find::<Invitation>(&row_key)? {
        row.ended = true;
        row.card.clear();
        row.answer = None;
        change.put(row_key, &row)?;
    }
    Ok(())
}

fn remove(change: &mut Change<'_, '_>, at: Time, key: &PrincipalId) -> Outcome<()> {
    change.delete(key::due_invitation(at, key))?;
    change.delete(key::invitation(key))
}

/// Invites a machine.
pub(crate) fn invite(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    wish: &InviteMachine,
) -> Outcome<Done> {
    let by = asker.caller.principal;
    let row_key = key::invitation(&wish.key);
    if let Some(known) = change.find::<Invitation>(&row_key)? {
        let is_same = known.by == by && known.card == wish.card && !known.ended;
        require(is_same, Error::Exists)?;
        return Ok(Done::MachineInvited { until: known.until });
    }
    let lasts = (1..=INVITATION_SECONDS_MAX).contains(&wish.seconds);
    let fits = (1..=INVITATION_CARD_BYTES_MAX).contains(&wish.card.len());
    require(lasts && fits, Error::Invalid)?;
    let former: Option<FormerPrincipal> = change.find(&key::former(&wish.key))?;
    let is_known = former.is_some() || change.has(&key::principal(&wish.key))?;
    require(!is_known, Error::Exists)?;
    let open = all(change, INVITATIONS_MAX)?;
    let limit = INVITATIONS_MAX as u32;
    require(open.len() < INVITATIONS_MAX, Error::TooMany { limit })?;
    let earlier: Vec<_> = open.iter().filter(|(.., of)| *of == by).collect();
    let limit = INVITATIONS_OF_MEMBER_MAX as u32;
    let fits = earlier.len() < INVITATIONS_OF_MEMBER_MAX;
    require(fits, Error::TooMany { limit })?;
    for (_, key, _) in earlier {
        revoke(change, key)?;
    }
    let until = change.time();
    let until = until.plus(Nanos(wish.seconds.saturating_mul(1_000_000_000)));
    let row = Invitation {
        by,
        until,
        card: wish.card.clone(),
        answer: None,
        sessions: 0,
        ended: false,
    };
    change.put(row_key, &row)?;
    change.put(key::due_invitation(until, &wish.key), &DueInvitation { by })?;
    Ok(Done::MachineInvited { until })
}

/// Ends an invitation of the sender.
pub(crate) fn end(change: &mut Change<'_, '_>, asker: &Asker, key: &PrincipalId) -> Outcome<Done> {
    if let Some(row) = change.find::<Invitation>(&key::invitation(key))? {
        require(row.by == asker.caller.principal, Error::NoRight)?;
        revoke(change, key)?;
    }
    Ok(Done::InvitationEnded)
}

/// An operation of a sender that is no principal; `refusal` is what it gets for all others.
pub(crate) fn execute_as_guest(
    change: &mut Change<'_, '_>,
    caller: &Caller,
    operation: &Operation,
    refusal: Halt,
) -> Outcome<Done> {
    let (Operation::AnswerInvitation { answer }, Halt::Refused(Error::NoSession)) =
        (operation, &refusal)
    else {
        return Err(refusal);
    };
    let invitation = guest(change, caller)?;
    let mut invitation = invitation.ok_or(refusal)?;
    let fits = (1..=INVITATION_ANSWER_BYTES_MAX).contains(&answer.len());
    require(fits, Error::Invalid)?;
    match &invitation.answer {
        Some(known) => require(known == answer, Error::Changed)?,
        None => {
            invitation.answer = Some(answer.clone());
            change.put(key::invitation(&caller.principal), &invitation)?;
        }
    }
    Ok(Done::InvitationAnswered)
}

/// The invitation of a caller that is no principal, in a session of its own.
fn guest(rows: &impl Rows, caller: &Caller) -> Outcome<Option<Invitation>> {
    let session: Option<Session> = rows.find(&key::session(caller.session))?;
    match session.filter(|session| session.principal == caller.principal) {
        Some(_) => find(rows, &caller.principal),
        None => Ok(None),
    }
}

/// A question of a caller that is no principal; `refusal` is what it gets for all others.
pub(crate) fn answer_as_guest(
    rows: &impl Rows,
    caller: &Caller,
    question: &Question,
    refusal: Halt,
) -> Outcome<QueryResult> {
    if !matches!(refusal, Halt::Refused(Error::NoSession)) {
        return Err(refusal);
    }
    let invitation = match question {
        Question::Invitation(key) if *key == caller.principal => guest(rows, caller)?,
        Question::People { .. } => guest(rows, caller)?,
        _ => None,
    };
    let Some(invitation) = invitation else {
        return Err(refusal);
    };
    rows.view().depend_on_everything();
    match question {
        Question::People { after } => people::answer(rows, *after),
        _ => Ok(listed(invitation)),
    }
}

/// An invitation of the caller, which is a principal.
pub(crate) fn answer(rows: &impl Rows, caller: &Caller, key: &PrincipalId) -> Outcome<QueryResult> {
    rows.view().depend_on_everything();
    let invitation = find(rows, key)?;
    let own = invitation.filter(|it| it.by == caller.principal);
    let own = own.ok_or(Halt::Refused(Error::NotFound))?;
    Ok(listed(own))
}

fn listed(invitation: Invitation) -> QueryResult {
    QueryResult::Invitation(ListedInvitation {
        until: invitation.until,
        card: invitation.card,
        answer: invitation.answer,
    })
}

/// Whether a session would be opened for this key, which is no principal's.
pub(crate) fn may_open(rows: &impl Rows, key: &PublicKey) -> Outcome<bool> {
    let invitation = find(rows, key)?;
    Ok(invitation.is_some_and(|it| it.sessions < INVITATION_SESSIONS_MAX))
}

/// Opens a session for this key, which is no principal's, if an invitation has it.
pub(crate) fn open(change: &mut Change<'_, '_>, caller: &Caller) -> Outcome<bool> {
    let invitation = find(change, &caller.principal)?;
    let Some(mut invitation) = invitation.filter(|it| it.sessions < INVITATION_SESSIONS_MAX) else {
        return Ok(false);
    };
    invitation.sessions = invitation.sessions.saturating_add(1);
    change.put(key::invitation(&caller.principal), &invitation)?;
    Ok(true)
}

/// When a tick has to end an invitation.
pub(crate) fn next_deadline(rows: &impl Rows) -> Outcome<Option<Time>> {
    Ok(all(rows, 1)?.pop().map(|(at, ..)| at))
}

/// Ends the invitations whose time is over, within the bound of one tick.
pub(crate) fn tick(change: &mut Change<'_, '_>) -> Outcome<()> {
    while change.rows_written() < TICK_ROWS_MAX / 2 {
        let now = change.time();
        let Some((at, key, _)) = all(change, 1)?.pop().filter(|(at, ..)| *at <= now) else {
            break;
        };
        remove(change, at, &key)?;
    }
    Ok(())
}
