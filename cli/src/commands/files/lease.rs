//! `lease`: the locks that programs hold on files, and ending them.
//!
//! The servers know an inode and no path of it, since it may have several. So a lock is shown with
//! the path that was asked about, or with its inode alone.

use super::walk::{find, named, shown};
use super::{closing, printable, refused};
use crate::arguments::{General, LeaseCommand, LeaseLsArguments, LeaseRevokeArguments, PathOrId};
use crate::commands::mounts::host_name;
use crate::commands::opened::Opened;
use crate::exit::Exit;
use crate::explain::vfs_failure;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use quorumfs_gateway::vfs::{FileSystem, HeldByProcess, InodeId, LockKind};
use quorumfs_metadata::row::Mount;
use serde::Serialize;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// A lock.
#[derive(Serialize)]
struct LockLine {
    /// The path that was asked about, or else the inode.
    #[serde(serialize_with = "crate::output::paths::serialize")]
    file: PathBuf,
    id: String,
    kind: &'static str,
    exclusive: bool,
    first_byte: u64,
    /// The last byte; absent to the end of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_byte: Option<u64>,
    session: u64,
    host: String,
    pid: u32,
    waiting: u32,
}

impl LockLine {
    fn of(lock: &HeldByProcess, asked: Option<&PathBuf>, mounts: &[Mount]) -> Self {
        let mount = mounts.iter().find(|mount| mount.session == lock.session);
        let id = format!("id:{}", lock.inode.0);
        Self {
            file: asked.cloned().unwrap_or_else(|| PathBuf::from(&id)),
            id,
            kind: match lock.kind {
                LockKind::Ranges => "fcntl",
                LockKind::Whole => "flock",
                LockKind::Appends => "append",
            },
            exclusive: lock.exclusive,
            first_byte: lock.range.start,
            last_byte: (lock.range.end != u64::MAX).then_some(lock.range.end),
            session: lock.session.0,
            host: mount.map_or_else(String::new, |mount| mount.label.clone()),
            pid: lock.pid,
            waiting: lock.waiting,
        }
    }

    fn text(&self) -> String {
        let file = printable(self.file.as_os_str().as_bytes());
        let mode = if self.exclusive {
            "exclusive"
        } else {
            "shared"
        };
        let bytes = match (self.first_byte, self.last_byte) {
            (0, None) => "all bytes".to_owned(),
            (first, None) => format!("from byte {first}"),
            (first, Some(last)) => format!("bytes {first} to {last}"),
        };
        let by = match self.pid {
            0 => "the mount".to_owned(),
            pid => format!("process {pid}"),
        };
        let host = host_name(&self.host);
        let on = host.map_or_else(String::new, |host| format!(" on {host}"));
        let waiting = match self.waiting {
            0 => String::new(),
            1 => ", 1 waits".to_owned(),
            count => format!(", {count} wait"),
        };
        let (kind, session) = (self.kind, self.session);
        format!("{file}  {kind} {mode}, {bytes}, {by}{on}, session {session}{waiting}")
    }
}

/// How many there are.
#[derive(Serialize)]
struct Locks {
    count: u64,
}

impl Locks {
    fn text(&self) -> String {
        match self.count {
            0 => "No program holds a lock that other mounts have to know of.".to_owned(),
            1 => "1 lock".to_owned(),
            count => format!("{count} locks"),
        }
    }
}

/// Locks of a file that have ended.
#[derive(Serialize)]
struct Revoked {
    #[serde(serialize_with = "crate::output::paths::serialize")]
    file: PathBuf,
    locks: u32,
}

impl Revoked {
    fn text(&self) -> String {
        let file = printable(self.file.as_os_str().as_bytes());
        match self.locks {
            0 => format!("{file}: no lock was held."),
            1 => format!("{file}: 1 lock has ended; its program gets I/O errors."),
            locks => format!("{file}: {locks} locks have ended; their programs get I/O errors."),
        }
    }
}

/// Runs a command for locks.
pub(crate) async fn lease(
    general: &General,
    command: &LeaseCommand,
    output: Output,
) -> CommandResult {
    match command {
        LeaseCommand::Ls(arguments) => ls(general, arguments, output).await,
        LeaseCommand::Revoke(arguments) => revoke(general, arguments, output).await,
    }
}

/// The inode that is meant.
async fn inode(fs: &FileSystem, what: &PathOrId) -> CommandResult<InodeId> {
    match what {
        PathOrId::Id(inode) => Ok(*inode),
        PathOrId::Path(path) => {
            let found = find(fs, &shown(path)).await?;
            Ok(found.inode)
        }
    }
}

async fn ls(general: &General, arguments: &LeaseLsArguments, output: Output) -> CommandResult {
    let opened = Opened::to_read(general).await?;
    let listed = async {
        let fs = opened.file_system();
        let mut wanted = BTreeMap::new();
        for what in &arguments.what {
            wanted.insert(inode(fs, what).await?, named(what));
        }
        let mounts = opened.metadata().mounts().await;
        let mounts = mounts.map_err(|error| vfs_failure(&error))?;
        let (mut count, mut after) = (0, None);
        loop {
            let page = fs.locks(after).await;
            let (locks, next) = page.map_err(|error| vfs_failure(&error))?;
            for lock in &locks {
                let asked = wanted.get(&lock.inode);
                if wanted.is_empty() || asked.is_some() {
                    let line = LockLine::of(lock, asked, &mounts);
                    output.record("lock", &line, LockLine::text)?;
                    count += 1;
                }
            }
            after = next;
            if after.is_none() {
                return output.record("locks", &Locks { count }, Locks::text);
            }
        }
    };
    let outcome = listed.await;
    closing(opened, outcome).await?;
    Ok(Exit::Success)
}

async fn revoke(
    general: &General,
    arguments: &LeaseRevokeArguments,
    output: Output,
) -> CommandResult {
    let opened = Opened::for_a_command(general).await?;
    let revoked = async {
        let fs = opened.file_system();
        for what in &arguments.what {
            let file = named(what);
            let inode = inode(fs, what).await?;
            let ended = fs
                .end_locks(&fs.this_process(), inode, arguments.session)
                .await;
            let locks = ended.map_err(|error| {
                let refused: Failure = refused(&file, &error);
                refused.hint("the owner of a file and root end its locks")
            })?;
            output.record("revoked", &Revoked { file, locks }, Revoked::text)?;
        }
        Ok(())
    };
    let outcome = revoked.await;
    closing(opened, outcome).await?;
    Ok(Exit::Success)
}
