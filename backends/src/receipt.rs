//! A store's acknowledgement of the data that it took: a checksum that it computed itself.
//!
//! Providers compute a checksum of the data that arrives and return it. The caller of the put
//! compares it at once with its own ([`Receipt::is_for`]): a difference is a fault of the cloud or
//! of the network, and no acknowledgement. A stored receipt shows later whether bytes that differ
//! from the metadata are those that the cloud took.
//!
//! | Store | Receipt |
//! |---|---|
//! | S3 with checksums | CRC-32, which the SDK sends and the service verifies |
//! | S3 without | the entity tag, where it is the MD5 of the body |
//! | Azure Blob | CRC-64/NVME, where the service computes it, else MD5 |
//! | Google Cloud Storage | CRC-32C |
//! | a directory | CRC-32C of the data handed to the kernel |

use crc_fast::{CrcAlgorithm, checksum};
use md5::{Digest, Md5};
use std::fmt;

/// A checksum of the data that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// CRC-32 (ISO-HDLC), big-endian.
    Crc32([u8; 4]),
    /// CRC-32C (iSCSI), big-endian.
    Crc32c([u8; 4]),
    /// CRC-64/NVME, big-endian.
    Crc64([u8; 8]),
    /// MD5.
    Md5([u8; 16]),
}

fn crc32(algorithm: CrcAlgorithm, body: &[u8]) -> [u8; 4] {
    let [.., a, b, c, d] = checksum(algorithm, body).to_be_bytes();
    [a, b, c, d]
}

impl Receipt {
    /// The CRC-32 of these bytes.
    #[must_use]
    pub fn crc32(body: &[u8]) -> Self {
        Self::Crc32(crc32(CrcAlgorithm::Crc32IsoHdlc, body))
    }

    /// The CRC-32C of these bytes.
    #[must_use]
    pub fn crc32c(body: &[u8]) -> Self {
        Self::Crc32c(crc32(CrcAlgorithm::Crc32Iscsi, body))
    }

    /// The CRC-64/NVME of these bytes.
    #[must_use]
    pub fn crc64(body: &[u8]) -> Self {
        Self::Crc64(checksum(CrcAlgorithm::Crc64Nvme, body).to_be_bytes())
    }

    /// The MD5 of these bytes.
    #[must_use]
    pub fn md5(body: &[u8]) -> Self {
        Self::Md5(Md5::digest(body).into())
    }

    /// The checksum of the same kind of other bytes.
    #[must_use]
    pub fn of_same_kind(&self, body: &[u8]) -> Self {
        match self {
            Self::Crc32(_) => Self::crc32(body),
            Self::Crc32c(_) => Self::crc32c(body),
            Self::Crc64(_) => Self::crc64(body),
            Self::Md5(_) => Self::md5(body),
        }
    }

    /// Whether it is the receipt for exactly these bytes.
    #[must_use]
    pub fn is_for(&self, body: &[u8]) -> bool {
        self.of_same_kind(body) == *self
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (algorithm, bytes) = match self {
            Self::Crc32(bytes) => ("crc32", &bytes[..]),
            Self::Crc32c(bytes) => ("crc32c", &bytes[..]),
            Self::Crc64(bytes) => ("crc64nvme", &bytes[..]),
            Self::Md5(bytes) => ("md5", &bytes[..]),
        };
        write!(f, "{algorithm} ")?;
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksums_match_published_check_values() {
        let body = b"123456789";
        for (receipt, text) in [
            (Receipt::crc32(body), "crc32 cbf43926"),
            (Receipt::crc32c(body), "crc32c e3069283"),
            (Receipt::crc64(body), "crc64nvme ae8b14860a799888"),
            (Receipt::md5(body), "md5 25f9e794323b453885f5181f1b624d0b"),
        ] {
            assert_eq!(receipt.to_string(), text);
            assert!(receipt.is_for(body) && !receipt.is_for(b"123456788"));
        }
    }
}
