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
//! | Module | Content |
//! |---|---|
//! | `store` | [`BlockStore`], the interface for the file system |
//! | `segment` | authenticated encryption of 64 KiB segments |
//! | `compress`, `index` | compression of segments, and their positions |
//! | `stream` | the segments of an object's slices, one after the other |
//! | `layout`, `header`, `merkle`, `naming` | the bytes of an object and their names |
//! | `code`, `shard` | the erasure code; encoding, checking, rebuilding |
//! | `buffers` | reusable memory for shards |
//! | `sealer` | sealing and opening without clouds |
//! | `object` | an object as the metadata describes it |
//! | `write`, `quorum`, `completion` | sealing, the quorum write, and the rest of the puts |
//! | `read`, `gather` | the verified read and the bypass of bad shards |
//! | `locate`, `index_cache`, `open` | locating and opening a slice's segments |
//! | `consistency_check` | whether the shards of another principal's object are consistent |
//! | `writer` | the names of writers |
//! | `evidence` | faults of clouds, ordered with their receipts |
//! | `repair`, `repair_backoff` | writing bad shards again, at a bounded rate |
//! | `shares` | the second lock of a volume: a secret in shares, one on each cloud |
//! | `scrub`, `scrub_shares`, `scrub_report`, `throttle` | checking data that is rarely read |
//! | `compact` | moving live slices out of sparse packs |
//! | `cloud`, `health`, `latency` | one cloud, and predictions from its behaviour |
//! | `preference` | which clouds are asked first |
//! | `capacity` | the free space of all clouds together |
//! | `placement_log` | the interface to the metadata |
//! | `engine`, `counters`, `status` | shared state, and the operator's view |
//! | `workers` | the threads for sealing and rebuilding |
//! | `sabotage` | planted defects for simulations |

mod buffers;
mod capacity;
mod cloud;
mod code;
mod compact;
mod completion;
mod compress;
mod consistency_check;
mod counters;
#[cfg(any(test, feature = "decoders"))]
pub(crate) mod decoding;
mod engine;
mod error;
mod evidence;
mod gather;
mod header;
mod health;
mod index;
mod index_cache;
mod latency;
mod layout;
mod locate;
mod merkle;
mod naming;
mod object;
mod open;
mod placement_log;
mod preference;
mod quorum;
mod read;
mod repair;
mod repair_backoff;
mod sabotage;
mod scrub;
mod scrub_report;
mod scrub_shares;
mod sealer;
mod segment;
mod shard;
mod shares;
mod status;
mod store;
mod stream;
mod throttle;
mod workers;
mod write;
mod writer;

pub use crate::keys::Sealing;
pub use cloud::Cloud;
pub use code::check_processor;
pub use compact::{Compacted, Compaction, CompactionError, SparsePack};
pub use compress::Compression;
pub use consistency_check::Poisoned;
pub use counters::CounterValues;
pub use engine::BlockConfig;
pub use error::{BlockError, BlockErrorKind, Failures};
pub use evidence::{CloudEvidence, Testimony};
pub use header::{FEATURES, FORMAT};
pub use health::{Refusal, Timeouts};
pub use layout::CELL_BYTES;
pub use naming::{CloudKeys, Named};
pub use object::{SealedSlice, Stored, StoredObject};
pub use placement_log::{
    HeldObjectId, ObjectsPage, PackedCursor, PackedPage, PlacementError, PlacementLog, SparsePage,
    UnderReplicatedCursor, UnderReplicatedPage,
};
pub use preference::Preference;
#[doc(hidden)]
pub use sabotage::{Planted, Sabotage};
pub use scrub::{ScrubConfig, ScrubDepth};
pub use scrub_report::{CloudFindings, ScrubReport};
pub use sealer::Sealer;
pub use segment::{SEGMENT_BYTES, TAG_BYTES};
pub use shares::{PlacedShares, SealedShares, ShareError, ShareState, ShareStore};
pub use status::{BlockStatus, CloudStatus};
pub use store::{BlockStore, Drained};
pub use stream::PlainSlice;
pub use workers::Workers;
pub use writer::{PrincipalName, Writer};

#[cfg(test)]
mod tests;
