//! git, without this machine's settings and at a fixed time: equal commits have equal names.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Output, Stdio};

/// git in a directory.
#[derive(Debug)]
pub(crate) struct Git {
    directory: PathBuf,
}

impl Git {
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// The command, for callers that manage the process themselves.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        command.args(["-c", "gc.auto=0", "-c", "advice.detachedHead=false"]);
        command.args(arguments).current_dir(&self.directory);
        command.stdin(Stdio::null());
        for (name, value) in [
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_AUTHOR_NAME", "A"),
            ("GIT_AUTHOR_EMAIL", "a@example.invalid"),
            ("GIT_AUTHOR_DATE", "1800000000 +0000"),
            ("GIT_COMMITTER_NAME", "A"),
            ("GIT_COMMITTER_EMAIL", "a@example.invalid"),
            ("GIT_COMMITTER_DATE", "1800000000 +0000"),
            ("GIT_EDITOR", "true"),
        ] {
            command.env(name, value);
        }
        command
    }

    /// Runs it and returns its output.
    #[track_caller]
    pub(super) fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        succeeded(arguments, &output);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs it and writes to its standard input.
    #[track_caller]
    pub(super) fn feed(&self, arguments: &[&str], write: impl FnOnce(&mut BufWriter<ChildStdin>)) {
        let mut command = self.command(arguments);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut stream = BufWriter::new(child.stdin.take().unwrap());
        write(&mut stream);
        stream.flush().unwrap();
        drop(stream);
        succeeded(arguments, &child.wait_with_output().unwrap());
    }
}

#[track_caller]
fn succeeded(arguments: &[&str], output: &Output) {
    let errors = String::from_utf8_lossy(&output.stderr);
    let code = output.status;
    assert!(code.success(), "git {arguments:?}: {code}\n{errors}");
}
