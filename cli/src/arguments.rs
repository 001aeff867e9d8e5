//! The command line and its help, grouped by task.
//!
//! This module decides nothing; each command's module takes its own `…Arguments`.

mod cloud;
mod cluster;
mod cost;
mod doctor;
mod key;
mod lease;
mod open;
mod path_or_id;
mod people;
mod quota;
mod reconcile;
mod scrub;
mod serve;
mod share;
mod takeover;
mod trash;
mod upload;
mod volume;

pub(crate) use cloud::{
    CloudAddArguments, CloudDrainArguments, CloudReplaceArguments, MovingArguments,
};
pub(crate) use cluster::{
    ClusterAddArguments, ClusterCommand, ClusterLeadArguments, ClusterPlanArguments,
    ClusterRemoveArguments, ClusterReplaceArguments, NewReplica,
};
pub(crate) use cost::{CostArguments, CostCommand, CostPlanArguments};
pub(crate) use doctor::DoctorArguments;
pub(crate) use key::{KeyCommand, KeyProtectArguments, KeyUnlockArguments};
pub(crate) use lease::{LeaseCommand, LeaseLsArguments, LeaseRevokeArguments};
pub(crate) use open::OpenArguments;
pub(crate) use path_or_id::PathOrId;
pub(crate) use people::{
    JoinArguments, PeopleCommand, PeopleCredentialsArguments, PeopleGroupArguments,
    PeopleInviteArguments, PeopleRemoveArguments, PeopleSetArguments, RoleSetting,
};
pub(crate) use quota::{QuotaArguments, QuotaCommand, QuotaSetArguments};
pub(crate) use reconcile::{ReconcileArguments, ReconcileTask};
pub(crate) use scrub::{CloudAdoptArguments, CloudCommand, CloudEvidenceArguments, ScrubArguments};
pub(crate) use serve::ServeArguments;
pub(crate) use share::{ShareArguments, ShareCommand, ShareNewArguments};
pub(crate) use takeover::TakeoverFrom;
pub(crate) use trash::{
    TrashCommand, TrashEmptyArguments, TrashKeepArguments, TrashLsArguments, TrashRestoreArguments,
};
pub(crate) use upload::UploadArguments;
pub(crate) use volume::{
    AcceptRollbackArguments, LockSetting, RenewKitArguments, VolumeBackupArguments, VolumeCommand,
    VolumeCreateArguments, VolumeRecoverArguments, VolumeRekeyArguments, VolumeResealArguments,
};

use crate::configuration::TierSetting;
use crate::exit;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A file system over several clouds, none of which has to be trusted.
#[derive(Debug, Parser)]
#[command(name = "quorumfs", version, max_term_width = 100)]
pub(crate) struct Arguments {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Options of every command.
    #[command(flatten)]
    pub(crate) general: General,
}

/// Options of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "For every command")]
pub(crate) struct General {
    /// State directory, or ~/.local/share/quorumfs/{volume,replica}
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "QUORUMFS_STATE",
        hide_env_values = true
    )]
    pub(crate) state: Option<PathBuf>,
    /// Print NDJSON: one object a line, each with "v":1 and a "type"
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// What to log to standard error: `info`, `quorumfs_gateway=debug`
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        env = "QUORUMFS_LOG",
        hide_env_values = true
    )]
    pub(crate) log: Option<String>,
    /// Log to this file instead: at most 8 MiB, and as much again in FILE.old
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Try it: four replicas and a mount over four local directories
    Demo(DemoArguments),
    /// Metadata replicas: initialise one, run one
    #[command(subcommand)]
    Replica(ReplicaCommand),
    /// The membership of the metadata replicas: show it, add, replace, move, remove
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Volumes: create, recover and back up one, change its keys, renew its recovery kit
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Who may use the volume: admit people, list them, change what they may, remove them
    #[command(subcommand)]
    People(PeopleCommand),
    /// Share files and directories with the people of the volume, list shares, end them
    Share(ShareArguments),
    /// Join the volume of another: make a key, then use the file that its administrator gives you
    Join(JoinArguments),
    /// The key of this machine: protect it with a passphrase, unlock it, lock it
    #[command(subcommand)]
    Key(KeyCommand),
    /// Mount the volume
    Mount(MountArguments),
    /// Unmount the volume, after everything written is stored
    Umount(UmountArguments),
    /// Commit data written through the mount now, and wait for it
    Sync(SyncArguments),
    /// Prefetch files of the mount into the disk cache
    Warmup(WarmupArguments),
    /// Copy files into the volume without mounting it
    Put(PutArguments),
    /// Upload files with a progress bar, and make links to them; it goes on after a kill
    Upload(UploadArguments),
    /// Copy files out of the volume without mounting it
    Get(GetArguments),
    /// List a directory of the volume
    Ls(LsArguments),
    /// Fetch what a capsule leads to: a link that needs neither a volume nor a server
    Open(OpenArguments),
    /// Write files of the volume to standard output
    Cat(CatArguments),
    /// Remove files of the volume
    Rm(RmArguments),
    /// Serve what is shared by links over HTTP, until it is stopped
    Serve(ServeArguments),
    /// What was removed: list it, restore it, delete it for good, set how long it is kept
    #[command(subcommand)]
    Trash(TrashCommand),
    /// Usage and limits of the volume and its users: show them, set limits
    Quota(QuotaArguments),
    /// What the volume costs this month, by cloud and kind; or what one would cost (`cost plan`)
    Cost(CostArguments),
    /// Show replicas, clouds, pending data, and tolerated faults
    Status(StatusArguments),
    /// Show who has the volume mounted, where, and since when
    Mounts,
    /// Locks that programs hold on files: list them, end those of one that hangs
    #[command(subcommand)]
    Lease(LeaseCommand),
    /// Check this machine, the replicas, the clouds, and the limits of the clouds' credentials
    Doctor(DoctorArguments),
    /// Follow the replicas' state: what a quorum agrees on, and what each replica reports
    Observe(ObserveArguments),
    /// Check all shards, also those that are never read, and restore missing and bad ones
    Scrub(ScrubArguments),
    /// Put what is missing and delete what nothing needs, once or as a service
    Reconcile(ReconcileArguments),
    /// Clouds: add and replace them, adopt an emptied one again, show evidence of faults
    #[command(subcommand)]
    Cloud(CloudCommand),
}

/// The groups of the help: a heading, and the commands under it.
const GROUPS: &[(&str, &[&str])] = &[
    ("Try it", &["demo"]),
    (
        "Set up",
        &[
            "replica", "volume", "people", "join", "key", "cluster", "quota",
        ],
    ),
    (
        "Use",
        &[
            "mount", "umount", "sync", "warmup", "put", "upload", "get", "open", "ls", "cat", "rm",
            "trash", "share", "serve",
        ],
    ),
    (
        "Inspect",
        &["status", "mounts", "lease", "doctor", "observe", "cost"],
    ),
    ("Repair", &["scrub", "reconcile", "cloud"]),
];

/// Commands for a metadata replica.
#[derive(Debug, Subcommand)]
pub(crate) enum ReplicaCommand {
    /// Make a replica's key and configuration, and print its public key
    Init(ReplicaInitArguments),
    /// Run a replica until it is stopped
    Run(ReplicaRunArguments),
}

/// `quorumfs replica init`
#[derive(Debug, Args)]
pub(crate) struct ReplicaInitArguments {
    /// The address to listen on; others reach the replica there unless --address says otherwise
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present = "again")]
    pub(crate) listen: Option<SocketAddr>,
    /// Where others reach it: a name, or an address that leads here. It is only printed, for
    /// `volume create` and `cluster add`
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) address: Option<String>,
    /// Its disk was lost: make another one for the key that is here. The replica then asks the
    /// others to admit it again. If the configuration is lost too, only --listen has to be given
    #[arg(long)]
    pub(crate) again: bool,
    /// Print KEY@HOST:PORT and nothing else, for scripts
    #[arg(long, short, conflicts_with = "again")]
    pub(crate) quiet: bool,
}

/// `quorumfs replica run`
#[derive(Debug, Args)]
pub(crate) struct ReplicaRunArguments {
    /// The volume's genesis, needed at the first start only
    #[arg(long, value_name = "FILE")]
    pub(crate) genesis: Option<PathBuf>,
    /// At the first start: the volume is older than this replica, and `quorumfs cluster` will add
    /// it
    #[arg(long)]
    pub(crate) join: bool,
    /// Record everything that the replica receives, to analyse its decisions later. The recording
    /// contains requests as the replica sees them
    #[arg(long, value_name = "DIR")]
    pub(crate) record: Option<PathBuf>,
    /// The most bytes that recordings there may take; the oldest are deleted first
    #[arg(long, value_name = "N", requires = "record", default_value_t = 1 << 30)]
    pub(crate) record_bytes: u64,
    /// Stop in an orderly way when standard input ends
    #[arg(long, hide = true)]
    pub(crate) supervised: bool,
}

/// `quorumfs mount`
#[derive(Debug, Args)]
pub(crate) struct MountArguments {
    /// An empty directory (default: from the configuration)
    #[arg(value_name = "DIR")]
    pub(crate) point: Option<PathBuf>,
    /// Return once the mount is ready, and leave it running
    #[arg(long)]
    pub(crate) background: bool,
    /// Take over the volume from mounts that keep this one out, or from that of one session; they
    /// are fenced at once
    #[arg(long, value_name = "SESSION", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = TakeoverFrom::ALL)]
    pub(crate) takeover: Option<TakeoverFrom>,
    /// Keep other mounts out; without it others may mount the volume too
    #[arg(long)]
    pub(crate) exclusive: bool,
    /// What close and fsync wait for (default: from the configuration, or `clouds`)
    #[arg(long, value_name = "TIER")]
    pub(crate) tier: Option<TierSetting>,
    /// Wait up to this long for the servers and the clouds to answer, as at boot
    #[arg(long, value_name = "SECONDS")]
    pub(crate) wait: Option<u32>,
    /// As in fstab: ro, noexec, allow_other, noallow_other, tier=memory|local|clouds,
    /// takeover[=SESSION], exclusive, wait=SECONDS
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// Ignore unknown options
    #[arg(long, hide = true)]
    pub(crate) sloppy: bool,
    /// Stop in an orderly way when standard input ends
    #[arg(long, hide = true)]
    pub(crate) supervised: bool,
    /// Leave the terminal's session
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
    /// Read what unlocks the key from standard input
    #[arg(long, hide = true, conflicts_with = "supervised")]
    pub(crate) unlocked_by_input: bool,
}

/// `quorumfs umount`
#[derive(Debug, Args)]
pub(crate) struct UmountArguments {
    /// The mount point (default: wherever this volume is mounted)
    #[arg(value_name = "DIR")]
    pub(crate) point: Option<PathBuf>,
    /// If it does not answer or is in use, abort it: processes that use it get an error, and the
    /// directory is free
    #[arg(long)]
    pub(crate) force: bool,
}

/// `quorumfs sync`
#[derive(Debug, Args)]
pub(crate) struct SyncArguments {
    /// A file in the mount; a directory stands for everything (default: everything)
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
    /// The durability to wait for: `local` is the journal on this machine's disk
    #[arg(long, value_name = "TIER", default_value = "clouds")]
    pub(crate) tier: TierSetting,
}

/// `quorumfs put`
#[derive(Debug, Args)]
pub(crate) struct PutArguments {
    /// Local files and directories; `-` is standard input
    #[arg(value_name = "SOURCE", required = true)]
    pub(crate) sources: Vec<PathBuf>,
    /// The target in the volume: a directory, or for one source a new name
    #[arg(value_name = "TARGET", required = true)]
    pub(crate) target: PathBuf,
    /// Preserve times of access, extended attributes, access control lists and hard links; as the
    /// superuser also owners and set-id bits
    #[arg(short, long)]
    pub(crate) archive: bool,
    /// Copy even files whose size and time of change are the same in the volume
    #[arg(long)]
    pub(crate) all: bool,
}

/// `quorumfs get`
#[derive(Debug, Args)]
pub(crate) struct GetArguments {
    /// Files and directories in the volume
    #[arg(value_name = "SOURCE", required = true)]
    pub(crate) sources: Vec<PathBuf>,
    /// The local target: a directory, or for one source a new name; `-` is standard output
    #[arg(value_name = "TARGET", required = true)]
    pub(crate) target: PathBuf,
    /// Preserve times of access, extended attributes, access control lists and hard links; as the
    /// superuser also owners and set-id bits
    #[arg(short, long)]
    pub(crate) archive: bool,
    /// Copy even files whose size and time of change are the same here
    #[arg(long)]
    pub(crate) all: bool,
}

/// `quorumfs ls`
#[derive(Debug, Args)]
pub(crate) struct LsArguments {
    /// A directory or file in the volume
    #[arg(value_name = "PATH", default_value = "/")]
    pub(crate) path: PathBuf,
    /// Show types, modes, owners, sizes and times as well
    #[arg(short, long)]
    pub(crate) long: bool,
}

/// `quorumfs warmup`
#[derive(Debug, Args)]
pub(crate) struct WarmupArguments {
    /// Files and directories in the mount
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
}

/// `quorumfs cat`
#[derive(Debug, Args)]
pub(crate) struct CatArguments {
    /// Files in the volume
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
}

/// `quorumfs rm`
#[derive(Debug, Args)]
pub(crate) struct RmArguments {
    /// Files and directories in the volume
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Remove directories with all their content
    #[arg(short, long)]
    pub(crate) recursive: bool,
}

/// `quorumfs status`
#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    /// List the files that have data to commit, longest pending first
    #[arg(long)]
    pub(crate) queue: bool,
}

/// `quorumfs observe`
#[derive(Debug, Args)]
pub(crate) struct ObserveArguments {
    /// End after so many seconds
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: Option<u64>,
    /// Show only what a quorum agrees on, not what single replicas report
    #[arg(long)]
    pub(crate) quorum_only: bool,
}

/// `quorumfs demo`
#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// Where to mount (default: mnt in the state directory)
    #[arg(long, value_name = "DIR")]
    pub(crate) mount: Option<PathBuf>,
    /// Check everything unattended in a fresh directory, and end with one line of JSON
    #[arg(long)]
    pub(crate) check: bool,
    /// Which clouds a new demo uses: four directories; or local servers of S3, Azure and
    /// Google, and a directory. Released programs do not contain these servers; `scripts/demo
    /// --clouds emulators` installs them and builds a program that does
    #[arg(long, value_enum)]
    pub(crate) clouds: Option<DemoClouds>,
    /// For --check: what to copy in (default: the sources in cargo's registry)
    #[arg(long, value_name = "DIR", requires = "check")]
    pub(crate) tree: Option<PathBuf>,
    /// For --check: the least number of files to copy in (default: 5000, over servers 400)
    #[arg(long, value_name = "NUMBER", requires = "check",
        value_parser = clap::value_parser!(u32).range(300..))]
    pub(crate) files: Option<u32>,
}

/// The kind of the demo's clouds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DemoClouds {
    /// Four directories.
    Directories,
    /// Servers of three providers' protocols, and a directory.
    Emulators,
}

const EXAMPLES: &str = "\
Examples:
  quorumfs demo                             try it
  quorumfs mount ~/cloud --background       mount, and carry on
  quorumfs status --json                    for scripts
  quorumfs umount ~/cloud                   once everything is stored";

/// The whole command line, with the grouped help.
pub(crate) fn command() -> clap::Command {
    let command = Arguments::command();
    let mut groups = String::new();
    for (heading, names) in GROUPS {
        groups.push_str(&format!("\n{heading}:\n"));
        for name in *names {
            let about = command
                .find_subcommand(name)
                .and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            groups.push_str(&format!("  {name:<9} {about}\n"));
        }
    }
    let template = format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n{groups}\nFor every \
         command:\n{{options}}{{after-help}}"
    );
    command
        .help_template(template)
        .after_help(format!("{}\n{EXAMPLES}", exit::table()))
}

/// Parses the typed words, the program's name first; or returns what to print, which has its exit
/// code.
pub(crate) fn parse(typed: Vec<OsString>) -> Result<Arguments, clap::Error> {
    Arguments::from_arg_matches(&command().try_get_matches_from(typed)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_command_is_in_one_group_of_the_help() {
        let command = command();
        let mut grouped: Vec<_> = GROUPS
            .iter()
            .flat_map(|(_, names)| names.iter().copied())
            .collect();
        let mut defined: Vec<_> = command
            .get_subcommands()
            .map(|sub| sub.get_name())
            .collect();
        grouped.sort_unstable();
        defined.sort_unstable();
        assert_eq!(grouped, defined);
    }

    #[test]
    fn nothing_on_the_command_line_is_a_secret() {
        for sub in command().get_subcommands() {
            for argument in sub.get_arguments() {
                let name = argument.get_id().as_str();
                let secret = ["secret", "password", "passphrase", "private", "token"];
                assert!(!secret.iter().any(|word| name.contains(word)), "{name}");
            }
        }
    }
}
