//! The command line of `quorumfs upload`.

use super::reconcile::time;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// `quorumfs upload`
#[derive(Debug, Args)]
pub(crate) struct UploadArguments {
    /// Local files and directories
    #[arg(value_name = "FILE", required = true)]
    pub(crate) sources: Vec<PathBuf>,
    /// A directory of the volume; it is made if it is not there (default: /Shared)
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,
    /// Make a link to each FILE, which is printed once: `quorumfs serve` serves it
    #[arg(long)]
    pub(crate) link: bool,
    /// The links end after so long: a number and s, m, h or d
    #[arg(long, value_name = "TIME", value_parser = time, requires = "link")]
    pub(crate) expires: Option<Duration>,
    /// How the links begin: the URL of `quorumfs serve` (default: `url` of `[share]`)
    #[arg(long, value_name = "URL", requires = "link")]
    pub(crate) url: Option<String>,
}
