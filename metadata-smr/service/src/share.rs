//! Shares: what users have shared, with a person of the volume, by a link or by a capsule.
//!
//! A share is a statement and grants nothing here. With a *person*, access lists give the access;
//! the share says which lists a client has set and has to take back. With a *link*, a process that
//! serves links asks for the share of a token, and reads with the rights of the user who shares.
//! The servers know a hash of the token and not the token. With a *capsule*, a manifest that lies
//! on the clouds has all that it takes to read, and no server is asked; the share keeps what the
//! manifest names from being forgotten.
//!
//! ```text
//!                     EndShare, or its time has come
//!   Share ──► live ──────────────┬─ of a person: ended ──ForgetShare──► (no row)
//!              ▲ │               └─ of a link or a capsule: ──────────► (no row)
//!        Share └─┘ the same inode, user and person: access, end and place change
//! ```
//!
//! | Module | Content |
//! |---|---|
//! | this | which shares have ended |
//! | `ordered` | the operations |
//! | `capsule` | what a capsule needs, to begin and while it lasts |
//! | `expire` | what ends by itself |
//! | `ask` | the questions |
//!
//! Invariants:
//! * **Only an owner shares**, or the superuser, as only they may change the access lists. Only the
//!   user who shares, the superuser and administrators end a share.
//! * **The rows of a share come and go together**: its own, those of the user, the person, the
//!   token, the inode, the point and the expiry, and it counts once in each count.
//! * **A person's share ends with the person**, however it goes, because the row names the number
//!   that it had: one that is admitted again has another. So a dismissal writes nothing here. So
//!   does a share whose person acts for another user now. It is with all machines of the person,
//!   and outlives the first one if others are left.
//! * **A link and a capsule end with the principal that made it**, which knows it and could use it
//!   after its dismissal. A share with a person outlives the one that made it: it is between
//!   others.
//! * **An expiry is exact**: a batch whose time has come to it ends the share before its first
//!   request. If more than a few hundred end at once, the rest ends with the next batches.
//!
//! Rows that a recovery has loaded may contradict each other, if its principal is malicious; none
//! of that stops a server.
//!
//! Failure modes: *the inode is removed*. The share stays until it is ended, and says so; an inode
//! that is restored from the trash has its number again, and no new one ever has. *A client dies
//! between the row and the lists*: the row says what to go on with. *A volume is recovered from an
//! older copy*: shares are those of the copy, and new ones have numbers that none had before.

use crate::error::Error;
use crate::identity::{PrincipalId, PrincipalNumber, Uid};
use crate::people;
use crate::row::{Numbered, Principal, Rights, Share, ShareWith, key};
use crate::rows::{Outcome, Rows};

mod ask;
mod capsule;
mod expire;
mod ordered;

pub(crate) use ask::{all, of_token};
pub(crate) use capsule::capsule_needs;
pub(crate) use expire::{next_deadline, tick};
pub(crate) use ordered::{end, forget, share};

/// The principal that has a number now, if it was not dismissed and has not expired.
fn current(rows: &impl Rows, number: PrincipalNumber) -> Outcome<Option<(PrincipalId, Principal)>> {
    let Some(Numbered { principal, .. }) = rows.find(&key::numbered(number))? else {
        return Ok(None);
    };
    let row: Option<Principal> = rows.find(&key::principal(&principal))?;
    let row = row.filter(|row| row.number == number);
    Ok(row.map(|row| (principal, row)))
}

/// Whether a share has ended.
fn has_ended(rows: &impl Rows, share: &Share) -> Outcome<bool> {
    if share.ended {
        return Ok(true);
    }
    let lives = match &share.with {
        ShareWith::Person { principal, uid, .. } => people::acts_for(rows, *principal, *uid)?,
        ShareWith::Link { .. } | ShareWith::Capsule { .. } => current(rows, share.by)?.is_some(),
    };
    Ok(!lives)
}

/// Whether a user may end a share and know all of it.
fn is_of(share: &Share, uid: Uid, rights: &Rights) -> bool {
    uid == share.uid || uid == Uid::ROOT || rights.administer
}

/// There is no such share, or no such principal.
const UNKNOWN: Error = Error::NotFound;
