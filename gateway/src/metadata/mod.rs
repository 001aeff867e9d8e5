//! The gateway's interface to the metadata servers.
//!
//! ```text
//! vfs, blocks ──► MetadataClient (typed; ids; fencing) ──► Transport ──► the order
//!                                                           ├─ Ordered: a session with replicas
//!                                                           └─ Embedded: a service in-process
//! ```
//!
//! Invariants: an answer that does not decode, or does not belong to its query, is an error and
//! never guessed at. Once the servers have reported that this session is fenced or unknown, nothing
//! more is sent.

mod client;
mod cut_off;
mod embedded;
mod epochs;
mod error;
mod fleet;
mod ids;
mod locks;
mod mounting;
mod ordered;
mod people;
mod placement;
mod quota;
mod shares;
mod transport;
mod trash;

pub use client::MetadataClient;
pub use embedded::{Embedded, EmbeddedSession};
pub use error::MetadataError;
pub use ids::AllocatedId;
pub(crate) use mounting::{RealmNews, Standing};
pub use ordered::Ordered;
pub use quorumfs_metadata::operation::Takeover;
pub use quorumfs_metadata::row::MountMode;
pub use quota::QuotaPage;
pub use transport::{Transport, Watching};
pub use trash::{TrashCursor, TrashPage};
