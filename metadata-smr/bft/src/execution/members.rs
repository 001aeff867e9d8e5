//! The membership's rows, and operations on them.

use super::rows::{decode, encode};
use crate::identity::{PublicKey, Sequence};
use crate::membership::{
    Announcement, Answer, Applied, Command, CommandRefusal, Membership, apply,
};
use crate::service::{Credit, Service};
use crate::state::{StateError, Txn, View};
use crate::wire::limits::MEMBERSHIP_CREDIT;
use bytes::Bytes;

/// The credit of a member or administrator that the service grants nothing.
pub(super) const CREDIT: Credit = Credit {
    lanes: 1,
    bytes: MEMBERSHIP_CREDIT,
};

/// The key of the one membership row.
const MEMBERSHIP_KEY: &[u8] = b"m";

/// The key of the row that lists the replicas whose disks are nearly full; there is none while no
/// disk is.
const SHORT_KEY: &[u8] = b"f";

fn read_short_disks(view: &View<'_>) -> Result<Vec<PublicKey>, StateError> {
    let row = view.get(SHORT_KEY)?;
    row.map_or_else(|| Ok(Vec::new()), |bytes| decode(SHORT_KEY, &bytes))
}

/// Whether enough voters have reported nearly full disks that the state should not grow.
pub(super) fn short_of_space(view: &View<'_>) -> Result<bool, StateError> {
    let short = read_short_disks(view)?;
    if short.is_empty() {
        return Ok(false);
    }
    let membership = read(view)?;
    let voters = membership.voters.iter();
    let count = voters.filter(|voter| short.contains(&voter.key)).count();
    Ok(count >= membership.model.shortage())
}

fn write_short_disks(txn: &mut Txn<'_>, short: &[PublicKey]) -> Result<(), StateError> {
    if short.is_empty() {
        return txn.delete(SHORT_KEY);
    }
    txn.put(SHORT_KEY, encode(&short)?)
}

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

/// Whether this is the key of an administrator or of a replica. The service may say that it is not
/// an administrator any more.
pub(super) fn knows<S: Service>(
    service: &S,
    (view, rows): (&View<'_>, &View<'_>),
    key: &PublicKey,
) -> Result<bool, StateError> {
    let membership = read(view)?;
    Ok(match service.administers(rows, key)? {
        Some(administers) => administers || membership.place(key).is_some(),
        None => membership.knows(key),
    })
}

/// Executes a command. Returns the answer, and whether the epoch ends with it.
pub(super) fn administer(
    txn: &mut Txn<'_>,
    command: &Bytes,
    (principal, decided): (&PublicKey, Option<bool>),
    sequence: Sequence,
) -> Result<(Bytes, bool), StateError> {
    let now = read(&txn.view())?;
    let applied = match Command::decode(command) {
        Ok(command) => {
            let mut announced = Vec::with_capacity(now.peers());
            for member in now.members() {
                announced.push((member.key, announcement(&txn.view(), &member.key)?));
            }
            let announced = |key: &PublicKey| {
                let found = announced.iter().find(|(member, _)| member == key);
                found.map(|(_, announced)| *announced).unwrap_or_default()
            };
            apply(&now, &command, (principal, decided), sequence, &announced)
        }
        Err(_) => Err(CommandRefusal::Unknown),
    };
    let answer = match applied {
        Ok(Applied::Next(next)) => {
            write(txn, &next)?;
            for member in now.members().filter(|it| next.place(&it.key).is_none()) {
                txn.delete(&announcement_key(&member.key))?;
            }
            let mut short = read_short_disks(&txn.view())?;
            let before = short.len();
            short.retain(|key| next.place(key).is_some());
            if short.len() < before {
                write_short_disks(txn, &short)?;
            }
            return Ok((Answer::Begins(next.epoch).encode(), true));
        }
        Ok(Applied::Noted(announced)) => {
            txn.put(&announcement_key(principal), encode(&announced)?)?;
            Answer::Noted
        }
        Ok(Applied::Disk { short: is }) => {
            let mut short = read_short_disks(&txn.view())?;
            let before = short.len();
            short.retain(|key| key != principal);
            if is {
                short.push(*principal);
            }
            if short.len() != before {
                write_short_disks(txn, &short)?;
            }
            Answer::Noted
        }
        Ok(Applied::Shown) => Answer::Shown(now.encode()),
        Err(refusal) => refusal.into(),
    };
    Ok((answer.encode(), false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault_model::FaultModel;
    use crate::identity::Incarnation;
    use crate::membership::Member;
    use crate::state::{Area, KeySpace, MemoryStore};

    fn key(number: u8) -> PublicKey {
        PublicKey([number; 32])
    }

    fn member(number: u8) -> Member {
        Member {
            key: key(number),
            incarnation: Incarnation([number; 16]),
            address: Bytes::new(),
            since: Sequence(0),
        }
    }

    #[test]
    fn the_state_does_not_grow_once_more_voters_report_full_disks_than_may_lie() {
        let mut space = KeySpace::open(MemoryStore::new()).expect("empty");
        let model = FaultModel::new(1, 1, 4).expect("a valid model");
        let voters = (1..=4).map(member).collect();
        let mut membership = Membership::genesis(model, voters, vec![key(9)]);
        membership.others.push(member(5));
        let mut txn = space.begin(Area::Library, Sequence(0));
        write(&mut txn, &membership).expect("memory");
        txn.commit();
        let mut sequence = 0;
        let mut ask = |principal: u8, command: &Command| {
            sequence += 1;
            let mut txn = space.begin(Area::Library, Sequence(sequence));
            let (principal, at) = (key(principal), Sequence(sequence));
            let answered = administer(&mut txn, &command.encode(), (&principal, None), at);
            let (answer, _) = answered.expect("memory");
            txn.commit();
            let view = space.view(Area::Library);
            let row = view.get(SHORT_KEY).expect("memory").is_some();
            let short = short_of_space(&view).expect("memory");
            (Answer::decode(&answer).expect("an answer"), short, row)
        };
        let (full, room) = (
            Command::Disk { short: true },
            Command::Disk { short: false },
        );
        assert_eq!(ask(1, &room), (Answer::Noted, false, false));
        assert_eq!(ask(1, &full), (Answer::Noted, false, true));
        assert_eq!(
            ask(1, &full),
            (Answer::Noted, false, true),
            "it counts once"
        );
        assert_eq!(
            ask(5, &full),
            (Answer::Noted, false, true),
            "it does not vote"
        );
        let (refused, ..) = ask(9, &full);
        assert!(matches!(refused, Answer::Refused { .. }), "{refused:?}");
        assert_eq!(ask(2, &full), (Answer::Noted, true, true));
        assert_eq!(ask(1, &room), (Answer::Noted, false, true));
        assert_eq!(ask(3, &full), (Answer::Noted, true, true));
        // The report of a removed replica is removed with it.
        let dismiss = Command::Dismiss { key: key(5) };
        assert_eq!(
            ask(9, &dismiss).0,
            Answer::Begins(crate::identity::Epoch(1))
        );
        assert_eq!(ask(2, &room), (Answer::Noted, false, true));
        assert_eq!(
            ask(3, &room),
            (Answer::Noted, false, false),
            "no report is left"
        );
    }
}
