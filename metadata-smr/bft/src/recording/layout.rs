//! Entries as bytes: a tag, and its fields in borsh's layout.
//!
//! A recording is written by a replica, but files are copied and damaged, and a check that verifies
//! is no reason to allocate the length in a field: the reader compares it with its limit first, as
//! for frames.

use super::{Entry, Mark, Start};
use crate::authentication::Authentication;
use crate::durability::Durability;
use crate::identity::{ClusterId, ConnectionId, Monotonic, Nanos, Now, Time};
use crate::journal::Condition;
use crate::membership::Membership;
use crate::replica::Config;
use crate::step::{Event, Peer, Timer, Token};
use crate::wire::limits::{FRAME_BYTES_MAX, MEMBERSHIP_BYTES_MAX, RECORD_BYTES_MAX};
use crate::wire::message::{Message, StrayRequest};
use crate::wire::{
    Envelope, Field, Malformed, Reader, Verified, encode, write_bytes, write_list, write_option,
};
use bytes::Bytes;
use std::sync::Arc;

/// The longest text: a name, a reason.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// The longest key or value of a store, and the longest genesis: larger than any in use.
const ROW_BYTES_MAX: usize = 64 << 20;
/// More effects than any one event has.
const EFFECTS_MAX: usize = 1 << 20;

type Parsed<T> = Result<T, Malformed>;

const TIMERS: [Timer; 6] = [
    Timer::Progress,
    Timer::Status,
    Timer::Tick,
    Timer::Fetch,
    Timer::Clock,
    Timer::Batch,
];

impl Start {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let to = &mut bytes;
        write_bytes(to, self.service.as_bytes());
        write_bytes(to, self.release.as_bytes());
        // Every field by name: a field that is added may affect the core.
        let Config {
            replica,
            key,
            incarnation,
            reincarnation,
            cluster,
            genesis_membership,
            genesis,
            behaviour_version,
            checkpoint_interval,
            authentication,
            durability,
            return_after,
            leaf_bytes_max,
            reply_whole_bytes,
            session_idle,
            detects_rollback,
            sabotage: _,
        } = &self.config;
        replica.write(to);
        key.write(to);
        incarnation.write(to);
        reincarnation.write(to);
        cluster.0.write(to);
        write_bytes(to, &genesis_membership.encode());
        write_bytes(to, genesis);
        behaviour_version.write(to);
        checkpoint_interval.write(to);
        let durability = match durability {
            Durability::Strict => 0_u8,
            Durability::Os => 1,
            Durability::None => 2,
        };
        (u8::from(!authentication.signs_votes()) | durability << 1).write(to);
        leaf_bytes_max.write(to);
        (*reply_whole_bytes as u64).write(to);
        session_idle.0.write(to);
        detects_rollback.write(to);
        return_after.map_or(u64::MAX, |after| after.0).write(to);
        let (verdict, reason) = match &self.condition {
            Condition::Intact => (0_u8, ""),
            Condition::TornTail => (1, ""),
            Condition::Lost { reason } => (2, reason.as_str()),
        };
        verdict.write(to);
        write_bytes(to, reason.as_bytes());
        self.next.0.write(to);
        put_now(self.now, to);
        bytes
    }

    pub(super) fn decode(bytes: &Bytes) -> Parsed<Self> {
        let mut reader = Reader::new(bytes);
        let from = &mut reader;
        let (service, release) = (text(from, "service")?, text(from, "release")?);
        let replica = from.get("replica")?;
        let (key, incarnation) = (from.get("key")?, from.get("incarnation")?);
        let reincarnation = from.get("reincarnation")?;
        let cluster = ClusterId(from.array("cluster")?);
        let membership = Membership::decode(&from.bytes("membership", MEMBERSHIP_BYTES_MAX)?)?;
        let genesis = from.bytes("genesis", ROW_BYTES_MAX)?;
        let impossible = |field| Malformed::Impossible { field };
        let mut config = Config::member(
            key,
            incarnation,
            reincarnation,
            cluster,
            membership,
            genesis,
        );
        config.replica = replica;
        config.behaviour_version = from.get("behaviour version")?;
        config.checkpoint_interval = from.get("checkpoint interval")?;
        let modes: u8 = from.get("modes")?;
        config.authentication = match modes & 1 {
            0 => Authentication::Sig,
            _ => Authentication::Mac,
        };
        config.durability = match modes >> 1 {
            0 => Durability::Strict,
            1 => Durability::Os,
            2 => Durability::None,
            _ => return Err(impossible("modes")),
        };
        config.leaf_bytes_max = from.get("bound of leaves")?;
        let whole = from.get::<u64>("bound of whole replies")?;
        config.reply_whole_bytes = usize::try_from(whole).map_err(|_| impossible("bound"))?;
        config.session_idle = Nanos(from.get("idle time of sessions")?);
        config.detects_rollback = from.get("whether it detects a rollback")?;
        let after = from.get("how long a leader is away")?;
        config.return_after = (after != u64::MAX).then_some(Nanos(after));
        let verdict: u8 = from.get("verdict on the journal")?;
        let reason = text(from, "verdict's reason")?;
        let condition = match verdict {
            0 => Condition::Intact,
            1 => Condition::TornTail,
            2 => Condition::Lost { reason },
            _ => return Err(impossible("verdict on the journal")),
        };
        let next = Token(from.get("next token")?);
        let now = now(from)?;
        from.end()?;
        Ok(Self {
            service,
            release,
            config,
            condition,
            next,
            now,
        })
    }
}

impl Entry {
    /// Parses the content of a block whose checks verify. For fuzzers, whose bytes never do.
    #[doc(hidden)]
    pub fn all_in(content: &Bytes) -> Result<Vec<Self>, Malformed> {
        let (mut rest, mut entries) = (content.clone(), Vec::new());
        while !rest.is_empty() {
            let mut reader = Reader::new(&rest);
            entries.push(Self::decode(&mut reader)?);
            rest = reader.rest();
        }
        Ok(entries)
    }

    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Self::JournalRecord { token, record } => {
                to.push(0);
                token.0.write(to);
                write_bytes(to, record);
            }
            Self::Event { now, event } => {
                to.push(1);
                put_now(*now, to);
                put_event(event, to);
            }
            Self::Read { key, found } => {
                to.push(2);
                write_bytes(to, key);
                found.is_ok().write(to);
                match found {
                    Ok(value) => write_option(to, value.as_ref(), |it, to| write_bytes(to, it)),
                    Err(reason) => write_bytes(to, reason.as_bytes()),
                }
            }
            Self::Effects { effects } => {
                to.push(3);
                write_list(to, effects, |mark, to| mark.0.write(to));
            }
            Self::End { why } => {
                to.push(4);
                write_bytes(to, why.as_bytes());
            }
        }
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Parsed<Self> {
        Ok(match from.get::<u8>("entry")? {
            0 => Self::JournalRecord {
                token: Token(from.get("token")?),
                record: from.bytes("record", RECORD_BYTES_MAX)?,
            },
            1 => Self::Event {
                now: now(from)?,
                event: event(from)?,
            },
            2 => Self::Read {
                key: from.bytes("key", ROW_BYTES_MAX)?,
                found: match from.get("outcome of a read")? {
                    true => Ok(from.option("value", |it| it.bytes("value", ROW_BYTES_MAX))?),
                    false => Err(text(from, "failure")?),
                },
            },
            3 => Self::Effects {
                effects: from.list("effects", EFFECTS_MAX, |it| it.get("effect").map(Mark))?,
            },
            4 => Self::End {
                why: text(from, "end")?,
            },
            _ => return Err(Malformed::UnknownKind),
        })
    }
}

fn put_now(now: Now, to: &mut Vec<u8>) {
    now.clock.write(to);
    now.monotonic.0.write(to);
}

fn now(from: &mut Reader<'_>) -> Parsed<Now> {
    Ok(Now {
        clock: Time(from.get("clock")?),
        monotonic: Monotonic(from.get("clock")?),
    })
}

fn text(from: &mut Reader<'_>, field: &'static str) -> Parsed<String> {
    let bytes = from.bytes(field, TEXT_BYTES_MAX)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| Malformed::Impossible { field })
}

pub(super) fn put_peer(peer: Peer, to: &mut Vec<u8>) {
    match peer {
        Peer::Replica(id) => {
            to.push(0);
            id.write(to);
        }
        Peer::Client(connection) => {
            to.push(1);
            connection.0.write(to);
        }
    }
}

fn peer(from: &mut Reader<'_>) -> Parsed<Peer> {
    Ok(match from.get("kind of peer")? {
        false => Peer::Replica(from.get("replica")?),
        true => Peer::Client(ConnectionId(from.get("connection")?)),
    })
}

fn put_event(event: &Event, to: &mut Vec<u8>) {
    match event {
        Event::Received { from, message } => {
            to.push(0);
            put_peer(*from, to);
            put_message(message, to);
        }
        Event::Signed { message } => {
            to.push(1);
            put_message(message, to);
        }
        Event::Persisted { token } => {
            to.push(2);
            token.0.write(to);
        }
        Event::Flushed { sequence } => {
            to.push(3);
            sequence.write(to);
        }
        Event::Timer { timer } => {
            to.push(4);
            (*timer as u8).write(to);
        }
        Event::Connected { replica } => {
            to.push(5);
            replica.write(to);
        }
        Event::Disconnected { connection } => {
            to.push(6);
            connection.0.write(to);
        }
    }
}

fn event(from: &mut Reader<'_>) -> Parsed<Event> {
    Ok(match from.get::<u8>("event")? {
        0 => Event::Received {
            from: peer(from)?,
            message: message(from)?,
        },
        1 => Event::Signed {
            message: message(from)?,
        },
        2 => Event::Persisted {
            token: Token(from.get("token")?),
        },
        3 => Event::Flushed {
            sequence: from.get("sequence")?,
        },
        4 => {
            let number: u8 = from.get("timer")?;
            let timer = TIMERS.get(usize::from(number)).copied();
            let timer = timer.ok_or(Malformed::Impossible { field: "timer" })?;
            Event::Timer { timer }
        }
        5 => Event::Connected {
            replica: from.get("replica")?,
        },
        6 => Event::Disconnected {
            connection: ConnectionId(from.get("connection")?),
        },
        _ => return Err(Malformed::UnknownKind),
    })
}

/// The result of a frame's verification is part of the core's input.
fn put_message(message: &Verified, to: &mut Vec<u8>) {
    matches!(message.message(), Message::Stray(_)).write(to);
    match message.message() {
        // Some may have been left out, and the core sees of the frame only the others.
        Message::Bodies(_) => write_bytes(to, &encode(*message.header(), message.message())),
        _ => write_bytes(to, message.frame()),
    }
}

fn message(from: &mut Reader<'_>) -> Parsed<Verified> {
    let stray: bool = from.get("mark of a stray")?;
    let envelope = Envelope::decode(from.bytes("frame", FRAME_BYTES_MAX)?)?;
    let envelope = match (stray, StrayRequest::of(envelope.message())) {
        (false, _) => envelope,
        (true, Some(stray)) => envelope.into_stray(stray),
        (true, None) => return Err(Malformed::Impossible { field: "stray" }),
    };
    Ok(Verified::trusted(Arc::new(envelope)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_read_as_they_are_written() {
        for (number, timer) in (0_u8..).zip(TIMERS) {
            assert_eq!(timer as u8, number);
        }
    }
}
