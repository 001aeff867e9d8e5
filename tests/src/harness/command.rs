//! Running the program: built once, with an end to every run, in a private view if wanted.

use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const RUN_WITHIN: Duration = Duration::from_secs(120);

/// The program under test, built from the sources as they are now.
///
/// # Panics
/// If it cannot be built.
#[must_use]
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let cargo = option_env!("CARGO").unwrap_or("cargo");
        let built = Command::new(cargo)
            .args([
                "build",
                "--release",
                "--offline",
                "--quiet",
                "--package",
                "quorumfs",
            ])
            .current_dir(root)
            .status()
            .unwrap();
        assert!(built.success(), "the program does not build");
        // …/target/release/deps/<this test> lies two levels below the program.
        let this = std::env::current_exe().unwrap();
        this.parent().unwrap().parent().unwrap().join("quorumfs")
    })
}

/// How a run ended.
#[derive(Debug)]
pub struct Finished {
    /// The exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it complained about.
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

    /// Requires a certain failure: its exit code, what its message says, what its hint says.
    ///
    /// # Panics
    /// If it ended otherwise, or panicked.
    #[track_caller]
    pub fn fails(self, code: i32, message: &str, hint: &str) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        let errors = self.records("error");
        let error = errors
            .last()
            .unwrap_or_else(|| panic!("no record of an error: {self:#?}"));
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_string();
        let said = format!("{} | {}", text("message"), text("hint"));
        assert_eq!(error["code"], code, "{said}");
        assert!(
            said.contains(message),
            "the message lacks `{message}`: {said}"
        );
        assert!(said.contains(hint), "the hint lacks `{hint}`: {said}");
        self
    }
}

/// A run of the program that is being put together. Always with `--json`.
#[derive(Debug)]
pub struct Quorumfs {
    arguments: Vec<OsString>,
    private: Option<Private>,
    within: Duration,
}

/// A view of the machine that only one run has: a mount namespace in which a script ran first.
/// Needs the right to make one; see [`super::mounts_are_possible`].
#[derive(Debug, Clone)]
pub struct Private {
    /// Shell commands, run as root of the namespace before the program.
    pub script: String,
}

impl Quorumfs {
    /// `quorumfs --json …` on a state directory.
    #[must_use]
    pub fn on(state: &Path) -> Self {
        let arguments = vec!["--json".into(), "--state".into(), state.into()];
        Self {
            arguments,
            private: None,
            within: RUN_WITHIN,
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments
            .extend(arguments.into_iter().map(|a| a.as_ref().to_os_string()));
        self
    }

    /// Runs it in a view of its own.
    #[must_use]
    pub fn in_private(mut self, private: &Private) -> Self {
        self.private = Some(private.clone());
        self
    }

    /// The command, for those who want to hold the process.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = match &self.private {
            None => Command::new(binary()),
            Some(private) => {
                let mut command = Command::new("unshare");
                if !rustix::process::geteuid().is_root() {
                    command.args(["--user", "--map-root-user"]);
                }
                let script = format!("set -e; {}; exec \"$@\"", private.script);
                command
                    .args(["--mount", "--", "/bin/sh", "-c", &script, "sh"])
                    .arg(binary());
                command
            }
        };
        command.args(&self.arguments).stdin(Stdio::null());
        command
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// If it does not end in two minutes.
    #[must_use]
    #[track_caller]
    pub fn run(&self) -> Finished {
        let mut command = self.command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Reaped(command.spawn().unwrap());
        let mut stdout = child.0.stdout.take().unwrap();
        let mut stderr = child.0.stderr.take().unwrap();
        let reading = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stdout.read_to_end(&mut bytes).map(|_| bytes)
        });
        let listening = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stderr.read_to_end(&mut bytes).map(|_| bytes)
        });
        let began = Instant::now();
        let status = loop {
            match child.0.try_wait().unwrap() {
                Some(status) => break status,
                None if began.elapsed() > self.within => panic!("{self:?} does not end"),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let stdout = reading.join().unwrap().unwrap();
        let stderr = String::from_utf8_lossy(&listening.join().unwrap().unwrap()).into_owned();
        Finished {
            code: status.code(),
            stdout,
            stderr,
        }
    }

    /// Runs it with these arguments.
    #[must_use]
    #[track_caller]
    pub fn run_with<A: AsRef<OsStr>>(self, arguments: impl IntoIterator<Item = A>) -> Finished {
        self.args(arguments).run()
    }
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
