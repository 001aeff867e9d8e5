//! The database itself: its schema, executing a transaction, and comparing its content with the
//! model.

use super::Mode;
use super::model::{Account, Change, Model, Transaction, Transfer};
use rusqlite::{Connection, Result, params};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// How long a process waits for the lock of another.
const BUSY_WITHIN: Duration = Duration::from_secs(60);

const SCHEMA: &str = "
    CREATE TABLE account (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        balance INTEGER NOT NULL CHECK (balance >= 0)
    );
    CREATE TABLE changed (
        account INTEGER PRIMARY KEY REFERENCES account (id) ON DELETE CASCADE,
        times INTEGER NOT NULL
    );
    CREATE TABLE transfer (
        id INTEGER PRIMARY KEY,
        source INTEGER NOT NULL REFERENCES account (id) ON DELETE CASCADE,
        target INTEGER NOT NULL REFERENCES account (id) ON DELETE CASCADE,
        amount INTEGER NOT NULL,
        note BLOB NOT NULL
    );
    CREATE INDEX transfer_by_source ON transfer (source);
    CREATE INDEX transfer_by_target ON transfer (target, amount);
    CREATE TABLE progress (one INTEGER PRIMARY KEY CHECK (one = 1), done INTEGER NOT NULL);
    CREATE TRIGGER opened AFTER INSERT ON account BEGIN
        INSERT INTO changed VALUES (new.id, 0);
    END;
    CREATE TRIGGER paid AFTER UPDATE OF balance ON account BEGIN
        UPDATE changed SET times = times + 1 WHERE account = new.id;
    END;
    INSERT INTO progress VALUES (1, 0);
";

/// An open connection.
pub(super) struct Database {
    connection: Connection,
    mode: Mode,
}

impl Database {
    /// Opens it, or creates it; SQLite rolls back what was left unfinished.
    pub(super) fn open(path: &Path, mode: Mode) -> Result<Self> {
        let connection = connect(path, mode)?;
        let query = "SELECT count(*) FROM sqlite_schema WHERE name = 'progress'";
        let made: i64 = connection.query_row(query, [], |row| row.get(0))?;
        if made == 0 {
            connection.execute_batch(&format!("BEGIN IMMEDIATE; {SCHEMA} COMMIT"))?;
        }
        Ok(Self { connection, mode })
    }

    /// How many transactions it holds.
    pub(super) fn done(&self) -> Result<u64> {
        let query = "SELECT done FROM progress";
        let done: i64 = self.connection.query_row(query, [], |row| row.get(0))?;
        Ok(done.unsigned_abs())
    }

    pub(super) fn execute(&self, model: &Model, transaction: &Transaction) -> Result<()> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        // Without a journal nothing can be undone.
        if !transaction.undone.is_empty() && self.mode != Mode::Off {
            self.connection.execute_batch("SAVEPOINT attempt")?;
            for change in &transaction.undone {
                self.change(model, change)?;
            }
            let undo = "ROLLBACK TO attempt; RELEASE attempt";
            self.connection.execute_batch(undo)?;
        }
        for change in &transaction.changes {
            self.change(model, change)?;
        }
        let done = transaction.number.cast_signed();
        self.connection
            .execute("UPDATE progress SET done = ?1", [done])?;
        self.connection.execute_batch("COMMIT")
    }

    fn pay(&self, account: i64, amount: i64) -> Result<usize> {
        let pay = "UPDATE account SET balance = balance + ?1 WHERE id = ?2";
        self.connection.execute(pay, [amount, account])
    }

    fn change(&self, model: &Model, change: &Change) -> Result<usize> {
        match change {
            Change::Open { id, name, balance } => {
                let open = "INSERT INTO account VALUES (?1, ?2, ?3)";
                self.connection.execute(open, params![id, name, balance])
            }
            Change::Close { id, heir } => {
                let inherit = "UPDATE account SET balance = balance + \
                    (SELECT balance FROM account WHERE id = ?1) WHERE id = ?2";
                self.connection.execute(inherit, [id, heir])?;
                let close = "DELETE FROM account WHERE id = ?1";
                self.connection.execute(close, [id])
            }
            Change::Pay { id, transfer } => {
                self.pay(transfer.source, -transfer.amount)?;
                self.pay(transfer.target, transfer.amount)?;
                let Transfer {
                    source,
                    target,
                    amount,
                    note_bytes,
                } = transfer;
                let note = model.note(*id, *note_bytes);
                let remember = "INSERT INTO transfer VALUES (?1, ?2, ?3, ?4, ?5)";
                let values = params![id, source, target, amount, note];
                self.connection.execute(remember, values)
            }
            Change::Forget { below } => {
                let forget = "DELETE FROM transfer WHERE id < ?1";
                self.connection.execute(forget, [below])
            }
        }
    }

    /// Compares every row with the model, after SQLite's own checks.
    pub(super) fn compare(&self, model: &Model) -> Result<()> {
        sound(&self.connection)?;
        let query = "SELECT id, name, balance, times FROM account JOIN changed ON account = id";
        let mut query = self.connection.prepare(query)?;
        let accounts = query.query_map([], |row| {
            let account = Account {
                name: row.get(1)?,
                balance: row.get(2)?,
                changes: row.get(3)?,
            };
            Ok((row.get(0)?, account))
        })?;
        let accounts = accounts.collect::<Result<BTreeMap<i64, Account>>>()?;
        assert_eq!(accounts, model.accounts, "after {} of them", model.done);
        let query = "SELECT id, source, target, amount, note FROM transfer";
        let mut query = self.connection.prepare(query)?;
        let transfers = query.query_map([], |row| {
            let id = row.get(0)?;
            let note: Vec<u8> = row.get(4)?;
            assert_eq!(note, model.note(id, note.len()), "the note of {id}");
            let transfer = Transfer {
                source: row.get(1)?,
                target: row.get(2)?,
                amount: row.get(3)?,
                note_bytes: note.len(),
            };
            Ok((id, transfer))
        })?;
        let transfers = transfers.collect::<Result<BTreeMap<i64, Transfer>>>()?;
        assert_eq!(transfers, model.transfers, "after {} of them", model.done);
        Ok(())
    }
}

/// A connection with the settings of these tests.
pub(super) fn connect(path: &Path, mode: Mode) -> Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_WITHIN)?;
    let set = format!("PRAGMA journal_mode = {}", mode.name());
    let now: String = connection.query_row(&set, [], |row| row.get(0))?;
    assert!(now.eq_ignore_ascii_case(mode.name()), "{now}: {mode:?}");
    // The page cache is small, so that most pages are read from the file, in half of the modes by a
    // mapping.
    let mapped = match mode {
        Mode::Wal | Mode::Persist | Mode::Memory => 4 << 20,
        Mode::Delete | Mode::Truncate | Mode::Off => 0,
    };
    connection.execute_batch(&format!(
        "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA cache_size = 50;
         PRAGMA mmap_size = {mapped};"
    ))?;
    Ok(connection)
}

/// SQLite's own checks.
pub(super) fn sound(connection: &Connection) -> Result<()> {
    let query = "PRAGMA integrity_check";
    let outcome: String = connection.query_row(query, [], |row| row.get(0))?;
    assert_eq!(outcome, "ok", "integrity_check");
    let mut query = connection.prepare("PRAGMA foreign_key_check")?;
    assert!(query.query([])?.next()?.is_none(), "foreign_key_check");
    Ok(())
}
