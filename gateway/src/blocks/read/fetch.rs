//! Fetching one shard, or some of its cells, and checking every byte.
//!
//! A fault is counted, and a note is left of it if the cloud had acknowledged the shard.

use super::Reads;
use crate::blocks::clouds::comparable;
use crate::blocks::object::{
    Sabotage, ShardFault, StoredObject, cells_range, check_cells, check_whole, unchecked,
};
use bytes::Bytes;
use quorumfs_backends::StoreErrorKind;
use quorumfs_metadata::placement::Receipt;
use std::ops::Range;

impl Reads {
    /// Counts a fault, and leaves a note of it; `found` is the checksum of the answer.
    fn count_fault(
        &self,
        object: &StoredObject,
        shard: usize,
        fault: &ShardFault,
        found: Option<Receipt>,
    ) {
        self.clouds.note_fault(object, shard, fault, found);
        if fault.is_refused() {
            self.clouds.counters().shards_refused.add(1);
            if let Ok(link) = self.clouds.link_of(object, shard) {
                link.refused.add(1);
            }
        }
        if matches!(fault, ShardFault::Store(error) if error.kind == StoreErrorKind::NotFound) {
            self.clouds.counters().shards_missing.add(1);
        }
    }

    /// Fetches one whole shard and checks it; returns its payload.
    pub(in crate::blocks) async fn fetch_whole(
        &self,
        object: &StoredObject,
        shard: usize,
    ) -> Result<Vec<u8>, ShardFault> {
        let mut found = None;
        let result = async {
            let link = self.clouds.link_of(object, shard)?;
            let row = object.shard(shard).ok_or(ShardFault::Defect)?;
            let named = object.named(shard, row.attempt);
            let header = self.clouds.header(object, shard)?;
            let layout = object.layout();
            let body = link.get(&named, layout.stored_length(shard as u64)).await?;
            self.clouds.counters().shards_read.add(1);
            if self.clouds.is_sabotaged(Sabotage::DigestCheckedAfterDecode)
                && let Some(payload) = unchecked(layout, shard as u64, &body)
            {
                return Ok(payload);
            }
            check_whole(layout, shard as u64, &header, &row.digest, &body).ok_or_else(|| {
                found = row.acknowledged.then(|| comparable(row.receipt, &body));
                link.refuse(&named, &body)
            })
        };
        let result = result.await;
        result.inspect_err(|fault| self.count_fault(object, shard, fault, found))
    }

    /// Asks whether a shard is there with its right length.
    pub(in crate::blocks) async fn fetch_length(
        &self,
        object: &StoredObject,
        shard: usize,
    ) -> Result<(), ShardFault> {
        let result = async {
            let link = self.clouds.link_of(object, shard)?;
            let row = object.shard(shard).ok_or(ShardFault::Defect)?;
            let named = object.named(shard, row.attempt);
            let length = link.head(&named).await?;
            if length == object.layout().stored_length(shard as u64) {
                Ok(())
            } else {
                Err(link.refuse(&named, &[]))
            }
        };
        let count = |fault: &ShardFault| self.count_fault(object, shard, fault, None);
        result.await.inspect_err(count)
    }

    /// Fetches the cells of some rows of one shard and checks them.
    pub(in crate::blocks) async fn fetch_cells(
        &self,
        object: &StoredObject,
        shard: usize,
        rows: Range<u64>,
    ) -> Result<Vec<Bytes>, ShardFault> {
        let result = async {
            let link = self.clouds.link_of(object, shard)?;
            let row = object.shard(shard).ok_or(ShardFault::Defect)?;
            let named = object.named(shard, row.attempt);
            let header = self.clouds.header(object, shard)?;
            let layout = object.layout();
            let range = cells_range(layout, shard as u64, &rows);
            let bytes = link.get_range(&named, range).await?;
            check_cells(layout, shard as u64, &rows, &header, &row.digest, &bytes)
                .ok_or_else(|| link.refuse(&named, &[]))
        };
        let count = |fault: &ShardFault| self.count_fault(object, shard, fault, None);
        result.await.inspect_err(count)
    }
}
