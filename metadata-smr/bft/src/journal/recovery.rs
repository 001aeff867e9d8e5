//! The verdict on what is found of a journal.
//!
//! It is on raw bytes and has three values:
//!
//! * **intact**: every record holds;
//! * **torn tail**: behind the last record that holds, a write may never have completed. Nothing
//!   that waited for it was ever sent: it is dropped;
//! * **lost**: anything else: a record that was durable and does not hold, a gap. What stood there
//!   may have been promised to others; a replica that votes without knowing its promises is a liar.
//!   It does not vote any more.
//!
//! Which is which within one segment is told by its framing ([`super::framing`]). From one segment
//! to the next the tokens must follow: a segment says what its first record is called, so whatever
//! an earlier one lacks at its end was dropped by a recovery before, or is missing.

use super::framing::{Framing, SegmentIdentity, Why};
use crate::step::Token;
use bytes::Bytes;

/// A record as it was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
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
    /// The last write may have been cut short. What follows goes to another segment.
    TornTail,
    /// What was promised is not known any more.
    Lost {
        /// Why, for the operator.
        reason: String,
    },
}

/// What a replica finds of its journal. The default is that of a replica that never ran.
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
    /// A journal that should be there and is not.
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

/// One segment's records as they lie on the medium.
#[derive(Clone, Debug)]
pub struct Segment {
    /// What its first record is called.
    pub first: Token,
    /// Which use of its bytes this is.
    pub identity: SegmentIdentity,
    /// What stands behind its header.
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
