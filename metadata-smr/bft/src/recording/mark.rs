//! An effect in eight bytes.
//!
//! Its kind, and seven bytes of the hash of its content. This is no protection against an attacker;
//! two different effects of one replay look the same once in 2⁵⁶ times.

use crate::step::{Destination, Effect};
use crate::wire::{Field, write_bytes, write_list, write_option};

const CONTEXT: &str = "quorumfs 2026 bft recording's mark of an effect";

/// Distinguishes an effect from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub(super) u64);

/// The names of the kinds in the lowest byte.
const KINDS: [&str; 14] = [
    "Sign",
    "Persist",
    "Send",
    "Show",
    "Flush",
    "TrimJournal",
    "SetTimer",
    "CancelTimer",
    "SessionKey",
    "SessionClosed",
    "Blacklist",
    "NewEpoch",
    "Alarm",
    "Poison",
];

impl Mark {
    /// The kind of the effect.
    #[must_use]
    pub fn kind(self) -> &'static str {
        let [kind, ..] = self.0.to_le_bytes();
        KINDS.get(usize::from(kind)).copied().unwrap_or("unknown")
    }
}

/// Makes marks.
#[derive(Clone, Debug)]
pub struct Marker {
    hasher: blake3::Hasher,
}

impl Default for Marker {
    fn default() -> Self {
        let hasher = blake3::Hasher::new_derive_key(CONTEXT);
        Self { hasher }
    }
}

impl Marker {
    /// The mark of an effect.
    #[must_use]
    pub fn mark(&self, effect: &Effect) -> Mark {
        let mut hasher = self.hasher.clone();
        let mut small = Vec::with_capacity(64);
        let kind = Self::put(effect, &mut small, &mut hasher);
        hasher.update(&small);
        let mut mark = [0; 8];
        hasher.finalize_xof().fill(&mut mark);
        let [first, ..] = &mut mark;
        *first = kind;
        Mark(u64::from_le_bytes(mark))
    }

    /// Long byte strings go to `hasher`, after their length; all other bytes are collected in
    /// `small`.
    fn put(effect: &Effect, small: &mut Vec<u8>, hasher: &mut blake3::Hasher) -> u8 {
        let mut long = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        match effect {
            Effect::Sign { message } => {
                long(message.signed_bytes());
                0
            }
            Effect::Persist { record, token } => {
                long(record);
                token.0.write(small);
                1
            }
            Effect::Send { to, frame, after } => {
                long(frame);
                let (kind, number) = match to {
                    Destination::Replica(id) => (0_u8, u64::from(id.0)),
                    Destination::Replicas => (1, 0),
                    Destination::Client(connection) => (2, connection.0),
                };
                kind.write(small);
                number.write(small);
                write_option(small, after.as_ref(), |token, small| token.0.write(small));
                2
            }
            Effect::Show { to, frame } => {
                long(frame);
                write_list(small, to, |connection, small| connection.0.write(small));
                3
            }
            Effect::Flush { batch, root } => {
                for (key, value) in &batch.entries {
                    long(key);
                    long(&[u8::from(value.is_some())]);
                    long(value.as_deref().unwrap_or_default());
                }
                root.sequence.write(small);
                root.digest.write(small);
                4
            }
            Effect::TrimJournal { before } => {
                before.0.write(small);
                5
            }
            Effect::SetTimer { timer, after } => {
                (*timer as u8).write(small);
                after.0.write(small);
                6
            }
            Effect::CancelTimer { timer } => {
                (*timer as u8).write(small);
                7
            }
            Effect::SessionKey {
                id,
                key,
                principal,
                credit,
            } => {
                id.write(small);
                key.write(small);
                principal.write(small);
                credit.lanes.write(small);
                credit.bytes.write(small);
                8
            }
            Effect::SessionClosed { id } => {
                id.write(small);
                9
            }
            Effect::Blacklist { peer, reason } => {
                super::layout::put_peer(*peer, small);
                write_bytes(small, reason.as_bytes());
                10
            }
            Effect::NewEpoch { membership, me } => {
                long(&membership.encode());
                me.write(small);
                11
            }
            Effect::Alarm { reason } => {
                write_bytes(small, reason.as_bytes());
                12
            }
            Effect::Poison { reason } => {
                write_bytes(small, reason.as_bytes());
                13
            }
        }
    }
}
