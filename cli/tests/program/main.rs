//! The program from outside, without a mount: what it prints, and each benchmark, shortly.

mod bench;
mod command_line;
