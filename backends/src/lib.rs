//! Object stores behind one small trait.
//!
//! A *cloud* is a flat set of named, immutable objects that a third party stores. The file system
//! asks little of it and does not trust it: [`ObjectStore`] creates an object that does not exist
//! yet, reads all or a range of one, gives its length, lists names, and deletes. The caller
//! verifies every answer of a store. A store that loses, alters or invents objects is a fault that
//! the layer above masks, and a store's errors show which kind of fault it admits to.
//!
//! - [`name`]: the names of objects.
//! - [`store`]: the trait and its deadlines.
//! - [`presigned`]: URLs at which anyone reads one object, and the reader of such URLs.
//! - [`receipt`]: checksums with which a store acknowledges data.
//! - [`error`]: failures, with advice.
//! - [`marker`]: the object that identifies the volume of a cloud.
//! - [`identities`]: hiding the names of accounts in texts.
//! - [`local`]: a directory that acts as a cloud.
//! - [`remote`]: a cloud across a network: the part that all providers have in common.
//! - `s3`, `azure`, `google`: the providers' own SDKs, each behind a feature of its name.
//! - [`location`]: the text form of a cloud's place, and opening a cloud from it.
//! - `emulators`: servers of those protocols on loopback, for tests and for the demo; without the
//!   feature of that name, an error that reports its absence.
//! - [`unusable`]: a cloud that cannot be used as it is described.
//! - [`faulty`]: a decorator that makes any store lie, for tests.
//! - [`loopback`]: ports of this machine for servers that are started later.
//! - [`shaped`]: a decorator that gives any store a latency and a bandwidth, for benchmarks.

#[cfg(feature = "azure")]
pub mod azure;
#[cfg(any(test, feature = "emulators"))]
pub mod emulators;
#[cfg(not(any(test, feature = "emulators")))]
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
pub mod presigned;
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
pub use presigned::PresignedUrl;
pub use receipt::Receipt;
pub use remote::Traffic;
pub use store::{Deadline, FreeSpace, ObjectInfo, ObjectStore, Page};
