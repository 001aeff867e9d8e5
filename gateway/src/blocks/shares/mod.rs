//! Shares of a secret, one on each cloud: the second lock of a realm's epoch.

mod store;

pub use store::{PlacedShares, SealedShares, ShareError, ShareState, ShareStore};

pub(super) use store::STORED_BYTES;
