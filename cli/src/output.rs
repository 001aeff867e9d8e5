//! What a command prints: text for people, or NDJSON for programs with `--json`.
//!
//! Every line of JSON is one object with `"v":1` and a `"type"`. A command prints any number of
//! records and, if it fails, one last line of type `error` with the exit code, the message and the
//! hint. Adding a field keeps `v`; changing or removing one raises it.

pub(crate) mod line;
pub(crate) mod paths;

use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;
use serde_json::Value;
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;

/// The form of a command's output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

#[derive(Serialize)]
struct OutputLine<'a, T> {
    v: u32,
    r#type: &'a str,
    #[serde(flatten)]
    body: T,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    code: u8,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
}

impl Output {
    /// JSON or text.
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether this is JSON.
    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Prints one record: `body` as JSON, or its text by `people`, if any.
    pub(crate) fn record<T: Serialize>(
        self,
        kind: &str,
        body: &T,
        people: impl FnOnce(&T) -> String,
    ) -> CommandResult<()> {
        let text = if self.json {
            encode(kind, body)?
        } else {
            people(body)
        };
        if text.is_empty() {
            return Ok(());
        }
        print(&text)
    }

    /// Prints one record as [`record`](Self::record) does, but ignores a closed output: a process
    /// that has to end in an orderly way goes on when its terminal is gone.
    pub(crate) fn announce<T: Serialize>(
        self,
        kind: &str,
        body: &T,
        people: impl FnOnce(&T) -> String,
    ) {
        if let Err(failure) = self.record(kind, body, people) {
            tracing::warn!(%failure, "nothing more is printed");
        }
    }

    /// Prints a text that only people need.
    pub(crate) fn print_text(self, text: &str) -> CommandResult<()> {
        if self.json { Ok(()) } else { print(text) }
    }

    /// Prints why the command failed.
    pub(crate) fn failure(self, failure: &Failure) {
        if self.json {
            let body = ErrorBody {
                code: failure.exit.code(),
                message: &failure.message,
                hint: failure.hint.as_deref(),
            };
            if let Ok(line) = encode("error", &body) {
                let _ = print(&line);
            }
        } else {
            let mut stderr = std::io::stderr().lock();
            let _ = writeln!(stderr, "error: {}", shown(&failure.message));
            if let Some(hint) = &failure.hint {
                let _ = writeln!(stderr, " hint: {}", shown(hint));
            }
        }
    }
}

/// Text that is safe for a terminal: file names may come from any user, so control characters are
/// escaped.
fn shown(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => c,
        _ if c.is_control() => '\u{fffd}',
        _ => c,
    };
    text.chars().map(shown).collect()
}

/// Whether the output may still be read.
pub(crate) fn is_read() -> bool {
    has_reader(std::io::stdout())
}

fn has_reader(end: impl AsFd) -> bool {
    let mut asked = [PollFd::new(&end, PollFlags::empty())];
    let gone = PollFlags::ERR | PollFlags::HUP;
    let polled = rustix::event::poll(&mut asked, Some(&Timespec::default()));
    polled.is_err() || asked.iter().all(|it| !it.revents().intersects(gone))
}

/// A failure that another process of this program printed, if `record` is one.
pub(crate) fn failure_in(record: &Value) -> Option<Failure> {
    let text = |key: &str| record.get(key).and_then(Value::as_str);
    if text("type") != Some("error") {
        return None;
    }
    let code = record.get("code").and_then(Value::as_u64);
    let mut all = Exit::ALL.iter().copied();
    let exit = all.find(|exit| Some(u64::from(exit.code())) == code);
    let failure = Failure::new(exit.unwrap_or(Exit::Error), text("message")?);
    Some(match text("hint") {
        Some(hint) => failure.hint(hint),
        None => failure,
    })
}

/// One line of JSON.
pub(crate) fn encode<T: Serialize>(kind: &str, body: &T) -> CommandResult<String> {
    serde_json::to_string(&OutputLine {
        v: 1,
        r#type: kind,
        body,
    })
    .map_err(|error| Failure::new(Exit::Error, format!("cannot encode: {error}")))
}

fn print(text: &str) -> CommandResult<()> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{}", text.trim_end_matches('\n')).and_then(|()| stdout.flush()) {
        // The reader of the output has ended: `quorumfs ls | head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::file(
            "write to",
            "standard output".as_ref(),
            &error,
        )),
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_passes_from_process_to_process() {
        let line = r#"{"v":1,"type":"error","code":7,"message":"no device","hint":"load it"}"#;
        let failure = failure_in(&serde_json::from_str(line).unwrap()).unwrap();
        let expected = Failure::new(Exit::CannotMount, "no device").hint("load it");
        assert_eq!(failure, expected);
        let ready = serde_json::json!({"v": 1, "type": "ready"});
        assert_eq!(failure_in(&ready), None);
    }

    #[test]
    fn a_pipe_has_a_reader_until_that_goes() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"unread").unwrap();
        assert!(has_reader(&writer));
        drop(reader);
        assert!(!has_reader(&writer));
        assert!(has_reader(tempfile::tempfile().unwrap()));
    }

    #[test]
    fn a_record_is_one_versioned_line() {
        let line = encode("entry", &serde_json::json!({"name": "a\nb"})).unwrap();
        assert_eq!(line, r#"{"v":1,"type":"entry","name":"a\nb"}"#);
    }
}
