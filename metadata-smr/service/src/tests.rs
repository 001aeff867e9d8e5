//! The service, run alone on a key space in memory.

mod accessed;
mod acls;
mod blame;
mod bounds;
mod clones;
mod content;
mod epochs;
mod extended;
mod fixtures;
mod fleet;
mod garbage;
mod harness;
mod hostile;
mod incarnation;
mod model;
mod mounted;
mod names;
mod numbers;
mod ownership;
mod packs;
mod people;
mod quota;
mod sequential;
mod succession;
mod versions;
mod watch;
