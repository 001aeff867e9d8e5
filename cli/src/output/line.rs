//! A line of the terminal that is written over as long as something is in progress.
//!
//! It goes to standard error, and only to a terminal: what is printed stays the same whether
//! it is a terminal or not.

use super::Output;
use std::io::{IsTerminal, Write};

/// Clears the line before and after each text.
const CLEAR: &[u8] = b"\r\x1b[K";

/// Writes the text over what is in the line.
pub(crate) fn show(output: Output, text: &str) {
    write(output, &[CLEAR, text.as_bytes()].concat());
}

/// Clears the line, so that something else can be printed.
pub(crate) fn clear(output: Output) {
    write(output, CLEAR);
}

fn write(output: Output, bytes: &[u8]) {
    let mut stderr = std::io::stderr().lock();
    if !output.is_json() && stderr.is_terminal() {
        let _ = stderr.write_all(bytes).and_then(|()| stderr.flush());
    }
}
