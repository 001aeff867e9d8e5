//! What the end-to-end suites, the simulation and the benchmarks share.
//!
//! The suites themselves lie in `tests/tests/`, one file for each thing that is tried on real
//! processes and real mounts; [`harness`] starts and stops those. [`simulate`] is the front of the
//! simulator; [`crashes`] kills real replicas under load, [`kills`] real mounts; [`twins`] compares
//! a mount with tmpfs; [`databases`] and [`repositories`] have SQLite and git work in one,
//! [`crowds`] fills a directory; [`decoders`] is everything that reads bytes which somebody else
//! may have chosen.

pub mod crashes;
pub mod crowds;
pub mod databases;
pub mod decoders;
pub mod harness;
pub mod kills;
pub mod repositories;
pub mod simulate;
pub mod twins;
