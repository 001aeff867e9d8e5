//! Several processes at one database: two increment the same counter, a third one reads.
//!
//! Each reads the counter and writes the next value, in a transaction of its own. A lock that does
//! not exclude, or a page that one process has and another lacks, shows as a number that occurs
//! twice. The reader holds a transaction open in which nothing may change.

use super::Mode;
use super::client::{Client, Part, Task};
use super::database::{connect, sound};
use rusqlite::Connection;
use std::path::Path;

const SCHEMA: &str = "BEGIN IMMEDIATE;
    CREATE TABLE counter (one INTEGER PRIMARY KEY CHECK (one = 1), value INTEGER NOT NULL);
    CREATE TABLE entry (value INTEGER PRIMARY KEY, process INTEGER NOT NULL, filling BLOB NOT NULL);
    CREATE INDEX entry_by_process ON entry (process, value);
    INSERT INTO counter VALUES (1, 0);
    COMMIT";
const FILLING_BYTES: i64 = 200;

/// Has two processes count up to `each` and a third one read; returns how often it has read.
pub(super) fn run(program: &Path, database: &Path, mode: Mode, each: u64) -> u64 {
    let connection = connect(database, mode).unwrap();
    connection.execute_batch(SCHEMA).unwrap();
    let task = |part, seed| Task {
        part,
        database: database.to_owned(),
        mode,
        until: each,
        seed,
    };
    let counting = [1, 2].map(|seed| Client::start(program, &task(Part::Count, seed)));
    let total = 2 * each;
    let looking = Task {
        until: total,
        ..task(Part::Look, 0)
    };
    let looking = Client::start(program, &looking);
    for client in counting {
        assert_eq!(client.wait(), each);
    }
    let looked = looking.wait();
    sound(&connection).unwrap();
    assert_eq!(counted(&connection).unwrap(), (total, total));
    let query = "SELECT count(*) FROM entry WHERE process = 1";
    let first: i64 = connection.query_row(query, [], |row| row.get(0)).unwrap();
    assert_eq!(first.unsigned_abs(), each, "of the first process");
    looked
}

/// The counter, and the number of entries.
fn counted(connection: &Connection) -> rusqlite::Result<(u64, u64)> {
    let query = "SELECT value, (SELECT count(*) FROM entry) FROM counter";
    connection.query_row(query, [], |row| {
        let (value, entries): (i64, i64) = (row.get(0)?, row.get(1)?);
        Ok((value.unsigned_abs(), entries.unsigned_abs()))
    })
}

/// Increments the counter.
pub(super) fn count(
    task: &Task,
    acknowledge: impl Fn(u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let connection = connect(&task.database, task.mode)?;
    for number in 1..=task.until {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let query = "SELECT value FROM counter";
        let value: i64 = connection.query_row(query, [], |row| row.get(0))?;
        let entry = "INSERT INTO entry VALUES (?1, ?2, randomblob(?3))";
        let values = [value + 1, task.seed.cast_signed(), FILLING_BYTES];
        connection.execute(entry, values)?;
        connection.execute("UPDATE counter SET value = ?1", [value + 1])?;
        connection.execute_batch("COMMIT")?;
        acknowledge(number)?;
    }
    Ok(())
}

/// Reads until the counter has its last value.
pub(super) fn look(
    task: &Task,
    acknowledge: impl Fn(u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let connection = connect(&task.database, task.mode)?;
    let (mut looked, mut before) = (0, 0);
    while before < task.until {
        connection.execute_batch("BEGIN")?;
        let (value, entries) = counted(&connection)?;
        anyhow::ensure!(value == entries, "the counter is {value} with {entries}");
        anyhow::ensure!(value >= before, "the counter went from {before} to {value}");
        let again = counted(&connection)?;
        anyhow::ensure!(again == (value, entries), "{value} became {again:?}");
        connection.execute_batch("COMMIT")?;
        (looked, before) = (looked + 1, value);
        acknowledge(looked)?;
    }
    Ok(())
}
