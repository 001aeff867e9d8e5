//! The file system as a client sees it: keys, names, content and POSIX over ordered metadata.
//!
//! # The way through
//!
//! | Module | What it holds |
//! |---|---|
//! | [`keys`] | who may read what: volume root, principals, realm epochs, names, small values |

pub mod keys;
