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
//! - [`error`]: what can go wrong, with what to do about it.
//! - [`local`]: a directory that acts as a cloud.
//! - [`faulty`]: a decorator that makes any store lie, for tests.

pub mod error;
pub mod faulty;
pub mod local;
pub mod name;
pub mod store;

pub use error::{Operation, StoreError, StoreErrorKind};
pub use name::ObjectName;
pub use store::{Deadline, ObjectInfo, ObjectStore, Page};
