//! The command line of `quorumfs doctor`.

use clap::Args;
use std::path::PathBuf;

/// `quorumfs doctor`
///
/// Checks this machine, asks every replica and every cloud, and tries, with the credentials of each
/// role (docs/CLOUDS.md), the operations that the role must not be able to do. It tries them on one
/// object per cloud that it writes itself, with a random name and 64 bytes. That object is deleted
/// again with the collector's credentials; without those it stays, and the report says so. No file
/// of the volume is touched, and no problem is repaired.
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Check this cloud only
    #[arg(long, value_name = "NAME")]
    pub(crate) cloud: Option<String>,
    /// Readers and writers must not be able to list either. Not for Amazon S3, which answers
    /// "forbidden" instead of "not found" to credentials that may not list
    #[arg(long)]
    pub(crate) no_list: bool,
    /// Write nothing, and so prove no limit
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Measure the round trips and the operations from here too, and compare them with this table,
    /// which is that of `quorumfs cluster plan` (docs/REGIONS.md)
    #[arg(long, value_name = "FILE", requires_all = ["replicas", "from"], conflicts_with = "cloud")]
    pub(crate) plan: Option<PathBuf>,
    /// The places of the replicas in that table, in the order of the replicas' numbers
    #[arg(
        long,
        value_name = "PLACE,...",
        value_delimiter = ',',
        requires = "plan"
    )]
    pub(crate) replicas: Vec<String>,
    /// The place of this machine in that table
    #[arg(long, value_name = "PLACE", requires = "plan")]
    pub(crate) from: Option<String>,
}
