//! Putting a shard on its cloud, under a name that is free.
//!
//! Names are create-only. A name that holds the same bytes already is a success: the put was
//! repeated, or another process was quicker. A name that holds other bytes is passed over, up to a
//! bound.

use super::{Clouds, Link};
use crate::blocks::object::{Named, ShardFault, StoredObject};
use bytes::Bytes;
use quorumfs_backends::StoreErrorKind;
use quorumfs_metadata::operation::PlacedShard;

/// How many names a shard is tried under before a writer gives up because all are taken.
const ATTEMPTS_MAX: u8 = 4;

/// Puts a whole object, which is no shard, under the first of these names that is free or holds it,
/// and reads it back. `unique`: no other bytes are ever put there, so others convict the cloud.
pub(in crate::blocks) async fn put_whole(
    link: &Link,
    names: impl Iterator<Item = Named>,
    body: &Bytes,
    unique: bool,
) -> Result<(), ShardFault> {
    let mut last = ShardFault::Defect;
    for named in names {
        let taken = match link.put(&named, body.clone()).await {
            Ok(_) => None,
            Err(ShardFault::Store(error)) if error.kind == StoreErrorKind::AlreadyExists => {
                Some(ShardFault::Store(error))
            }
            Err(fault) => return Err(fault),
        };
        match (link.get(&named, body.len() as u64).await, taken) {
            (Ok(found), _) if found == body => return Ok(()),
            (Ok(_), Some(taken)) if !unique => last = taken,
            (Ok(found), _) => {
                link.refused.add(1);
                last = link.refuse(&named, &found);
            }
            (Err(fault), _) if fault.wants_repair() => last = fault,
            (Err(fault), _) => return Err(fault),
        }
    }
    Err(last)
}

impl Clouds {
    /// Puts a shard under the first of its names, from `attempt` on, that is free or already holds
    /// the same bytes. Create-only puts merely save a read here: every reader checks the bytes.
    pub(in crate::blocks) async fn place(
        &self,
        object: &StoredObject,
        shard: usize,
        body: Bytes,
        attempt: u8,
    ) -> Result<PlacedShard, ShardFault> {
        let link = self.link_of(object, shard)?;
        let mut last = ShardFault::Defect;
        for attempt in attempt..=attempt.saturating_add(ATTEMPTS_MAX - 1) {
            let named = object.named(shard, attempt);
            let mut placed = PlacedShard {
                object: object.id(),
                shard: named.shard,
                cloud: link.index,
                generation: named.generation,
                attempt,
                receipt: None,
            };
            match link.put(&named, body.clone()).await {
                Ok(receipt) => {
                    placed.receipt = receipt;
                    return Ok(placed);
                }
                Err(ShardFault::Store(error)) if error.kind == StoreErrorKind::AlreadyExists => {
                    match link.get(&named, body.len() as u64).await {
                        Ok(found) if found == body => return Ok(placed),
                        Ok(_) => last = ShardFault::Store(error),
                        Err(ShardFault::Store(read)) if read.kind.concerns_the_cloud() => {
                            return Err(ShardFault::Store(read));
                        }
                        Err(fault) => last = fault,
                    }
                }
                Err(fault) => {
                    if let ShardFault::WrongReceipt { said, sent, .. } = &fault {
                        self.note_wrong_receipt(object, &named, link.index, (*said, *sent));
                    }
                    return Err(fault);
                }
            }
        }
        Err(last)
    }

    /// The bytes of a cloud under a shard's name, unchecked.
    pub(in crate::blocks) async fn found(
        &self,
        object: &StoredObject,
        shard: usize,
    ) -> Result<Bytes, ShardFault> {
        let link = self.link_of(object, shard)?;
        let row = object.shard(shard).ok_or(ShardFault::Defect)?;
        let length = object.layout().stored_length(shard as u64);
        link.get(&object.named(shard, row.attempt), length).await
    }
}
