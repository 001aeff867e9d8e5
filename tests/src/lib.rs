//! What the end-to-end tests, the simulation and the benchmarks share.

pub mod simulate;
