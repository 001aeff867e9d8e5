//! The journal: what a replica must not forget, as bytes.
//!
//! A write-ahead log of *promises*. A message that promises something leaves only after the record
//! that holds it is durable ([`crate::step::Effect::Persist`] and the token in `Send`); after a
//! restart the records say what was promised. Records behind the durable root are trimmed.
//!
//! * [`record`]: what is recorded, and its encoding.
//! * [`framing`]: how records lie in a segment whose bytes were used before.
//! * [`recovery`]: the verdict on what is found there: intact, cut short at its end (what was cut
//!   was never sent), or lost.
//!
//! What always holds: records are written in the order of their tokens; COMMITTED(s) stands before
//! every promise about s + 1; a promise about a view stands behind what made the view known.

pub mod framing;
pub mod record;
pub mod recovery;

pub use framing::{Framing, SegmentIdentity};
pub use record::Record;
pub use recovery::{Condition, Entry, Journal, Segment, examine};
