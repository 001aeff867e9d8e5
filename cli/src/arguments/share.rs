//! The command line of `quorumfs share`.

use super::reconcile::time;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// `quorumfs share`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ShareArguments {
    /// What to do with shares that there are.
    #[command(subcommand)]
    pub(crate) command: Option<ShareCommand>,
    /// What is to be shared.
    #[command(flatten)]
    pub(crate) new: ShareNewArguments,
}

/// Commands for shares that there are.
#[derive(Debug, Subcommand)]
pub(crate) enum ShareCommand {
    /// List what you share, and what others share with you
    Ls(ShareLsArguments),
    /// End a share, and take back the access that it gave
    Revoke(ShareRevokeArguments),
}

/// Something that is to be shared.
#[derive(Debug, Args)]
pub(crate) struct ShareNewArguments {
    /// A file or directory of yours in the volume; one called `ls` is `./ls`
    #[arg(value_name = "PATH", required = true)]
    pub(crate) path: Option<PathBuf>,
    /// The person to share it with, as `people ls` shows the name
    #[arg(
        long,
        value_name = "NAME",
        required_unless_present_any = ["link", "capsule"],
        conflicts_with_all = ["link", "capsule"]
    )]
    pub(crate) to: Option<String>,
    /// Share it with those that have a link, which is printed once: `quorumfs serve` serves it
    #[arg(long)]
    pub(crate) link: bool,
    /// Make a link that needs no server: `quorumfs open` gets everything from the clouds
    #[arg(long, conflicts_with = "link")]
    pub(crate) capsule: bool,
    /// The person may read it and not write
    #[arg(long, conflicts_with_all = ["link", "capsule"])]
    pub(crate) read_only: bool,
    /// It is shared for so long: a number and s, m, h or d (a capsule: 3d, if it is not given)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) expires: Option<Duration>,
    /// How the link begins: the URL of `quorumfs serve` (default: `url` of `[share]`)
    #[arg(long, value_name = "URL", requires = "link")]
    pub(crate) url: Option<String>,
    /// Write the link of the capsule to this file, which is made, instead of printing it
    #[arg(long, value_name = "FILE", requires = "capsule")]
    pub(crate) file: Option<PathBuf>,
}

/// `quorumfs share ls`
#[derive(Debug, Args)]
pub(crate) struct ShareLsArguments {
    /// List what all people share: for administrators and the superuser
    #[arg(long)]
    pub(crate) all: bool,
}

/// `quorumfs share revoke`
#[derive(Debug, Args)]
pub(crate) struct ShareRevokeArguments {
    /// The share's number, as `share ls` shows it
    #[arg(value_name = "ID")]
    pub(crate) id: u64,
}
