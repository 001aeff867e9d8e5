//! The marker: the object that identifies the volume of a cloud.
//!
//! It is written when a volume is created and compared at every opening, so that a mistyped path or
//! bucket, a disk mounted in another's place or a directory of a user's photographs is refused
//! before anything is written into it. The magic and the format are checked before the fields after
//! them are interpreted.
//!
//! ```text
//! magic "QFSCLOUD" 8 ‖ format u16 ‖ features u64 ‖ volume id 16 ‖ cloud index u16
//! ‖ BLAKE3-256 of all before it, in derive-key mode
//!                                                   (integers big-endian, 68 bytes in all)
//! ```
//!
//! It never changes: no role of credentials may overwrite it. What changes with a recovery of the
//! volume, its incarnation, is no part of it.

use crate::error::StoreErrorKind;
use std::fmt;

/// The marker's name: a file in a local cloud's directory, an object below a remote cloud's prefix.
/// It is not a valid name of an object of the volume.
pub const MARKER_FILE: &str = "quorumfs.cloud";
/// The length of a marker of the current format, in bytes.
pub const MARKER_BYTES: usize = 68;
/// The format of a cloud that this version understands.
pub const FORMAT: u16 = 2;
/// The feature bits that this version understands.
pub const FEATURES: u64 = 0;

const MAGIC: &[u8; 8] = b"QFSCLOUD";
const CONTEXT: &str = "quorumfs 2026 cloud marker";

/// A cloud's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The volume that the objects belong to.
    pub volume: [u8; 16],
    /// The cloud's place in the volume's list of clouds.
    pub cloud: u16,
}

/// Why bytes are not the expected marker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MarkerError {
    /// It is empty.
    #[error("its marker is empty, as a full disk or a crash may leave it")]
    Empty,
    /// It does not begin like a marker.
    #[error("its marker is not one of quorumfs")]
    Magic,
    /// The format is newer.
    #[error("it has format {found}, and this version knows format {FORMAT}")]
    NewerFormat {
        /// The format found.
        found: u16,
    },
    /// The format is of an earlier release.
    #[error(
        "it has format {found}, and this version knows format {FORMAT} alone: copy the volume's \
         content out with the release that made it, and into a new volume"
    )]
    OlderFormat {
        /// The format found.
        found: u16,
    },
    /// A feature that this version does not know.
    #[error("it needs features {unknown:#x} that this version does not know")]
    UnknownFeatures {
        /// The bits that are not understood.
        unknown: u64,
    },
    /// It begins like a marker, but its length or checksum is wrong.
    #[error("its marker is damaged")]
    Damaged,
    /// It is the marker of another cloud.
    #[error("it is {found}, but {wanted} was expected")]
    Mismatch {
        /// The marker found.
        found: Marker,
        /// The marker that the configuration expects.
        wanted: Marker,
    },
}

impl MarkerError {
    /// The kind that callers decide on.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        match self {
            Self::Magic | Self::Mismatch { .. } | Self::OlderFormat { .. } => {
                StoreErrorKind::Foreign
            }
            Self::NewerFormat { .. } | Self::UnknownFeatures { .. } => StoreErrorKind::NewerFormat,
            Self::Empty | Self::Damaged => StoreErrorKind::Corrupt,
        }
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cloud {} of volume ", self.cloud)?;
        self.volume
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], MarkerError> {
    let (head, rest) = bytes.split_first_chunk::<N>().ok_or(MarkerError::Damaged)?;
    *bytes = rest;
    Ok(*head)
}

impl Marker {
    /// The marker's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MARKER_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORMAT.to_be_bytes());
        bytes.extend_from_slice(&FEATURES.to_be_bytes());
        bytes.extend_from_slice(&self.volume);
        bytes.extend_from_slice(&self.cloud.to_be_bytes());
        let sum = blake3::derive_key(CONTEXT, &bytes);
        bytes.extend_from_slice(&sum);
        bytes
    }

    /// Reads a marker.
    ///
    /// # Errors
    /// The coarsest fault that it has.
    pub fn decode(bytes: &[u8]) -> Result<Self, MarkerError> {
        let mut rest = bytes.strip_prefix(MAGIC).ok_or(match bytes {
            [] => MarkerError::Empty,
            begun if MAGIC.starts_with(begun) => MarkerError::Damaged,
            _ => MarkerError::Magic,
        })?;
        let found = u16::from_be_bytes(take(&mut rest)?);
        if found > FORMAT {
            return Err(MarkerError::NewerFormat { found });
        }
        if (1..FORMAT).contains(&found) {
            return Err(MarkerError::OlderFormat { found });
        }
        let unknown = u64::from_be_bytes(take(&mut rest)?) & !FEATURES;
        let volume = take(&mut rest)?;
        let cloud = u16::from_be_bytes(take(&mut rest)?);
        let (body, sum) = bytes
            .split_at_checked(MARKER_BYTES - 32)
            .ok_or(MarkerError::Damaged)?;
        if sum != blake3::derive_key(CONTEXT, body) {
            return Err(MarkerError::Damaged);
        }
        if unknown != 0 {
            return Err(MarkerError::UnknownFeatures { unknown });
        }
        Ok(Self { volume, cloud })
    }

    /// Reads a marker and compares it with the one that the configuration expects.
    ///
    /// # Errors
    /// As [`decode`](Self::decode), and `Mismatch`.
    pub fn check(wanted: Self, bytes: &[u8]) -> Result<(), MarkerError> {
        let found = Self::decode(bytes)?;
        if found == wanted {
            Ok(())
        } else {
            Err(MarkerError::Mismatch { found, wanted })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKER: Marker = Marker {
        volume: [7; 16],
        cloud: 2,
    };

    #[test]
    fn a_marker_reads_back_and_its_bytes_never_change() {
        let bytes = MARKER.encode();
        assert_eq!(bytes.len(), MARKER_BYTES);
        assert_eq!(Marker::decode(&bytes), Ok(MARKER));
        let hex: String = bytes.iter().take(36).map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "514653434c4f554400020000000000000000070707070707070707070707070707070002"
        );
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = MARKER.encode();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Marker::decode(&bad).is_err(), "bit {bit}");
        }
        for length in 0..good.len() {
            assert!(Marker::decode(&good[..length]).is_err(), "length {length}");
        }
    }

    #[test]
    fn a_truncated_text_is_not_taken_for_another() {
        let good = MARKER.encode();
        assert_eq!(Marker::decode(b""), Err(MarkerError::Empty));
        for length in [1, 7, 8, 9, MARKER_BYTES - 1] {
            let cut = Marker::decode(&good[..length]).unwrap_err();
            assert_eq!(cut.kind(), StoreErrorKind::Corrupt, "{length}: {cut}");
        }
        let other = Marker::decode(b"photo").unwrap_err();
        assert_eq!(other.kind(), StoreErrorKind::Foreign);
    }

    #[test]
    fn a_newer_format_is_refused_before_its_checksum_is_looked_at() {
        let mut bytes = MARKER.encode();
        bytes[9] = 3;
        assert_eq!(
            Marker::decode(&bytes),
            Err(MarkerError::NewerFormat { found: 3 })
        );
        // The first format was eight bytes longer.
        bytes[9] = 1;
        bytes.extend([0; 8]);
        let older = Marker::decode(&bytes).unwrap_err();
        assert_eq!(older, MarkerError::OlderFormat { found: 1 });
        assert_eq!(older.kind(), StoreErrorKind::Foreign);
    }

    #[test]
    fn an_unknown_feature_is_refused_by_name() {
        let mut bytes = MARKER.encode();
        bytes[17] = 4;
        let sum = blake3::derive_key(CONTEXT, &bytes[..MARKER_BYTES - 32]);
        bytes[MARKER_BYTES - 32..].copy_from_slice(&sum);
        assert_eq!(
            Marker::decode(&bytes),
            Err(MarkerError::UnknownFeatures { unknown: 4 })
        );
    }
}
