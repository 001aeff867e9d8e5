//! A whole demo as a child process: four replicas, a gateway, four clouds, a mount.

use super::command::{Private, Quorumfs};
use super::files::is_mounted;
use super::running::{Finished, Reaped, run_in_view_of, terminate};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

const READY_WITHIN: Duration = Duration::from_secs(120);

/// A running demo, in a temporary directory that is removed with it.
#[derive(Debug)]
pub struct Demo {
    directory: tempfile::TempDir,
    process: Option<Reaped>,
    ready: Value,
}

impl Demo {
    /// Starts a new demo.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("qfs").tempdir().unwrap();
        let mut demo = Self {
            directory,
            process: None,
            ready: Value::Null,
        };
        demo.restart();
        demo
    }

    /// Starts it again after [`Demo::stop`].
    ///
    /// # Panics
    /// If it does not start.
    #[track_caller]
    pub fn restart(&mut self) {
        self.run(Quorumfs::on(self.state()).args(["demo"]));
    }

    /// The same in a private mount namespace; see [`Demo::inside`].
    ///
    /// # Panics
    /// If it does not start.
    #[track_caller]
    pub fn restart_in(&mut self, private: &Private) {
        self.run(
            Quorumfs::on(self.state())
                .args(["demo"])
                .in_private(private),
        );
    }

    #[track_caller]
    fn run(&mut self, demo: Quorumfs) {
        super::require_fuse();
        let mut command = demo.command();
        command.stdout(Stdio::piped());
        let mut child = Reaped(command.spawn().unwrap());
        let stdout = child.0.stdout.take().unwrap();
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let line = lines.recv_timeout(READY_WITHIN).unwrap_or_else(|_| {
            panic!("the demo does not start; its logs:\n{}", self.logs());
        });
        self.ready = serde_json::from_str(&line).unwrap();
        assert_eq!(self.ready["type"], "ready", "{line}\n{}", self.logs());
        self.process = Some(child);
    }

    /// Stops it as Ctrl-C does: everything is unmounted, and its state is kept.
    ///
    /// # Panics
    /// If it does not stop, or does not stop successfully.
    #[track_caller]
    pub fn stop(&mut self) {
        let mut child = self.process.take().unwrap();
        let status = terminate(&mut child).expect("the demo does not stop");
        assert!(
            status.success(),
            "the demo stopped with {status}\n{}",
            self.logs()
        );
        assert!(!is_mounted(&self.mount()), "the demo left its mount behind");
    }

    /// The state directory, which is the volume's as well.
    #[must_use]
    pub fn state(&self) -> &Path {
        self.directory.path()
    }

    /// The mount point.
    #[must_use]
    pub fn mount(&self) -> PathBuf {
        self.state().join("mnt")
    }

    /// The root directory in the demo's mount namespace.
    fn root_inside(&self) -> PathBuf {
        let pid = self.process.as_ref().unwrap().0.id();
        PathBuf::from(format!("/proc/{pid}/root"))
    }

    /// The mount point in the demo's mount namespace, for a demo that runs in a private one.
    #[must_use]
    pub fn mount_inside(&self) -> PathBuf {
        self.root_inside()
            .join(self.mount().strip_prefix("/").unwrap())
    }

    /// Runs a script in the demo's mount namespace. How it ends does not matter.
    ///
    /// # Panics
    /// If it cannot be run.
    pub fn inside(&self, script: &str) {
        run_in_view_of(self.process.as_ref().unwrap().0.id(), script);
    }

    /// `quorumfs --json --state …` on this demo's volume, in the demo's mount namespace.
    #[must_use]
    pub fn quorumfs_inside(&self) -> Quorumfs {
        self.quorumfs()
            .in_view_of(self.process.as_ref().unwrap().0.id())
    }

    /// A cloud's directory.
    #[must_use]
    pub fn cloud(&self, index: usize) -> PathBuf {
        self.state()
            .join("clouds")
            .join(["a", "b", "c", "d"][index])
    }

    /// A replica's directory.
    #[must_use]
    pub fn replica(&self, number: usize) -> PathBuf {
        self.state().join(format!("replicas/{number}"))
    }

    /// `quorumfs --json --state … ` on this demo's volume.
    #[must_use]
    pub fn quorumfs(&self) -> Quorumfs {
        Quorumfs::on(self.state())
    }

    /// Runs `status`.
    #[must_use]
    #[track_caller]
    pub fn status(&self) -> Finished {
        self.quorumfs().run_with(["status"])
    }

    /// The log of one of the children.
    #[must_use]
    pub fn log(&self, name: &str) -> String {
        let path = self.state().join(format!("log/{name}.log"));
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// The ends of all children's logs.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut all = String::new();
        for entry in std::fs::read_dir(self.state().join("log"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let tail: Vec<_> = text.lines().rev().take(20).collect();
            let tail: Vec<_> = tail.into_iter().rev().collect();
            all.push_str(&format!(
                "== {}\n{}\n",
                entry.path().display(),
                tail.join("\n")
            ));
        }
        all
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        if let Some(mut child) = self.process.take() {
            let _ = terminate(&mut child);
        }
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
    }
}
