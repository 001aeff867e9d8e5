//! The process that has the database open, and its handle in the process that started it.
//!
//! It prints the number of each transaction once COMMIT has returned. Every printed transaction has
//! to be there, and at most one more.

use super::Mode;
use super::database::Database;
use super::model::Model;
use super::sharing;
use crate::harness::Reaped;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// The task of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Executes all transactions up to a number.
    Alone,
    /// Increments a counter that another process increments as well.
    Count,
    /// Repeatedly reads what others count.
    Look,
}

/// The arguments of a client's process.
#[derive(Clone, Debug, clap::Args)]
pub struct Task {
    /// The task.
    #[arg(long, value_enum)]
    pub part: Part,
    /// The database.
    #[arg(long)]
    pub database: std::path::PathBuf,
    /// Its journal mode.
    #[arg(long, value_enum)]
    pub mode: Mode,
    /// The number of transactions at the end.
    #[arg(long)]
    pub until: u64,
    /// Decides what the transactions are.
    #[arg(long)]
    pub seed: u64,
}

/// The main function of a client's process.
///
/// # Errors
/// If the database or its mount refuses.
pub fn work(task: &Task) -> anyhow::Result<()> {
    match task.part {
        Part::Alone => alone(task),
        Part::Count => sharing::count(task, acknowledge),
        Part::Look => sharing::look(task, acknowledge),
    }
}

fn acknowledge(number: u64) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{number}")?;
    Ok(stdout.flush()?)
}

fn alone(task: &Task) -> anyhow::Result<()> {
    let database = Database::open(&task.database, task.mode)?;
    let mut model = Model::new(task.seed);
    model.advance(database.done()?);
    while model.done < task.until {
        let transaction = model.next();
        database.execute(&model, &transaction)?;
        model.apply(&transaction);
        acknowledge(model.done)?;
    }
    Ok(())
}

/// A client's process, seen from the process that started it.
pub(super) struct Client {
    process: Reaped,
    acknowledged: Arc<AtomicU64>,
    reader: JoinHandle<()>,
}

impl Client {
    /// Starts `program`, which calls [`work`].
    pub(super) fn start(program: &Path, task: &Task) -> Self {
        let part = match task.part {
            Part::Alone => "alone",
            Part::Count => "count",
            Part::Look => "look",
        };
        let (until, seed) = (task.until.to_string(), task.seed.to_string());
        let arguments: [&OsStr; 11] = [
            "client".as_ref(),
            "--part".as_ref(),
            part.as_ref(),
            "--database".as_ref(),
            task.database.as_ref(),
            "--mode".as_ref(),
            task.mode.name().as_ref(),
            "--until".as_ref(),
            until.as_ref(),
            "--seed".as_ref(),
            seed.as_ref(),
        ];
        let mut command = Command::new(program);
        command.args(arguments).stdout(Stdio::piped());
        let mut process = Reaped(command.stdin(Stdio::null()).spawn().unwrap());
        let stdout = BufReader::new(process.0.stdout.take().unwrap());
        let acknowledged = Arc::new(AtomicU64::new(0));
        let latest = acknowledged.clone();
        let reader = std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // A line that the end of the process cut off does not count.
                if let Ok(number) = line.parse() {
                    latest.fetch_max(number, Ordering::AcqRel);
                }
            }
        });
        Self {
            process,
            acknowledged,
            reader,
        }
    }

    /// The last transaction that was acknowledged so far.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Acquire)
    }

    /// Whether it has ended by itself.
    pub(super) fn has_ended(&mut self) -> bool {
        self.process.0.try_wait().unwrap().is_some()
    }

    /// Waits for its successful end; returns the last acknowledged transaction.
    pub(super) fn wait(mut self) -> u64 {
        let status = self.process.0.wait().unwrap();
        assert!(status.success(), "a client ended with {status}");
        self.reader.join().unwrap();
        self.acknowledged.load(Ordering::Acquire)
    }

    /// Kills it, if it still runs; returns the last acknowledged transaction.
    pub(super) fn kill(mut self) -> u64 {
        let _ = self.process.0.kill();
        self.process.0.wait().unwrap();
        self.reader.join().unwrap();
        self.acknowledged.load(Ordering::Acquire)
    }
}
