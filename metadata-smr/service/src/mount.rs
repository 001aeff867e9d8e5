//! Mounts: which sessions have a realm mounted, alone or together.
//!
//! A mount that is *alone* keeps all others out: it caches and buffers whatever it likes. Mounts
//! that *share* a realm tell each other what they change (`log`). A session has one mount, and can
//! change it from one to the other.
//!
//! ```text
//!               │ no other mount      │ others that share       │ another that is alone
//!   alone       │ begins              │ refused, unless fenced  │ refused, unless fenced
//!   sharing     │ begins              │ begins                  │ refused, unless fenced
//! ```
//!
//! A refused mount is told of a session that is in its way. A takeover fences sessions: from that
//! batch on every operation of a fenced session is refused, however late it arrives. If one session
//! is in the way that the takeover does not name, nothing is fenced. A takeover of a named session
//! fences it even if it could share: its process has ended, and what it holds is released sooner.
//!
//! Whenever the set of mounts of a realm changes, so does the row of its bell, which covers answers
//! about it.

use crate::change::{Asker, Change};
use crate::error::Error;
use crate::identity::{MountEpoch, RealmId};
use crate::limits::{LABEL_BYTES_MAX, MOUNTS_MAX};
use crate::log;
use crate::operation::Takeover;
use crate::reply::Done;
use crate::row::{Mount, key};
use crate::rows::{Outcome, Rows, decode, require};
use crate::session::fence;
use quorumfs_bft::identity::SessionId;

/// The first `limit` mounts of a realm, in the order of their sessions.
pub(crate) fn mounts(rows: &impl Rows, realm: RealmId, limit: usize) -> Outcome<Vec<Mount>> {
    let prefix = key::mounts(realm);
    let found = rows.scan(&prefix, &prefix, limit)?;
    found
        .iter()
        .map(|(row_key, bytes)| decode(row_key, bytes))
        .collect()
}

/// Mounts the realm for the session.
pub(crate) fn mount(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    realm_id: RealmId,
    (takeover, alone, label): (Takeover, bool, &str),
) -> Outcome<Done> {
    require(asker.rights.mount, Error::NoRight)?;
    require(label.len() <= LABEL_BYTES_MAX, Error::Invalid)?;
    let mut realm = change.realm(realm_id)?;
    let mut session = asker.session.clone();
    let elsewhere = session.mounted.is_some_and(|mounted| mounted != realm_id);
    require(!elsewhere, Error::Invalid)?;
    let asking = asker.caller.session;
    let mounts = mounts(change, realm_id, MOUNTS_MAX)?;
    let (own, others): (Vec<Mount>, Vec<Mount>) = mounts
        .into_iter()
        .partition(|mount| mount.session == asking);
    let own = own.into_iter().next();
    let fenced = match &own {
        Some(own) if own.alone == alone => Vec::new(),
        _ => make_way(change, others, asking, (takeover, alone))?,
    };
    let mount = match own {
        Some(own) => Mount { alone, ..own },
        None => {
            realm.mounts = MountEpoch(realm.mounts.0.saturating_add(1));
            session.mounted = Some(realm_id);
            change.put(key::realm(realm_id), &realm)?;
            change.put(key::session(asking), &session)?;
            Mount {
                session: asking,
                principal: asker.caller.principal,
                epoch: realm.mounts,
                since: change.time(),
                alone,
                label: label.to_owned(),
            }
        }
    };
    change.put(key::mount(realm_id, asking), &mount)?;
    Ok(Done::Mounted {
        epoch: mount.epoch,
        realm,
        fenced,
        position: log::count_mounts(change, realm_id)?,
    })
}

/// Fences the mounts that a takeover names; refused if another one stays in the way.
fn make_way(
    change: &mut Change<'_, '_>,
    others: Vec<Mount>,
    asking: SessionId,
    (takeover, alone): (Takeover, bool),
) -> Outcome<Vec<SessionId>> {
    let full = others.len() >= MOUNTS_MAX;
    let mut fenced = Vec::new();
    for other in others {
        let in_the_way = alone || other.alone;
        if takeover.fences(other.session, in_the_way) {
            fence(change, other.session, asking)?;
            fenced.push(other.session);
            continue;
        }
        let mounted = Error::Mounted {
            session: other.session,
            principal: other.principal,
            since: other.since,
            label: other.label,
        };
        require(!in_the_way, mounted)?;
    }
    require(!full || !fenced.is_empty(), Error::LimitReached)?;
    Ok(fenced)
}

/// Ends a mount.
pub(crate) fn unmount(change: &mut Change<'_, '_>, asker: &Asker, realm: RealmId) -> Outcome<Done> {
    let mut session = asker.session.clone();
    require(session.mounted == Some(realm), Error::NotMounted)?;
    session.mounted = None;
    change.put(key::session(asker.caller.session), &session)?;
    end(change, realm, asker.caller.session)?;
    Ok(Done::Unmounted)
}

/// Removes the mount of a session whose row does not name it any more.
pub(crate) fn end(change: &mut Change<'_, '_>, realm: RealmId, session: SessionId) -> Outcome<()> {
    change.delete(key::mount(realm, session))?;
    log::count_mounts(change, realm)?;
    Ok(())
}
