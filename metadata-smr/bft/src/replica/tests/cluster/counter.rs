//! The service under test.

use crate::identity::{Nanos, PublicKey, Time};
use crate::service::{Caller, Context as BatchContext, Credit, Service};
use crate::state::{StateError, Txn, View as Rows};
use bytes::Bytes;

/// Counts, wants a tick 300 ms after an operation `t`, and keeps a long row of each `w`.
pub(in crate::replica::tests) struct Counter {
    /// Whether it writes a row that no other replica has, once it has counted to 40.
    pub(in crate::replica::tests) flawed: bool,
}

fn number(rows: &Rows<'_>, key: &[u8]) -> Result<u64, StateError> {
    Ok(rows
        .get(key)?
        .map_or(0, |b| u64::from_be_bytes(b.as_ref().try_into().unwrap())))
}

impl Service for Counter {
    fn genesis(&self, txn: &mut Txn<'_>, genesis: &[u8]) -> Result<(), StateError> {
        txn.put(b"genesis", genesis.to_vec())
    }
    fn open_session(
        &self,
        _: &mut Txn<'_>,
        _: &BatchContext,
        _: &Caller,
    ) -> Result<Option<Credit>, StateError> {
        Ok(Some(Credit {
            lanes: 4,
            bytes: 1 << 20,
        }))
    }
    /// The first client, the third, and so on.
    fn may_copy(&self, _: &Rows<'_>, principal: &PublicKey) -> Result<bool, StateError> {
        Ok(principal.0[0] % 2 == 1)
    }
    fn execute(
        &self,
        txn: &mut Txn<'_>,
        context: &BatchContext,
        _: &Caller,
        operation: &[u8],
    ) -> Result<Bytes, StateError> {
        if operation == b"t" {
            let due = context.time.plus(Nanos::from_millis(300));
            txn.put(b"due", due.0.to_be_bytes().to_vec())?;
        }
        let count = number(&txn.view(), b"count")? + 1;
        if operation == b"w" {
            txn.put(
                &count.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(),
                vec![7; 900],
            )?;
        }
        txn.put(b"count", count.to_be_bytes().to_vec())?;
        if self.flawed && count == 40 {
            txn.put(b"flaw", b"of this machine".to_vec())?;
        }
        Ok(Bytes::copy_from_slice(&count.to_be_bytes()))
    }
    fn read(&self, view: &Rows<'_>, _: &Caller, _: &[u8]) -> Result<Bytes, StateError> {
        Ok(Bytes::copy_from_slice(
            &number(view, b"count")?.to_be_bytes(),
        ))
    }
    fn next_deadline(&self, view: &Rows<'_>) -> Result<Option<Time>, StateError> {
        let due = number(view, b"due")?;
        Ok((due > 0).then_some(Time(due)))
    }
    fn tick(&self, txn: &mut Txn<'_>, _: &BatchContext) -> Result<(), StateError> {
        txn.delete(b"due")
    }
}
