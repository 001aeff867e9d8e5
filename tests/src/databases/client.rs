//! The process that has the database open, and whoever started it.
//!
//! It says the number of each transaction once COMMIT has returned: whatever was said has to be
//! there, and of what comes after it one transaction may be.

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

/// What the process is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// All transactions up to a number.
    Alone,
    /// Counts up what another process counts up as well.
    Count,
    /// Looks at what others count up, again and again.
    Look,
}

/// Where and what.
#[derive(Clone, Debug, clap::Args)]
pub struct Task {
    /// What to do.
    #[arg(long, value_enum)]
    pub part: Part,
    /// The database.
    #[arg(long)]
    pub database: std::path::PathBuf,
    /// Its journal mode.
    #[arg(long, value_enum)]
    pub mode: Mode,
    /// How many transactions there are in the end.
    #[arg(long)]
    pub until: u64,
    /// Decides what they are.
    #[arg(long)]
    pub seed: u64,
}

/// What a client's process does.
///
/// # Errors
/// If the database, or the mount that it lies in, refuses.
pub fn work(task: &Task) -> anyhow::Result<()> {
    match task.part {
        Part::Alone => alone(task),
        Part::Count => sharing::count(task, said),
        Part::Look => sharing::look(task, said),
    }
}

fn said(number: u64) -> anyhow::Result<()> {
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
        said(model.done)?;
    }
    Ok(())
}

/// A client's process, as whoever started it sees it.
pub(super) struct Client {
    process: Reaped,
    said: Arc<AtomicU64>,
    listening: JoinHandle<()>,
}

impl Client {
    /// `program` is the one of [`work`].
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
        let said = Arc::new(AtomicU64::new(0));
        let hears = said.clone();
        let listening = std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // A line that was cut off by the process's end says nothing.
                if let Ok(number) = line.parse() {
                    hears.fetch_max(number, Ordering::AcqRel);
                }
            }
        });
        Self {
            process,
            said,
            listening,
        }
    }

    /// The last transaction that was acknowledged so far.
    pub(super) fn said(&self) -> u64 {
        self.said.load(Ordering::Acquire)
    }

    /// Whether it has ended by itself.
    pub(super) fn has_ended(&mut self) -> bool {
        self.process.0.try_wait().unwrap().is_some()
    }

    /// Waits for its end in good order; gives what it said last.
    pub(super) fn wait(mut self) -> u64 {
        let status = self.process.0.wait().unwrap();
        assert!(status.success(), "a client ended with {status}");
        self.listening.join().unwrap();
        self.said.load(Ordering::Acquire)
    }

    /// Kills it, if it still runs; gives what it said last.
    pub(super) fn kill(mut self) -> u64 {
        let _ = self.process.0.kill();
        self.process.0.wait().unwrap();
        self.listening.join().unwrap();
        self.said.load(Ordering::Acquire)
    }
}
