//! The disk cache: what was read or written here, kept encrypted on this machine's disk.
//!
//! ```text
//! vfs ── CachedSlices ── lookup ──► index ── place ──► segment ── read, open ──► chunk
//!            │  miss: the clouds        ▲
//!            └──── offer ──► queue ──► writer: begin, append, evict ──► segments on disk
//! ```
//!
//! The unit is a *chunk*: 256 KiB of a slice's plaintext, aligned. Slices never change and their
//! ids are never given twice, so that nothing here ever has to be declared stale: a chunk is right
//! for as long as it opens. Chunks are appended to *segments*, files that are written once from
//! their beginning to their end and thrown away whole, the oldest first; what was read since it was
//! written is carried over into the newest, once for each reading.
//!
//! What always holds:
//! * **Nothing is believed that does not open.** Each chunk is sealed for its slice, its number,
//!   its length and its place in one segment. What is torn, flipped, moved or foreign is a miss.
//! * **No key lies beside it.** Segments are sealed under keys of their own that derive from the
//!   host key ([`crate::keys::HostKey`]) and a random salt.
//! * **It is never in the way.** A mount does not wait for it: what segments hold is learnt in the
//!   background, newest first, and is a miss until then. Nothing is synced. Whatever the disk says,
//!   a read goes on to the clouds; a disk that fails a write is written no more.
//! * **It is bounded**: bytes on disk, entries in memory, bytes in the queue, reads at a time; and
//!   below a floor of free space it gives back what it has and takes nothing.
//!
//! What can go wrong is told in [`DiskCacheStatus::problem`]. The format is in docs/FORMAT.md,
//! "Disk cache".
//!
//! | Module | What it holds |
//! |---|---|
//! | `index` | what lies where, and what goes when: pure |
//! | `sealing` | how a segment's bytes are sealed |
//! | `segment` | one segment's file |
//! | `place` | the directory that holds them |
//! | `writer` | appends, evicts, learns: one thread |
//! | `cache` | what the rest of the program holds of it |
//! | `slices` | the cache before a `SliceStore` |

mod cache;
#[cfg(any(test, feature = "decoders"))]
pub(crate) mod decoding;
mod index;
mod place;
mod sealing;
mod segment;
mod slices;
#[cfg(test)]
mod tests;
mod writer;

pub use cache::{DiskCache, DiskCacheOptions, DiskCacheStatus};
pub use index::{CACHE_BYTES_MIN, ENTRY_BYTES};
pub use slices::CachedSlices;
