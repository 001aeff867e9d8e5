//! The protocol library from outside: what it says as bytes, and whose votes it counts.

mod channel_votes;
mod golden;
mod segment_format;
