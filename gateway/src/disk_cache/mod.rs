//! The disk cache: content that was read or written here, encrypted on this machine's disk.
//!
//! ```text
//! vfs ── CachedSlices ── lookup ──► index ── place ──► segment ── read, open ──► chunk
//!            │  miss: the clouds        ▲
//!            └──── offer ──► queue ──► writer: begin, append, evict ──► segments on disk
//! ```
//!
//! The unit is a *chunk*: 256 KiB of a slice's plaintext, aligned. Slices never change and their
//! ids are never reused, so nothing in the cache is ever invalidated: a chunk that opens is right.
//! Chunks are appended to *segments*, files that are written once from beginning to end and evicted
//! whole, the oldest first. Chunks that were read since they were written are carried over into the
//! newest segment, once for each read.
//!
//! Invariants:
//! * **Only chunks that open are used.** Each chunk is sealed for its slice, its number, its length
//!   and its position in one segment. A torn, flipped, moved or foreign chunk is a miss.
//! * **No key lies next to it.** Segments are sealed under keys of their own that derive from the
//!   host key ([`crate::keys::HostKey`]) and a random salt.
//! * **It never blocks a mount.** The content of existing segments is read in the background,
//!   newest first, and is a miss until then. Nothing is synced. After any error of the disk, a read
//!   goes on to the clouds; after a failed write, the disk is no longer written to.
//! * **It is bounded**: bytes on disk, entries in memory, bytes in the queue, concurrent reads.
//!   Below a floor of free space it frees its segments and takes nothing.
//!
//! Errors are shown in [`DiskCacheStatus::problem`]. The format is in docs/FORMAT.md, "Disk cache".
//!
//! | Module | Content |
//! |---|---|
//! | `index` | positions and eviction: pure |
//! | `sealing` | the encryption of a segment's bytes |
//! | `segment` | one segment's file |
//! | `place` | the directory that holds them |
//! | `writer` | appends, evicts, learns: one thread |
//! | `cache` | the interface for the rest of the program |
//! | `slices` | the cache in front of a `SliceStore` |

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
