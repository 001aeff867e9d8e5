//! One database with a rollback journal, and a process on each mount that changes it.
//!
//! Each transaction reads a counter, adds a row with the next value and writes it back, under
//! `BEGIN IMMEDIATE`. A lock that does not exclude, or a page that one mount has and another lacks,
//! shows as a value that occurs twice, a row that is missing, or a damaged database. A transaction
//! counts if its COMMIT returned success, and SQLITE_BUSY is no success.

use super::mounts::MOUNTS;
use super::players::{SceneRun, text};
use super::{SceneFigures, median_and_maximum, monotonic};
use anyhow::{Context, Result, ensure};
use quorumfs_bft_simulator::random::Random;
use rusqlite::{Connection, ErrorCode};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long SQLite waits for the lock of another process.
const BUSY_WITHIN: Duration = Duration::from_secs(60);
/// The most transactions without a pause, so that others get their turn.
const BURST_MAX: u64 = 2;
/// While SQLite waits for a lock it sleeps for up to a tenth of a second between two attempts.
const PAUSE_MAX_MICROS: u64 = 60_000;

const SCHEMA: &str = "BEGIN IMMEDIATE;
    CREATE TABLE counter (one INTEGER PRIMARY KEY CHECK (one = 1), value INTEGER NOT NULL);
    CREATE TABLE entry (value INTEGER PRIMARY KEY, writer INTEGER NOT NULL,
        number INTEGER NOT NULL, filling BLOB NOT NULL);
    CREATE UNIQUE INDEX entry_by_writer ON entry (writer, number);
    INSERT INTO counter VALUES (1, 0);
    COMMIT";

/// The arguments of a process that counts.
#[derive(Clone, Debug, clap::Args)]
pub struct CountTask {
    /// The database.
    #[arg(long)]
    database: PathBuf,
    /// Which of the processes this is.
    #[arg(long)]
    writer: u64,
    /// How many transactions it does.
    #[arg(long)]
    transactions: u64,
    /// Decides the pauses.
    #[arg(long)]
    seed: u64,
}

/// The arguments of a process that checks.
#[derive(Clone, Debug, clap::Args)]
pub struct CheckTask {
    /// The database.
    #[arg(long)]
    database: PathBuf,
}

fn open(path: &Path) -> Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_WITHIN)?;
    let mode: String = connection.query_row("PRAGMA journal_mode = DELETE", [], |it| it.get(0))?;
    ensure!(mode == "delete", "the journal mode is {mode}");
    let set = "PRAGMA locking_mode = NORMAL";
    let _: String = connection.query_row(set, [], |it| it.get(0))?;
    connection.execute_batch("PRAGMA synchronous = FULL")?;
    Ok(connection)
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

fn transaction(connection: &Connection, task: &CountTask, number: u64) -> rusqlite::Result<()> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let value: i64 = connection.query_row("SELECT value FROM counter", [], |it| it.get(0))?;
    let [writer, number] = [task.writer, number].map(u64::cast_signed);
    let insert = "INSERT INTO entry VALUES (?1, ?2, ?3, randomblob(?4))";
    connection.execute(insert, [value + 1, writer, number, 50 + number % 400])?;
    connection.execute("UPDATE counter SET value = ?1", [value + 1])?;
    connection.execute_batch("COMMIT")
}

/// Does its transactions; prints the duration of each, and `busy` for each that was refused.
pub(super) fn count(task: &CountTask) -> Result<()> {
    let connection = open(&task.database)?;
    let mut random = Random::new(task.seed);
    let mut stdout = std::io::stdout().lock();
    let (mut number, mut burst) = (1, 0);
    while number <= task.transactions {
        let began = monotonic();
        match transaction(&connection, task, number) {
            Ok(()) => {
                writeln!(stdout, "{}", monotonic() - began)?;
                number += 1;
            }
            Err(error) if is_busy(&error) => {
                writeln!(stdout, "busy")?;
                if !connection.is_autocommit() {
                    connection.execute_batch("ROLLBACK")?;
                }
            }
            Err(error) => {
                return Err(error).with_context(|| format!("transaction {number}"));
            }
        }
        stdout.flush()?;
        if burst == 0 {
            burst = random.between(1, BURST_MAX);
            std::thread::sleep(Duration::from_micros(random.below(PAUSE_MAX_MICROS)));
        }
        burst -= 1;
    }
    Ok(())
}

/// Runs SQLite's check, and prints counter, rows, and the writers in the order of their rows.
pub(super) fn check(task: &CheckTask) -> Result<()> {
    let connection = open(&task.database)?;
    let outcome: String = connection.query_row("PRAGMA integrity_check", [], |it| it.get(0))?;
    ensure!(outcome == "ok", "integrity_check: {outcome}");
    let value: i64 = connection.query_row("SELECT value FROM counter", [], |it| it.get(0))?;
    println!("{value}");
    let mut rows = connection.prepare("SELECT value, writer, number FROM entry ORDER BY value")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let (value, writer, number): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        println!("{value} {writer} {number}");
    }
    Ok(())
}

/// Plays the scene.
pub(super) fn play(run: &SceneRun) -> Result<SceneFigures> {
    let name = "database.sqlite";
    open(&run.path(0, name))?.execute_batch(SCHEMA)?;
    let total = run.plan.sizes.transactions;
    let share = |writer: u64| (total + writer) / MOUNTS as u64;
    let writers = (0..MOUNTS).map(|mount| {
        let database = run.path(mount, name);
        let [writer, share, seed] = [
            mount as u64,
            share(mount as u64),
            run.plan.seed + mount as u64,
        ]
        .map(|it| it.to_string());
        let task = ["count", "--database", text(&database), "--writer", &writer];
        let more = ["--transactions", &share, "--seed", &seed];
        run.player(
            format!("the writer on mount {mount}"),
            &[&task[..], &more].concat(),
        )
    });
    let writers = writers.collect::<Result<Vec<_>>>()?;
    let (mut took, mut busy, mut failures) = (Vec::new(), 0, Vec::new());
    for writer in writers {
        let end = writer.wait()?;
        for line in &end.lines {
            match line.parse() {
                Ok(nanoseconds) => took.push(nanoseconds),
                Err(_) => busy += 1,
            }
        }
        if !end.is_success() {
            failures.push(end.describe());
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("; "));
    let committed = took.len() as u64;
    ensure!(
        committed == total,
        "{committed} of {total} transactions were done"
    );
    let mut handovers = 0;
    for mount in 0..MOUNTS {
        let database = run.path(mount, name);
        let checker = format!("the check on mount {mount}");
        let lines = run.player(checker, &["check", "--database", text(&database)])?;
        handovers = compare(&lines.finish()?, total, share)
            .with_context(|| format!("the database as mount {mount} shows it"))?;
    }
    let (median, most) = median_and_maximum(&mut took);
    let figures = json!({
        "transactions": committed, "handovers": handovers, "busy": busy,
        "median_ms": median, "maximum_ms": most,
    });
    let sentence = format!(
        "{committed} transactions of {MOUNTS} processes, {handovers} of them after one on another \
         mount, are there once each, on every mount; one took {median} ms, at most {most} ms."
    );
    Ok(SceneFigures::new(figures, sentence))
}

/// Compares the rows with the transactions that returned success; returns the handovers.
fn compare(lines: &[String], total: u64, share: impl Fn(u64) -> u64) -> Result<u64> {
    let (value, rows) = lines.split_first().context("it printed nothing")?;
    ensure!(
        value.parse() == Ok(total),
        "the counter is {value}, and {total} transactions returned success"
    );
    let (mut done, mut handovers, mut before) = ([0; MOUNTS], 0, None);
    for (row, expected) in rows.iter().zip(1..) {
        let numbers: Vec<u64> = row.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [value, writer, number] = numbers[..] else {
            anyhow::bail!("it printed {row}");
        };
        ensure!(
            value == expected,
            "row {expected} is missing: {row} follows"
        );
        let writer = usize::try_from(writer)?;
        let done = done.get_mut(writer).context("a row of no writer")?;
        *done += 1;
        ensure!(
            number == *done,
            "writer {writer}: row {number} is where {done} should be"
        );
        handovers += u64::from(before.is_some_and(|it| it != writer));
        before = Some(writer);
    }
    for (writer, done) in done.into_iter().enumerate() {
        let share = share(writer as u64);
        ensure!(
            done == share,
            "writer {writer}: {done} of {share} rows are there"
        );
    }
    Ok(handovers)
}
