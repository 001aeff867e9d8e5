//! The library's own rows, byte by byte.
//!
//! ```text
//!  key                                   value
//!  "c"                                   sequence, time, lease clock, last session id, sessions,
//!                                        credit beyond the floor, used openings, sessions that
//!                                        ended recently, watches, last watch id
//!  "s" ‖ session (8)                     principal, session key, credit, opened at, last active,
//!                                        signed at
//!  "k" ‖ principal (32) ‖ session key    session, or that its opening has been used
//!  "e" ‖ until (8) ‖ principal ‖ session key   –      (openings that may be forgotten then)
//!  "l" ‖ ended at (8) ‖ session (8)      principal, session key: of sessions that ended recently,
//!                                        so that a batch may still name them
//!  "m"                                   the membership, see `crate::membership`
//!  "a" ‖ key (32)                        what a replica announced: checkpoint, behaviour
//!  "f"                                   keys of replicas whose disks are nearly full
//!  "p" ‖ principal (32)                  its open sessions, their credit beyond the floor
//!  "i" ‖ last active (8) ‖ session (8)   –            (the longest idle comes first)
//!  "w" ‖ session (8)                     its watches, its last event
//!  "x" ‖ session (8) ‖ watch (8)         prefixes of keys
//!  "r" ‖ session (8) ‖ lane (2) ‖ slot (1)   number, request digest, sequence, outcome
//! ```
//!
//! Numbers in keys are big-endian, so that rows sort by them; values are borsh behind a version
//! byte.

use crate::identity::{Digest, Lane, PublicKey, RequestNumber, Sequence, SessionId, Time};
use crate::observer::WatchId;
use crate::service::Credit;
use crate::state::StateError;
use crate::wire::message::Outcome;
use borsh::{BorshDeserialize, BorshSerialize};
use bytes::Bytes;

/// The version of these rows.
pub(super) const ROW_VERSION: u8 = 1;
/// The initial buffer size; most rows fit, so they are not moved while they are written.
const ROW_BYTES_USUAL: usize = 160;

/// The key of the one clock row.
pub(super) const CLOCK_KEY: &[u8] = b"c";
/// Begins the keys of the rows that list sessions by when they were last active.
pub(super) const IDLE_PREFIX: &[u8] = b"i";
/// Begins the keys of the rows that list used openings by when they may be forgotten.
pub(super) const ENDED_PREFIX: &[u8] = b"e";
/// Begins the keys of the rows about sessions that ended recently.
pub(super) const CLOSED_SESSION_PREFIX: &[u8] = b"l";
/// Begins the keys of the rows that hold watches.
pub(super) const WATCH_PREFIX: &[u8] = b"x";
/// Begins the keys of the session rows.
pub(super) const SESSION_PREFIX: &[u8] = b"s";

/// The position of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, BorshSerialize, BorshDeserialize)]
pub struct ClockRow {
    /// The last batch that was executed.
    pub sequence: Sequence,
    /// Its time.
    pub time: Time,
    /// The lease clock after it.
    pub lease_clock: Time,
    /// The last session id that was assigned.
    pub last_session: SessionId,
    /// How many sessions are open.
    pub sessions_open: u32,
    /// The sum of what they were granted beyond their floors.
    pub beyond_floor: u64,
    /// Openings of ended sessions that are remembered.
    pub remembered: u32,
    /// Sessions that have ended, but may still be named by a batch.
    pub closed_sessions: u32,
    /// Watches of all sessions.
    pub watches: u32,
    /// The last watch id that was assigned.
    pub last_watch: WatchId,
}

/// A session that watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct WatcherRow {
    /// How many watches it has.
    pub(super) watches: u32,
    /// The last batch that changed a row which it watches.
    pub(super) last: Sequence,
}

/// A watch.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct WatchRow {
    /// The prefix of the keys of the service's rows.
    pub(super) prefixes: Vec<Vec<u8>>,
}

/// The data needed to check a request of a session that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct ClosedSessionRow {
    pub(super) principal: PublicKey,
    pub(super) key: PublicKey,
}

/// The state of an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) enum IndexRow {
    /// Its session is open.
    Open(SessionId),
    /// Its session has ended.
    Ended,
}

/// The totals of a principal with an open session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, BorshSerialize, BorshDeserialize)]
pub(super) struct PrincipalRow {
    /// The number of sessions.
    pub(super) sessions: u32,
    /// The sum of what they were granted beyond their floors.
    pub(super) beyond_floor: u64,
}

/// An open session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct SessionRow {
    /// The principal that opened it.
    pub principal: PublicKey,
    /// What its requests are signed with.
    pub key: PublicKey,
    /// The requests that it may have pending.
    pub credit: Credit,
    /// The batch that it was opened in.
    pub opened: Sequence,
    /// The lease clock when it was last seen active, to within a minute.
    pub active: Time,
    /// The time at which its opening was signed, according to the opening.
    pub signed: Time,
}

/// The reply to one executed request.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct ReplyRow {
    pub(super) number: RequestNumber,
    pub(super) request: Digest,
    pub(super) version: Sequence,
    pub(super) results: Vec<Option<Vec<u8>>>,
}

/// The first fields of a [`ReplyRow`]: enough to know which request it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshDeserialize)]
pub(super) struct ReplyHead {
    pub(super) number: RequestNumber,
    pub(super) request: Digest,
}

impl ReplyRow {
    pub(super) fn outcome(&self) -> Outcome {
        let results = self.results.iter();
        Outcome::Results(
            results
                .map(|one| one.as_ref().map(|b| Bytes::copy_from_slice(b)))
                .collect(),
        )
    }
}

pub(super) fn session_key(id: SessionId) -> [u8; 9] {
    let mut key = [b's'; 9];
    if let Some(rest) = key.get_mut(1..) {
        rest.copy_from_slice(&id.0.to_be_bytes());
    }
    key
}

/// The session that a key of [`SESSION_PREFIX`] names.
pub(super) fn session_of_key(key: &[u8]) -> Option<SessionId> {
    let id: [u8; 8] = key.strip_prefix(SESSION_PREFIX)?.try_into().ok()?;
    Some(SessionId(u64::from_be_bytes(id)))
}

/// The key contains the principal: a principal that names a session key need not prove that it has
/// it, so another principal that names the same one must not be in the way.
pub(super) fn index_key(principal: &PublicKey, key: &PublicKey) -> Vec<u8> {
    [b"k", principal.0.as_slice(), key.0.as_slice()].concat()
}

pub(super) fn ended_key(until: Time, principal: &PublicKey, key: &PublicKey) -> Vec<u8> {
    let until = until.0.to_be_bytes();
    [
        ENDED_PREFIX,
        &until,
        principal.0.as_slice(),
        key.0.as_slice(),
    ]
    .concat()
}

/// The time until which an opening is remembered, and its name, from its key.
pub(super) fn name_of_ended_key(key: &[u8]) -> Option<(Time, PublicKey, PublicKey)> {
    let (until, rest) = key.strip_prefix(ENDED_PREFIX)?.split_first_chunk::<8>()?;
    let (principal, rest) = rest.split_first_chunk::<32>()?;
    let session_key: [u8; 32] = rest.try_into().ok()?;
    let until = Time(u64::from_be_bytes(*until));
    Some((until, PublicKey(*principal), PublicKey(session_key)))
}

pub(super) fn principal_key(principal: &PublicKey) -> Vec<u8> {
    [b"p", principal.0.as_slice()].concat()
}

pub(super) fn idle_key(active: Time, id: SessionId) -> Vec<u8> {
    [IDLE_PREFIX, &active.0.to_be_bytes(), &id.0.to_be_bytes()].concat()
}

/// The time and session that an idle row's key names.
pub(super) fn idle_of_key(key: &[u8]) -> Option<(Time, SessionId)> {
    let (active, id) = key.strip_prefix(IDLE_PREFIX)?.split_first_chunk::<8>()?;
    let id: [u8; 8] = id.try_into().ok()?;
    Some((
        Time(u64::from_be_bytes(*active)),
        SessionId(u64::from_be_bytes(id)),
    ))
}

pub(super) fn closed_session_key(at: Sequence, id: SessionId) -> Vec<u8> {
    let (at, id) = (at.0.to_be_bytes(), id.0.to_be_bytes());
    [CLOSED_SESSION_PREFIX, &at, &id].concat()
}

/// The end of a session and its id, from the key of its row.
pub(super) fn closed_session_of_key(key: &[u8]) -> Option<(Sequence, SessionId)> {
    let (at, id) = key
        .strip_prefix(CLOSED_SESSION_PREFIX)?
        .split_first_chunk::<8>()?;
    let id: [u8; 8] = id.try_into().ok()?;
    Some((
        Sequence(u64::from_be_bytes(*at)),
        SessionId(u64::from_be_bytes(id)),
    ))
}

pub(super) fn watcher_key(id: SessionId) -> Vec<u8> {
    [b"w", id.0.to_be_bytes().as_slice()].concat()
}

pub(super) fn watches_prefix(id: SessionId) -> Vec<u8> {
    [WATCH_PREFIX, &id.0.to_be_bytes()].concat()
}

pub(super) fn watch_key(id: SessionId, watch: WatchId) -> Vec<u8> {
    [WATCH_PREFIX, &id.0.to_be_bytes(), &watch.0.to_be_bytes()].concat()
}

/// The session and the watch that a key of [`WATCH_PREFIX`] names.
pub(super) fn watch_of_key(key: &[u8]) -> Option<(SessionId, WatchId)> {
    let (id, rest) = key.strip_prefix(WATCH_PREFIX)?.split_first_chunk::<8>()?;
    let watch: [u8; 8] = rest.try_into().ok()?;
    Some((
        SessionId(u64::from_be_bytes(*id)),
        WatchId(u64::from_be_bytes(watch)),
    ))
}

pub(super) fn lanes_prefix(id: SessionId) -> Vec<u8> {
    [b"r", id.0.to_be_bytes().as_slice()].concat()
}

pub(super) fn reply_key(id: SessionId, lane: Lane, slot: u8) -> [u8; 12] {
    let [a, b, c, d, e, f, g, h] = id.0.to_be_bytes();
    let [i, j] = lane.0.to_be_bytes();
    [b'r', a, b, c, d, e, f, g, h, i, j, slot]
}

pub(super) fn encode<T: BorshSerialize>(row: &T) -> Result<Bytes, StateError> {
    let mut bytes = Vec::with_capacity(ROW_BYTES_USUAL);
    bytes.push(ROW_VERSION);
    match row.serialize(&mut bytes) {
        Ok(()) => Ok(Bytes::from(bytes)),
        Err(error) => Err(damaged("a row that is being written", &error.to_string())),
    }
}

pub(super) fn decode<T: BorshDeserialize>(key: &[u8], bytes: &[u8]) -> Result<T, StateError> {
    T::try_from_slice(body(key, bytes)?).map_err(|error| damaged_row(key, &error.to_string()))
}

/// Decodes only the first fields of a row.
pub(super) fn decode_head<T: BorshDeserialize>(key: &[u8], bytes: &[u8]) -> Result<T, StateError> {
    let mut body = body(key, bytes)?;
    T::deserialize(&mut body).map_err(|error| damaged_row(key, &error.to_string()))
}

fn body<'a>(key: &[u8], bytes: &'a [u8]) -> Result<&'a [u8], StateError> {
    match bytes.split_first() {
        Some((&ROW_VERSION, body)) => Ok(body),
        Some((&version, _)) => Err(StateError::Newer {
            found: u32::from(version),
            known: u32::from(ROW_VERSION),
        }),
        None => Err(damaged_row(key, "it is empty")),
    }
}

fn damaged_row(key: &[u8], reason: &str) -> StateError {
    damaged(&format!("row {key:02x?}"), reason)
}

pub(super) fn damaged(place: &str, reason: &str) -> StateError {
    StateError::Damaged {
        place: place.to_owned(),
        reason: reason.to_owned(),
    }
}
