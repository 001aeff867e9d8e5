//! The newest recovery points on the clouds, and their rows.
//!
//! 1. Each cloud is listed; n − f of them have to answer.
//! 2. The copies of the newest point are fetched, and the first that opens counts. If none does,
//!    the point before is tried: whatever f clouds hold, they cannot make one that opens.
//! 3. Its parts are read, its layers merged, and every row goes into the proof and the spool.
//! 4. If the proof holds, the spool is complete.

use super::merge::{Merge, Next};
use super::spool::Spool;
use super::{RecoveryError, RecoveryPoint};
use crate::blocks::BlockStore;
use crate::keys::KeyFile;
use crate::volume::Volume;
use quorumfs_bft::membership::{EpochChain, Member, Membership};
use quorumfs_bft::state::Proof;
use quorumfs_bft_runtime::keys::Zip215;
use quorumfs_bft_runtime::server::first_incarnation;
use quorumfs_metadata::genesis::Genesis;
use quorumfs_metadata::identity::{ObjectClass, ObjectId};
use std::collections::BTreeSet;

/// The points that were found.
#[derive(Debug)]
pub struct FoundPoints {
    /// Those whose copies open, the newest first; each with its volume.
    pub points: Vec<(RecoveryPoint, Volume)>,
    /// The clouds that could not be listed, and why.
    pub failures: Vec<String>,
    /// Points that were listed and of which no copy opens.
    pub unopened: Vec<(ObjectId, RecoveryError)>,
}

/// Looks for points, the newest first, until `most` of them open.
///
/// # Errors
/// If fewer than n − f clouds can be listed, or no point opens.
pub async fn find_points(
    blocks: &BlockStore,
    key: &KeyFile,
    most: usize,
) -> Result<FoundPoints, RecoveryError> {
    let store = blocks.backups();
    let mut ids = BTreeSet::new();
    let (mut listed, mut failures) = (0, Vec::new());
    for list in store.list().await {
        match list.found {
            Ok(found) => {
                listed += 1;
                let points = found
                    .iter()
                    .filter(|(class, _)| *class == ObjectClass::BACKUP_ROOT);
                ids.extend(points.map(|(_, id)| *id));
            }
            Err(reason) => failures.push(format!("{}: {reason}", list.label)),
        }
    }
    let wanted = store.wanted();
    if listed < wanted {
        let failures = failures.join("; ");
        return Err(RecoveryError::TooFewListed {
            listed,
            wanted,
            failures,
        });
    }
    let mut found = FoundPoints {
        points: Vec::new(),
        failures,
        unopened: Vec::new(),
    };
    for id in ids.into_iter().rev() {
        if found.points.len() >= most {
            break;
        }
        let mut last = RecoveryError::NoPoint;
        let mut opened = None;
        for body in store.points(id).await {
            match RecoveryPoint::open(&body, key) {
                Ok((point, volume)) if point.id() == id => {
                    opened = Some((point, volume));
                    break;
                }
                Ok(_) => last = RecoveryError::damaged("it lies under the name of another"),
                Err(error) => last = error,
            }
        }
        match opened {
            Some(point) => found.points.push(point),
            None => found.unopened.push((id, last)),
        }
    }
    if found.points.is_empty() {
        return Err(found
            .unopened
            .into_iter()
            .next()
            .map_or(RecoveryError::NoPoint, |(_, error)| error));
    }
    Ok(found)
}

/// The membership that the servers of a genesis began with.
fn first_membership(genesis: &Genesis) -> Result<Membership, RecoveryError> {
    let model = genesis
        .fault_model()
        .map_err(|_| RecoveryError::damaged("its genesis has an impossible fault model"))?;
    let voter = |replica: &quorumfs_metadata::row::ReplicaInfo| Member {
        key: replica.key,
        incarnation: first_incarnation(&replica.key),
        address: bytes::Bytes::new(),
        since: quorumfs_bft::identity::Sequence(0),
    };
    let voters = genesis.replicas.iter().map(voter).collect();
    Ok(Membership::genesis(model, voters, Vec::new()))
}

/// Reads the rows of a point into a spool, and proves them. Returns their number.
///
/// # Errors
/// If a part cannot be read, or the rows are not those that the old servers certified; then there
/// is no spool.
pub async fn spool_rows(
    blocks: &BlockStore,
    (point, volume): &(RecoveryPoint, Volume),
    spool: &Spool,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<u64, RecoveryError> {
    let chain = EpochChain::new(volume.id(), first_membership(volume.genesis())?);
    point.copied().verify(chain, &Zip215)?;
    let proof = Proof::from_bytes(bytes::Bytes::copy_from_slice(&point.proof));
    let (mut proving, mut writer) = (proof.begin(), spool.create()?);
    let mut merge = Merge::new(point.layers.len());
    let mut parts: Vec<_> = point.layers.iter().map(|it| it.parts.iter()).collect();
    let mut rows = 0_u64;
    loop {
        match merge.next().map_err(|_| RecoveryError::Malformed)? {
            Next::Wants(layer) => {
                let part = match parts.get_mut(layer).and_then(Iterator::next) {
                    Some(part) => Some(blocks.read_part(part).await?),
                    None => None,
                };
                merge.feed(layer, part);
                progress(rows);
            }
            Next::Row(row) => {
                writer.push(&row)?;
                if let Some(born) = row.now {
                    proving.push(&row.key, born)?;
                }
                rows += 1;
            }
            Next::End => break,
        }
    }
    proving.finish(&point.root)?;
    writer.finish()?;
    Ok(rows)
}
