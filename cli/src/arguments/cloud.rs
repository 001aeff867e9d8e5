//! The command lines that change a volume's clouds: `quorumfs cloud add`, `replace`, `drain`, `ls`.

use clap::Args;
use std::num::NonZeroU32;

/// `quorumfs cloud add`
#[derive(Debug, Args)]
pub(crate) struct CloudAddArguments {
    /// The cloud's name, which no other cloud of the volume has or had
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// s3://BUCKET/PREFIX, azure://ACCOUNT/CONTAINER, gs://BUCKET, or a directory that stands for
    /// one; it must exist and be empty, or be a directory that does not exist
    #[arg(value_name = "LOCATION")]
    pub(crate) location: String,
    /// Its credentials in its provider's own form, if they are not in their usual place
    #[arg(long, value_name = "FILE")]
    pub(crate) credentials: Option<String>,
    /// The same for commands that only read
    #[arg(long, value_name = "FILE")]
    pub(crate) reader_credentials: Option<String>,
    /// The same for listing and deleting, to check them now; they are not stored here
    #[arg(long, value_name = "FILE")]
    pub(crate) collector_credentials: Option<String>,
    /// Its failure domain, if its location does not tell: who could lose all of it at once
    #[arg(long, value_name = "WHO")]
    pub(crate) domain: Option<String>,
}

/// How the data moves that a replaced cloud holds.
#[derive(Debug, Args)]
pub(crate) struct MovingArguments {
    /// Move the data now and wait until it is done; otherwise mounts and `quorumfs reconcile` do
    #[arg(long)]
    pub(crate) wait: bool,
    /// With --wait: transfer at most so many MiB a second
    #[arg(long, value_name = "MIB", requires = "wait")]
    pub(crate) rate: Option<NonZeroU32>,
}

/// `quorumfs cloud replace`
#[derive(Debug, Args)]
pub(crate) struct CloudReplaceArguments {
    /// The cloud to be replaced; it may be dead
    #[arg(value_name = "OLD")]
    pub(crate) old: String,
    /// The cloud that takes its place: one that `cloud add` added, or that was replaced before
    #[arg(value_name = "NEW")]
    pub(crate) new: String,
    #[command(flatten)]
    pub(crate) moving: MovingArguments,
}

/// `quorumfs cloud drain`
#[derive(Debug, Args)]
pub(crate) struct CloudDrainArguments {
    /// The cloud to be emptied; it may be dead
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) moving: MovingArguments,
}
