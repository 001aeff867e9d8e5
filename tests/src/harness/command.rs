//! Running the program: built once, with arguments, and in a private mount namespace if needed.

use super::running::{Finished, Running};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The program under test: `QUORUMFS` names it, or it is built once from the current sources, in
/// the directory of this test.
///
/// Cargo gives a test only the paths of its own package's binaries, so that this function runs
/// cargo itself; where the program is up to date, that takes a moment. This package is named too,
/// because cargo unites the features of packages that are built together: so the libraries are
/// those of the tests, which are compiled already.
///
/// # Panics
/// If it cannot be built.
#[must_use]
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(named) = std::env::var_os("QUORUMFS").filter(|it| !it.is_empty()) {
            return PathBuf::from(named);
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        // This is TARGET/release/NAME or a test below it, the program TARGET/release/quorumfs.
        let this = std::env::current_exe().unwrap();
        let release = this.ancestors().find(|path| path.ends_with("release"));
        let release = release.unwrap_or_else(|| {
            let this = this.display();
            panic!("{this} is not of the profile `release`: run the tests with --release")
        });
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo)
            .args(["build", "--release", "--offline", "--quiet"])
            .args(["--package", "quorumfs", "--package", "quorumfs-tests"])
            .args(["--bin", "quorumfs", "--target-dir"])
            .arg(release.parent().unwrap())
            .current_dir(root)
            .status()
            .unwrap();
        assert!(built.success(), "the program does not build");
        release.join("quorumfs")
    })
}

/// A run of the program that is being configured. Always with `--json`.
#[derive(Debug, Clone)]
pub struct Quorumfs {
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    view: View,
    network: Option<u32>,
    user: Option<u32>,
}

/// The mount namespace of a run.
#[derive(Debug, Clone)]
enum View {
    /// The machine's.
    Shared,
    /// A namespace of its own.
    Own(Private),
    /// That of this process.
    Of(u32),
}

/// A private mount namespace for one run; a script runs in it first. Needs the right to create one;
/// see [`super::require_private_mounts`].
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
            variables: Vec::new(),
            view: View::Shared,
            network: None,
            user: None,
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments
            .extend(arguments.into_iter().map(|a| a.as_ref().to_os_string()));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Runs it in a private mount namespace.
    #[must_use]
    pub fn in_private(mut self, private: &Private) -> Self {
        self.view = View::Own(private.clone());
        self
    }

    /// Runs it in the mount namespace of a running process.
    #[must_use]
    pub fn in_view_of(mut self, process: u32) -> Self {
        self.view = View::Of(process);
        self
    }

    /// Runs it in the network namespace of a running process.
    #[must_use]
    pub(crate) fn in_network_of(mut self, process: u32) -> Self {
        self.network = Some(process);
        self
    }

    /// Runs it as the user and the group of this number, without other groups and without any right
    /// of the superuser, which this process needs. That user has to be able to reach the program.
    #[must_use]
    pub fn as_user(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    /// The command, for callers that manage the process themselves.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut words: Vec<OsString> = match &self.view {
            View::Shared => Vec::new(),
            View::Of(process) => {
                let process = process.to_string();
                ["nsenter", "--target", &process, "--mount", "--"]
                    .map(OsString::from)
                    .to_vec()
            }
            View::Own(private) => {
                let mut words = vec!["unshare"];
                if !rustix::process::geteuid().is_root() {
                    words.extend(["--user", "--map-root-user"]);
                }
                let script = format!("set -e; {}; exec \"$@\"", private.script);
                words.extend(["--mount", "--", "/bin/sh", "-c", &script, "sh"]);
                words.into_iter().map(OsString::from).collect()
            }
        };
        if let Some(process) = self.network {
            let process = process.to_string();
            words.extend(["nsenter", "--target", &process, "--net", "--"].map(OsString::from));
        }
        if let Some(user) = self.user {
            let options = [format!("--reuid={user}"), format!("--regid={user}")];
            words.push("setpriv".into());
            words.extend(options.map(OsString::from));
            words.push("--clear-groups".into());
        }
        words.push(binary().into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.args(&self.arguments).stdin(Stdio::null());
        let variables = self.variables.iter().map(|(name, value)| (name, value));
        command.envs(variables);
        command
    }

    /// Starts it.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    #[track_caller]
    pub fn start(&self) -> Running {
        Running::start(self.command())
    }

    /// Runs it to its end on a terminal of its own, where the test types these lines, one per
    /// prompt; returns how it ended and the terminal's output.
    ///
    /// # Panics
    /// If no terminal can be opened, or it does not end in two minutes.
    #[must_use]
    #[track_caller]
    pub fn run_on_terminal(&self, typed: &[&str]) -> (Finished, String) {
        super::terminal::run(self.command(), typed)
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// If it does not end in two minutes.
    #[must_use]
    #[track_caller]
    pub fn run(&self) -> Finished {
        self.start().wait()
    }

    /// Runs it with these arguments.
    #[must_use]
    #[track_caller]
    pub fn run_with<A: AsRef<OsStr>>(self, arguments: impl IntoIterator<Item = A>) -> Finished {
        self.args(arguments).run()
    }
}
