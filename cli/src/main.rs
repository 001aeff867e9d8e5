//! `quorumfs`: the one binary.
//!
//! It joins the crates below into processes and is their interface to people and scripts; it
//! decides nothing about order, bytes or files.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`arguments`] | the command line and its help |
//! | [`commands`] | one module for each command |
//! | [`demo`] | four replicas and a mount, supervised; and the check that `scripts/demo` runs |
//! | [`configuration`] | TOML files |
//! | [`directory`] | the state directory |
//! | [`hardening`] | restrictions on a process before it reads a key |
//! | [`mount_helper`] | being called by `mount(8)` |
//! | [`notify`] | reporting the state of a service to systemd |
//! | [`control`] | the control socket, for `status` and `umount` of a running mount |
//! | [`logging`] | what is logged, where to, and how often |
//! | [`prices`] | the prices file: what clouds charge |
//! | [`stop`] | how a process is stopped |
//! | [`unlock`] | opening a key file |
//! | [`values`] | values of options that several commands take |
//! | [`exit`], [`failure`], [`explain`], [`output`] | messages and exit codes |

mod arguments;
mod clouds;
mod commands;
mod configuration;
mod control;
mod demo;
mod directory;
#[cfg(test)]
mod documented;
mod exit;
mod explain;
mod failure;
mod hardening;
mod logging;
mod mount_helper;
mod notify;
mod output;
mod prices;
mod stop;
mod unlock;
mod values;

use crate::arguments::{Arguments, Command, ReplicaCommand, VolumeCommand};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::mount_helper::Wanted;
use crate::output::Output;
use std::ffi::OsString;
use std::process::ExitCode;

/// Most allocations are short-lived and freed on another thread: a replica's messages, a mount's
/// buffers. Free memory is shared by all threads: an allocator with free lists for each thread
/// makes a mount several times as large as its live memory.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let mut typed = std::env::args_os();
    let program = typed.next();
    if !mount_helper::is_called_as(program.as_deref()) {
        return match run(std::env::args_os().collect()) {
            Ok(exit) => exit.into(),
            Err(code) => code,
        };
    }
    match mount_helper::translate(typed) {
        Ok(Wanted::Nothing) => ExitCode::SUCCESS,
        Ok(Wanted::Command(typed)) => match run(typed) {
            Ok(exit) => mount_helper::code(exit),
            Err(_) => mount_helper::code(Exit::Usage),
        },
        Err(failure) => {
            Output::new(false).failure(&failure);
            mount_helper::code(failure.exit)
        }
    }
}

/// Runs the command and returns its exit code; a usage error returns its own.
fn run(typed: Vec<OsString>) -> Result<Exit, ExitCode> {
    let arguments = arguments::parse(typed).map_err(|error| not_understood(&error))?;
    let output = Output::new(arguments.general.json);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let outcome: CommandResult = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(dispatch(arguments, output));
            // A thread in a blocking call must not keep the process from ending.
            runtime.shutdown_background();
            outcome
        }
        Err(error) => Err(
            Failure::new(Exit::Error, format!("cannot start threads: {error}"))
                .hint("the limits of processes or memory may be too low; see `ulimit -a`"),
        ),
    };
    logging::finish();
    Ok(outcome.unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.exit
    }))
}

/// Runs the command.
async fn dispatch(arguments: Arguments, output: Output) -> CommandResult {
    let general = &arguments.general;
    let default = match &arguments.command {
        Command::Replica(ReplicaCommand::Run(_)) | Command::Mount(_) | Command::Serve(_) => "info",
        _ => "error",
    };
    logging::start(general.log.as_deref(), default, general.log_file.as_deref())?;
    hardening::begin(&arguments.command);
    match arguments.command {
        Command::Demo(command) => demo::run(general, command, output).await,
        Command::Replica(ReplicaCommand::Init(command)) => {
            commands::replica::init(general, &command, output)
        }
        Command::Replica(ReplicaCommand::Run(command)) => {
            commands::replica::run(general, &command, output).await
        }
        Command::Volume(VolumeCommand::Create(command)) => {
            commands::volume::run(general, &command, output).await
        }
        Command::Volume(VolumeCommand::Rekey(command)) if command.replace_owner => {
            commands::successor::run(general, &command, output).await
        }
        Command::Volume(VolumeCommand::Rekey(command)) => {
            commands::epochs::rekey(general, &command, output).await
        }
        Command::Volume(VolumeCommand::Recover(command)) => {
            commands::recover::run(general, &command, output).await
        }
        Command::Volume(VolumeCommand::RenewKit(command)) => {
            commands::renew_kit::run(general, &command, output).await
        }
        Command::Volume(VolumeCommand::Backup(command)) => {
            commands::backup::run(general, &command, output).await
        }
        Command::Volume(VolumeCommand::AcceptRollback(command)) => {
            commands::rollback::accept(general, &command, output).await
        }
        Command::Volume(VolumeCommand::Reseal(command)) => {
            commands::reseal::run(general, &command, output).await
        }
        Command::Volume(VolumeCommand::Epochs) => commands::epochs::run(general, output).await,
        Command::People(command) => commands::people::run(general, &command, output).await,
        Command::Share(command) => commands::share::run(general, &command, output).await,
        Command::Join(command) => commands::join::run(general, &command, output).await,
        Command::Key(command) => commands::key::run(general, &command, output),
        Command::Mount(command) => commands::mount::run(general, &command, output).await,
        Command::Umount(command) => commands::umount::run(general, &command, output).await,
        Command::Warmup(command) => commands::warmup::run(general, &command, output).await,
        Command::Put(command) => commands::files::put(general, &command, output).await,
        Command::Upload(command) => commands::files::upload(general, &command, output).await,
        Command::Open(command) => commands::files::open_capsule(&command, output).await,
        Command::Get(command) => commands::files::get(general, &command, output).await,
        Command::Ls(command) => commands::files::ls(general, &command, output).await,
        Command::Cat(command) => commands::files::cat(general, &command, output).await,
        Command::Rm(command) => commands::files::rm(general, &command, output).await,
        Command::Serve(command) => commands::serve::run(general, &command, output).await,
        Command::Lease(command) => commands::files::lease(general, &command, output).await,
        Command::Trash(command) => commands::files::trash(general, &command, output).await,
        Command::Quota(command) => commands::quota::run(general, &command, output).await,
        Command::Scrub(command) => commands::scrub::run(general, &command, output).await,
        Command::Reconcile(command) => commands::reconcile::run(general, &command, output).await,
        Command::Cloud(command) => commands::cloud::run(general, command, output).await,
        Command::Cost(command) => commands::cost::run(general, &command, output).await,
        Command::Mounts => commands::mounts::run(general, output).await,
        Command::Status(command) => commands::status::run(general, &command, output).await,
        Command::Sync(command) => commands::sync::run(general, &command, output).await,
        Command::Doctor(command) => commands::doctor::run(general, &command, output).await,
        Command::Cluster(command) => commands::cluster::run(general, command, output).await,
        Command::Observe(command) => commands::observe::run(general, &command, output).await,
    }
}

/// Help and version go to standard output; anything else is a usage error, in JSON if asked for.
fn not_understood(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && std::env::args_os().any(|argument| argument == "--json") {
        let text = error.to_string();
        let message = text
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches("error: ");
        let hint = "see `quorumfs --help`";
        Output::new(true).failure(&Failure::new(Exit::Usage, message).hint(hint));
    } else {
        let _ = error.print();
    }
    if error.use_stderr() {
        Exit::Usage.into()
    } else {
        Exit::Success.into()
    }
}
