//! The command line: what can be typed, and the help for it, grouped by what one wants to do.
//!
//! Nothing here decides anything; each command's module takes its own `…Arguments`.

use crate::exit;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// One file system over several clouds, none of which has to be trusted.
#[derive(Debug, Parser)]
#[command(
    name = "quorumfs",
    version,
    disable_help_subcommand = true,
    max_term_width = 100
)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// What holds for every command.
    #[command(flatten)]
    pub(crate) general: General,
}

/// What holds for every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "For every command")]
pub(crate) struct General {
    /// Where state is kept (default: under ~/.local/share/quorumfs)
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "QUORUMFS_STATE",
        hide_env_values = true
    )]
    pub(crate) state: Option<PathBuf>,
    /// Speak NDJSON: one object a line, each with "v":1 and a "type"
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
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Try it: four replicas and a mount over four local directories
    Demo(DemoArguments),
    /// Metadata replicas: prepare one, run one
    #[command(subcommand)]
    Replica(ReplicaCommand),
    /// Volumes: create one
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Mount the volume
    Mount(MountArguments),
    /// Unmount it, after everything written has been kept
    Umount(UmountArguments),
    /// Copy files into the volume without mounting it
    Put(PutArguments),
    /// Copy files out of the volume without mounting it
    Get(GetArguments),
    /// List a directory of the volume
    Ls(LsArguments),
    /// Write files of the volume to standard output
    Cat(CatArguments),
    /// Remove files of the volume
    Rm(RmArguments),
    /// Replicas, clouds, what waits, and what is being tolerated
    Status(StatusArguments),
    /// What replicas are, as it changes: what a quorum says, and what each says of itself
    Observe(ObserveArguments),
    /// Measure this machine: the ordering library
    #[command(subcommand)]
    Bench(BenchCommand),
}

/// The groups of the help: a heading, and the commands under it.
const GROUPS: &[(&str, &[&str])] = &[
    ("Try it", &["demo"]),
    ("Set up", &["replica", "volume"]),
    ("Use", &["mount", "umount", "put", "get", "ls", "cat", "rm"]),
    ("Inspect", &["status", "observe", "bench"]),
];

/// What can be done with a metadata replica.
#[derive(Debug, Subcommand)]
pub(crate) enum ReplicaCommand {
    /// Make a replica's key and configuration, and print its public key
    Init(ReplicaInitArguments),
    /// Run a replica until it is told to stop
    Run(ReplicaRunArguments),
}

/// `quorumfs replica init`
#[derive(Debug, Args)]
pub(crate) struct ReplicaInitArguments {
    /// The address that it will listen on, and that others reach it at
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: SocketAddr,
}

/// `quorumfs replica run`
#[derive(Debug, Args)]
pub(crate) struct ReplicaRunArguments {
    /// The volume's genesis, needed at the first start only
    #[arg(long, value_name = "FILE")]
    pub(crate) genesis: Option<PathBuf>,
    /// Stop in good order when standard input ends
    #[arg(long, hide = true)]
    pub(crate) supervised: bool,
}

/// What can be done with volumes.
#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Create a volume: its genesis for the replicas, its key, its recovery kit
    Create(VolumeCreateArguments),
}

/// `quorumfs volume create`
#[derive(Debug, Args)]
pub(crate) struct VolumeCreateArguments {
    /// A replica's public key and address, in the order of their numbers; once for each
    #[arg(long = "replica", value_name = "KEY@ADDRESS:PORT", required = true)]
    pub(crate) replicas: Vec<String>,
    /// A directory that stands for a cloud; once for each
    #[arg(long = "cloud", value_name = "NAME=DIR", required = true)]
    pub(crate) clouds: Vec<String>,
    /// How many replicas may fail in any way while work goes on (u)
    #[arg(long, value_name = "U", default_value_t = 1)]
    pub(crate) failures: u16,
    /// How many replicas may lie while what is answered stays right (r)
    #[arg(long, value_name = "R", default_value_t = 1)]
    pub(crate) liars: u16,
    /// How many clouds may vanish, lie or collude (f)
    #[arg(long, value_name = "F", default_value_t = 1)]
    pub(crate) faulty_clouds: u8,
    /// How many shards give the content back (k)
    #[arg(long, value_name = "K", default_value_t = 2)]
    pub(crate) data_shards: u8,
}

/// `quorumfs mount`
#[derive(Debug, Args)]
pub(crate) struct MountArguments {
    /// An empty directory (default: the configuration's)
    #[arg(value_name = "DIR")]
    pub(crate) point: Option<PathBuf>,
    /// Return once the mount is ready, and leave it running
    #[arg(long)]
    pub(crate) background: bool,
    /// Take the volume over from another mount, which loses it at once
    #[arg(long)]
    pub(crate) takeover: bool,
    /// Stop in good order when standard input ends
    #[arg(long, hide = true)]
    pub(crate) supervised: bool,
    /// Leave the session of the terminal
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

/// `quorumfs umount`
#[derive(Debug, Args)]
pub(crate) struct UmountArguments {
    /// Where it is mounted (default: wherever this volume is)
    #[arg(value_name = "DIR")]
    pub(crate) point: Option<PathBuf>,
}

/// `quorumfs put`
#[derive(Debug, Args)]
pub(crate) struct PutArguments {
    /// Files and directories here
    #[arg(value_name = "SOURCE", required = true)]
    pub(crate) sources: Vec<PathBuf>,
    /// Where to in the volume: a directory, or for one source a new name
    #[arg(value_name = "TARGET", required = true)]
    pub(crate) target: PathBuf,
}

/// `quorumfs get`
#[derive(Debug, Args)]
pub(crate) struct GetArguments {
    /// Files and directories in the volume
    #[arg(value_name = "SOURCE", required = true)]
    pub(crate) sources: Vec<PathBuf>,
    /// Where to here: a directory, or for one source a new name
    #[arg(value_name = "TARGET", required = true)]
    pub(crate) target: PathBuf,
}

/// `quorumfs ls`
#[derive(Debug, Args)]
pub(crate) struct LsArguments {
    /// A directory or file in the volume
    #[arg(value_name = "PATH", default_value = "/")]
    pub(crate) path: PathBuf,
    /// Types, modes, owners, sizes and times as well
    #[arg(short, long)]
    pub(crate) long: bool,
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
    /// Directories with all that is in them, too
    #[arg(short, long)]
    pub(crate) recursive: bool,
}

/// `quorumfs status`
#[derive(Debug, Args)]
pub(crate) struct StatusArguments {}

/// `quorumfs observe`
#[derive(Debug, Args)]
pub(crate) struct ObserveArguments {
    /// End after so many seconds instead of going on
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: Option<u64>,
    /// Leave out what single replicas say of themselves
    #[arg(long)]
    pub(crate) quorum_only: bool,
}

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Ordering: replicas as processes, over TLS on loopback, of a service that does nothing
    Smr(BenchSmrArguments),
    /// What is left of that while somebody means harm: floods, bad signatures, wicked leaders
    SmrAttacks(BenchAttacksArguments),
    /// Its parts, each alone: the core of a replica, signatures, a connection
    SmrParts(BenchPartsArguments),
    /// One of its replicas
    #[command(hide = true)]
    SmrReplica,
}

/// `quorumfs bench smr-parts`
#[derive(Debug, Clone, Args)]
pub(crate) struct BenchPartsArguments {
    /// Seconds that it takes in all
    #[arg(long, value_name = "S", default_value_t = 6,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,
}

/// `quorumfs bench smr`
#[derive(Debug, Clone, Args)]
pub(crate) struct BenchSmrArguments {
    /// How many replicas may fail in any way while work goes on
    #[arg(long = "u", value_name = "U", default_value_t = 1)]
    pub(crate) up: u16,
    /// How many replicas may lie while what is answered stays right
    #[arg(long = "r", value_name = "R", default_value_t = 1)]
    pub(crate) right: u16,
    /// Clients, each with a session and connections of its own
    #[arg(long, value_name = "NUMBER", default_value_t = 16,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) clients: u16,
    /// Operations that each client has in flight
    #[arg(long, value_name = "NUMBER", default_value_t = 50,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) in_flight: u16,
    /// Closed loops of a session; with bundling, what waits for one goes out together
    #[arg(long, value_name = "NUMBER", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) lanes: u16,
    /// Bytes of an operation
    #[arg(long, value_name = "BYTES", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub(crate) request_bytes: u32,
    /// Bytes of a result
    #[arg(long, value_name = "BYTES", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(0..=32 << 10))]
    pub(crate) reply_bytes: u32,
    /// How votes are authenticated: sig (signed), mac (by the channels that they come through), or
    /// none (no signature at all, to see what that costs)
    #[arg(long, value_name = "sig|mac|none", default_value = "sig", value_parser = authentication)]
    pub(crate) authentication: &'static str,
    /// When a record counts as durable: strict (fdatasync), os, none
    #[arg(long, value_name = "MODE", default_value = "strict")]
    pub(crate) durability: String,
    /// Whether a client's waiting operations share one signature; without, a lane for each
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = switch,
          action = clap::ArgAction::Set)]
    pub(crate) bundling: bool,
    /// Of a hundred operations, how many are linearizable reads out of order
    #[arg(long, value_name = "PERCENT", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) reads: u8,
    /// Seconds that are not measured, first
    #[arg(long, value_name = "S", default_value_t = 2)]
    pub(crate) warm_up: u64,
    /// Seconds that are measured
    #[arg(long, value_name = "S", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// Let the clients work and rest by turns: so many milliseconds each on average, from nothing
    /// to twice that
    #[arg(long, value_name = "WORK/REST", value_parser = bursts)]
    pub(crate) bursts: Option<Bursts>,
    /// Where the replicas' disks lie while it runs (default: the directory for temporary files)
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// Measure the same messages and signatures without the protocol as well
    #[arg(long)]
    pub(crate) with_bare: bool,
    /// Replicas that are down
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) down: u16,
    /// Replicas that hang with their sockets open
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) hang: u16,
    /// Kill the leader so many seconds after the measurement began
    #[arg(long, value_name = "S")]
    pub(crate) kill_leader_after: Option<u64>,
    /// Let the first leader say what it proposes so many milliseconds late
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub(crate) slow_leader: Option<u64>,
    /// Observers that are told what the replicas are
    #[arg(long, value_name = "NUMBER", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=64))]
    pub(crate) observers: u16,
    /// Observers that hardly ever look at what they are told
    #[arg(long, value_name = "NUMBER", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=64))]
    pub(crate) slow_observers: u16,
}

/// `quorumfs bench smr-attacks`
#[derive(Debug, Clone, Args)]
pub(crate) struct BenchAttacksArguments {
    /// Only these attacks
    #[arg(value_name = "ATTACK")]
    pub(crate) only: Vec<String>,
    /// Clients that behave, each with a session and connections of its own
    #[arg(long, value_name = "NUMBER", default_value_t = 16,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) clients: u16,
    /// Operations that each client has in flight
    #[arg(long, value_name = "NUMBER", default_value_t = 50,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) in_flight: u16,
    /// When a record counts as durable: strict (fdatasync), os, none
    #[arg(long, value_name = "MODE", default_value = "none")]
    pub(crate) durability: String,
    /// Seconds that are not measured, first, of each attack
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) warm_up: u64,
    /// Seconds that are measured of each attack
    #[arg(long, value_name = "S", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// Where the replicas' disks lie while it runs (default: the directory for temporary files)
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
}

fn authentication(text: &str) -> Result<&'static str, String> {
    match text {
        "sig" => Ok("sig"),
        "mac" => Ok("mac"),
        "none" => Ok("none"),
        _ => Err("say sig, mac or none".into()),
    }
}

/// How long clients work and rest, on average.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bursts {
    pub(crate) work: Duration,
    pub(crate) rest: Duration,
}

fn bursts(text: &str) -> Result<Bursts, String> {
    let millis = |text: &str| {
        text.parse()
            .ok()
            .filter(|millis| (1..=60_000).contains(millis))
    };
    let pair = text.split_once('/');
    match pair.map(|(work, rest)| (millis(work), millis(rest))) {
        Some((Some(work), Some(rest))) => Ok(Bursts {
            work: Duration::from_millis(work),
            rest: Duration::from_millis(rest),
        }),
        _ => Err("say two numbers of milliseconds, each from 1 to 60000, like 300/700".into()),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("say on or off".into()),
    }
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
    /// For --check: what to copy in (default: the sources in cargo's registry)
    #[arg(long, value_name = "DIR", requires = "check")]
    pub(crate) tree: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  quorumfs demo                             try it
  quorumfs mount ~/cloud --background       mount, and carry on
  quorumfs status --json                    for scripts
  quorumfs umount ~/cloud                   when all is kept";

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

/// What was typed; else what to print, which knows its own exit code.
pub(crate) fn parse() -> Result<Arguments, clap::Error> {
    Arguments::from_arg_matches(&command().try_get_matches()?)
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
