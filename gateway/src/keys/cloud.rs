//! One random secret for each cloud, from which object names and header MACs are derived.
//!
//! Without it a cloud can neither tell which of its objects belong together nor forge a header; a
//! writer and the collector hold it, wrapped to their principals when the volume is created.

use super::{KeyError, Secret};
use quorumfs_metadata::identity::{CloudIndex, VolumeId};

/// The secret of one cloud of one volume.
#[derive(Clone, Debug)]
pub struct CloudSecret(Secret);

impl CloudSecret {
    /// A new one.
    ///
    /// # Errors
    /// If there is no randomness.
    pub fn random() -> Result<Self, KeyError> {
        Ok(Self(Secret::random()?))
    }

    /// The bytes, to derive naming and MAC keys from.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        self.0.expose()
    }

    /// Wraps an existing secret: an unwrapped one, or a test's.
    #[must_use]
    pub fn from_secret(secret: Secret) -> Self {
        Self(secret)
    }

    pub(crate) fn secret(&self) -> &Secret {
        &self.0
    }

    /// The context that a writer's wrapping of it is bound to.
    pub(crate) fn wrapping_info(volume: &VolumeId, cloud: CloudIndex) -> Vec<u8> {
        let mut info = b"quorumfs 2026 cloud secret".to_vec();
        info.extend_from_slice(&volume.0);
        info.extend_from_slice(&[cloud.0]);
        info
    }
}
