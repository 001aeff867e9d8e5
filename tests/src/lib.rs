//! The shared code of the end-to-end suites and the simulation.
//!
//! The suites themselves are in `tests/tests/`, one file for each subject that is tested on real
//! processes and real mounts; [`harness`] starts and stops those. [`simulate`] is the front end of
//! the simulator; [`crashes`] kills real replicas under load, [`kills`] real mounts; [`twins`]
//! compares a mount with tmpfs; [`databases`] and [`repositories`] run SQLite and git in one,
//! [`crowds`] fills a directory; [`regions`] puts replicas and mounts far apart; [`space`] compares
//! what the clouds hold with what the files need; [`lost_servers`] recovers a volume from its
//! clouds; [`together`] plays programs that share files over several mounts; [`decoders`] contains
//! all decoders of bytes that another party may have chosen.

pub mod crashes;
pub mod crowds;
pub mod databases;
pub mod decoders;
pub mod harness;
pub mod kills;
pub mod lost_servers;
pub mod regions;
pub mod repositories;
pub mod simulate;
pub mod space;
pub mod together;
pub mod twins;
