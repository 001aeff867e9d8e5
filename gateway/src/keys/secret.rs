//! Thirty-two secret bytes, and the one way to derive others from them.

use super::KeyError;
use std::fmt;
use zeroize::Zeroizing;

/// Thirty-two secret bytes, wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<[u8; 32]>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// Draws one from the operating system.
    ///
    /// # Errors
    /// If the system has no randomness.
    pub fn random() -> Result<Self, KeyError> {
        let mut bytes = Zeroizing::new([0; 32]);
        getrandom::fill(bytes.as_mut_slice()).map_err(|error| KeyError::Random {
            reason: error.to_string(),
        })?;
        Ok(Self(bytes))
    }

    /// Wraps existing secret bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The bytes themselves, for a cipher or a wrapping.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// Derives another secret: BLAKE3 in derive-key mode over this secret and `parts`.
    ///
    /// `context` names the use and is unique to it; every part must be of a length that the
    /// context fixes, so that two different lists of parts never give the same input.
    #[must_use]
    pub fn derive(&self, context: &str, parts: &[&[u8]]) -> Self {
        let mut output = Zeroizing::new([0; 32]);
        self.expand(context, parts, output.as_mut_slice());
        Self(output)
    }

    /// As [`Secret::derive`], for ciphers with a key of 64 bytes.
    #[must_use]
    pub fn derive_wide(&self, context: &str, parts: &[&[u8]]) -> Zeroizing<[u8; 64]> {
        let mut output = Zeroizing::new([0; 64]);
        self.expand(context, parts, output.as_mut_slice());
        output
    }

    pub(super) fn expand(&self, context: &str, parts: &[&[u8]], output: &mut [u8]) {
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(self.0.as_slice());
        for part in parts {
            hasher.update(part);
        }
        hasher.finalize_xof().fill(output);
    }
}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn contexts_and_parts_separate_what_is_derived() {
        let secret = Secret::from_bytes([7; 32]);
        let a = secret.derive("a", &[&[1]]);
        assert_ne!(a, secret.derive("b", &[&[1]]));
        assert_ne!(a, secret.derive("a", &[&[2]]));
        assert_ne!(a, Secret::from_bytes([8; 32]).derive("a", &[&[1]]));
        assert_eq!(a, secret.derive("a", &[&[1]]));
    }

    #[test]
    fn debug_shows_no_secret() {
        assert_eq!(format!("{:?}", Secret::from_bytes([7; 32])), "Secret(…)");
    }
}
