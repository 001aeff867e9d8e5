//! Asking the servers where a file's committed bytes lie.

use super::node::Node;
use super::owner::Files;
use crate::error::VfsError;
use crate::keys::ValueBinding;
use crate::slices::StoredSlice;
use crate::vfs::known::{ContentMap, Piece};
use bytes::Bytes;
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::reply::ContentPage;
use quorumfs_metadata::row::Inline;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

impl Files {
    /// Asks the servers where the bytes from `from` on are.
    pub(in crate::vfs) async fn learn_content(
        &self,
        node: &Arc<Node>,
        from: u64,
    ) -> Result<(), VfsError> {
        let asked = self.known.query_stamp();
        let page = self.services.metadata.content(node.inode, from).await?;
        let inline = match &page.inline {
            Some(inline) => Some(self.open_inline(node.inode, inline).await?),
            None => None,
        };
        self.known.learn(&page.attributes, asked);
        let mut state = node.state();
        state.learn(&page.attributes);
        if state.base.version != page.attributes.version {
            // A commit of ours overtook the answer; the caller asks again.
            return Ok(());
        }
        if state.content.version() != page.attributes.version {
            state.content = ContentMap::unknown(page.attributes.version);
        }
        match inline {
            Some(plain) => {
                state.content = ContentMap::inline(page.attributes.version, plain);
            }
            None => {
                let (covered, pieces) = pieces_of(from, &page);
                state.content.learn(covered, pieces.into_iter());
            }
        }
        Ok(())
    }

    /// The plain bytes of a tiny file.
    async fn open_inline(&self, inode: InodeId, inline: &Inline) -> Result<Bytes, VfsError> {
        let key = self
            .services
            .key_of(inline.sealed.epoch)
            .await?
            .small_value_key();
        let mut plain = key.open(ValueBinding::content(inode), &inline.sealed.bytes)?;
        // A truncation shortened it, but could not cut the ciphertext.
        plain.truncate(usize::from(inline.length));
        Ok(Bytes::from(plain))
    }
}

/// The extents on a page, and the range of the file that it describes completely.
fn pieces_of(from: u64, page: &ContentPage) -> (Range<u64>, Vec<(u64, Piece)>) {
    let objects: BTreeMap<_, _> = page.objects.iter().map(|(id, row)| (*id, row)).collect();
    let slices: BTreeMap<_, _> = page
        .slices
        .iter()
        .filter_map(|(id, slice)| {
            let object = objects.get(&slice.object)?;
            let stored = StoredSlice {
                id: *id,
                slice: slice.clone(),
                object: (*object).clone(),
            };
            Some((*id, Arc::new(stored)))
        })
        .collect();
    let mut pieces = Vec::new();
    let mut until = from;
    for listed in &page.extents {
        let length = listed.extent.length;
        until = listed.offset.saturating_add(u64::from(length));
        if listed.extent.unwritten {
            continue;
        }
        match slices.get(&listed.extent.slice) {
            Some(stored) => {
                let slice_offset = listed.extent.slice_offset;
                pieces.push((
                    listed.offset,
                    Piece {
                        stored: stored.clone(),
                        slice_offset,
                        length,
                    },
                ));
            }
            // An answer that lacks a slice is incomplete from there on.
            None => return (from..listed.offset.max(from), pieces),
        }
    }
    let end = if page.more { until } else { u64::MAX };
    (from..end, pieces)
}
