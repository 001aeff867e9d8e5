//! `databases`: SQLite in a real mount of tier `local`, in each of its journal modes, with kills of
//! the process that uses it and of the mount, and with several processes at a time.
//!
//! ```text
//! cargo run --release -p quorumfs-tests --bin databases -- --transactions 100000
//! ```
//!
//! It prints one JSON line for each mode, and ends with exit code 0 only if every acknowledged
//! transaction was there, every row was correct, and no process disturbed another. It mounts, and
//! needs what a mount needs.

use clap::{Parser, Subcommand};
use quorumfs_tests::databases::{DatabasePlan, Mode, Task, run, work};

/// SQLite in a mount, in each journal mode.
#[derive(Parser)]
struct DatabaseArguments {
    #[command(subcommand)]
    part: Option<DatabaseCommand>,
    /// Transactions in each mode.
    #[arg(long, default_value_t = 100_000)]
    transactions: u64,
    /// How often the process that uses the database is killed, in each mode that survives it.
    #[arg(long, default_value_t = 20)]
    client_kills: u32,
    /// How often the mount is killed.
    #[arg(long, default_value_t = 10)]
    mount_kills: u32,
    /// Transactions of each of two processes that share a database.
    #[arg(long, default_value_t = 1000)]
    shared: u64,
    /// Only these modes.
    #[arg(long, value_enum)]
    mode: Vec<Mode>,
    /// Decides what the transactions are.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Subcommand)]
enum DatabaseCommand {
    /// A process that uses a database; the program starts these itself.
    #[command(hide = true)]
    Client(Task),
}

fn main() -> anyhow::Result<()> {
    let arguments = DatabaseArguments::parse();
    if let Some(DatabaseCommand::Client(task)) = &arguments.part {
        return work(task);
    }
    let modes = match arguments.mode.is_empty() {
        true => Mode::ALL.to_vec(),
        false => arguments.mode,
    };
    let plan = DatabasePlan {
        program: std::env::current_exe()?,
        modes,
        transactions: arguments.transactions,
        kills: (arguments.client_kills, arguments.mount_kills),
        shared: arguments.shared,
        seed: arguments.seed,
    };
    let mut outcome = Ok(());
    run(plan, |report| match serde_json::to_string(report) {
        Ok(line) => println!("{line}"),
        Err(error) => outcome = Err(error),
    });
    Ok(outcome?)
}
