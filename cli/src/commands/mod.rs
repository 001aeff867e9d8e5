//! One module for each command; this file only dispatches.

mod cloud;
mod cloud_report;
mod cluster;
mod disk_cache;
mod doctor;
mod epochs;
mod evidence;
mod explain;
mod files;
mod force;
mod journal;
mod key;
mod local_lock;
mod members;
mod memory;
mod mount;
mod mount_options;
pub(crate) mod mount_point;
mod mount_wait;
mod observe;
mod opened;
mod quota;
mod recover;
pub(crate) mod replica;
mod rollback;
mod scrub;
mod shown;
mod status;
mod successor;
mod sync;
mod umount;
pub(crate) mod volume;
mod warmup;

pub(crate) use explain::{block_failure, key_failure, store_failure};
pub(crate) use mount::MountReport;
pub(crate) use opened::Configured;
pub(crate) use sync::{Synced, asked as sync_asked};
pub(crate) use warmup::WarmedPiece;

use crate::arguments::{Arguments, BenchCommand, Command, ReplicaCommand, VolumeCommand};
use crate::failure::CommandResult;
use crate::output::Output;
use crate::{bench, demo, hardening, logging};

/// Runs the command.
pub(crate) async fn run(arguments: Arguments, output: Output) -> CommandResult {
    let general = &arguments.general;
    let default = match &arguments.command {
        Command::Replica(ReplicaCommand::Run(_)) | Command::Mount(_) => "info",
        _ => "error",
    };
    logging::start(general.log.as_deref(), default, general.log_file.as_deref())?;
    hardening::begin(&arguments.command);
    match arguments.command {
        Command::Demo(command) => demo::run(general, command, output).await,
        Command::Replica(ReplicaCommand::Init(command)) => replica::init(general, &command, output),
        Command::Replica(ReplicaCommand::Run(command)) => {
            replica::run(general, &command, output).await
        }
        Command::Volume(VolumeCommand::Create(command)) => {
            volume::run(general, &command, output).await
        }
        Command::Volume(VolumeCommand::Rekey(command)) if command.replace_owner => {
            successor::run(general, &command, output).await
        }
        Command::Volume(VolumeCommand::Rekey(command)) => {
            epochs::rekey(general, &command, output).await
        }
        Command::Volume(VolumeCommand::Recover(command)) => recover::run(general, &command, output),
        Command::Volume(VolumeCommand::AcceptRollback(command)) => {
            rollback::accept(general, &command, output).await
        }
        Command::Volume(VolumeCommand::Epochs) => epochs::run(general, output).await,
        Command::Key(command) => key::run(general, &command, output),
        Command::Mount(command) => mount::run(general, &command, output).await,
        Command::Umount(command) => umount::run(general, &command, output).await,
        Command::Warmup(command) => warmup::run(general, &command, output).await,
        Command::Put(command) => files::put(general, &command, output).await,
        Command::Get(command) => files::get(general, &command, output).await,
        Command::Ls(command) => files::ls(general, &command, output).await,
        Command::Cat(command) => files::cat(general, &command, output).await,
        Command::Rm(command) => files::rm(general, &command, output).await,
        Command::Quota(command) => quota::run(general, &command, output).await,
        Command::Scrub(command) => scrub::run(general, &command, output).await,
        Command::Cloud(command) => cloud::run(general, command, output).await,
        Command::Status(command) => status::run(general, &command, output).await,
        Command::Sync(command) => sync::run(general, &command, output).await,
        Command::Doctor(command) => doctor::run(general, &command, output).await,
        Command::Cluster(command) => cluster::run(general, command, output).await,
        Command::Observe(command) => observe::run(general, &command, output).await,
        Command::Bench(BenchCommand::Smr(command)) => bench::smr::run(&command, output).await,
        Command::Bench(BenchCommand::SmrAttacks(command)) => {
            bench::attacks::run(&command, output).await
        }
        Command::Bench(BenchCommand::SmrParts(command)) => {
            bench::parts::run(&command, output).await
        }
        Command::Bench(BenchCommand::Seal(command)) => bench::seal::run(&command, output),
        Command::Bench(BenchCommand::Data(command)) => bench::data::run(&command, output).await,
        Command::Bench(BenchCommand::Fs(command)) => bench::fs::run(&command, output).await,
        Command::Bench(BenchCommand::SmrReplica) => bench::replica::run().await,
    }
}
