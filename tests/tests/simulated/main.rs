//! Runs in virtual time, and decoders over bytes from seeds: tests that need only a processor.

mod clouds;
mod corpora;
mod determinism;
mod seeds;
