//! Credentials of a cloud that an administrator gives a principal, sealed for it alone.
//!
//! ```text
//! wrapped 80 (a fresh secret, HPKE to the principal's wrapping key) ‖ ciphertext and tag
//! ```
//!
//! Servers and other members see the length and whose they are. The place is bound: credentials
//! for one principal, cloud or volume are void for any other. That an administrator gave them is
//! said by the signature of the change that they are in.

use super::wrap::{WRAPPED_BYTES, Wrapped, wrap};
use super::{KeyError, Principal, PrincipalId, Secret};
use aes_gcm_siv::aead::{Aead, KeyInit};
use aes_gcm_siv::{Aes256GcmSiv, Nonce};
use quorumfs_metadata::identity::{CloudIndex, VolumeId};
use zeroize::Zeroizing;

const WHAT: &str = "credentials of a cloud";
const CONTEXT: &[u8] = b"quorumfs 2026 credentials of a cloud v1";
/// The secret seals one value.
const NONCE: [u8; 12] = [0; 12];

/// Where credentials belong.
#[derive(Clone, Copy, Debug)]
pub struct CredentialsPlace<'a> {
    /// The volume.
    pub volume: &'a VolumeId,
    /// The cloud.
    pub cloud: CloudIndex,
}

impl CredentialsPlace<'_> {
    fn info(&self, principal: &PrincipalId) -> Vec<u8> {
        let cloud = [self.cloud.0];
        [CONTEXT, &self.volume.0, &cloud, &principal.signing.0].concat()
    }

    /// Seals credentials for a principal.
    ///
    /// # Errors
    /// If there is no randomness, or its wrapping key is none.
    pub fn seal(&self, principal: &PrincipalId, plain: &[u8]) -> Result<Vec<u8>, KeyError> {
        let secret = Secret::random()?;
        let info = self.info(principal);
        let Wrapped(wrapped) = wrap(WHAT, &secret, &principal.wrapping, &info)?;
        let cipher = Aes256GcmSiv::new(secret.expose().into());
        let sealed = cipher.encrypt(&Nonce::from(NONCE), plain);
        let sealed = sealed.map_err(|_| KeyError::Unwrap { what: WHAT })?;
        Ok([&wrapped[..], &sealed].concat())
    }

    /// Opens what was sealed for this principal in this place.
    ///
    /// # Errors
    /// If it was sealed for another one, or changed.
    pub fn open(&self, me: &Principal, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, KeyError> {
        let refused = || KeyError::Unwrap { what: WHAT };
        let (wrapped, sealed) = sealed
            .split_first_chunk::<WRAPPED_BYTES>()
            .ok_or_else(refused)?;
        let secret = me.unwrap(WHAT, &Wrapped(*wrapped), &self.info(&me.id()))?;
        let cipher = Aes256GcmSiv::new(secret.expose().into());
        let plain = cipher.decrypt(&Nonce::from(NONCE), sealed);
        plain.map(Zeroizing::new).map_err(|_| refused())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::identity::ClusterId;

    #[test]
    fn credentials_open_for_their_principal_in_their_place_alone() {
        let (bob, eve) = (Principal::random().unwrap(), Principal::random().unwrap());
        let volumes = [ClusterId([1; 16]), ClusterId([2; 16])];
        let place = |volume, cloud| CredentialsPlace {
            volume,
            cloud: CloudIndex(cloud),
        };
        let right = place(&volumes[0], 3);
        let sealed = right.seal(&bob.id(), b"key = secret").unwrap();
        assert_eq!(
            right.open(&bob, &sealed).unwrap().as_slice(),
            b"key = secret"
        );
        assert!(right.open(&eve, &sealed).is_err());
        assert!(place(&volumes[0], 2).open(&bob, &sealed).is_err());
        assert!(place(&volumes[1], 3).open(&bob, &sealed).is_err());
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(right.open(&bob, &changed).is_err(), "{at}");
            assert!(right.open(&bob, &sealed[..at]).is_err(), "{at}");
        }
    }
}
