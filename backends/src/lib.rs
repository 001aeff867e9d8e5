//! Object stores behind one small trait.
//!
//! A *cloud* is a flat set of named, immutable objects that somebody else keeps. The file system
//! asks little of it, because it trusts it with nothing: [`ObjectStore`] creates an object that is
//! not there yet, reads all or a range of one, says how long one is, lists names, and deletes.
//! Whatever a store answers is verified by the caller; a store that loses, alters or invents
//! objects is a fault that the layer above masks, and a store's errors say which kind of fault it
//! admits to.
//!
//! - [`name`]: what an object may be called.
//! - [`store`]: the trait and its deadlines.
//! - [`receipt`]: what a store says that it has taken.
//! - [`error`]: what can go wrong, with what to do about it.
//! - [`marker`]: what says whose cloud this is.
//! - [`identities`]: texts without the names of accounts.
//! - [`local`]: a directory that acts as a cloud.
//! - [`remote`]: a cloud across a network: what all providers have in common.
//! - `s3`, `azure`, `google`: the providers' own SDKs, each behind a feature of its name.
//! - [`location`]: where a cloud is, as people write it, and how it is opened from that.
//! - `emulators`: servers of those protocols on loopback, for tests and for the demo;
//!   without the feature of that name an error that says so.
//! - [`unusable`]: a cloud that cannot be used as it is described.
//! - [`faulty`]: a decorator that makes any store lie, for tests.
//! - [`loopback`]: ports of this machine for servers that are started later.
//! - [`shaped`]: a decorator that gives any store a latency and a bandwidth, for benchmarks.

#[cfg(feature = "azure")]
pub mod azure;
#[cfg(feature = "emulators")]
pub mod emulators;
#[cfg(not(feature = "emulators"))]
#[path = "no_emulators.rs"]
pub mod emulators;
pub mod error;
pub mod faulty;
#[cfg(feature = "google")]
pub mod google;
pub mod identities;
pub mod local;
pub mod location;
pub mod loopback;
pub mod marker;
pub mod name;
pub mod receipt;
pub mod remote;
#[cfg(feature = "s3")]
pub mod s3;
pub mod shaped;
pub mod store;
#[cfg(any(feature = "azure", feature = "google", feature = "s3"))]
mod text;
pub mod unusable;

pub use error::{Operation, StoreError, StoreErrorKind};
pub use name::ObjectName;
pub use receipt::Receipt;
pub use remote::Traffic;
pub use store::{Deadline, ObjectInfo, ObjectStore, Page, Room};
