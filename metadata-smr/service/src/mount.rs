//! Mounts: which sessions have a realm mounted, alone or together.
//!
//! An *exclusive* mount keeps all others out. A mount that is *alone* has no others, until one that
//! shares recalls it. Both cache and buffer whatever they like. Mounts that *share* a realm tell
//! each other what they change (`log`). A session has one mount, and can change its mode.
//!
//! ```text
//!   asked for  │ no other │ others that share   │ one that is alone   │ an exclusive one
//!   exclusive  │ begins   │ refused unless fenced …
//!   alone      │ begins   │ begins, shared      │ recalls it          │ refused unless fenced
//!   shared     │ begins   │ begins              │ recalls it          │ refused unless fenced
//!
//!   alone ── another one asks: recalled, deadline in 10 s ──► it asks for `shared`: shared
//!                                                       └──► a takeover after that: fenced
//! ```
//!
//! A refused mount is told of a session that is in its way. A takeover fences sessions: from that
//! batch on every operation of a fenced session is refused, however late it arrives. If one session
//! is in the way that the takeover does not name, nothing is fenced. A takeover of a named session
//! fences it even if it could share: its process has ended, and what it holds is released sooner.
//! All but a shared mount that takes nothing over needs the right to mount.
//!
//! What always holds: a realm with an exclusive mount, or one that is alone, has no other mount. A
//! recall stays until its mount shares or ends, so a mount that is told of none in an answer was
//! asked for none before that question. It acts as alone for less time after such a question than
//! [`RECALL_TIME`], so that it has stopped when another one begins. The recall's deadline is one of
//! the lease clock, which an outage does not move on; the session that waits moves it by asking
//! again, so no tick is needed.
//!
//! What can go wrong: a mount that is suspended while it is alone is fenced, as by a takeover. A
//! session that recalls and never mounts costs the other one its caches and nothing else.
//!
//! Whenever the set of mounts of a realm changes, so does the row of its bell, which covers answers
//! about it.

use crate::change::{Asker, Change};
use crate::error::Error;
use crate::identity::{MountEpoch, PrincipalId, RealmId};
use crate::limits::{LABEL_BYTES_MAX, MOUNTS_MAX, RECALL_TIME};
use crate::locks;
use crate::log;
use crate::operation::Takeover;
use crate::reply::Done;
use crate::row::{Mount, MountMode, Realm, Recall, Session, key};
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

/// Mounts the realm for the session, or changes its mount.
pub(crate) fn mount(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    realm_id: RealmId,
    (takeover, wish, label): (Takeover, MountMode, &str),
) -> Outcome<Done> {
    require(
        asker.rights.mount || may_share(change, asker, takeover, wish)?,
        Error::NoRight,
    )?;
    require(label.len() <= LABEL_BYTES_MAX, Error::Invalid)?;
    let realm = change.realm(realm_id)?;
    let elsewhere = asker
        .session
        .mounted
        .is_some_and(|mounted| mounted != realm_id);
    require(!elsewhere, Error::Invalid)?;
    let asking = asker.caller.session;
    let mounts = mounts(change, realm_id, MOUNTS_MAX)?;
    let (own, others): (Vec<Mount>, Vec<Mount>) = mounts
        .into_iter()
        .partition(|mount| mount.session == asking);
    let own = own.into_iter().next();
    let way = match &own {
        Some(own) if own.mode == wish => Way::Free(Vec::new()),
        _ => make_way(change, others, asking, (takeover, wish))?,
    };
    let fenced = match way {
        Way::Free(fenced) => fenced,
        Way::Held(holder) => return recall(change, realm_id, asking, holder),
    };
    let mount = match own {
        // Until it shares, the session that recalled it waits.
        Some(own) if own.recall.is_some() && wish != MountMode::Shared => own,
        Some(own) => {
            let mode = granted(change, realm_id, asking, wish)?;
            let recall = None;
            Mount {
                mode,
                recall,
                ..own
            }
        }
        None => begin(change, asker, (realm_id, realm.clone()), (wish, label))?,
    };
    change.put(key::mount(realm_id, asking), &mount)?;
    Ok(Done::Mounted {
        epoch: mount.epoch,
        realm: change.realm(realm_id)?,
        fenced,
        position: log::count_mounts(change, realm_id)?,
        mode: mount.mode,
    })
}

/// Whether this is a mount with others, which keeps none of them out that acts as it should. Any
/// member may ask for it: it ends at most a mount of its own principal's, and one that is alone and
/// does not answer.
fn may_share(
    change: &Change<'_, '_>,
    asker: &Asker,
    takeover: Takeover,
    wish: MountMode,
) -> Outcome<bool> {
    let ends_none = match takeover {
        Takeover::Refused | Takeover::OfUnresponsive => true,
        Takeover::OfAny => false,
        Takeover::Of(holder) => {
            let holder: Option<Session> = change.find(&key::session(holder))?;
            holder.is_some_and(|holder| holder.principal == asker.caller.principal)
        }
    };
    Ok(ends_none && wish == MountMode::Shared)
}

/// A session's new mount, not written yet.
fn begin(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    (realm_id, mut realm): (RealmId, Realm),
    (wish, label): (MountMode, &str),
) -> Outcome<Mount> {
    let asking = asker.caller.session;
    let mode = granted(change, realm_id, asking, wish)?;
    realm.mounts = MountEpoch(realm.mounts.0.saturating_add(1));
    change.put(key::realm(realm_id), &realm)?;
    let mut session = asker.session.clone();
    session.mounted = Some(realm_id);
    change.put(key::session(asking), &session)?;
    Ok(Mount {
        session: asking,
        principal: asker.caller.principal,
        epoch: realm.mounts,
        since: change.time(),
        mode,
        recall: None,
        label: label.to_owned(),
    })
}

/// The mode that a session gets: with others it shares.
fn granted(
    change: &Change<'_, '_>,
    realm: RealmId,
    asking: SessionId,
    wish: MountMode,
) -> Outcome<MountMode> {
    // Of two mounts at least one is another session's.
    let first = mounts(change, realm, 2)?;
    let with_others = first.iter().any(|mount| mount.session != asking);
    Ok(match wish {
        MountMode::Alone if with_others => MountMode::Shared,
        wish => wish,
    })
}

/// Whether a mount can begin or change.
enum Way {
    /// It can; these sessions were fenced for it.
    Free(Vec<SessionId>),
    /// This mount has to share first.
    Held(Mount),
}

/// Fences the mounts that a takeover names and one that has not shared in time; refused if another
/// one stays in the way.
fn make_way(
    change: &mut Change<'_, '_>,
    others: Vec<Mount>,
    asking: SessionId,
    (takeover, wish): (Takeover, MountMode),
) -> Outcome<Way> {
    let full = others.len() >= MOUNTS_MAX;
    let lease_clock = change.context().lease_clock;
    let mut fenced = Vec::new();
    for other in others {
        let excludes = wish == MountMode::Exclusive || other.mode == MountMode::Exclusive;
        let is_over = |recall: Recall| recall.deadline <= lease_clock;
        let unresponsive = !excludes && other.recall.is_some_and(is_over);
        if takeover.fences(other.session, excludes, unresponsive) {
            fence(change, other.session, asking)?;
            fenced.push(other.session);
            continue;
        }
        if other.mode == MountMode::Alone && !excludes {
            // It has no others.
            return Ok(Way::Held(other));
        }
        let mounted = Error::Mounted {
            session: other.session,
            principal: other.principal,
            since: other.since,
            label: other.label,
        };
        require(!excludes, mounted)?;
    }
    require(!full || !fenced.is_empty(), Error::LimitReached)?;
    Ok(Way::Free(fenced))
}

/// Fences all sessions by which a principal has the volume's realm mounted.
pub(crate) fn fence_all_of(
    change: &mut Change<'_, '_>,
    principal: &PrincipalId,
    by: SessionId,
) -> Outcome<()> {
    for mount in mounts(change, RealmId::ROOT, MOUNTS_MAX)? {
        if mount.principal == *principal {
            fence(change, mount.session, by)?;
        }
    }
    Ok(())
}

/// Asks a mount that is alone to share. That is not a refusal, by which nothing would be written.
fn recall(
    change: &mut Change<'_, '_>,
    realm: RealmId,
    by: SessionId,
    mut holder: Mount,
) -> Outcome<Done> {
    if holder.recall.is_none() {
        let deadline = change.context().lease_clock.plus(RECALL_TIME);
        holder.recall = Some(Recall { by, deadline });
        change.put(key::mount(realm, holder.session), &holder)?;
        log::count_mounts(change, realm)?;
    }
    Ok(Done::Recalled(holder))
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

/// Removes the mount of a session whose row does not name it any more. Its locks count for nothing
/// from then on.
pub(crate) fn end(change: &mut Change<'_, '_>, realm: RealmId, session: SessionId) -> Outcome<()> {
    let row_key = key::mount(realm, session);
    let mount: Option<Mount> = change.find(&row_key)?;
    change.delete(row_key)?;
    if let Some(mount) = mount {
        locks::release_all(change, (session, realm), mount.epoch)?;
    }
    log::count_mounts(change, realm)?;
    Ok(())
}
