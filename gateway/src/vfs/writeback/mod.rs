//! From written bytes to committed content: the work on files that have something to commit.
//!
//! ```text
//!  write ─ budget ─► dirty ──flush──► frozen ── upload ─ window ──► slices (w acknowledgements)
//!            │          │                                                │
//!  durability└► journal └◄─ failed: pending again; quota: waits      commit ──► servers
//! ```
//!
//! What always holds:
//! * **Data before metadata**: a commit names only slices that w clouds have acknowledged.
//! * **Never a false success**: flush, fsync and close return once written data is as safe as the
//!   file's tier says, or with an error; data that could not be committed is kept, retried, and
//!   reported again.
//! * **Bounded**: dirty bytes have limits; writers wait for memory, with a time limit.
//! * **One commit of a file at a time**: it holds the node's `content` lock.
//!
//! The runs and the pending attributes themselves are in the node ([`files`](super::files)).
//!
//! | Module | Content |
//! |---|---|
//! | `owner` | [`Writeback`]: what the work shares |
//! | `write` | taking in writes |
//! | `flush` | when they are committed, and what follows from the outcome |
//! | `due` | which files the background commits now |
//! | `commit` | the ordered operations of one commit |
//! | `upload`, `window` | its slices, and how many are in flight |
//! | `budget` | one bound on memory |
//! | `durability`, `replay` | the journal's records, and putting them back after a crash |
//! | `quota` | bytes that do not fit |
//! | `allocate`, `clone_range` | changes of content without new bytes |

mod allocate;
mod budget;
mod clone_range;
mod commit;
mod due;
mod durability;
mod flush;
mod owner;
mod quota;
mod replay;
mod upload;
mod window;
mod write;

pub use allocate::Allocation;
pub(in crate::vfs) use clone_range::Cloned;
pub(in crate::vfs) use commit::{TRIES, unchanged};
pub(in crate::vfs) use due::Large;
pub(in crate::vfs) use owner::Writeback;
pub use replay::Replay;
pub(in crate::vfs) use replay::Waiting;
