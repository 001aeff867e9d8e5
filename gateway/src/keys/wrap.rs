//! Wrapping a secret for one principal: HPKE (RFC 9180) in base mode.
//!
//! Suite: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM, one message for each encapsulation.
//! Base mode does not authenticate the wrapping principal; the signature on the surrounding
//! structure (genesis, later a membership row) does. `info` binds the wrapping to its place, so
//! that a key wrapped for one realm, epoch or cloud is void anywhere else.

use super::{KeyError, Secret};
use borsh::{BorshDeserialize, BorshSerialize};
use hpke::aead::{AeadTag, AesGcm256};
use hpke::inout::InOutBuf;
use hpke::kdf::HkdfSha256;
use hpke::kem::X25519HkdfSha256;
use hpke::rand_core::{TryCryptoRng, TryRng};
use hpke::{Deserializable, Kem, OpModeR, OpModeS, Serializable};
use std::convert::Infallible;
use zeroize::Zeroizing;

/// The length of a [`Wrapped`] secret: encapsulated key, ciphertext, tag.
pub const WRAPPED_BYTES: usize = 32 + 32 + 16;

/// An X25519 public key that secrets are wrapped to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct WrappingKey(pub [u8; 32]);

/// A secret that only one principal can read.
#[derive(Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Wrapped(pub [u8; WRAPPED_BYTES]);

impl std::fmt::Debug for Wrapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wrapped(80 bytes)")
    }
}

/// Randomness drawn beforehand, since HPKE requires a source that cannot fail.
struct Drawn(blake3::OutputReader);

impl Drawn {
    fn from(seed: &Secret) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("quorumfs 2026 hpke ephemeral");
        hasher.update(seed.expose());
        Self(hasher.finalize_xof())
    }
}

impl TryRng for Drawn {
    type Error = Infallible;
    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let mut bytes = [0; 4];
        self.0.fill(&mut bytes);
        Ok(u32::from_le_bytes(bytes))
    }
    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        Ok(u64::from_le_bytes(bytes))
    }
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.0.fill(bytes);
        Ok(())
    }
}
impl TryCryptoRng for Drawn {}

/// A principal's X25519 pair, derived from its seed.
pub(super) fn key_pair(seed: &Secret) -> (<X25519HkdfSha256 as Kem>::PrivateKey, WrappingKey) {
    let ikm = seed.derive("quorumfs 2026 principal wrapping", &[]);
    let (private, public) = X25519HkdfSha256::derive_keypair(ikm.expose());
    let mut bytes = [0; 32];
    bytes.copy_from_slice(&public.to_bytes());
    (private, WrappingKey(bytes))
}

/// Wraps `secret` for the holder of `to`, bound to `info`.
///
/// # Errors
/// If there is no randomness, or `to` is no valid public key.
pub fn wrap(
    what: &'static str,
    secret: &Secret,
    to: &WrappingKey,
    info: &[u8],
) -> Result<Wrapped, KeyError> {
    wrap_with(what, secret, to, info, &Secret::random()?)
}

fn wrap_with(
    what: &'static str,
    secret: &Secret,
    to: &WrappingKey,
    info: &[u8],
    randomness: &Secret,
) -> Result<Wrapped, KeyError> {
    let refused = |_| KeyError::Unwrap { what };
    let public = <X25519HkdfSha256 as Kem>::PublicKey::from_bytes(&to.0).map_err(refused)?;
    let mut body = Zeroizing::new(*secret.expose());
    let (key, tag) =
        hpke::single_shot_seal_inout_detached_with_rng::<AesGcm256, HkdfSha256, X25519HkdfSha256>(
            &OpModeS::Base,
            &public,
            info,
            InOutBuf::from(body.as_mut_slice()),
            &[],
            &mut Drawn::from(randomness),
        )
        .map_err(refused)?;
    let mut wrapped = [0; WRAPPED_BYTES];
    let (head, rest) = wrapped.split_at_mut(32);
    let (middle, tail) = rest.split_at_mut(32);
    head.copy_from_slice(&key.to_bytes());
    middle.copy_from_slice(body.as_slice());
    tail.copy_from_slice(&tag.to_bytes());
    Ok(Wrapped(wrapped))
}

/// Opens a secret that [`wrap`] wrapped for the principal with `seed`, in the same place.
///
/// # Errors
/// If it was made for another principal or another place, or was changed.
pub(super) fn unwrap(
    what: &'static str,
    wrapped: &Wrapped,
    seed: &Secret,
    info: &[u8],
) -> Result<Secret, KeyError> {
    let refused = |_| KeyError::Unwrap { what };
    let (private, _) = key_pair(seed);
    let (head, rest) = wrapped.0.split_at(32);
    let (middle, tail) = rest.split_at(32);
    let key = <X25519HkdfSha256 as Kem>::EncappedKey::from_bytes(head).map_err(refused)?;
    let tag = AeadTag::<AesGcm256>::from_bytes(tail).map_err(refused)?;
    let mut body = Zeroizing::new([0; 32]);
    body.copy_from_slice(middle);
    hpke::single_shot_open_inout_detached::<AesGcm256, HkdfSha256, X25519HkdfSha256>(
        &OpModeR::Base,
        &private,
        &key,
        info,
        InOutBuf::from(body.as_mut_slice()),
        &[],
        &tag,
    )
    .map_err(refused)?;
    Ok(Secret::from_bytes(*body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_member_opens_it_and_only_in_its_place() {
        let (mine, other) = (Secret::from_bytes([1; 32]), Secret::from_bytes([2; 32]));
        let secret = Secret::from_bytes([3; 32]);
        let wrapped = wrap("secret", &secret, &key_pair(&mine).1, b"place").unwrap();
        assert_eq!(unwrap("secret", &wrapped, &mine, b"place").unwrap(), secret);
        assert!(unwrap("secret", &wrapped, &other, b"place").is_err());
        assert!(unwrap("secret", &wrapped, &mine, b"elsewhere").is_err());
        for at in 0..WRAPPED_BYTES {
            let mut changed = wrapped;
            changed.0[at] ^= 1;
            assert!(
                unwrap("secret", &changed, &mine, b"place").is_err(),
                "byte {at}"
            );
        }
    }

    #[test]
    fn nothing_is_wrapped_to_a_useless_key() {
        let secret = Secret::from_bytes([3; 32]);
        for useless in quorumfs_metadata::people::USELESS_WRAPPING_KEYS {
            for high in [0, 0x80] {
                let mut key = useless;
                key[31] |= high;
                assert!(
                    wrap("secret", &secret, &key.into(), b"place").is_err(),
                    "{key:?}"
                );
            }
        }
    }

    #[test]
    fn the_wrapping_is_pinned_to_its_golden_bytes() {
        let seed = Secret::from_bytes([1; 32]);
        let (_, public) = key_pair(&seed);
        let wrapped = wrap_with(
            "secret",
            &Secret::from_bytes([3; 32]),
            &public,
            b"place",
            &Secret::from_bytes([9; 32]),
        )
        .unwrap();
        crate::keys::lines::assert_golden("principal_wrapping_key", &public.0);
        crate::keys::lines::assert_golden("wrapped_secret", &wrapped.0);
    }
}
