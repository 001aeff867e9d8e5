//! A passphrase that a program prints, such as a password manager or a graphical prompt.
//!
//! It is run without a shell. A person may need time to unlock the program, but the time is
//! bounded: a mount at boot must not wait for ever.

use super::source::{bounded, taken};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::keys::Passphrase;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(120);

/// Runs the program and reads its output.
pub(super) fn passphrase(words: &[String]) -> CommandResult<Passphrase> {
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
