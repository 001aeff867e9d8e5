//! Asking a person on the terminal, without showing what is typed.
//!
//! The terminal is restored also when the person aborts: Control-C is read here as the end of the
//! line, instead of killing this process before it can restore it.

use super::source::taken;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::keys::{PASSPHRASE_BYTES_MAX, Passphrase};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcsetattr,
};
use std::io::{Write, stdin};
use zeroize::Zeroizing;

/// The byte of Control-C.
const INTERRUPT: u8 = 3;

/// Whether standard input is a terminal.
pub(super) fn is_there() -> bool {
    isatty(stdin())
}

/// Prints a text.
pub(super) fn print(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A terminal that shows nothing, until this is dropped.
struct Quiet(Termios);

impl Quiet {
    fn begin() -> rustix::io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut quiet = before.clone();
        quiet
            .local_modes
            .remove(LocalModes::ECHO | LocalModes::ISIG);
        quiet
            .local_modes
            .insert(LocalModes::ICANON | LocalModes::ECHONL);
        quiet.special_codes[SpecialCodeIndex::VEOL] = INTERRUPT;
        tcsetattr(stdin(), OptionalActions::Flush, &quiet)?;
        Ok(Self(before))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.0);
    }
}

/// Asks for a passphrase.
pub(super) fn ask(prompt: &str) -> CommandResult<Passphrase> {
    let failed =
        |error: rustix::io::Errno| Failure::file("ask on", "the terminal".as_ref(), &error.into());
    let _quiet = Quiet::begin().map_err(failed)?;
    let mut stderr = std::io::stderr();
    let _ = write!(stderr, "{prompt}").and_then(|()| stderr.flush());
    let mut line = Zeroizing::new(Vec::with_capacity(PASSPHRASE_BYTES_MAX + 2));
    let mut byte = Zeroizing::new([0; 1]);
    // Byte by byte, since the input after the line is for the next reader.
    while rustix::io::read(stdin(), &mut *byte).map_err(failed)? == 1 {
        let [read] = *byte;
        if read == INTERRUPT {
            print("");
            return Err(Failure::new(Exit::Cancelled, "cancelled"));
        }
        if read == b'\n' {
            return taken(line);
        }
        if line.len() <= PASSPHRASE_BYTES_MAX {
            line.push(read);
        }
    }
    Err(Failure::new(Exit::Cancelled, "cancelled"))
}
