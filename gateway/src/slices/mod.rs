//! Slices: sealed pieces of content, as those that write and read files use them.
//!
//! ```text
//!  vfs ──► SliceStore ◄── disk cache ──► SliceStore ◄── cloud slices ──► blocks
//!                          (chunks on this disk)          │    ▲
//!                                                         └ packer: small ones share objects
//! ```
//!
//! * **A slice never changes.** It is written once, under ids that are used once, and read in
//!   chunks, which may be cached without ever being invalidated.
//! * **Written is not committed**: a written slice is on w clouds, and the servers do not know it
//!   yet. Its writer says once whether they do from now on ([`SliceStore::committed`]) or never
//!   will ([`SliceStore::abandoned`]).
//! * **An outage is waited for** for a while, by writers and by readers, before a call fails
//!   (`outage`).
//!
//! Stores stand on each other: the disk cache is a store in front of the clouds.

mod cloud_slices;
mod outage;
mod packer;
mod reseal;
mod store;
mod stored;

pub use cloud_slices::CloudSlices;
pub(crate) use outage::Outages;
pub use packer::Packing;
pub use reseal::{ContentResealer, ResealedContent};
pub use store::{SliceStore, StoredSlice, Warmed, WrittenSlice};
pub(crate) use stored::Stored;

/// Bytes of plaintext in one chunk, the unit in which content is cached: two kernel readahead
/// windows.
pub(crate) const CHUNK_BYTES: u32 = 256 << 10;
