//! The rows of a copy that are in its store next to the tree, written with each root.
//!
//! | Key | Value |
//! |---|---|
//! | `copy` | version (1), cluster (16), digest of the first membership (32) |
//! | `certificate` | the certificate of the newest root: the body of a STABLE message |
//! | `e` ‖ epoch (8, big-endian) | the record of an epoch: an entry of an EPOCHS message |

use super::copied;
use crate::authentication::Verifier;
use crate::checkpoint::CheckpointCertificate;
use crate::identity::{ClusterId, Epoch};
use crate::membership::{EpochChain, EpochRecord, Membership};
use crate::state::{KeySpace, StateError, Store};
use bytes::Bytes;

const COPY_KEY: &[u8] = b"copy";
const CERTIFICATE_KEY: &[u8] = b"certificate";
const RECORD_PREFIX: u8 = b'e';
const VERSION: u8 = 1;

/// A row outside the tree that is written.
pub(super) type ExtraRow = (Bytes, Option<Bytes>);

/// A store that is not this copy's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It is a copy of another cluster's state.
    #[error(
        "the directory has a copy of another cluster's state, or of this one under another \
         configuration: use another directory, or remove it"
    )]
    OtherCluster,
    /// A newer release wrote it.
    #[error("the copy was written by a newer release: run that one, or remove the copy")]
    Newer,
    /// The store fails or is damaged.
    #[error(transparent)]
    State(#[from] StateError),
}

fn copy_row(cluster: ClusterId, genesis: &Membership) -> Bytes {
    let mut row = vec![VERSION];
    row.extend_from_slice(&cluster.0);
    row.extend_from_slice(&genesis.digest().0);
    row.into()
}

fn record_key(epoch: Epoch) -> Bytes {
    let mut key = vec![RECORD_PREFIX];
    key.extend_from_slice(&epoch.0.to_be_bytes());
    key.into()
}

/// What was written with the newest root: its certificate and the chain's records.
pub(super) fn read<D: Store>(
    space: &KeySpace<D>,
    (cluster, genesis): (ClusterId, &Membership),
    chain: &mut EpochChain,
    verifier: &dyn Verifier,
) -> Result<Option<CheckpointCertificate>, OpenError> {
    let damaged = |place: &str| {
        OpenError::State(StateError::Damaged {
            place: place.to_owned(),
            reason: "it does not decode, or does not follow from the others".to_owned(),
        })
    };
    match space.extra(COPY_KEY)? {
        None => return Ok(None),
        Some(row) if row == copy_row(cluster, genesis) => {}
        Some(row) if row.first() == Some(&VERSION) => return Err(OpenError::OtherCluster),
        Some(_) => return Err(OpenError::Newer),
    }
    while let Some(row) = space.extra(&record_key(Epoch(chain.epoch().0.saturating_add(1))))? {
        let record = EpochRecord::from_bytes(&row);
        let record = record.map_err(|_| damaged("the record of an epoch"))?;
        if !chain.follow(&[record], verifier) {
            return Err(damaged("the record of an epoch"));
        }
    }
    let row = space.extra(CERTIFICATE_KEY)?;
    let certificate = row.as_ref().and_then(copied::decode);
    let certificate = certificate.ok_or_else(|| damaged("the certificate of the copy"))?;
    let root = space.durable_root().map(|root| root.digest);
    match root == Some(certificate.checkpoint.root) {
        true => Ok(Some(certificate)),
        false => Err(damaged("the certificate of the copy")),
    }
}

/// The rows that are written with a root; `stored` records are there already.
pub(super) fn rows(
    genesis: &Membership,
    chain: &EpochChain,
    stored: usize,
    certificate: &CheckpointCertificate,
) -> Vec<ExtraRow> {
    let encoded = |record: &EpochRecord| {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        (record_key(record.epoch()), Some(Bytes::from(bytes)))
    };
    let mut rows: Vec<_> = chain.records().iter().skip(stored).map(encoded).collect();
    rows.push((
        Bytes::from_static(COPY_KEY),
        Some(copy_row(chain.cluster(), genesis)),
    ));
    rows.push((
        Bytes::from_static(CERTIFICATE_KEY),
        Some(copied::encode(certificate)),
    ));
    rows
}
