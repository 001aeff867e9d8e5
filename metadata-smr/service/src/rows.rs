//! Typed reads of rows, from a transaction or from a view.
//!
//! Two things can stop an operation: a refusal, which is an ordinary answer, and a failing store,
//! which stops the replica. [`Halt`] separates them, so that neither is mistaken for the other.

use crate::error::Error;
use crate::identity::{InodeId, PrincipalId, RealmId};
use crate::row::{Inode, Principal, Realm, Row, key};
use quorumfs_bft::state::{self, StateError, View, prefix_end};

/// Why an operation stops.
#[derive(Debug)]
pub(crate) enum Halt {
    /// It is refused: it has no effect.
    Refused(Error),
    /// This replica's store failed: the replica stops.
    State(StateError),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<StateError> for Halt {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}

/// The result of a part of an operation.
pub(crate) type Outcome<T> = Result<T, Halt>;

/// Refuses unless `holds`.
pub(crate) fn require(holds: bool, error: Error) -> Outcome<()> {
    if holds { Ok(()) } else { Err(error.into()) }
}

/// Reads a row's bytes. If they do not decode the store is damaged, because nothing else is ever
/// written.
pub(crate) fn decode<R: Row>(row_key: &[u8], bytes: &[u8]) -> Outcome<R> {
    R::from_bytes(bytes).map_err(|error| Halt::State(damaged::<R>(row_key, &error.to_string())))
}

/// The error for a row that cannot be right.
pub(crate) fn damaged<R: Row>(row_key: &[u8], reason: &str) -> StateError {
    StateError::Damaged {
        place: format!("{} row {}", R::NAME, row_key.escape_ascii()),
        reason: reason.to_string(),
    }
}

/// A source of rows.
pub(crate) trait Rows {
    /// The rows.
    fn view(&self) -> View<'_>;

    /// Counts rows that are read, and refuses beyond the bound of one operation.
    fn count_reads(&self, rows: usize) -> Outcome<()>;

    /// The row under `row_key`.
    fn find<R: Row>(&self, row_key: &[u8]) -> Outcome<Option<R>> {
        self.count_reads(1)?;
        match self.view().get(row_key)? {
            Some(bytes) => decode(row_key, &bytes).map(Some),
            None => Ok(None),
        }
    }

    /// Whether there is a row under `row_key`.
    fn has(&self, row_key: &[u8]) -> Outcome<bool> {
        self.count_reads(1)?;
        Ok(self.view().get(row_key)?.is_some())
    }

    /// The row under `row_key`, which must exist.
    fn expect_row<R: Row>(&self, row_key: &[u8]) -> Outcome<R> {
        match self.find(row_key)? {
            Some(row) => Ok(row),
            None => Err(damaged::<R>(row_key, "it is missing").into()),
        }
    }

    /// At most `limit` rows from `from` on whose keys begin with `prefix`.
    fn scan(&self, prefix: &[u8], from: &[u8], limit: usize) -> Outcome<Vec<state::Row>> {
        let end = prefix_end(prefix);
        let rows = self.view().scan(from..end.as_slice(), limit)?;
        self.count_reads(rows.len().max(1))?;
        Ok(rows)
    }

    /// An inode that exists.
    fn inode(&self, inode: InodeId) -> Outcome<Inode> {
        self.find(&key::inode(inode))?
            .ok_or(Halt::Refused(Error::Stale(inode)))
    }

    /// An inode that exists and is a directory.
    fn directory(&self, inode: InodeId) -> Outcome<Inode> {
        let row = self.inode(inode)?;
        require(row.is_directory(), Error::NotDirectory)?;
        Ok(row)
    }

    /// A realm that exists.
    fn realm(&self, realm: RealmId) -> Outcome<Realm> {
        self.find(&key::realm(realm))?
            .ok_or(Halt::Refused(Error::NoRealm))
    }

    /// A principal that exists. The sessions of one that is gone are not valid any more.
    fn principal(&self, principal: &PrincipalId) -> Outcome<Principal> {
        self.find(&key::principal(principal))?
            .ok_or(Halt::Refused(Error::NoSession))
    }
}

/// A view, read by a query, whose pages bound its reads.
pub(crate) struct Reading<'a>(pub(crate) View<'a>);

impl Rows for Reading<'_> {
    fn view(&self) -> View<'_> {
        self.0
    }

    fn count_reads(&self, _rows: usize) -> Outcome<()> {
        Ok(())
    }
}
