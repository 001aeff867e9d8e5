//! The command line of `quorumfs lease`.

use super::path_or_id::PathOrId;
use super::takeover::session;
use clap::{Args, Subcommand};
use quorumfs_bft::identity::SessionId;

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
    #[arg(value_name = "PATH|ID")]
    pub(crate) what: Vec<PathOrId>,
}

/// `quorumfs lease revoke`
#[derive(Debug, Args)]
pub(crate) struct LeaseRevokeArguments {
    /// The file: its path in the volume, or its inode as `lease ls` shows it
    #[arg(value_name = "PATH|ID", required = true)]
    pub(crate) what: Vec<PathOrId>,
    /// Only those that were taken through this mount, as `mounts` and `lease ls` show it
    #[arg(long, value_name = "N", value_parser = session)]
    pub(crate) session: Option<SessionId>,
}
