//! The header of an object, for tools that find it without metadata.
//!
//! ```text
//! magic "QFSOBJCT" 8 ‖ format u16 ‖ features u64 ‖ volume 16 ‖ cloud u8 ‖ class u8 ‖ shard u8
//! ‖ n u8 ‖ k u8 ‖ cell size u32 ‖ cells in this shard u32 ‖ stream length u32 ‖ MAC 32
//!                                                              (integers big-endian, 83 bytes)
//! ```
//!
//! The MAC is BLAKE3 keyed with the cloud's header key over all before it and the object's id,
//! which is not itself written: shards of one object must not be recognisable on different clouds.
//!
//! A reader does not need the header. It derives every field from the metadata, builds the header
//! anew and checks cells against a digest that covers it. The magic and the format are checked
//! before the bytes behind them are interpreted.

use super::layout::{CELL_BYTES, Layout};
use super::naming::CloudKeys;
use quorumfs_metadata::identity::{CloudIndex, ObjectClass, ObjectId, ShardIndex, VolumeId};
use quorumfs_metadata::placement::Policy;

/// Bytes of a header.
pub(in crate::blocks) const HEADER_BYTES: u64 = 83;
/// The newest format of an object that this version understands.
pub const FORMAT: u16 = 1;
/// The feature bits that this version understands.
pub const FEATURES: u64 = 0;

const MAGIC: &[u8; 8] = b"QFSOBJCT";

/// A header's bytes.
pub(in crate::blocks) type HeaderBytes = [u8; HEADER_BYTES as usize];

/// The fields of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::blocks) struct Header {
    pub(in crate::blocks) volume: VolumeId,
    pub(in crate::blocks) object: ObjectId,
    pub(in crate::blocks) cloud: CloudIndex,
    pub(in crate::blocks) class: ObjectClass,
    pub(in crate::blocks) shard: ShardIndex,
    pub(in crate::blocks) policy: Policy,
    pub(in crate::blocks) length: u32,
}

/// The format of supposed object bytes, judged by their first bytes alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::blocks) enum ObjectFormat {
    /// A known format.
    Known,
    /// A newer format, or unknown features.
    Newer {
        /// The format.
        format: u16,
    },
    /// No object of ours.
    Foreign,
}

impl Header {
    pub(in crate::blocks) fn encode(&self, keys: &CloudKeys) -> HeaderBytes {
        let layout = Layout::new(self.length, self.policy.data());
        let cells = layout.shard_cells(u64::from(self.shard.0));
        let mut bytes = Vec::with_capacity(HEADER_BYTES as usize);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORMAT.to_be_bytes());
        bytes.extend_from_slice(&FEATURES.to_be_bytes());
        bytes.extend_from_slice(&self.volume.0);
        bytes.extend_from_slice(&[
            self.cloud.0,
            self.class.0,
            self.shard.0,
            self.policy.clouds(),
            self.policy.data(),
        ]);
        bytes.extend_from_slice(&CELL_BYTES.to_be_bytes());
        bytes.extend_from_slice(&u32::try_from(cells).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend_from_slice(&self.length.to_be_bytes());
        let code = keys.header_code(&bytes, self.object);
        let mut header = [0; HEADER_BYTES as usize];
        for (to, from) in header.iter_mut().zip(bytes.iter().chain(&code)) {
            *to = *from;
        }
        header
    }
}

/// Judges bytes by their beginning.
pub(in crate::blocks) fn object_format(bytes: &[u8]) -> ObjectFormat {
    let Some(rest) = bytes.strip_prefix(MAGIC) else {
        return ObjectFormat::Foreign;
    };
    let Some((format, rest)) = rest.split_first_chunk::<2>() else {
        return ObjectFormat::Foreign;
    };
    let format = u16::from_be_bytes(*format);
    let Some(features) = rest.first_chunk::<8>() else {
        return ObjectFormat::Foreign;
    };
    if format > FORMAT || u64::from_be_bytes(*features) & !FEATURES != 0 {
        return ObjectFormat::Newer { format };
    }
    ObjectFormat::Known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{CloudSecret, Secret};
    use quorumfs_metadata::identity::AllocationId;

    #[test]
    fn the_bytes_of_a_header_never_change() {
        let keys = CloudKeys::derive(&CloudSecret::from_secret(Secret::from_bytes([5; 32])));
        let header = Header {
            volume: quorumfs_bft::identity::ClusterId([7; 16]),
            object: ObjectId {
                allocation: AllocationId(1),
                counter: 2,
            },
            cloud: CloudIndex(3),
            class: ObjectClass::BLOCK,
            shard: ShardIndex(1),
            policy: Policy::new(4, 1, 2, 4).unwrap(),
            length: 3 * CELL_BYTES + 5,
        };
        let bytes = header.encode(&keys);
        let plain: String = bytes.iter().take(51).map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            plain,
            "5146534f424a43540001000000000000000007070707070707070707070707070707\
             0301010402000100100000000200030035"
        );
        let other = ObjectId {
            counter: 3,
            ..header.object
        };
        assert_ne!(
            bytes,
            Header {
                object: other,
                ..header
            }
            .encode(&keys),
            "the MAC binds the id"
        );
        assert_eq!(object_format(&bytes), ObjectFormat::Known);
    }

    #[test]
    fn a_newer_format_or_feature_is_recognised_and_everything_else_is_foreign() {
        let mut bytes = [0u8; 20];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[9] = 1;
        assert_eq!(object_format(&bytes), ObjectFormat::Known);
        bytes[17] = 1;
        assert_eq!(object_format(&bytes), ObjectFormat::Newer { format: 1 });
        bytes[9] = 2;
        assert_eq!(object_format(&bytes), ObjectFormat::Newer { format: 2 });
        assert_eq!(object_format(&bytes[..12]), ObjectFormat::Foreign);
        bytes[0] ^= 1;
        assert_eq!(object_format(&bytes), ObjectFormat::Foreign);
    }
}
