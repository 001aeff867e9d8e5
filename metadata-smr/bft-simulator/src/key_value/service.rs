//! The replicated key-value service.
//!
//! | Row | Content |
//! |---|---|
//! | `p` ‖ principal | an admitted principal |
//! | `v` ‖ key | the list and when it expires |
//! | `t` ‖ time ‖ key | marks that it expires then |
//! | `g` | nothing: it is written whenever a value expires |

use super::command::{Command, KeyValueAnswer, decode, encode};
use borsh::{BorshDeserialize, BorshSerialize};
use bytes::Bytes;
use quorumfs_bft::identity::{PublicKey, Time};
use quorumfs_bft::service::{Caller, Context, Credit, Service};
use quorumfs_bft::state::{StateError, Txn, View};

/// The service. It has no state of its own: all its state is in rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyValue;

/// The credit of a session.
pub const CREDIT: Credit = Credit {
    lanes: 4,
    bytes: 16 << 10,
};

/// The row that records when a value last expired.
const LAST_EXPIRY: &[u8] = b"g";

/// How many expired values one tick removes.
const TICK_MAX: usize = 64;

#[derive(Clone, Debug, Default, BorshSerialize, BorshDeserialize)]
struct Cell {
    list: Vec<u64>,
    until: Option<u64>,
}

fn cell_key(key: u8) -> [u8; 2] {
    [b'v', key]
}

fn time_key(until: u64, key: u8) -> Vec<u8> {
    let mut bytes = vec![b't'];
    bytes.extend_from_slice(&until.to_be_bytes());
    bytes.push(key);
    bytes
}

fn damaged(place: &str) -> StateError {
    StateError::Damaged {
        place: place.into(),
        reason: "a row of the key-value service does not decode".into(),
    }
}

fn cell(view: &View<'_>, key: u8) -> Result<Cell, StateError> {
    match view.get(&cell_key(key))? {
        None => {
            // An absent row has no version, but this row has: it is written whenever a value is
            // removed.
            view.get(LAST_EXPIRY)?;
            Ok(Cell::default())
        }
        Some(bytes) => decode(&bytes).ok_or_else(|| damaged("a cell")),
    }
}

/// The time and the key of the row that is due first.
fn first_due(view: &View<'_>) -> Result<Option<(u64, u8)>, StateError> {
    let rows = view.scan(b"t".as_slice()..b"u".as_slice(), 1)?;
    let Some((row, _)) = rows.first() else {
        return Ok(None);
    };
    let due = row.get(1..).and_then(|rest| {
        let (time, key) = rest.split_first_chunk::<8>()?;
        Some((u64::from_be_bytes(*time), *key.first()?))
    });
    due.map(Some).ok_or_else(|| damaged("a due time"))
}

fn answer(view: &View<'_>, query: &[u8], time: Option<u64>) -> Result<Bytes, StateError> {
    let Some(Command::Get { key }) = decode::<Command>(query) else {
        return Ok(Bytes::from_static(b"?"));
    };
    Ok(encode(&KeyValueAnswer {
        time,
        changed: false,
        list: cell(view, key)?.list,
    }))
}

impl Service for KeyValue {
    fn genesis(&self, txn: &mut Txn<'_>, genesis: &[u8]) -> Result<(), StateError> {
        for principal in genesis.chunks_exact(32) {
            let mut key = vec![b'p'];
            key.extend_from_slice(principal);
            txn.put(&key, Bytes::new())?;
        }
        Ok(())
    }

    fn open_session(
        &self,
        txn: &mut Txn<'_>,
        _: &Context,
        caller: &Caller,
    ) -> Result<Option<Credit>, StateError> {
        let welcome = self.may_open(&txn.view(), &caller.principal)?;
        Ok(welcome.then_some(CREDIT))
    }

    fn may_open(&self, view: &View<'_>, principal: &PublicKey) -> Result<bool, StateError> {
        let mut key = vec![b'p'];
        key.extend_from_slice(&principal.0);
        Ok(view.get(&key)?.is_some())
    }

    fn execute(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        _: &Caller,
        operation: &[u8],
    ) -> Result<Bytes, StateError> {
        let Some(command) = decode::<Command>(operation) else {
            return Ok(Bytes::from_static(b"?"));
        };
        let key = command.key();
        let before = cell(&txn.view(), key)?;
        let changed = command.change(&before.list);
        let mut list = before.list;
        if let Some(after) = &changed {
            let until = match &command {
                Command::Lend { nanos, .. } => Some(context.time.0.saturating_add(*nanos)),
                Command::Append { .. } => before.until,
                _ => None,
            };
            if let Some(time) = before.until {
                txn.delete(&time_key(time, key))?;
            }
            if let Some(time) = until {
                txn.put(&time_key(time, key), Bytes::new())?;
            }
            list.clone_from(after);
            let cell = Cell {
                list: after.clone(),
                until,
            };
            txn.put(&cell_key(key), encode(&cell))?;
        }
        Ok(encode(&KeyValueAnswer {
            time: Some(context.time.0),
            changed: changed.is_some(),
            list,
        }))
    }

    fn read(&self, view: &View<'_>, _: &Caller, query: &[u8]) -> Result<Bytes, StateError> {
        answer(view, query, None)
    }

    fn read_in_order(
        &self,
        view: &View<'_>,
        context: &Context,
        _: &Caller,
        query: &[u8],
    ) -> Result<Bytes, StateError> {
        answer(view, query, Some(context.time.0))
    }

    /// Every query that is allowed can be watched: its key's value.
    fn watch(
        &self,
        _: &View<'_>,
        _: &Caller,
        watch: &[u8],
    ) -> Result<Option<Vec<Bytes>>, StateError> {
        let prefix = |key| vec![Bytes::copy_from_slice(&cell_key(key))];
        Ok(match decode::<Command>(watch) {
            Some(Command::Get { key }) => Some(prefix(key)),
            _ => None,
        })
    }

    fn next_deadline(&self, view: &View<'_>) -> Result<Option<Time>, StateError> {
        Ok(first_due(view)?.map(|(time, _)| Time(time)))
    }

    fn tick(&self, txn: &mut Txn<'_>, context: &Context) -> Result<(), StateError> {
        for _ in 0..TICK_MAX {
            match first_due(&txn.view())? {
                Some((time, key)) if time <= context.time.0 => {
                    txn.delete(&time_key(time, key))?;
                    txn.delete(&cell_key(key))?;
                    txn.put(LAST_EXPIRY, Bytes::new())?;
                }
                _ => break,
            }
        }
        Ok(())
    }
}
