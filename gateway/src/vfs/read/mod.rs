//! Reading: the bytes of a file as of one moment, from memory or from the slices, and ahead of the
//! reader.
//!
//! ```text
//!  read ──► dirty over early over frozen ──gaps──► chunk cache ──missing──► slices
//!    └ sequential ──► prefetch ───────────────────────▲
//!  warm ─────────────────────────────────────────────────────────────────► disk cache
//! ```
//!
//! A slice never changes, so nothing that is cached here is ever invalidated; where the bytes of a
//! file lie is known elsewhere ([`known`](super::known)).
//!
//! | Module | Content |
//! |---|---|
//! | `owner` | [`Reading`]: what reads share |
//! | `read` | a read |
//! | `cached_read` | a read that ends in memory |
//! | `chunk_cache` | content that was read recently |
//! | `prefetch` | content that will be read next |
//! | `seek` | data and holes |
//! | `warm` | bringing content to this machine's disk |

mod cached_read;
mod chunk_cache;
mod owner;
mod prefetch;
mod seek;
mod source;
mod warm;

pub(in crate::vfs) use owner::Reading;
pub use seek::Seek;
