//! The program `quorumfs`, run as a user runs it.
//!
//! `QUORUMFS` names it, or it lies next to this one. A replica and a mount stop in good order when
//! their standard input ends: they do so too if this process vanishes.

use crate::failure::{BenchFailure, BenchResult, failed};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a process may take to stop.
const STOP_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Where the program is.
#[derive(Debug, Clone)]
pub(super) struct Program(PathBuf);

impl Program {
    /// Finds it.
    pub(super) fn find() -> BenchResult<Self> {
        if let Some(named) = std::env::var_os("QUORUMFS").filter(|it| !it.is_empty()) {
            return Ok(Self(named.into()));
        }
        let own = std::env::current_exe();
        let own = own.map_err(|error| failed("find the program `quorumfs`", &error))?;
        let path = own.with_file_name("quorumfs");
        if path.is_file() {
            return Ok(Self(path));
        }
        let message = format!("there is no program {}", path.display());
        Err(BenchFailure::new(message).hint(
            "`cargo build --release -p quorumfs` makes it; or name another one by the variable \
             QUORUMFS",
        ))
    }

    fn command<I: AsRef<OsStr>>(&self, arguments: &[I]) -> Command {
        let mut command = Command::new(&self.0);
        // A signal of the terminal is for this process, which then stops them in order.
        command.args(arguments).process_group(0);
        command
    }

    fn describe<I: AsRef<OsStr>>(arguments: &[I]) -> String {
        let words = arguments.iter().take(2);
        let words: Vec<_> = words.map(|it| it.as_ref().to_string_lossy()).collect();
        format!("`quorumfs {}`", words.join(" "))
    }

    /// Runs a command to its end; returns its output.
    pub(super) fn run<I: AsRef<OsStr>>(&self, arguments: &[I]) -> BenchResult<String> {
        let name = Self::describe(arguments);
        let output = self.command(arguments).stdin(Stdio::null()).output();
        let output = output.map_err(|error| failed(&format!("run {name}"), &error))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let words = String::from_utf8_lossy(&output.stderr);
        let message = format!("{name} failed, {}: {}", output.status, words.trim());
        Err(BenchFailure::new(message))
    }

    /// Starts a replica or a mount, and returns when it is ready.
    pub(super) fn serve<I: AsRef<OsStr>>(&self, arguments: &[I]) -> BenchResult<ServingProcess> {
        let name = Self::describe(arguments);
        let cannot = |error: &dyn std::fmt::Display| failed(&format!("start {name}"), error);
        let mut command = self.command(arguments);
        command.args(["--supervised", "--json"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| cannot(&error))?;
        let output = process.stdout.take().ok_or_else(|| cannot(&"no pipe"))?;
        let mut service = ServingProcess {
            name,
            process,
            output: BufReader::new(output),
        };
        match service.reads("ready")? {
            Some(_) => Ok(service),
            None => Err(service.ended()),
        }
    }
}

/// A running replica or mount.
#[derive(Debug)]
pub(super) struct ServingProcess {
    name: String,
    process: Child,
    output: BufReader<ChildStdout>,
}

impl ServingProcess {
    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The next record of a kind, or of a failure; nothing if its output ends before that.
    fn reads(&mut self, kind: &str) -> BenchResult<Option<Value>> {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.output.read_line(&mut line);
            if read.map_err(|error| failed(&format!("read from {}", self.name), &error))? == 0 {
                return Ok(None);
            }
            let record: Value = serde_json::from_str(&line).unwrap_or_default();
            match record.get("type").and_then(Value::as_str) {
                Some("error") => {
                    let words = record.get("message").and_then(Value::as_str);
                    let words = words.unwrap_or_default();
                    return Err(BenchFailure::new(format!("{} failed: {words}", self.name)));
                }
                Some(found) if found == kind => return Ok(Some(record)),
                _ => {}
            }
        }
    }

    /// Why it has ended, as far as that is known.
    fn ended(&mut self) -> BenchFailure {
        let status = self.process.wait();
        let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        BenchFailure::new(format!("{} ended, {status}", self.name))
    }

    /// Stops it; a mount stores everything and unmounts first.
    pub(super) fn stop(mut self) -> BenchResult {
        drop(self.process.stdin.take());
        let until = Instant::now() + STOP_WITHIN;
        loop {
            let cannot =
                |error: &dyn std::fmt::Display| failed(&format!("stop {}", self.name), error);
            match self.process.try_wait().map_err(|error| cannot(&error))? {
                Some(status) if status.success() => return Ok(()),
                Some(_) => {
                    self.reads("")?;
                    return Err(self.ended());
                }
                None if Instant::now() < until => std::thread::sleep(LOOK_EVERY),
                None => {
                    let killed = self.process.kill().and_then(|()| self.process.wait());
                    killed.map_err(|error| cannot(&error))?;
                    return Err(cannot(&"it did not end in time, and was killed"));
                }
            }
        }
    }
}
