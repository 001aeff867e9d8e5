//! The grave: inodes that lost their last name while several sessions had the realm mounted.
//!
//! A process may have such an inode open, on another mount than the one that removed its name. The
//! servers do not know: opening orders nothing. So the inode waits in the *grave* for a minute. The
//! removal is news to the other mounts, and the one that has the inode open *claims* it: the inode
//! becomes an orphan of its session, as if that had removed the name itself.
//!
//! ```text
//!   last name goes, others share the realm ──► grave ──deadline──► deleted
//!                                                │ claim              ▲
//!                                                ▼                    │ nothing holds it, and
//!                                             orphans of sessions ────┘ the deadline is over
//!   … and it goes to the trash ──► trash ──claim within a minute──► orphan, then trash again
//! ```
//!
//! What always holds:
//! * An inode in the grave has a row, without links, and can be read and written by number, so that
//!   nothing fails before the claim. It has no name, so that nothing finds it anew.
//! * It goes when the deadline is over *and* no session holds it, whichever is later.
//! * While nothing holds it, it is charged to no user: the removal gives the space back at once,
//!   though the servers keep it for a minute. A claim charges the owner again, as for any orphan,
//!   and no limit refuses it.
//! * What goes to the trash is not in the grave too: it is found in the trash at once, and a claim
//!   takes it out until it is released. So a process loses nothing, and a user who has removed the
//!   wrong file need not wait.
//! * A mount that is alone is not asked: what other sessions remove becomes its orphan at once.
//!
//! The deadline is one of the lease clock, which an outage does not move on: a mount whose servers
//! were away has its minute. The servers know when a tick is due only by the agreed time, and the
//! lease clock moves by a second in a batch at most; so while there is a grave the first one asks
//! for a tick each second.
//!
//! What can go wrong: a mount that hears nothing for a minute finds its open files gone (`Stale`),
//! as if it had been fenced. A session that claims what it never had open keeps the space from
//! being freed, up to [`CLAIMS_MAX`] inodes and until it ends. A copy of the metadata that is
//! loaded into new servers has no sessions: its graves are due at once.
//!
//! Source: design of this project. NFS clients rename such files instead ("silly rename"), which
//! shows names that no user chose; an orphan for each mount and file would cost a row and an
//! operation each.

use crate::change::{Asker, Change};
use crate::content::settle_dropped;
use crate::error::Error;
use crate::identity::{InodeId, RealmId};
use crate::limits::{CLAIM_INODES_MAX, CLAIMS_MAX, GRAVE_TIME, TICK_ROWS_MAX};
use crate::namespace::expire;
use crate::quota;
use crate::reply::{Claimed, Done};
use crate::row::{Grave, GravePlace, Inode, Loading, Orphan, key};
use crate::rows::{Halt, Outcome, Rows, decode, require};
use crate::trash;
use quorumfs_bft::identity::{Nanos, Time};

/// How often a tick looks whether the lease clock has come to a deadline.
const CHECK_INTERVAL: Nanos = Nanos(1_000_000_000);

/// Lays an inode into the grave.
pub(crate) fn bury(change: &mut Change<'_, '_>, inode: InodeId) -> Outcome<()> {
    let deadline = change.context().lease_clock.plus(GRAVE_TIME);
    let check = change.time().plus(CHECK_INTERVAL);
    change.put(key::grave(deadline, inode), &Grave { check })?;
    change.put(key::grave_place(inode), &GravePlace { deadline })
}

/// Whether an inode is in the grave.
pub(crate) fn holds(rows: &impl Rows, inode: InodeId) -> Outcome<bool> {
    let place: Option<GravePlace> = rows.find(&key::grave_place(inode))?;
    Ok(place.is_some())
}

/// Claims inodes for the session.
pub(crate) fn claim(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    inodes: &[InodeId],
) -> Outcome<Done> {
    let limit = CLAIM_INODES_MAX as u32;
    let fits = inodes.len() <= CLAIM_INODES_MAX;
    require(fits, Error::TooMany { limit })?;
    let mounted = asker.session.mounted;
    let realm = mounted.ok_or(Halt::Refused(Error::NotMounted))?;
    let prefix = key::orphans(asker.caller.session);
    let held = change.scan(&prefix, &prefix, CLAIMS_MAX)?.len();
    let room = held.saturating_add(inodes.len()) <= CLAIMS_MAX;
    require(room, Error::LimitReached)?;
    let claimed = inodes
        .iter()
        .map(|inode| claim_one(change, asker, realm, *inode))
        .collect::<Outcome<Vec<_>>>()?;
    quota::settle_regardless(change)?;
    Ok(Done::Claimed(claimed))
}

fn claim_one(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    realm: RealmId,
    inode: InodeId,
) -> Outcome<Claimed> {
    let found = match change.find::<Inode>(&key::inode(inode))? {
        Some(row) => Some(row),
        None => trash::take_open(change, realm, inode)?,
    };
    let Some(mut row) = found.filter(|row| row.realm == realm) else {
        return Ok(Claimed::Gone);
    };
    if row.links > 0 {
        return Ok(Claimed::Named);
    }
    let row_key = key::orphan(asker.caller.session, inode);
    if change.find::<Orphan>(&row_key)?.is_none() {
        row.holders = row.holders.saturating_add(1);
        change.put_inode(inode, &row)?;
        change.put(row_key, &Orphan { realm })?;
    }
    Ok(Claimed::Held)
}

/// The first deadline, if there is one.
fn first(rows: &impl Rows) -> Outcome<Option<(Time, InodeId, Grave)>> {
    let prefix = key::graves();
    let Some((row_key, bytes)) = rows.scan(&prefix, &prefix, 1)?.pop() else {
        return Ok(None);
    };
    let grave = decode(&row_key, &bytes)?;
    let place = key::trailing_removal(&row_key);
    Ok(place.map(|(deadline, inode)| (deadline, inode, grave)))
}

/// When a tick has to look whether a deadline is over.
pub(crate) fn next_deadline(rows: &impl Rows) -> Outcome<Option<Time>> {
    Ok(first(rows)?.map(|(_, _, grave)| grave.check))
}

/// Frees what is due, within what others have left of a tick's bound.
pub(crate) fn tick(change: &mut Change<'_, '_>) -> Outcome<()> {
    let lease_clock = change.context().lease_clock;
    while change.rows_written() < TICK_ROWS_MAX / 2 {
        let Some((deadline, inode, grave)) = first(change)? else {
            break;
        };
        // Of a volume that is being loaded only some of the rows are there.
        let waits = deadline > lease_clock || change.find::<Loading>(&key::loading())?.is_some();
        if waits {
            if grave.check <= change.time() {
                let check = change.time().plus(CHECK_INTERVAL);
                change.put(key::grave(deadline, inode), &Grave { check })?;
            }
            break;
        }
        change.delete(key::grave(deadline, inode))?;
        change.delete(key::grave_place(inode))?;
        expire(change, inode)?;
    }
    settle_dropped(change)?;
    quota::settle(change)
}
