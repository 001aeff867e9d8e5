//! The running program, with a deadline for every wait, and how it ended.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fmt;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const RUN_WITHIN: Duration = Duration::from_secs(120);
const STOP_WITHIN: Duration = Duration::from_secs(120);

/// How a run ended.
pub struct Finished {
    /// The exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: String,
}

impl Finished {
    /// The records of type `kind` among its NDJSON.
    #[must_use]
    pub fn records(&self, kind: &str) -> Vec<Value> {
        String::from_utf8_lossy(&self.stdout)
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|record| record["v"] == 1 && record["type"] == kind)
            .collect()
    }

    /// Requires success.
    ///
    /// # Panics
    /// If it failed.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// Requires a certain failure: its exit code, and parts of its message and its hint.
    ///
    /// # Panics
    /// If it ended in another way, or panicked.
    #[track_caller]
    pub fn fails(self, code: i32, message: &str, hint: &str) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        let errors = self.records("error");
        let error = errors
            .last()
            .unwrap_or_else(|| panic!("no record of an error: {self:#?}"));
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_string();
        let text = format!("{} | {}", text("message"), text("hint"));
        assert_eq!(error["code"], code, "{text}");
        assert!(
            text.contains(message),
            "the message lacks `{message}`: {text}"
        );
        assert!(text.contains(hint), "the hint lacks `{hint}`: {text}");
        self
    }
}

impl fmt::Debug for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stdout = String::from_utf8_lossy(&self.stdout);
        let start: String = stdout.chars().take(4096).collect();
        write!(f, "code {:?}\n{start}\n{}", self.code, self.stderr)
    }
}

/// The running program; killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Reaped,
    stdout: JoinHandle<std::io::Result<Vec<u8>>>,
    stderr: Option<JoinHandle<std::io::Result<Vec<u8>>>>,
}

fn read_all(mut from: impl Read + Send + 'static) -> JoinHandle<std::io::Result<Vec<u8>>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).map(|_| bytes)
    })
}

impl Running {
    #[track_caller]
    pub(super) fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Reaped(command.spawn().unwrap());
        Self {
            stdout: read_all(child.0.stdout.take().unwrap()),
            stderr: child.0.stderr.take().map(read_all),
            child,
        }
    }

    /// Starts a program with another standard error.
    #[track_caller]
    pub(super) fn start_on(mut command: Command, stderr: OwnedFd) -> Self {
        command.stdout(Stdio::piped()).stderr(stderr);
        let mut child = Reaped(command.spawn().unwrap());
        Self {
            stdout: read_all(child.0.stdout.take().unwrap()),
            stderr: None,
            child,
        }
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end in two minutes.
    #[must_use]
    #[track_caller]
    pub fn wait(self) -> Finished {
        self.wait_for(RUN_WITHIN)
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end in this time.
    #[must_use]
    #[track_caller]
    pub fn wait_for(mut self, within: Duration) -> Finished {
        let began = Instant::now();
        let status = loop {
            match self.child.0.try_wait().unwrap() {
                Some(status) => break status,
                None if began.elapsed() > within => panic!("{self:?} does not end"),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let stderr = self.stderr.map(|stderr| stderr.join().unwrap().unwrap());
        let stderr = stderr.unwrap_or_default();
        Finished {
            code: status.code(),
            stdout: self.stdout.join().unwrap().unwrap(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }
}

/// Runs a script in the mount namespace of a process. How it ends does not matter.
///
/// # Panics
/// If it cannot be run.
pub fn run_in_view_of(process: u32, script: &str) {
    let mut command = Command::new("nsenter");
    command.args(["--target", &process.to_string(), "--mount", "--"]);
    command.args(["/bin/sh", "-c", script]);
    let _ = command.stderr(Stdio::null()).status().unwrap();
}

/// A child that is killed and reaped when it is dropped.
#[derive(Debug)]
pub(crate) struct Reaped(pub(crate) Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
        let _ = std::io::stderr().flush();
    }
}

/// Asks a child to stop and waits until it has; `None` if it does not.
pub(crate) fn terminate(child: &mut Reaped) -> Option<std::process::ExitStatus> {
    // Not reaped yet, so that the process id is still the child's.
    let pid = Pid::from_raw(i32::try_from(child.0.id()).ok()?)?;
    let _ = kill_process(pid, Signal::TERM);
    let began = Instant::now();
    while began.elapsed() < STOP_WITHIN {
        if let Ok(Some(status)) = child.0.try_wait() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

/// MiB that a mount may have in addition to its memory setting: its program, threads and allocator.
pub const OVERHEAD_MIB: u64 = 64;

/// The peak resident memory of a process so far, in MiB; `None` once it has ended.
#[must_use]
pub fn peak_mib(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib / 1024)
}
