//! Loads a copy of the metadata into a volume that is recovered from its clouds.
//!
//! All servers are lost, and a copy of the metadata of one point in the past is left. New servers
//! begin with a genesis of the next incarnation, which admits one principal, that of the recovery
//! kit. It *loads* the copy's rows in the order of their keys, each of a bounded number of
//! operations, and *finishes*: then the volume's principals are admitted, and the volume is what it
//! was at that point.
//!
//! ```text
//! genesis n+1 ──► loading ──Load … Load──► loading ──FinishLoading──► in use
//!                    │ nothing else finds a row, and no other principal is admitted
//! ```
//!
//! The client proves the rows against the old servers' certificate. The servers take them on the
//! word of the principal that the volume root names in the genesis; they check only that each row
//! decodes, so that none can stop them later.
//!
//! What is different from the copy:
//! * **Sessions are over**, and with them mounts, locks, change logs, allocations and
//!   jobs. Their orphans
//!   are queued, and what is in the grave is due.
//! * **Expiries are queued anew**, with their principals. Those whose time has come meanwhile are
//!   dismissed by the first tick.
//! * **Ids go on with those of the incarnation**, so that none is assigned twice: those of shares
//!   too.
//! * **Sequences begin anew**: all objects are as old as the first point, which is retained until
//!   it is released, so that the copy stays usable until there is another one.
//! * **Capsules are of that point too**. The order of their points and of objects is gone, so while
//!   one of them lasts, all objects of the copy are retained.
//!
//! Failures: a client that dies goes on where it stopped, since the servers remember the last key.
//! An operation that does not continue behind that key is refused, so no rows are left out.

use crate::change::{Asker, Change};
use crate::codec::DecodeError;
use crate::error::Error;
use crate::fleet::{Fleet, SignedCloudChange};
use crate::limits::{LOAD_ROWS_MAX, PRINCIPALS_READ_MAX};
use crate::people::SignedPeopleChange;
use crate::reply::Done;
use crate::row::{
    Cloud, CloudSecretRow, Counters, Drain, EntryRow, Epoch, Evidence, EvidenceCount,
    ExtendedAttribute, Extent, Format, FormerPrincipal, Grave, GravePlace, HomeCounters, Inode,
    Loading, Machine, Member, Numbered, Object, OldKeys, Orphan, PackedSlice, Parting,
    PeopleChanges, Principal, Realm, RealmQuota, Reap, Reseal, Retention, RetentionKind, Row,
    Share, ShareAt, ShareCount, ShareIndexed, ShareNumbers, ShareWith, Slice, Sparse, TrashPlace,
    TrashSize, Trashed, UnderReplicated, Unreferenced, UserQuota, key,
};
use crate::rows::{Halt, Outcome, Rows, require};
use crate::statement;
use crate::succession::SignedSuccession;
use quorumfs_bft::identity::{Sequence, SessionId, Time};
use quorumfs_bft::state::KEY_BYTES_MAX;

/// What happens to the rows of a tag.
enum RowFate {
    /// They are loaded as they are, once this says that they decode.
    Kept(fn(&[u8]) -> Result<(), DecodeError>),
    /// They belong to the old servers and sessions.
    Dropped,
    Counters,
    HomeCounters,
    Share,
    ShareNumbers,
    CapsulePoint,
    Object,
    Unreferenced,
    /// Of a session that has ended.
    Orphan,
    /// Of a lease clock that is over.
    Grave,
    GravePlace,
}

fn decodes<R: Row>(bytes: &[u8]) -> Result<(), DecodeError> {
    R::from_bytes(bytes).map(|_| ())
}

/// The fate of a row; `None` if no volume has such a row, or it has to come with the end.
fn fate(row_key: &[u8]) -> Option<RowFate> {
    let tag = row_key.split_inclusive(|byte| *byte == b'/').next()?;
    let rest = row_key.get(tag.len()..)?;
    Some(match (tag, rest) {
        (b"G/", b"format" | b"loading") => RowFate::Dropped,
        (b"G/", b"counters") => RowFate::Counters,
        (b"G/", rest) if rest.starts_with(b"home/") => RowFate::HomeCounters,
        (b"G/", rest) if rest.starts_with(b"cloud/") => RowFate::Kept(decodes::<Cloud>),
        (b"CF/", _) => RowFate::Kept(decodes::<Fleet>),
        (b"CH/", _) => RowFate::Kept(decodes::<SignedCloudChange>),
        (b"CD/", _) => RowFate::Kept(decodes::<Drain>),
        (b"PN/", _) => RowFate::Kept(decodes::<Numbered>),
        (b"PS/", _) => RowFate::Kept(decodes::<SignedSuccession>),
        (b"PC/", _) => RowFate::Kept(decodes::<CloudSecretRow>),
        (b"PH/", _) => RowFate::Kept(decodes::<SignedPeopleChange>),
        (b"PL/", _) => RowFate::Kept(decodes::<PeopleChanges>),
        (b"PF/", _) => RowFate::Kept(decodes::<FormerPrincipal>),
        (b"PM/", _) => RowFate::Kept(decodes::<Machine>),
        (b"R/", _) => RowFate::Kept(decodes::<Realm>),
        (b"RE/", _) => RowFate::Kept(decodes::<Epoch>),
        (b"RM/", _) => RowFate::Kept(decodes::<Member>),
        (b"RG/", _) => RowFate::Kept(decodes::<OldKeys>),
        (b"I/", _) => RowFate::Kept(decodes::<Inode>),
        (b"D/", _) => RowFate::Kept(decodes::<EntryRow>),
        (b"DR/", _) => RowFate::Kept(decodes::<Reseal>),
        (b"X/", _) => RowFate::Kept(decodes::<ExtendedAttribute>),
        (b"E/", _) => RowFate::Kept(decodes::<Extent>),
        (b"S/", _) => RowFate::Kept(decodes::<Slice>),
        (b"O/", _) => RowFate::Object,
        (b"OG/", _) => RowFate::Unreferenced,
        (b"OS/", _) => RowFate::Kept(decodes::<PackedSlice>),
        (b"OC/", _) => RowFate::Kept(decodes::<Sparse>),
        (b"U/", _) => RowFate::Kept(decodes::<UnderReplicated>),
        (b"T/", _) => RowFate::Kept(decodes::<Reap>),
        (b"V/", _) => RowFate::Kept(decodes::<Evidence>),
        (b"VC/", _) => RowFate::Kept(decodes::<EvidenceCount>),
        (b"Q/", _) => RowFate::Kept(decodes::<RealmQuota>),
        (b"QU/", _) => RowFate::Kept(decodes::<UserQuota>),
        (b"TR/", _) => RowFate::Kept(decodes::<Trashed>),
        (b"TI/" | b"TD/", _) => RowFate::Kept(decodes::<TrashPlace>),
        (b"TO/", _) => RowFate::Kept(decodes::<Parting>),
        (b"TU/", _) => RowFate::Kept(decodes::<TrashSize>),
        (b"SH/", _) => RowFate::Share,
        (b"SC/", _) => RowFate::Kept(decodes::<ShareCount>),
        (b"ST/" | b"SI/", _) => RowFate::Kept(decodes::<ShareAt>),
        (b"SU/" | b"SP/" | b"SX/", _) => RowFate::Kept(decodes::<ShareIndexed>),
        (b"SN/", _) => RowFate::ShareNumbers,
        (b"SR/", _) => RowFate::CapsulePoint,
        (b"N/" | b"NA/" | b"RX/" | b"JB/" | b"RT/", _)
        | (b"RC/" | b"CL/" | b"RB/" | b"RO/", _)
        // They come with their principals.
        | (b"PX/", _)
        // They last minutes.
        | (b"PI/" | b"PJ/", _)
        | (b"K/" | b"KW/" | b"KT/" | b"KO/" | b"KN/", _) => RowFate::Dropped,
        (b"GR/", _) => RowFate::Grave,
        (b"GI/", _) => RowFate::GravePlace,
        (b"NO/", _) => RowFate::Orphan,
        _ => return None,
    })
}

/// Whether it is decided what happens to a row.
#[cfg(test)]
pub(crate) fn knows(row_key: &[u8]) -> bool {
    fate(row_key).is_some()
}

/// The state of the recovery, for the principal that recovers.
fn loading(change: &Change<'_, '_>, asker: &Asker) -> Outcome<Loading> {
    let row = change.find::<Loading>(&key::loading())?;
    row.filter(|row| row.by == asker.caller.principal)
        .ok_or(Halt::Refused(Error::NotLoading))
}

/// Loads rows; see [`Operation::Load`](crate::operation::Operation::Load).
pub(crate) fn load(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    after: &[u8],
    rows: &[(Vec<u8>, Vec<u8>)],
) -> Outcome<Done> {
    let mut state = loading(change, asker)?;
    let limit = LOAD_ROWS_MAX as u32;
    require(rows.len() <= LOAD_ROWS_MAX, Error::TooMany { limit })?;
    require(rows.is_empty() || after == state.last, Error::Changed)?;
    for (row_key, value) in rows {
        require(*row_key > state.last, Error::Invalid)?;
        one(change, &state, row_key, value)?;
        state.last.clone_from(row_key);
        state.rows = state.rows.saturating_add(1);
    }
    change.put(key::loading(), &state)?;
    let Loading { last, rows, .. } = state;
    Ok(Done::Loaded { last, rows })
}

fn row<R: Row>(bytes: &[u8]) -> Outcome<R> {
    R::from_bytes(bytes).map_err(|_| Halt::Refused(Error::Malformed))
}

fn one(change: &mut Change<'_, '_>, state: &Loading, row_key: &[u8], value: &[u8]) -> Outcome<()> {
    let is_short = row_key.len() <= KEY_BYTES_MAX;
    require(is_short, Error::Invalid)?;
    let fate = fate(row_key).ok_or(Halt::Refused(Error::Invalid))?;
    let to = row_key.to_vec();
    match fate {
        RowFate::Dropped => Ok(()),
        RowFate::Kept(decodes) => {
            decodes(value).map_err(|_| Halt::Refused(Error::Malformed))?;
            change.put_bytes(to, value)
        }
        RowFate::Counters => {
            let mut counters: Counters = row(value)?;
            counters.next_allocation = incarnation(change)?.first_id();
            // Number 0 is that of the first point.
            counters.next_retention = 1;
            change.put(to, &counters)
        }
        RowFate::HomeCounters => {
            let mut counters: HomeCounters = row(value)?;
            counters.next_inode = incarnation(change)?.first_inode();
            change.put(to, &counters)
        }
        RowFate::Share => {
            let mut share: Share = row(value)?;
            if let ShareWith::Capsule { point, .. } = &mut share.with {
                *point = Sequence(0);
            }
            change.put(to, &share)
        }
        RowFate::CapsulePoint => {
            let indexed: ShareIndexed = row(value)?;
            let place = key::trailing_capsule(row_key);
            let place = place.filter(|(point, id)| key::capsule_point(*point, *id) == *row_key);
            let (_, id) = place.ok_or(Halt::Refused(Error::Invalid))?;
            change.put(key::capsule_point(Sequence(0), id), &indexed)
        }
        RowFate::ShareNumbers => {
            let mut numbers: ShareNumbers = row(value)?;
            let before = incarnation(change)?.before_shares();
            numbers.last = numbers.last.max(before);
            change.put(to, &numbers)
        }
        RowFate::Object => {
            let mut object: Object = row(value)?;
            object.born = Sequence(0);
            change.put(to, &object)
        }
        RowFate::Unreferenced => {
            let mut unreferenced: Unreferenced = row(value)?;
            unreferenced.since = Sequence(0);
            change.put(to, &unreferenced)
        }
        RowFate::Orphan => orphan(change, state, to, value),
        RowFate::Grave => {
            let _: Grave = row(value)?;
            let place = key::trailing_removal(row_key);
            let place = place.filter(|(at, inode)| key::grave(*at, *inode) == *row_key);
            let (_, inode) = place.ok_or(Halt::Refused(Error::Invalid))?;
            let check = change.time();
            change.put(key::grave(Time(0), inode), &Grave { check })
        }
        RowFate::GravePlace => {
            let _: GravePlace = row(value)?;
            let deadline = Time(0);
            change.put(to, &GravePlace { deadline })
        }
    }
}

fn incarnation(change: &Change<'_, '_>) -> Outcome<crate::identity::VolumeIncarnation> {
    let format: Format = change.expect_row(&key::format())?;
    Ok(format.incarnation)
}

/// An inode that a session held open: the session is over, so that its orphans are queued, once.
fn orphan(
    change: &mut Change<'_, '_>,
    state: &Loading,
    row_key: Vec<u8>,
    value: &[u8],
) -> Outcome<()> {
    let _: Orphan = row(value)?;
    let wrong = || Halt::Refused(Error::Invalid);
    let (before, _) = row_key.split_last_chunk::<8>().ok_or_else(wrong)?;
    let session = SessionId(key::trailing_number(before).ok_or_else(wrong)?);
    let of_session = key::orphans(session);
    require(row_key.starts_with(&of_session), Error::Invalid)?;
    if !state.last.starts_with(&of_session) {
        let since = change.time();
        change.queue(&Reap::Orphans { session, since })?;
    }
    change.put_bytes(row_key, value)
}

/// Admits the volume's principals; see
/// [`Operation::FinishLoading`](crate::operation::Operation::FinishLoading).
pub(crate) fn finish(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    principals: &[(Vec<u8>, Vec<u8>)],
) -> Outcome<Done> {
    loading(change, asker)?;
    let limit = PRINCIPALS_READ_MAX as u32;
    require(
        principals.len() <= PRINCIPALS_READ_MAX,
        Error::TooMany { limit },
    )?;
    let own = key::principal(&asker.caller.principal);
    let is_admitted = principals.iter().any(|(row_key, _)| *row_key == own);
    require(is_admitted, Error::NoRight)?;
    let sessions = change.expect_row::<Principal>(&own)?.sessions;
    for (row_key, value) in principals {
        let mut principal: Principal = row(value)?;
        let named = key::trailing_principal(row_key).map(|id| key::principal(&id));
        require(named.as_ref() == Some(row_key), Error::Invalid)?;
        principal.sessions = if *row_key == own { sessions } else { 0 };
        change.put(row_key.clone(), &principal)?;
        if let Some(id) = key::trailing_principal(row_key) {
            statement::expire_at(change, &id, principal.expires)?;
        }
    }
    let first = Retention {
        kind: RetentionKind::RecoveryPoint,
        from: Sequence(0),
        to: Some(Sequence(0)),
        at: change.time(),
        until: None,
    };
    change.put(key::retention(0), &first)?;
    change.delete(key::loading())?;
    Ok(Done::LoadingFinished)
}
