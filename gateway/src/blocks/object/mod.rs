//! Objects as pure bytes: from slices of plaintext to the shards of an object, and back.
//!
//! ```text
//!   slices ──compress──► segments ──seal──► stream ──layout──► cells ──code, hash──► shards
//!                                             │                                        │
//!   plaintext ◄──expand── segments ◄──open────┘◄── cells, proved by their paths ◄──────┘
//! ```

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
pub use layout::CELL_BYTES;
pub use naming::{CloudKeys, Named};
pub use sabotage::{Planted, Sabotage};
pub use sealer::Sealer;
pub use segment::{SEGMENT_BYTES, TAG_BYTES};
pub use stored::{SealedSlice, Stored, StoredObject};
pub use stream::PlainSlice;
pub use writer::{PrincipalName, Writer};

pub(super) use buffers::{Buffers, PlainBuffers};
pub(super) use code::Code;
pub(super) use compress::Squeezed;
pub(super) use error::ShardFault;
pub(super) use header::{HEADER_BYTES, Header, HeaderBytes, ObjectFormat, object_format};
pub(super) use index::{SliceIndex, index_length, sealed_index_length};
pub(super) use layout::Layout;
pub(super) use open::{Opening, piece};
pub(super) use segment::{Part, SEALED_SEGMENT_BYTES, SliceCipher, sealed_length, segments};
pub(super) use shard::{
    Rebuilt, ShardBytes, assemble, cells_range, check_cells, check_whole, encode, encode_sealed,
    unchecked,
};
pub(super) use stored::shard_index;
pub(super) use stream::{Content, place};
pub(super) use writer::Principals;
