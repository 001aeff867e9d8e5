//! The command line of `quorumfs cluster`.

use clap::{Args, Subcommand};
use quorumfs_bft::fault_model::FaultModel;
use std::path::PathBuf;

/// Commands for the replicas as a whole.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Show the membership and its epoch, its administrators, and what each replica reports
    Status,
    /// Add a voting replica, once it has caught up
    Add(ClusterAddArguments),
    /// Replace a voting replica with another, once that has caught up
    Replace(ClusterReplaceArguments),
    /// End a replica's right to vote
    Remove(ClusterRemoveArguments),
    /// Change the address at which a replica is reached
    Move(ClusterMoveArguments),
    /// Predict how long operations take, for places of replicas, before anything is built
    Plan(ClusterPlanArguments),
    /// Choose the replica that leads, if it can: the others follow in the order of their numbers.
    /// It leads at once, also if it is first in the order and another one leads after a failure
    Lead(ClusterLeadArguments),
    /// Set the keys of the administrators: from now on these, and no others, may change the
    /// membership
    Entrust(ClusterEntrustArguments),
    /// Switch the replicas to a newer behaviour, once every voter knows it
    Behave(ClusterBehaveArguments),
}

/// A replica that is not a member yet.
#[derive(Debug, Args)]
pub(crate) struct NewReplica {
    /// Its public key and address, as `quorumfs replica init` printed them
    #[arg(value_name = "KEY@HOST:PORT")]
    pub(crate) place: String,
    /// The id of its disk, if that was made anew: `quorumfs replica init --again` printed it
    #[arg(long, value_name = "DIGITS")]
    pub(crate) incarnation: Option<String>,
    /// How long to wait until it has caught up, in seconds
    #[arg(long, value_name = "S", default_value_t = 600,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) within: u64,
}

/// The fault model from now on.
#[derive(Debug, Args)]
pub(crate) struct ModelArguments {
    /// How many replicas may fail in any way while the cluster stays live (u; default: as now)
    #[arg(long, value_name = "U")]
    failures: Option<u16>,
    /// How many replicas may lie while answers stay right (r; default: as now)
    #[arg(long, value_name = "R")]
    liars: Option<u16>,
}

impl ModelArguments {
    /// The given u and r, with those of `now` in place of absent ones.
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
    /// Only let it receive everything; it does not vote
    #[arg(long)]
    pub(crate) learner: bool,
    #[command(flatten)]
    pub(crate) model: ModelArguments,
}

/// `quorumfs cluster replace`
#[derive(Debug, Args)]
pub(crate) struct ClusterReplaceArguments {
    /// The replica to replace: its number, its key, or the beginning of that
    #[arg(value_name = "OLD")]
    pub(crate) old: String,
    #[command(flatten)]
    pub(crate) new: NewReplica,
}

/// `quorumfs cluster remove`
#[derive(Debug, Args)]
pub(crate) struct ClusterRemoveArguments {
    /// The replica: its key or the beginning of that, since numbers change
    #[arg(value_name = "REPLICA")]
    pub(crate) replica: String,
    #[command(flatten)]
    pub(crate) model: ModelArguments,
}

/// `quorumfs cluster move`
#[derive(Debug, Args)]
pub(crate) struct ClusterMoveArguments {
    /// The replica: its key, the beginning of that, or its number
    #[arg(value_name = "REPLICA")]
    pub(crate) replica: String,
    /// The new address
    #[arg(value_name = "HOST:PORT")]
    pub(crate) address: String,
}

/// `quorumfs cluster plan`
#[derive(Debug, Args)]
pub(crate) struct ClusterPlanArguments {
    /// A table of round trips in milliseconds: the first line names the places, each other line
    /// begins with a place
    #[arg(value_name = "FILE")]
    pub(crate) round_trips: PathBuf,
    /// The places of the replicas, in the order in which they lead; without it, the best places are
    /// looked for
    #[arg(long, value_name = "PLACE,...", value_delimiter = ',')]
    pub(crate) replicas: Vec<String>,
    /// The places from which the volume is used, or all
    #[arg(long, value_name = "PLACE,...", value_delimiter = ',')]
    pub(crate) from: Vec<String>,
    /// How many replicas may fail in any way while the cluster stays live (u)
    #[arg(long, value_name = "U", default_value_t = 1)]
    pub(crate) failures: u16,
    /// How many replicas may lie while answers stay right (r)
    #[arg(long, value_name = "R", default_value_t = 1)]
    pub(crate) liars: u16,
    /// How many of the best places are shown
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) show: usize,
}

/// `quorumfs cluster lead`
#[derive(Debug, Args)]
pub(crate) struct ClusterLeadArguments {
    /// The replica: its key, the beginning of that, or its number
    #[arg(value_name = "REPLICA")]
    pub(crate) replica: String,
    /// Even if it does not answer, does not vote at present or is behind: everyone then waits
    /// until another one takes over
    #[arg(long)]
    pub(crate) force: bool,
}

/// `quorumfs cluster entrust`
#[derive(Debug, Args)]
pub(crate) struct ClusterEntrustArguments {
    /// Their public keys, your own among them
    #[arg(value_name = "KEY", required = true)]
    pub(crate) administrators: Vec<String>,
}

/// `quorumfs cluster behave`
#[derive(Debug, Args)]
pub(crate) struct ClusterBehaveArguments {
    /// The number of the behaviour; `quorumfs cluster status --json` shows the present one as
    /// `behaviour_version`
    #[arg(value_name = "VERSION")]
    pub(crate) version: u32,
}
