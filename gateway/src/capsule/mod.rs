//! Capsules: links that need no server of ours.
//!
//! ```text
//!  member                                                            one who has the link
//!    names, modes, keys of slices,                                     │
//!    digests and URLs of shards  ──► manifest ──► stored as content    │ no account, no server
//!                                                   │ linked itself    │ of ours, no metadata
//!                                                   ▼                  ▼
//!                    text of the link: URLs and key of the manifest ──► manifest ──► content
//! ```
//!
//! A capsule is made of ordinary content. The manifest is written as a file and linked like all
//! others; the text of the link says where its shards are and with which key it opens. So whatever
//! protects content protects the manifest: it is sealed, coded, and proved against digests.
//!
//! | Module | Content |
//! |---|---|
//! | `content` | what a capsule says of a file's content |
//! | `manifest` | what it says of a tree, and the bytes of that |
//! | `text` | the text of a link |
//! | `make` | making a capsule of files in a volume |
//! | `open` | reading one |
//!
//! Invariants:
//! * **Any f of the linked clouds may lie or be away**, and the opener gets the same content or an
//!   error ([`LinkedReader`](crate::blocks::LinkedReader)).
//! * **A capsule gives away the slices that it names and nothing else**: their keys open neither
//!   other slices nor names. A slice is given whole, also where a file has only a part of it. An
//!   object may hold slices of other files; their sealed bytes can be fetched and not opened.
//! * **What an opener makes of it stays below one directory**: a name is a name and no path, and
//!   a symbolic link leads to a place within. What contradicts that is refused before anything is
//!   written.
//! * **The servers retain its objects** until it ends, whatever becomes of the files
//!   ([`ShareWith::Capsule`](quorumfs_metadata::row::ShareWith::Capsule)).
//!
//! Failure modes: *it has ended*. The clouds refuse its URLs. *It was revoked*. The manifest is
//! gone from the clouds. One that has opened it before has all URLs and keys, until the URLs end:
//! only another key of the cloud's account ends them earlier. *A cloud was replaced since*. Its
//! URLs are dead; up to f such clouds do no harm. *The process dies while it makes one*. A file
//! with the prefix of temporary names remains, and the next command removes it.

mod content;
mod make;
mod manifest;
mod open;
mod text;

#[cfg(any(test, feature = "decoders"))]
pub(crate) mod decoding;
#[cfg(test)]
mod tests;

pub use content::{CapsuleTables, LinkedContent};
pub use make::{CapsuleMaker, MadeCapsule, MakeCapsuleError};
pub use manifest::{CapsuleEntry, EntryKind, Manifest, ManifestError};
pub use open::{CapsuleError, OpenedCapsule};
pub use text::{CapsuleLink, LinkTextError, PREFIX};
