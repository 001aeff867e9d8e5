//! One random secret for each cloud, from which object names and header MACs are derived.
//!
//! Without it a cloud can neither tell which of its objects belong together nor forge a header; a
//! writer and the collector hold it, wrapped to their principals when the volume is created or the
//! cloud is added.
//!
//! The location of a cloud that is added later is sealed under its secret with AES-256-GCM-SIV, so
//! that the volume's other machines learn it and the servers do not. A secret seals one location;
//! sealing another one after an interrupted command would reveal no more than that they differ.

use super::{KeyError, Secret};
use aes_gcm_siv::aead::{Aead, KeyInit, Payload};
use aes_gcm_siv::{Aes256GcmSiv, Nonce};
use quorumfs_bft::identity::Digest;
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

    /// What an administrator signs in its place: no other secret has this hash, and nothing follows
    /// from it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let secret = self.0.derive("quorumfs 2026 cloud secret digest", &[]);
        Digest(*secret.expose())
    }

    fn location_cipher(&self, volume: &VolumeId, cloud: CloudIndex) -> Aes256GcmSiv {
        let place: [&[u8]; 2] = [&volume.0, &[cloud.0]];
        let key = self.0.derive("quorumfs 2026 cloud location", &place);
        Aes256GcmSiv::new(key.expose().into())
    }

    /// Seals the location of a cloud that is added.
    ///
    /// # Errors
    /// If the cipher fails, which it does not for so short a text.
    pub fn seal_location(
        &self,
        volume: &VolumeId,
        cloud: CloudIndex,
        location: &str,
    ) -> Result<Vec<u8>, KeyError> {
        let payload = Payload {
            msg: location.as_bytes(),
            aad: &[],
        };
        let cipher = self.location_cipher(volume, cloud);
        let sealed = cipher.encrypt(&Nonce::default(), payload);
        sealed.map_err(|_| KeyError::Unwrap {
            what: "cloud location",
        })
    }

    /// The location of a cloud that was added.
    ///
    /// # Errors
    /// If it was not sealed under this secret for this cloud.
    pub fn open_location(
        &self,
        volume: &VolumeId,
        cloud: CloudIndex,
        sealed: &[u8],
    ) -> Result<String, KeyError> {
        let wrong = KeyError::Unwrap {
            what: "cloud location",
        };
        let payload = Payload {
            msg: sealed,
            aad: &[],
        };
        let cipher = self.location_cipher(volume, cloud);
        let opened = cipher.decrypt(&Nonce::default(), payload);
        let text = opened.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        text.ok_or(wrong)
    }

    /// The context that a writer's wrapping of it is bound to.
    pub(crate) fn wrapping_info(volume: &VolumeId, cloud: CloudIndex) -> Vec<u8> {
        let mut info = b"quorumfs 2026 cloud secret".to_vec();
        info.extend_from_slice(&volume.0);
        info.extend_from_slice(&[cloud.0]);
        info
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::identity::ClusterId;

    #[test]
    fn a_location_opens_with_its_own_secret_for_its_own_cloud_alone() {
        let secret = |byte| CloudSecret::from_secret(Secret::from_bytes([byte; 32]));
        let (volume, other) = (ClusterId([7; 16]), ClusterId([8; 16]));
        let cloud = CloudIndex(4);
        let sealed = secret(1).seal_location(&volume, cloud, "s3://bucket/prefix");
        let sealed = sealed.unwrap();
        let open = |secret: CloudSecret, volume, cloud| {
            secret
                .open_location(volume, CloudIndex(cloud), &sealed)
                .ok()
        };
        let opened = open(secret(1), &volume, 4);
        assert_eq!(opened.as_deref(), Some("s3://bucket/prefix"));
        assert_eq!(open(secret(2), &volume, 4), None);
        assert_eq!(open(secret(1), &other, 4), None);
        assert_eq!(open(secret(1), &volume, 5), None);
        assert_ne!(secret(1).digest(), secret(2).digest());
        assert_ne!(secret(1).digest().0, *secret(1).expose());
    }
}
