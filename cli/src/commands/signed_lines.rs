//! A file of signed entries in the state directory: a title, then one entry a line, in hexadecimal
//! digits.
//!
//! Nothing in such a file is secret, and nothing is believed that is not signed: the gateway
//! verifies each entry. A file that is not what it should be is an error and not an empty list,
//! since the volume would open as it was before.

use crate::directory::{self, StateDirectory};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_metadata::row::Row;
use std::fs;
use std::io::ErrorKind;

pub(super) struct SignedLines {
    /// The name in the state directory.
    pub(super) file: &'static str,
    /// The first line.
    pub(super) title: &'static str,
    /// What to do when the file is damaged.
    pub(super) hint: &'static str,
}

impl SignedLines {
    /// The entries; none if there is no file.
    pub(super) fn read<R: Row>(&self, state: &StateDirectory) -> CommandResult<Vec<R>> {
        let path = state.join(self.file);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Failure::file("read", &path, &error)),
        };
        self.parse(&text).ok_or_else(|| {
            let message = format!("{} is damaged", path.display());
            Failure::new(Exit::Damaged, message).hint(self.hint)
        })
    }

    pub(super) fn write<R: Row>(&self, state: &StateDirectory, entries: &[R]) -> CommandResult<()> {
        directory::replace(&state.join(self.file), self.text(entries).as_bytes())
    }

    fn text<R: Row>(&self, entries: &[R]) -> String {
        let mut text = format!("{}\n", self.title);
        for entry in entries {
            text.push_str(&digits(&entry.to_bytes()));
            text.push('\n');
        }
        text
    }

    fn parse<R: Row>(&self, text: &str) -> Option<Vec<R>> {
        let mut lines = text.lines();
        if lines.next()? != self.title {
            return None;
        }
        lines
            .map(|line| R::from_bytes(&bytes(line)?).ok())
            .collect()
    }
}

/// These bytes in hexadecimal digits.
pub(super) fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of hexadecimal digits.
pub(super) fn bytes(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let even = digits.len().is_multiple_of(2);
    pairs.map(byte).collect::<Option<_>>().filter(|_| even)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::identity::Signature;
    use quorumfs_metadata::succession::SignedSuccession;

    const LINES: SignedLines = SignedLines {
        file: "",
        title: "quorumfs successions 1",
        hint: "",
    };

    #[test]
    fn entries_survive_their_file_and_what_is_none_is_refused() {
        let one = SignedSuccession {
            succession: vec![1, 2, 250],
            signature: Signature([7; 64]),
        };
        let all = vec![one.clone(), one];
        assert_eq!(LINES.parse(&LINES.text(&all)), Some(all.clone()));
        let none: &[SignedSuccession] = &[];
        assert_eq!(LINES.parse(&LINES.text(none)), Some(none.to_vec()));
        for wrong in [
            "",
            "quorumfs successions 2\n",
            "quorumfs successions 1\n0\n",
        ] {
            assert_eq!(LINES.parse::<SignedSuccession>(wrong), None, "{wrong:?}");
        }
        let torn = LINES.text(&all);
        let torn = &torn[..torn.len() - 2];
        assert_eq!(LINES.parse::<SignedSuccession>(torn), None);
    }
}
