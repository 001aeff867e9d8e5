//! A user as a process: told what to do, and telling what came of it, line by line.
//!
//! One process for each user and twin: the kernel tells the mount which user's thread calls, and
//! the mount reads that thread's groups. The program is this crate's `twins` with the hidden
//! command `worker`. It is in the twin's directory from the start, so that it needs no permission
//! to come there, and gives up being the superuser before anything is asked of it.

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

/// What a worker is asked for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Do this.
    Do(Operation),
    /// Look at these, and at their content if so.
    Look(Vec<Text>, bool),
    /// Look at everything.
    Scan(bool),
    /// Sync every file.
    SyncAll,
}

/// What it tells.
#[derive(Debug, Serialize, Deserialize)]
pub enum Tell {
    /// What came of it, and the open files that were involved, before and after.
    Did(Outcome, Vec<Option<Picture>>, Vec<Option<Picture>>),
    /// What is there.
    Looked(Result<Vec<Option<Picture>>, String>),
    /// The same of everything.
    Scanned(Result<BTreeMap<Text, Picture>, String>),
    /// How many files were synced.
    Synced(Result<usize, String>),
}

/// A worker's process, from outside.
#[derive(Debug)]
pub struct Worker {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _process: Reaped,
}

impl Worker {
    /// Starts one in a directory.
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

    /// Asks, without waiting for the answer.
    ///
    /// # Panics
    /// If the worker is gone.
    pub fn ask(&mut self, ask: &Ask) {
        let mut line = serde_json::to_vec(ask).unwrap();
        line.push(b'\n');
        self.input.write_all(&line).unwrap();
    }

    /// The answer.
    ///
    /// # Panics
    /// If the worker is gone.
    pub fn hear(&mut self) -> Tell {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "a worker is gone; what it said is above");
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

/// Is a worker until nobody asks any more. The process has one thread.
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
        let tell = match serde_json::from_str(&line?)? {
            Ask::Do(operation) => {
                let before = actor.pictures(&operation);
                let outcome = actor.act(&operation);
                Tell::Did(outcome, before, actor.pictures(&operation))
            }
            Ask::Look(paths, content) => {
                Tell::Looked(paths.iter().map(|path| look(path, content)).collect())
            }
            Ask::Scan(content) => Tell::Scanned(scan(content)),
            Ask::SyncAll => Tell::Synced(sync_all()),
        };
        let mut line = serde_json::to_vec(&tell)?;
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
