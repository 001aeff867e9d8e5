//! Runs in virtual time, and decoders over bytes from seeds: what takes a processor and nothing
//! else.

mod clouds;
mod corpora;
mod determinism;
mod seeds;
