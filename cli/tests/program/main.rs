//! The program from outside, without a mount: its output.

mod command_line;
