//! The verified read: a range of a slice from the clouds that answer first and do not lie.
//!
//! ```text
//!   range ─► locate ─► cells of the data shards (fetch) ─► opened
//!              │           │ bad, missing, failing, late
//!              │           └─► any k shards (gather) ─► rebuilt, cached (rebuilt_cache)
//!              └─ index of a compressed slice, cached (index_cache)
//! ```

mod consistency_check;
mod gather;
mod index_cache;
mod locate;
mod range;

pub use consistency_check::Poisoned;

pub(super) use consistency_check::ConsistencyChecks;
pub(super) use index_cache::IndexCache;
pub(super) use locate::{Positions, check, opened_index};
pub(super) use range::{Cells, RebuiltCache};
