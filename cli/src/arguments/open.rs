//! The command line of `quorumfs open`.

use clap::Args;
use std::path::PathBuf;

/// `quorumfs open`
#[derive(Debug, Args)]
pub(crate) struct OpenArguments {
    /// The link, as `share --capsule` printed it; a file with it; or `-` for standard input
    #[arg(value_name = "LINK")]
    pub(crate) link: PathBuf,
    /// Put it into this directory of this machine (default: the current one)
    #[arg(long, value_name = "DIR", conflicts_with = "list")]
    pub(crate) to: Option<PathBuf>,
    /// Its clouds are servers on this machine: a trial. A link of others must not reach those
    #[arg(long)]
    pub(crate) local_clouds: bool,
    /// Print what is in it, and fetch none of it
    #[arg(long)]
    pub(crate) list: bool,
}
