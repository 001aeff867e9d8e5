//! Counters: an operation names a counter, increments it, and is answered with the new value.

use bytes::Bytes;
use quorumfs_bft::service::{Caller, Context, Credit, Service};
use quorumfs_bft::state::{StateError, Txn, View};

/// The name of this service in recordings.
pub const NAME: &str = "ledger";

/// The service.
#[derive(Clone, Copy, Debug)]
pub struct Ledger;

fn value(view: &View<'_>, name: &[u8]) -> Result<u64, StateError> {
    let row = view.get(name)?.unwrap_or_default();
    Ok(decode(&row))
}

/// A counter's value in an answer; 0 if the answer holds none.
#[must_use]
pub fn decode(answer: &[u8]) -> u64 {
    answer.try_into().map_or(0, u64::from_be_bytes)
}

impl Service for Ledger {
    fn open_session(
        &self,
        _: &mut Txn<'_>,
        _: &Context,
        _: &Caller,
    ) -> Result<Option<Credit>, StateError> {
        Ok(Some(Credit {
            lanes: 64,
            bytes: 8 << 20,
        }))
    }

    fn execute(
        &self,
        txn: &mut Txn<'_>,
        _: &Context,
        _: &Caller,
        name: &[u8],
    ) -> Result<Bytes, StateError> {
        let next = value(&txn.view(), name)?.saturating_add(1);
        txn.put(name, next.to_be_bytes().to_vec())?;
        Ok(Bytes::from(next.to_be_bytes().to_vec()))
    }

    fn read(&self, view: &View<'_>, _: &Caller, name: &[u8]) -> Result<Bytes, StateError> {
        Ok(Bytes::from(value(view, name)?.to_be_bytes().to_vec()))
    }
}
