//! The verdict on a journal that was read back.
//!
//! It is given on raw bytes and has three values:
//!
//! * **intact**: every record verifies;
//! * **torn tail**: after the last record that verifies, a write may never have completed. No
//!   message that waited for it was ever sent: it is dropped;
//! * **lost**: any other finding: a durable record that does not verify, or a gap. The missing
//!   records may have been promises to others; a replica that votes without knowing its promises is
//!   a liar. It does not vote any more.
//!
//! Within one segment the framing decides ([`super::framing`]). From one segment to the next the
//! tokens must follow: a segment names the token of its first record, so records that an earlier
//! one lacks at its end were dropped by an earlier recovery, or are missing.

use super::framing::{Framing, SegmentIdentity, Why};
use crate::step::Token;
use bytes::Bytes;

/// A record that was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its token.
    pub token: Token,
    /// Its bytes; see [`super::Record::decode`].
    pub record: Bytes,
}

/// Whether the journal can be relied on.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Condition {
    /// Every record holds.
    #[default]
    Intact,
    /// The last write may have been cut short. The records that follow go to another segment.
    TornTail,
    /// The promises are not known any more.
    Lost {
        /// Why, for the operator.
        reason: String,
    },
}

/// The state of a replica's journal. The default is that of a replica that never ran.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Journal {
    /// The records up to the first damage.
    pub entries: Vec<Entry>,
    /// The verdict.
    pub condition: Condition,
    /// Tokens from this one on were never used; 0 if the entries say enough.
    pub next: Token,
}

impl Journal {
    /// The verdict on a journal that should exist and does not.
    #[must_use]
    pub fn lost(reason: impl Into<String>) -> Self {
        Self {
            condition: Condition::Lost {
                reason: reason.into(),
            },
            ..Self::default()
        }
    }
}

/// One segment's records as they are on the medium.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The token of its first record.
    pub first: Token,
    /// The identity of this use of its bytes.
    pub identity: SegmentIdentity,
    /// The bytes after its header.
    pub bytes: Bytes,
}

/// The verdict on a journal's segments, oldest first.
#[must_use]
pub fn examine(segments: &[Segment]) -> Journal {
    let mut entries: Vec<Entry> = Vec::new();
    let mut condition = Condition::Intact;
    let mut due = segments.first().map_or(Token(0), |first| first.first);
    for (index, segment) in segments.iter().enumerate() {
        if segment.first != due {
            condition = lost("records are missing", index, 0);
            break;
        }
        let framing = Framing::new(segment.identity);
        let end = framing.read(&segment.bytes, due, &mut entries);
        due = end.next;
        condition = match end.why {
            Why::Whole => Condition::Intact,
            Why::Torn => Condition::TornTail,
            Why::Damaged(what) => lost(what, index, end.at),
        };
        if matches!(condition, Condition::Lost { .. }) {
            break;
        }
    }
    Journal {
        entries,
        condition,
        next: Token(0),
    }
}

fn lost(what: &str, index: usize, at: usize) -> Condition {
    Condition::Lost {
        reason: format!("{what} (segment {index} of the journal, byte {at})"),
    }
}

#[cfg(test)]
mod tests;
