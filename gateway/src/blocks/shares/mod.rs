//! Shares of a secret, one on each cloud: the second lock of a realm's epoch.
//!
//! ```text
//! C_e ── Shamir, f + 1 of n ──► share i ──► an object of one cell under cloud i's names
//!                                               └─► digest i, in the epoch's signed row
//! place    put all, read each one back            n − f before anything is sealed under it
//! fetch    the f + 1 quickest, hedged             proved by their digests before they are used
//! restore  interpolate at cloud i                 must have digest i again
//! ```
//!
//! A share is stored like a shard, with the class `ObjectClass::SHARE`: the header with
//! its code, a single cell, a digest over both. So the same code proves shares and data, and a
//! cloud learns as little from a share's name.
//!
//! Invariants:
//! * **No share is used without proof by its digest.** Digests come from a row that an
//!   administrator has signed, so a lying cloud is detected, and so is a lying server.
//! * **The row does not contain a share's name**, since the row is signed once. Names are
//!   create-only: a damaged share is put again under the next of a few names, and a reader tries
//!   them in turn until one holds bytes with the digest.
//! * A lost share has no copy anywhere: f + 1 others determine it.

mod error;
mod store;

pub use error::ShareError;
pub use store::{PlacedShares, SealedShares, ShareState, ShareStore};

pub(super) use store::STORED_BYTES;
