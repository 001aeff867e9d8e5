//! The command line of `quorumfs doctor`.

use clap::Args;

/// `quorumfs doctor`
///
/// Looks at this machine, asks every replica and every cloud, and tries with the credentials of
/// each role (docs/CLOUDS.md) what that role must not be able to do: on an object of its own,
/// with a random name and 64 bytes, of which it writes one to each cloud. That object is deleted
/// again with the collector's credentials; where there are none, it stays, and it is said so. No
/// file of the volume is touched, and nothing is changed to cure what is found.
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Look at this cloud only, and at nothing else
    #[arg(long, value_name = "NAME")]
    pub(crate) cloud: Option<String>,
    /// Readers and writers must not list either. Amazon S3 says "forbidden" instead of "not found"
    /// to those who may not, so this is for the others
    #[arg(long)]
    pub(crate) no_list: bool,
    /// Only look: write nothing, and so prove no limit
    #[arg(long)]
    pub(crate) dry_run: bool,
}
