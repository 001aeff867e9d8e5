//! The command line of `quorumfs lease`.

use super::trash::{Removed, removed};
use clap::{Args, Subcommand};
use quorumfs_bft::identity::SessionId;
use quorumfs_gateway::vfs::InodeId;
use std::path::PathBuf;

/// Commands for locks that programs hold.
#[derive(Debug, Subcommand)]
pub(crate) enum LeaseCommand {
    /// List the locks that programs hold on files, through whichever mount
    Ls(LeaseLsArguments),
    /// End the locks of a file whose program or machine hangs; the program gets I/O errors
    Revoke(LeaseRevokeArguments),
}

/// `quorumfs lease ls`
#[derive(Debug, Args)]
pub(crate) struct LeaseLsArguments {
    /// Only those of these files: a path in the volume, or an inode as `lease ls` shows it
    #[arg(value_name = "PATH|ID", value_parser = locked)]
    pub(crate) what: Vec<Locked>,
}

/// `quorumfs lease revoke`
#[derive(Debug, Args)]
pub(crate) struct LeaseRevokeArguments {
    /// The file: its path in the volume, or its inode as `lease ls` shows it
    #[arg(value_name = "PATH|ID", required = true, value_parser = locked)]
    pub(crate) what: Vec<Locked>,
    /// Only those that were taken through this mount, as `mounts` and `lease ls` show it
    #[arg(long, value_name = "N", value_parser = session)]
    pub(crate) session: Option<SessionId>,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Locked {
    /// Where it is.
    Path(PathBuf),
    /// Its inode.
    Id(InodeId),
}

fn locked(text: &str) -> Result<Locked, String> {
    removed(text).map(|it| match it {
        Removed::Path(path) => Locked::Path(path),
        Removed::Id(inode) => Locked::Id(inode),
    })
}

fn session(text: &str) -> Result<SessionId, String> {
    let number = text.parse();
    number
        .map(SessionId)
        .map_err(|_| "the number of a session, as `quorumfs mounts` shows it".to_owned())
}
