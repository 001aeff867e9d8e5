//! Servers of the providers' protocols on loopback, for tests and for the demo; in no release.
//!
//! | Server | Speaks | Keeps its data in |
//! |---|---|---|
//! | versitygw | S3, with accounts, policies and object lock | a directory: a file an object |
//! | Azurite | Azure Blob | files of extents |
//! | fake-gcs-server | Google Cloud Storage (JSON, media) | a directory: a file an object |
//!
//! `scripts/setup` installs them. Each listens on a port of 127.0.0.1 that was free, is ready when
//! [`Emulator::start`] returns, and can be stopped, started again on the same port with the same
//! data, frozen and thawed. A server ends with the process that started it, even if that process is
//! killed: it runs below a shell that waits for the end of its standard input and then ends the
//! server by its process id.

mod programs;

pub use programs::{Server, programs};

use crate::loopback;
use async_recursion::async_recursion as boxed;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::Instant;

/// How long a server may take until it answers, on a loaded machine.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a server may take to stop before it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// Runs the server until standard input ends; prints the server's process id.
const SHELL: &str = r#""$@" </dev/null & pid=$!; echo "$pid"; cat >/dev/null; kill "$pid"; wait"#;

/// A server that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    /// It is not installed.
    #[error("{program} is not at {}; run scripts/setup, which installs it", path.display())]
    Missing {
        /// The program.
        program: &'static str,
        /// The path where it was expected.
        path: PathBuf,
    },
    /// It did not answer.
    #[error("{server} does not answer at {address}: {reason}; its log is {}", log.display())]
    Silent {
        /// The server.
        server: &'static str,
        /// The address at which it should listen.
        address: SocketAddr,
        /// The last failure.
        reason: String,
        /// The path of its log.
        log: PathBuf,
    },
    /// The operating system refused.
    #[error("{what}: {error}")]
    System {
        /// The action that failed.
        what: String,
        /// The system's error.
        error: io::Error,
    },
}

fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> EmulatorError {
    let what = what.into();
    move |error| EmulatorError::System { what, error }
}

/// A server that is running or was stopped.
#[derive(Debug)]
pub struct Emulator {
    server: Server,
    directory: PathBuf,
    address: SocketAddr,
    /// Boxed: a process is much larger than the other fields.
    running: Option<Box<Running>>,
}

#[derive(Debug)]
struct Running {
    shell: Child,
    server: Pid,
}

impl Emulator {
    /// Starts a server that keeps its data, its credentials and its log in `directory`.
    ///
    /// # Errors
    /// If it is not installed, or does not answer.
    #[boxed]
    pub async fn start(server: Server, directory: &Path) -> Result<Self, EmulatorError> {
        let free = loopback::free_address().map_err(system("find a free port on loopback"))?;
        Self::start_at(server, directory, free).await
    }

    /// Starts a server at an address that was chosen before.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    #[boxed]
    pub async fn start_at(
        server: Server,
        directory: &Path,
        address: SocketAddr,
    ) -> Result<Self, EmulatorError> {
        let mut emulator = Self {
            server,
            directory: directory.to_path_buf(),
            address,
            running: None,
        };
        for name in server.directories() {
            let path = directory.join(name);
            fs::create_dir_all(&path).map_err(system(format!("create {}", path.display())))?;
        }
        emulator.write_credentials()?;
        emulator.start_again().await?;
        Ok(emulator)
    }

    /// Starts it again at its old address with its old data.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    #[boxed]
    pub async fn start_again(&mut self) -> Result<(), EmulatorError> {
        self.stop().await;
        let log = self.log();
        let output = File::options().create(true).append(true).open(&log);
        let output = output.map_err(system(format!("write {}", log.display())))?;
        let errors = output.try_clone().map_err(system("share a log"))?;
        let command = self.server.command(self.address, &self.directory)?;
        let shell_failed = || system(format!("run {}", self.server.name()));
        let mut shell = Command::new("/bin/sh")
            .args(["-c", SHELL, "sh"])
            .arg(&command.program)
            .args(&command.arguments)
            .current_dir(&self.directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .process_group(0)
            .spawn()
            .map_err(shell_failed())?;
        let said = shell
            .stdout
            .take()
            .ok_or_else(|| io::Error::other("no output"));
        let mut said = BufReader::new(said.map_err(shell_failed())?);
        let mut line = String::new();
        said.read_line(&mut line).await.map_err(shell_failed())?;
        let server = line.trim().parse().ok().and_then(Pid::from_raw);
        let server = server.ok_or_else(|| io::Error::other(format!("it printed {line:?}")));
        let server = server.map_err(shell_failed())?;
        // The server's further output goes to its log; the pipe must not fill.
        tokio::spawn(async move {
            let mut output = tokio::fs::File::from_std(output);
            let _ = tokio::io::copy(&mut said, &mut output).await;
        });
        self.running = Some(Box::new(Running { shell, server }));
        self.wait_until_ready().await
    }

    async fn wait_until_ready(&mut self) -> Result<(), EmulatorError> {
        let end = Instant::now() + READY_WITHIN;
        loop {
            let reason = match self.answers().await {
                Ok(()) => return Ok(()),
                Err(error) => error.to_string(),
            };
            let ended = self.running.as_mut().map(|it| it.shell.try_wait());
            let gone = matches!(ended, Some(Ok(Some(_))) | None);
            if gone || Instant::now() >= end {
                self.stop().await;
                return Err(EmulatorError::Silent {
                    server: self.server.name(),
                    address: self.address,
                    reason,
                    log: self.log(),
                });
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Whether it answers a request at all.
    async fn answers(&self) -> io::Result<()> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let asked = async {
            let mut stream = TcpStream::connect(self.address).await?;
            let path = self.server.ready_path();
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut status = [0; 12];
            stream.read_exact(&mut status).await?;
            let status = String::from_utf8_lossy(&status).into_owned();
            match status.strip_prefix("HTTP/1.1 ") {
                Some(code) if !code.starts_with('5') => Ok(()),
                _ => Err(io::Error::other(format!("it answered {status:?}"))),
            }
        };
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let limit = Duration::from_secs(2);
        tokio::time::timeout(limit, asked).await.map_err(late)?
    }

    /// Ends it; its data stays.
    #[boxed]
    pub async fn stop(&mut self) {
        let Some(mut running) = self.running.take() else {
            return;
        };
        let _ = kill_process(running.server, Signal::CONT);
        // Only the shell asks it to end: Azurite, asked twice, exits without saving its data.
        drop(running.shell.stdin.take());
        if tokio::time::timeout(STOP_WITHIN, running.shell.wait())
            .await
            .is_err()
        {
            // The shell waits for the server, so the server's process id is still valid.
            let _ = kill_process(running.server, Signal::KILL);
            let _ = running.shell.wait().await;
        }
    }

    /// Kills it at once, as a crash would.
    #[boxed]
    pub async fn kill(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = kill_process(running.server, Signal::KILL);
            drop(running.shell.stdin.take());
            let _ = running.shell.wait().await;
        }
    }

    /// Freezes it: the kernel accepts connections, but no request is answered. Returns when the
    /// last of its threads has stopped, which on a busy machine is a while after the signal.
    #[boxed]
    pub async fn freeze(&self) {
        let Some(running) = &self.running else {
            return;
        };
        let _ = kill_process(running.server, Signal::STOP);
        let end = Instant::now() + STOP_WITHIN;
        while !is_stopped(running.server) && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Lets it continue.
    pub fn thaw(&self) {
        if let Some(running) = &self.running {
            let _ = kill_process(running.server, Signal::CONT);
        }
    }

    /// Which server it is.
    #[must_use]
    pub fn server(&self) -> Server {
        self.server
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The directory of its data.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.directory.join(programs::DATA)
    }

    /// The path of its log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// A file with credentials that it accepts, in the provider's own form; `None` if it accepts
    /// any.
    #[must_use]
    pub fn credentials(&self) -> Option<PathBuf> {
        self.server
            .credentials(self.address)
            .map(|_| self.directory.join("credentials"))
    }

    fn write_credentials(&self) -> Result<(), EmulatorError> {
        if let (Some(path), Some(text)) =
            (self.credentials(), self.server.credentials(self.address))
        {
            fs::write(&path, text).map_err(system(format!("write {}", path.display())))?;
        }
        Ok(())
    }

    /// The location of one of its buckets or containers, with a prefix or none.
    #[must_use]
    pub fn location(&self, container: &str, prefix: &str) -> String {
        self.server.location(self.address, container, prefix)
    }
}

/// Whether the kernel reports every thread of a process as stopped. On a busy machine that is a
/// while after the signal.
#[must_use]
pub fn is_stopped(process: Pid) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    let mut tasks = tasks.into_iter().flatten().flatten();
    tasks.all(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in brackets and may contain any character.
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with(['T', 't']))
    })
}

impl Drop for Emulator {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            let _ = kill_process(running.server, Signal::CONT);
            let _ = kill_process(running.server, Signal::KILL);
        }
    }
}
