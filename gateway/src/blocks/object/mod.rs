//! Objects as pure bytes: from slices of plaintext to the shards of an object, and back.
//!
//! ```text
//!   slices ──compress──► segments ──seal──► stream ──layout──► cells ──code, hash──► shards
//!                                             │                                        │
//!   plaintext ◄──expand── segments ◄──open────┘◄── cells, proved by their paths ◄──────┘
//! ```
//!
//! Nothing here knows a cloud, a task or a clock. Everything is a function of ids, keys and bytes,
//! so golden fixtures pin it and a decoder can be given arbitrary input. What the metadata says
//! about an object ([`StoredObject`], [`SealedSlice`]), the errors, and the defects that a
//! simulation plants are plain types of this wing as well, because all other wings need them.
//!
//! No byte is interpreted before it was proved; the callers decide where the bytes come from.
//!
//! | Module | Content |
//! |---|---|
//! | `segment` | authenticated encryption of 64 KiB segments |
//! | `compress`, `index` | compression of segments, and their positions in the stream |
//! | `stream` | the segments of an object's slices, one after the other |
//! | `layout`, `header`, `merkle`, `naming` | the bytes of an object and their names |
//! | `code`, `shard` | the erasure code; encoding, checking, rebuilding |
//! | `buffers` | reusable memory for shards and plaintext |
//! | `open`, `positions` | opening segments, and where they lie |
//! | `sealer` | sealing and opening without clouds |
//! | `stored`, `writer` | an object as the metadata describes it, and its writer |
//! | `error` | the errors of the block store, and the faults of single shards |
//! | `sabotage` | planted defects for simulations |

mod buffers;
mod code;
mod compress;
#[cfg(any(test, feature = "decoders"))]
pub(crate) mod decoding;
mod error;
mod header;
mod index;
mod layout;
mod merkle;
mod naming;
mod open;
mod positions;
mod sabotage;
mod sealer;
mod segment;
mod shard;
mod stored;
mod stream;
mod writer;

pub use code::check_processor;
pub use compress::Compression;
pub use error::{BlockError, BlockErrorKind, Failures};
pub use header::{FEATURES, FORMAT};
pub use layout::{CELL_BYTES, proved_cell_bytes, shard_bytes};
pub use naming::{CloudKeys, Named};
pub use sabotage::{Planted, Sabotage};
pub use sealer::Sealer;
pub use segment::{SEGMENT_BYTES, TAG_BYTES, sealed_length};
pub use stored::{SealedSlice, Stored, StoredObject};
pub use stream::PlainSlice;
pub use writer::{PrincipalName, Writer};

pub(super) use buffers::{Buffers, PlainBuffers};
pub(super) use code::Code;
pub(super) use compress::Squeezed;
pub(super) use error::ShardFault;
pub(super) use header::{HEADER_BYTES, Header, HeaderBytes, ObjectFormat, object_format};
pub(super) use index::{SliceIndex, sealed_index_length};
pub(super) use layout::Layout;
pub(super) use open::{Cells, Opening, open_whole};
pub(super) use positions::{AHEAD_BYTES, Positions, check, most_held, opened_index, unshrunk};
pub(super) use segment::{SliceCipher, segments};
pub(super) use shard::{
    Rebuilt, ShardBytes, assemble, cells_range, check_cells, check_whole, encode, encode_sealed,
    unchecked,
};
pub(super) use stored::shard_index;
pub(super) use stream::{Content, place};
