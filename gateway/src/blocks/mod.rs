//! Blocks: slices of plaintext, sealed, coded into shards and kept on n clouds of which f may lie.
//!
//! ```text
//!            slice, data key                            object row: digests, placement
//!                  │                                              │
//!   segment   cut and seal: AES-256-GCM, 64 KiB            check cells against digests   gather
//!                  │                                              │
//!   shard     lay out over k data shards, code parity,     take k, rebuild, re-hash
//!             hash into one Merkle tree for each                  │
//!                  │                                              │
//!   write     put all n at once, return at w = k + f       read: ranged, hedged, verified
//!                  │                                              │
//!   completion: the rest in the background, again after a crash   repair: bad shards again
//!        ▲                                                                     ▲
//!        └── scrub: every shard is looked at, and those that are bad withdrawn ┘
//! ```
//!
//! Invariants:
//! * **No byte is interpreted before it was proved** to be the one that the metadata names: cells
//!   by their Merkle paths, rebuilt data shards by their digests, plaintext by the cipher's tag.
//! * **A write that returned survives any f clouds**: w = k + f acknowledged, so k good shards
//!   remain.
//! * **A shard is a pure function** of ids, keys and plaintext, and of any k other shards.
//! * **Every reader gets the same answer**: an object of another principal is content for all
//!   readers or an error for all of them, whichever clouds answer.
//! * **Names are used once**, and safety does not depend on the clouds enforcing that.
//! * **Nothing depends on chance**: with [`Workers::Inline`] on one thread, the same answers of the
//!   clouds lead to the same requests. Time is Tokio's clock, which a simulation controls.
//! * Every wait has a deadline and every queue a bound; a dropped entry is found again through the
//!   metadata's list of under-replicated objects.
//!
//! The errors are in [`BlockError`]. The formats are in docs/FORMAT.md, "Objects on a cloud". The
//! quorums are those of Hybris and AWE (metadata apart from data: n ≥ 2f + k), the preference for
//! systematic shards and the substitution of bad ones are DepSky's optimised read.
//!
//! The folder has wings, each of which owns its state. A wing imports from those below it alone; a
//! test holds every path against the arrows on the page docs/architecture/blocks.md:
//!
//! ```text
//!   store  ──►  reconcile  ──►  write, read, shares, backup  ──►  clouds  ──►  object
//! ```
//!
//! | Wing | Owns | Content |
//! |---|---|---|
//! | `object` | nothing | slices, shards and objects as pure bytes |
//! | `clouds` | `Clouds` | the clouds with their health, the interface to the metadata, notes |
//! | `write` | `Writes` | sealing, the quorum write, puts in flight |
//! | `read` | `Reads` | the verified read, rebuilding, consistency checks |
//! | `linked` | nothing | objects that are read without an account, by presigned URLs |
//! | `backup` | [`BackupStore`] | backups of the metadata: objects that no row names |
//! | `shares` | [`ShareStore`] | the second lock of a volume: a secret in shares, one a cloud |
//! | `reconcile` | `Reconciler` | what no caller waits for: completion, repair, scrub, compaction |
//! | `config`, `store` | [`BlockStore`] | the configuration; the interface for the file system |

mod backup;
mod clouds;
mod config;
mod linked;
mod object;
mod read;
mod reconcile;
mod shares;
mod store;
mod write;

pub use crate::keys::Sealing;
pub use backup::{
    BackupError, BackupPart, BackupStore, Lineage, ListedCloud, PartShard, incarnation_record,
    is_incarnation_record,
};
pub use clouds::{
    Cloud, CloudStatus, CounterValues, GarbageObject, GarbagePage, HeldObjectId, ObjectsPage,
    PackedCursor, PackedPage, PlacementError, PlacementLog, Preference, Refusal, SparsePack,
    SparsePage, Timeouts, UnderReplicatedCursor, UnderReplicatedPage, Workers,
};
pub use config::BlockConfig;
pub use linked::{LinkFor, LinkedError, LinkedObject, LinkedReader, LinkedShard, UrlReader};
#[cfg(any(test, feature = "decoders"))]
pub(crate) use object::decoding;
pub use object::{
    BlockError, BlockErrorKind, CELL_BYTES, CloudKeys, Compression, FEATURES, FORMAT, Failures,
    Named, PlainSlice, PrincipalName, SEGMENT_BYTES, SealedSlice, Sealer, Stored, StoredObject,
    TAG_BYTES, Writer, check_processor, proved_cell_bytes, sealed_length, shard_bytes,
};
#[doc(hidden)]
pub use object::{Planted, Sabotage};
pub use read::Poisoned;
pub use reconcile::{
    BlockStatus, CloudEvidence, CloudFindings, Collected, Collection, Compacted, Compaction,
    CompactionError, Drainage, Draining, Kept, ScrubConfig, ScrubDepth, ScrubReport, Swept,
    TaskStatus, Testimony,
};
pub use shares::{PlacedShares, SealedShares, ShareError, ShareState, ShareStore};
pub use store::{BlockStore, Drained};

#[cfg(test)]
mod tests;
