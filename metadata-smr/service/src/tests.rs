//! The service, run alone on a key space in memory.

mod harness;
mod model;
