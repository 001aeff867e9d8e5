//! The program from outside, without a mount: its output, and a short run of each benchmark.

mod bench;
mod command_line;
