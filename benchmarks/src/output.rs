//! What is printed: text for people, or NDJSON for programs with `--json`, in the form of the
//! program `quorumfs`: each line is an object with `"v":1` and a `"type"`.

use crate::failure::{BenchFailure, BenchResult, failed};
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// The form of the output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer {
    json: bool,
}

#[derive(Serialize)]
struct PrintedLine<'a, T> {
    v: u32,
    r#type: &'a str,
    #[serde(flatten)]
    body: T,
}

#[derive(Serialize)]
struct PrintedFailure<'a> {
    code: u8,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
}

impl Printer {
    /// JSON or text.
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether this is JSON.
    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Prints one record: `body` as JSON, or its text by `people`.
    pub(crate) fn record<T: Serialize>(
        self,
        kind: &str,
        body: &T,
        people: impl FnOnce(&T) -> String,
    ) -> BenchResult {
        print(&match self.json {
            true => encode(kind, body)?,
            false => people(body),
        })
    }

    /// Prints why the measurement failed.
    pub(crate) fn failure(self, failure: &BenchFailure) {
        let body = PrintedFailure {
            code: failure.code,
            message: &failure.message,
            hint: failure.hint.as_deref(),
        };
        match encode("error", &body) {
            Ok(line) if self.json => drop(print(&line)),
            _ => {
                eprintln!("error: {failure}");
                if let Some(hint) = &failure.hint {
                    eprintln!(" hint: {hint}");
                }
            }
        }
    }
}

/// Prints one line or more; that their reader has ended is no failure.
pub(crate) fn print(text: &str) -> BenchResult {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(failed("write to standard output", &error))
        }
        _ => Ok(()),
    }
}

fn encode<T: Serialize>(kind: &str, body: &T) -> BenchResult<String> {
    let line = PrintedLine {
        v: 1,
        r#type: kind,
        body,
    };
    serde_json::to_string(&line).map_err(|error| failed("encode", &error))
}
