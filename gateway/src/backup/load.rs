//! Loading proved rows into the servers of a new incarnation.
//!
//! One operation at a time: each names the last key before its rows, so that none is left out or
//! loaded twice. Principals come last, because they admit everything else.

use super::{RecoveryError, Spool};
use crate::error::VfsError;
use crate::metadata::MetadataClient;
use quorumfs_metadata::limits::LOAD_ROWS_MAX;
use quorumfs_metadata::operation::Operation;
use quorumfs_metadata::reply::Done;
use rustix::io::Errno;
use std::path::Path;

/// Bytes of rows in one operation.
const OPERATION_BYTES: usize = 256 << 10;
/// The tag of principals.
const PRINCIPAL: &[u8] = b"P/";

type LoadedRows = Vec<(Vec<u8>, Vec<u8>)>;

/// How far a recovery is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loading {
    /// The rows that the servers have.
    pub rows: u64,
    /// Whether it was finished before.
    pub was_finished: bool,
}

/// Loads the rows of a spool behind those that the servers have, and finishes the recovery.
///
/// # Errors
/// If an operation fails. The next call goes on.
pub async fn load_rows(
    client: &MetadataClient,
    spool: &Spool,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Loading, RecoveryError> {
    let Some((mut last, mut count)) = send(client, &[], LoadedRows::new()).await? else {
        return Ok(Loading {
            rows: 0,
            was_finished: true,
        });
    };
    let mut reader = spool.read()?;
    let (mut principals, mut rows, mut bytes) = (LoadedRows::new(), LoadedRows::new(), 0);
    while let Some((key, born)) = reader.next()? {
        if key.starts_with(PRINCIPAL) {
            principals.push((key.to_vec(), born.value.to_vec()));
            continue;
        }
        if *key <= *last {
            continue;
        }
        bytes += key.len() + born.value.len();
        rows.push((key.to_vec(), born.value.to_vec()));
        if rows.len() == LOAD_ROWS_MAX || bytes >= OPERATION_BYTES {
            let all = std::mem::take(&mut rows);
            (last, count) = must(send(client, &last, all).await?, spool.path())?;
            bytes = 0;
            progress(count);
        }
    }
    if !rows.is_empty() {
        (_, count) = must(send(client, &last, rows).await?, spool.path())?;
    }
    let finish = Operation::FinishLoading { principals };
    match client.order("finishing the recovery", &finish).await? {
        Done::LoadingFinished => Ok(Loading {
            rows: count,
            was_finished: false,
        }),
        other => Err(client.mismatch("finishing the recovery", &other).into()),
    }
}

type Position = (Vec<u8>, u64);

fn must(position: Option<Position>, path: &Path) -> Result<Position, RecoveryError> {
    position.ok_or_else(|| RecoveryError::File {
        path: path.to_path_buf(),
        reason: "the servers finished the recovery while it was under way: another process \
                 recovers the same volume"
            .to_owned(),
    })
}

/// Sends rows; the position behind them, or `None` if nothing is being recovered.
async fn send(
    client: &MetadataClient,
    after: &[u8],
    rows: LoadedRows,
) -> Result<Option<Position>, RecoveryError> {
    let what = "loading rows";
    let after = after.to_vec();
    match client.order(what, &Operation::Load { after, rows }).await {
        Ok(Done::Loaded { last, rows }) => Ok(Some((last, rows))),
        Ok(other) => Err(client.mismatch(what, &other).into()),
        Err(VfsError::Refused { errno, .. }) if errno == Errno::PERM => Ok(None),
        Err(error) => Err(error.into()),
    }
}
