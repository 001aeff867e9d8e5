//! The protocol library from outside: its bytes, and the votes that it counts.

mod channel_votes;
mod golden;
mod segment_format;
