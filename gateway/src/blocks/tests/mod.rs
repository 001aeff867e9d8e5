//! The block store as a whole, over clouds that lie.

mod bytes;
mod faults;
mod harness;
mod recovery;
mod scrub;
