//! A user as a process, which receives commands and replies to them, line by line.
//!
//! There is one process for each user and twin: the kernel gives the mount the calling thread's
//! user, and the mount reads that thread's groups. The program is this crate's `twins` with the
//! hidden command `worker`. It starts in the twin's directory, so that it needs no permission to
//! enter it, and drops the superuser's rights before it executes any command.

use super::act::{Actor, Outcome};
use super::defect::Defect;
use super::picture::{Picture, look, scan};
use super::step::{Operation, Text};
use super::user::{USERS, User};
use crate::harness::Reaped;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{Gid, Uid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// A command to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerCommand {
    /// Execute an operation.
    Do(Operation),
    /// Return the state of these paths, with content if the flag is set.
    Look(Vec<Text>, bool),
    /// Return the state of the whole tree, with content if the flag is set.
    Scan(bool),
    /// Sync every file.
    SyncAll,
}

/// A worker's reply.
#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerReply {
    /// The outcome, and the state of the operation's open files, before and after.
    Did(Outcome, Vec<Option<Picture>>, Vec<Option<Picture>>),
    /// The state of the paths.
    Looked(Result<Vec<Option<Picture>>, String>),
    /// The state of the whole tree.
    Scanned(Result<BTreeMap<Text, Picture>, String>),
    /// How many files were synced.
    Synced(Result<usize, String>),
}

/// The handle of a worker's process.
#[derive(Debug)]
pub struct Worker {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _process: Reaped,
}

impl Worker {
    /// Starts a worker in a directory.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(
        program: &Path,
        directory: &Path,
        user: usize,
        on_tmpfs: bool,
        defect: Option<&str>,
    ) -> Self {
        let mut command = Command::new(program);
        command
            .args(["worker", &user.to_string()])
            .current_dir(directory);
        if on_tmpfs {
            command.arg("--on-tmpfs");
        }
        if let Some(defect) = defect {
            command.args(["--defect", defect]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Reaped(command.spawn().unwrap());
        Self {
            input: process.0.stdin.take().unwrap(),
            output: BufReader::new(process.0.stdout.take().unwrap()),
            _process: process,
        }
    }

    /// Sends a command, without waiting for the reply.
    ///
    /// # Panics
    /// If the worker is gone.
    pub fn send(&mut self, command: &WorkerCommand) {
        let mut line = serde_json::to_vec(command).unwrap();
        line.push(b'\n');
        self.input.write_all(&line).unwrap();
    }

    /// Receives the reply.
    ///
    /// # Panics
    /// If the worker is gone.
    pub fn receive(&mut self) -> WorkerReply {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "a worker has ended; its errors are above");
        serde_json::from_str(&line).unwrap()
    }
}

fn become_user(user: User) -> rustix::io::Result<()> {
    let groups: Vec<Gid> = user.groups.iter().copied().map(Gid::from_raw).collect();
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    rustix::thread::set_thread_groups(&groups)?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}

/// The main function of a worker; it ends when its input does. The process has one thread.
///
/// # Errors
/// If it cannot become the user, or the pipes break.
pub fn serve(user: usize, on_tmpfs: bool, defect: Option<Defect>) -> anyhow::Result<()> {
    let user = USERS
        .get(user)
        .ok_or_else(|| anyhow::anyhow!("no user {user}"))?;
    become_user(*user)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let mut actor = Actor::default();
    (actor.zeroes, actor.defect) = (on_tmpfs, defect);
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let reply = match serde_json::from_str(&line?)? {
            WorkerCommand::Do(operation) => {
                let before = actor.pictures(&operation);
                let outcome = actor.act(&operation);
                WorkerReply::Did(outcome, before, actor.pictures(&operation))
            }
            WorkerCommand::Look(paths, content) => {
                WorkerReply::Looked(paths.iter().map(|path| look(path, content)).collect())
            }
            WorkerCommand::Scan(content) => WorkerReply::Scanned(scan(content)),
            WorkerCommand::SyncAll => WorkerReply::Synced(sync_all()),
        };
        let mut line = serde_json::to_vec(&reply)?;
        line.push(b'\n');
        output.write_all(&line)?;
        output.flush()?;
    }
    Ok(())
}

fn sync_all() -> Result<usize, String> {
    let mut synced = 0;
    for (path, picture) in scan(false)? {
        if picture.is_file() {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(CWD, &path.0[..], flags, Mode::empty());
            let done = file.and_then(rustix::fs::fsync);
            done.map_err(|error| format!("sync of {path:?}: {error}"))?;
            synced += 1;
        }
    }
    Ok(synced)
}
