//! The command line of `quorumfs doctor`.

use clap::Args;

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
}
