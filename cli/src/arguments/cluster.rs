//! The command line of `quorumfs cluster`.

use super::StatusArguments;
use clap::{Args, Subcommand};
use quorumfs_bft::fault_model::FaultModel;

/// What can be done with the replicas as a whole.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Who they are in which epoch, by whom that may be changed, and what each says of itself
    Status(StatusArguments),
    /// Let another replica vote, once it has caught up
    Add(ClusterAddArguments),
    /// Let another replica vote in the place of one, once it has caught up
    Replace(ClusterReplaceArguments),
    /// Let a replica vote no more
    Remove(ClusterRemoveArguments),
    /// Say where a replica is reached from now on
    Move(ClusterMoveArguments),
    /// Say whose keys may change any of this from now on: these, and no others
    Entrust(ClusterEntrustArguments),
    /// Execute what is ordered as this version does from now on, once every voter runs it
    Behave(ClusterBehaveArguments),
}

/// A replica that is not one of them yet.
#[derive(Debug, Args)]
pub(crate) struct NewReplica {
    /// Its public key and address, as `quorumfs replica init` printed them
    #[arg(value_name = "KEY@HOST:PORT")]
    pub(crate) place: String,
    /// What its disk is known by, if that was made anew: `quorumfs replica init --again` printed it
    #[arg(long, value_name = "DIGITS")]
    pub(crate) incarnation: Option<String>,
    /// How long to wait until it has caught up, in seconds
    #[arg(long, value_name = "S", default_value_t = 600,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) within: u64,
}

/// Who may fail from now on.
#[derive(Debug, Args)]
pub(crate) struct ModelArguments {
    /// How many replicas may fail in any way while work goes on (u; default: as many as now)
    #[arg(long, value_name = "U")]
    failures: Option<u16>,
    /// How many replicas may lie while what is answered stays right (r; default: as many as now)
    #[arg(long, value_name = "R")]
    liars: Option<u16>,
}

impl ModelArguments {
    /// u and r as they shall be, where they are as `now` says.
    pub(crate) fn over(&self, now: FaultModel) -> (u16, u16) {
        let up = self.failures.unwrap_or_else(|| now.up());
        let right = self.liars.unwrap_or_else(|| now.right());
        (up, right)
    }
}

/// `quorumfs cluster add`
#[derive(Debug, Args)]
pub(crate) struct ClusterAddArguments {
    #[command(flatten)]
    pub(crate) new: NewReplica,
    /// Only let it be told everything; it does not vote
    #[arg(long)]
    pub(crate) learner: bool,
    #[command(flatten)]
    pub(crate) model: ModelArguments,
}

/// `quorumfs cluster replace`
#[derive(Debug, Args)]
pub(crate) struct ClusterReplaceArguments {
    /// Whose place it takes: a number, or a key or how it begins
    #[arg(value_name = "OLD")]
    pub(crate) old: String,
    #[command(flatten)]
    pub(crate) new: NewReplica,
}

/// `quorumfs cluster remove`
#[derive(Debug, Args)]
pub(crate) struct ClusterRemoveArguments {
    /// Which: its key or how that begins, since numbers change
    #[arg(value_name = "REPLICA")]
    pub(crate) replica: String,
    #[command(flatten)]
    pub(crate) model: ModelArguments,
}

/// `quorumfs cluster move`
#[derive(Debug, Args)]
pub(crate) struct ClusterMoveArguments {
    /// Which: its key or how that begins, or its number
    #[arg(value_name = "REPLICA")]
    pub(crate) replica: String,
    /// Where
    #[arg(value_name = "HOST:PORT")]
    pub(crate) address: String,
}

/// `quorumfs cluster entrust`
#[derive(Debug, Args)]
pub(crate) struct ClusterEntrustArguments {
    /// Their public keys, the own one among them
    #[arg(value_name = "KEY", required = true)]
    pub(crate) administrators: Vec<String>,
}

/// `quorumfs cluster behave`
#[derive(Debug, Args)]
pub(crate) struct ClusterBehaveArguments {
    /// The version
    #[arg(value_name = "VERSION")]
    pub(crate) version: u32,
}
