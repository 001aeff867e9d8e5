//! A passphrase that a program prints: a password manager's, or whatever asks for it on a screen.
//!
//! It is run without a shell. A person may have to find the right key first, so that it has some
//! time, but not for ever: a mount at the start of a machine must not wait for nobody.

use super::source::{bounded, taken};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use quorumfs_gateway::keys::Passphrase;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(120);

/// Runs the program of these words and takes what it prints.
pub(super) fn passphrase(words: &[String]) -> Outcome<Passphrase> {
    let failed = |what: String| {
        let message = format!("`passphrase_command` (`{}`) {what}", words.join(" "));
        Failure::new(Exit::WrongKey, message).hint(
            "it is a list of a program and its arguments under [keys] in quorumfs.toml, and prints \
             the passphrase",
        )
    };
    let (program, arguments) = words
        .split_first()
        .ok_or_else(|| failed("is empty".into()))?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("cannot be started: {error}")))?;
    let (sender, read) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || sender.send(bounded(output)));
    }
    let read = read.recv_timeout(WITHIN);
    if read.is_err() {
        let _ = child.kill();
    }
    let ended = child
        .wait()
        .map_err(|error| failed(format!("got lost: {error}")))?;
    match read {
        Err(_) => Err(failed(format!(
            "printed nothing within {} s",
            WITHIN.as_secs()
        ))),
        Ok(Err(error)) => Err(failed(format!("cannot be read: {error}"))),
        Ok(Ok(_)) if !ended.success() => Err(failed(format!("failed: {ended}"))),
        Ok(Ok(bytes)) => taken(bytes),
    }
}
