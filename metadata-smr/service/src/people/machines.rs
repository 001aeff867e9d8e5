//! Further machines of members.
//!
//! See [`crate::people`] for what they are. What a member states of its machine has to agree with
//! what the servers have of the member now: so a member whose rights were reduced, or whose label
//! was changed, adds machines with those.

use super::{BAD, PeopleChange, PeopleStep};
use crate::change::{Asker, Change};
use crate::error::Error;
use crate::identity::{CloudIndex, PrincipalId, PrincipalNumber, Uid};
use crate::limits::{
    LABEL_BYTES_MAX, MACHINE_CHANGES_MAX, MACHINE_NAME_BYTES_MAX, MACHINES_OF_PERSON_MAX,
    MACHINES_READ_MAX, PRINCIPALS_MAX, PRINCIPALS_WITH_MACHINES_MAX, SEALED_CREDENTIALS_BYTES_MAX,
};
use crate::row::{FormerPrincipal, Machine, Numbered, Principal, key};
use crate::rows::{Outcome, Rows, decode, require};
use crate::statement::Statement;
use borsh::{BorshDeserialize, BorshSerialize};

/// A further machine, as its person states it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct AddedMachine {
    /// The first key of the person.
    pub of: PrincipalId,
    /// The machine: with the rights and the end of its signer.
    pub statement: Statement,
    /// Credentials of clouds, sealed for it: opaque to the servers. In the order of the clouds.
    pub credentials: Vec<(CloudIndex, Vec<u8>)>,
}

impl AddedMachine {
    /// Checks its bounds, for a volume of so many clouds.
    pub(super) fn check(&self, clouds: usize) -> Result<(), &'static str> {
        let label = &self.statement.label;
        let named = label.rsplit_once('@');
        if !named.is_some_and(|(person, name)| !person.is_empty() && is_machine_name(name)) {
            return Err("a machine's label is not a person's with a name behind it");
        }
        if self.of == self.statement.key {
            return Err("a machine is of itself");
        }
        let follows = |pair: &[(CloudIndex, Vec<u8>)]| match pair {
            [one, other] => one.0 < other.0,
            _ => false,
        };
        let fits = |(cloud, sealed): &(CloudIndex, Vec<u8>)| {
            usize::from(cloud.0) < clouds
                && (1..=SEALED_CREDENTIALS_BYTES_MAX).contains(&sealed.len())
        };
        if !self.credentials.windows(2).all(follows) || !self.credentials.iter().all(fits) {
            return Err("a machine's credentials are not of the volume's clouds, in their order");
        }
        self.statement.check(clouds)
    }

    /// Whether it has the rights, the end and the label that follow from those of its signer, whose
    /// person has this first key.
    #[must_use]
    pub fn follows_from(&self, signer: &Statement, person: &PrincipalId) -> bool {
        let is_first = signer.key == *person;
        self.agrees(
            (&signer.label, is_first),
            self.of == *person
                && self.statement.rights == signer.rights
                && self.statement.expires == signer.expires,
        )
    }

    /// The same of what is said of its rights; and its label is its person's.
    fn agrees(&self, (label, is_first): (&str, bool), same: bool) -> bool {
        let name = self.statement.label.rsplit_once('@');
        let person = person_of_label(label, is_first);
        same && name.is_some_and(|(of, _)| of == person)
    }
}

/// The label of a person by that of one of its keys.
fn person_of_label(label: &str, is_first: bool) -> &str {
    match label.rsplit_once('@') {
        Some((person, _)) if !is_first => person,
        _ => label,
    }
}

/// The label of a further machine of this name, by that of another key of the person; `None` if it
/// would be too long.
#[must_use]
pub fn label_of_machine((label, is_first): (&str, bool), name: &str) -> Option<String> {
    let label = format!("{}@{name}", person_of_label(label, is_first));
    (label.len() <= LABEL_BYTES_MAX).then_some(label)
}

/// Whether a machine may have a name: some letters, digits, `.`, `_` and `-` of ASCII.
#[must_use]
pub fn is_machine_name(name: &str) -> bool {
    let fits = (1..=MACHINE_NAME_BYTES_MAX).contains(&name.len());
    let plain = |it: u8| it.is_ascii_alphanumeric() || b"._-".contains(&it);
    fits && name.bytes().all(plain)
}

/// The first key of a principal's person.
fn person(rows: &impl Rows, principal: &PrincipalId) -> Outcome<PrincipalId> {
    let machine: Option<Machine> = rows.find(&key::machine(principal))?;
    Ok(machine.map_or(*principal, |machine| machine.of))
}

/// The further machines of a person.
pub(super) fn of_person(rows: &impl Rows, person: &PrincipalId) -> Outcome<Vec<PrincipalId>> {
    let prefix = key::machines();
    let mut found = Vec::new();
    for (row_key, bytes) in rows.scan(&prefix, &prefix, MACHINES_READ_MAX)? {
        let Machine { of } = decode(&row_key, &bytes)?;
        found.extend(key::trailing_principal(&row_key).filter(|_| of == *person));
    }
    Ok(found)
}

/// The number of a person: that of its first key, whether it is a principal's still or not. Of a
/// number that no person has, the number itself.
pub(crate) fn person_number(rows: &impl Rows, number: PrincipalNumber) -> Outcome<PrincipalNumber> {
    let Some(Numbered { principal, .. }) = rows.find(&key::numbered(number))? else {
        return Ok(number);
    };
    let first = person(rows, &principal)?;
    if first == principal {
        return Ok(number);
    }
    if let Some(row) = rows.find::<Principal>(&key::principal(&first))? {
        return Ok(row.number);
    }
    let former: Option<FormerPrincipal> = rows.find(&key::former(&first))?;
    Ok(former.map_or(number, |former| former.number))
}

/// Whether a person of this number is there, and acts for a user: its first key does or, once that
/// was dropped, one of its machines.
pub(crate) fn acts_for(rows: &impl Rows, number: PrincipalNumber, uid: Uid) -> Outcome<bool> {
    let Some(Numbered { principal, .. }) = rows.find(&key::numbered(number))? else {
        return Ok(false);
    };
    let acts = |row: &Principal| row.rights.uids.contains(&uid);
    if let Some(row) = rows.find::<Principal>(&key::principal(&principal))? {
        return Ok(row.number == number && acts(&row));
    }
    let former: Option<FormerPrincipal> = rows.find(&key::former(&principal))?;
    if former.is_none_or(|former| former.number != number) {
        return Ok(false);
    }
    for machine in of_person(rows, &principal)? {
        let row: Option<Principal> = rows.find(&key::principal(&machine))?;
        if row.is_some_and(|row| acts(&row)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Refuses a machine that a member adds when the changes that are left are administrators'. Those
/// that drop one are as many at most.
pub(super) fn are_left(asker: &Asker, change: &PeopleChange) -> Outcome<()> {
    let limit = MACHINE_CHANGES_MAX;
    let adds = matches!(change.step, PeopleStep::AddMachine(_));
    let left = asker.rights.administer || !adds || change.number <= limit;
    require(left, Error::TooMany { limit })
}

/// Whether a key is the first one of a person that has further machines.
pub(crate) fn is_of_a_machine(rows: &impl Rows, key: &PrincipalId) -> Outcome<bool> {
    Ok(!of_person(rows, key)?.is_empty())
}

/// The sessions of all keys of a principal's person; `None` if it has one key.
pub(crate) fn sessions_of_person(
    rows: &impl Rows,
    principal: &PrincipalId,
) -> Outcome<Option<u32>> {
    let first = person(rows, principal)?;
    let mut keys = of_person(rows, &first)?;
    if keys.is_empty() {
        return Ok(None);
    }
    keys.push(first);
    let mut sessions = 0_u32;
    for key in keys {
        let row: Option<Principal> = rows.find(&key::principal(&key))?;
        sessions = sessions.saturating_add(row.map_or(0, |row| row.sessions));
    }
    Ok(Some(sessions))
}

/// X25519 keys to which nothing can be wrapped, without the highest bit, which does not count: the
/// points of small order.
pub const USELESS_WRAPPING_KEYS: [[u8; 32]; 7] = {
    const fn ends(first: u8, middle: u8, last: u8) -> [u8; 32] {
        let mut key = [middle; 32];
        key[0] = first;
        key[31] = last;
        key
    }
    [
        ends(0, 0, 0),
        ends(1, 0, 0),
        [
            0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f,
            0xc4, 0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16,
            0x5f, 0x49, 0xb8, 0x00,
        ],
        [
            0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83,
            0xef, 0x5b, 0x04, 0x44, 0x5c, 0xc4, 0x58, 0x1c, 0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd,
            0xd0, 0x9f, 0x11, 0x57,
        ],
        ends(0xec, 0xff, 0x7f),
        ends(0xed, 0xff, 0x7f),
        ends(0xee, 0xff, 0x7f),
    ]
};

fn is_useless(mut wrapping_key: [u8; 32]) -> bool {
    wrapping_key[31] &= 0x7f;
    USELESS_WRAPPING_KEYS.contains(&wrapping_key)
}

/// Refuses a machine that is not one more of the sender's.
///
/// Some of this only the servers ask: what depends on the time at which a principal has expired,
/// and what keeps a member from making trouble for others. Clients take what is signed and follows
/// from its signer.
pub(super) fn check_added(
    change: &Change<'_, '_>,
    asker: &Asker,
    added: &AddedMachine,
) -> Outcome<()> {
    let me = asker.caller.principal;
    let first = person(change, &me)?;
    let mine: Principal = change.principal(&me)?;
    let statement = &added.statement;
    let has = |row: &Principal| statement.rights == row.rights && statement.expires == row.expires;
    // The first key is what administrators change first: a machine that they have not changed yet
    // adds nothing.
    let first_row: Option<Principal> = match me == first {
        true => None,
        false => change.find(&key::principal(&first))?,
    };
    let same = added.of == first && has(&mine) && first_row.is_none_or(|row| has(&row));
    require(added.agrees((&mine.label, me == first), same), BAD)?;
    require(!is_useless(statement.wrapping_key), BAD)?;
    // What the root has stated without the right to administer adds nothing: clients would not
    // take its signature.
    require(
        mine.stated.is_some() || mine.rights.administer,
        Error::NoRight,
    )?;
    // A key that comes back would take its former life, or another person's, along.
    let former: Option<FormerPrincipal> = change.find(&key::former(&statement.key))?;
    let is_first = is_of_a_machine(change, &statement.key)?;
    require(former.is_none() && !is_first, Error::Exists)?;
    let prefix = key::principals();
    let principals = change.scan(&prefix, &prefix, PRINCIPALS_MAX)?;
    let limit = PRINCIPALS_WITH_MACHINES_MAX as u32;
    let fits = principals.len() < PRINCIPALS_WITH_MACHINES_MAX || asker.rights.administer;
    require(fits, Error::TooMany { limit })?;
    for (row_key, bytes) in principals {
        let row: Principal = decode(&row_key, &bytes)?;
        require(row.label != statement.label, Error::Exists)?;
    }
    let limit = MACHINES_OF_PERSON_MAX;
    let machines = of_person(change, &first)?.len();
    let fits = u32::try_from(machines).is_ok_and(|machines| machines < limit);
    require(fits, Error::TooMany { limit })
}

/// Refuses to drop a principal that is of another person, unless an administrator does.
pub(super) fn check_dropped(
    change: &Change<'_, '_>,
    asker: &Asker,
    principal: &PrincipalId,
) -> Outcome<()> {
    let is_own = person(change, principal)? == person(change, &asker.caller.principal)?;
    require(asker.rights.administer || is_own, Error::NoRight)
}
