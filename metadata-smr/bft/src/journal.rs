//! The journal: what a replica must not forget across a restart, as bytes.
//!
//! It is a write-ahead log of *promises*. A message that promises something is sent only after the
//! record of the promise is durable ([`crate::step::Effect::Persist`] and the token in `Send`);
//! after a restart the records show what was promised. Records before the durable root are trimmed.
//!
//! * [`record`]: the records and their encoding.
//! * [`framing`]: how records are laid out in a segment whose bytes were used before.
//! * [`recovery`]: the verdict on a journal that was read back: intact, cut short at its end (the
//!   part cut off was never sent), or lost.
//!
//! Invariants: records are written in the order of their tokens; COMMITTED(s) precedes every
//! promise about s + 1; a promise about a view follows the record that made the view known.

pub mod framing;
pub mod record;
pub mod recovery;

pub use framing::{Framing, SegmentIdentity};
pub use record::Record;
pub use recovery::{Condition, Entry, Journal, Segment, examine};
