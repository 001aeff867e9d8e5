//! `quorumfs-bench`: measures this machine under realistic use.
//!
//! It is a program of its own, so that the one that people install holds nothing that only
//! measurements need. It has neither planted defects nor any other part of the tests: what it
//! measures is what is installed.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`smr`] | ordering: throughput and latency, with and without faults, under attack, by parts |
//! | [`seal`] | sealing and opening of blocks on one core |
//! | [`data`] | blocks and small files over clouds of stated latency and bandwidth |
//! | [`fs`] | the whole file system through the kernel, compared with the best that FUSE allows |
//! | [`order`] | one ordered operation, compared with the disk's fdatasync |
//! | [`store`] | databases and layouts of leaves for the replicas' state |
//! | [`arguments`], [`output`], [`failure`] | the command line, what is printed, exit codes |
//! | [`log`], [`open_files`] | logging; the limit of open files |
//! | [`noise`], [`median`], [`processor`] | what several measurements use |

mod arguments;
mod data;
#[cfg(test)]
mod documented;
mod failure;
mod fs;
mod log;
mod median;
mod noise;
mod open_files;
mod order;
mod output;
mod processor;
mod seal;
mod smr;
mod store;

use crate::arguments::{BenchArguments, BenchCommand};
use crate::failure::{BenchFailure, BenchResult, failed};
use crate::output::Printer;
use clap::Parser;
use std::process::ExitCode;

/// The allocator of the program `quorumfs`, because it is a part of what is measured.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let arguments = BenchArguments::parse();
    let output = Printer::new(arguments.json);
    match run(arguments, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.failure(&failure);
            failure.code.into()
        }
    }
}

fn run(arguments: BenchArguments, output: Printer) -> BenchResult {
    log::start(arguments.log.as_deref())?;
    open_files::raise();
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    if matches!(arguments.command, BenchCommand::Order(_)) {
        threads.worker_threads(order::THREADS);
    }
    let runtime = threads.enable_all().build();
    let runtime = runtime.map_err(|error| failed("start threads", &error))?;
    let outcome = runtime.block_on(measure(arguments.command, output));
    // A thread in a blocking call must not keep the process from ending.
    runtime.shutdown_background();
    outcome
}

async fn measure(command: BenchCommand, output: Printer) -> BenchResult {
    match command {
        BenchCommand::Smr(command) => smr::throughput::run(&command, output).await,
        BenchCommand::SmrAttacks(command) => smr::attacks::run(&command, output).await,
        BenchCommand::SmrParts(command) => smr::parts::run(&command, output).await,
        BenchCommand::Seal(command) => seal::run(&command, output),
        BenchCommand::Data(command) => data::run(&command, output).await,
        BenchCommand::Fs(command) => fs::run(&command, output).await,
        BenchCommand::Order(command) => order::run(&command).await.map_err(BenchFailure::caused),
        BenchCommand::Store(command) => store::run(&command, output).map_err(BenchFailure::caused),
        BenchCommand::SmrReplica => smr::replica::run().await,
    }
}
