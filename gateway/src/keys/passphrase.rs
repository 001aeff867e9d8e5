//! A passphrase, and the key derived from it: Argon2id (RFC 9106).
//!
//! The cost of a guess is stored with the sealed data, so that it can rise later. A file states its
//! cost before anything in it can be verified; so the cost is bounded when it is read, and a
//! hostile file cannot make this process take gigabytes or hours.

use super::{KeyError, Secret};
use argon2::{Algorithm, Argon2, Params, Version};
use std::fmt;
use zeroize::Zeroizing;

/// The longest passphrase, in bytes.
pub const PASSPHRASE_BYTES_MAX: usize = 1024;
/// Bytes of the salt.
pub(super) const SALT_BYTES: usize = 16;
/// Bytes of [`Cost`] as it is stored.
pub(super) const COST_BYTES: usize = 12;

/// A secret of a person or a machine. Wiped when dropped, never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Passphrase(Zeroizing<Vec<u8>>);

impl fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passphrase(…)")
    }
}

impl Passphrase {
    /// Takes bytes as they were typed or read; a trailing line end does not count.
    ///
    /// # Errors
    /// If there are none, or too many.
    pub fn from_bytes(mut bytes: Zeroizing<Vec<u8>>) -> Result<Self, KeyError> {
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        match bytes.len() {
            0 => Err(KeyError::EmptyPassphrase),
            length if length > PASSPHRASE_BYTES_MAX => Err(KeyError::TooLong {
                what: "passphrase",
                length,
                most: PASSPHRASE_BYTES_MAX,
            }),
            _ => Ok(Self(bytes)),
        }
    }

    /// The bytes, for the kernel's keyring or for a process of our own.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// The key from this passphrase, salt and cost.
    pub(super) fn key(&self, salt: &[u8; SALT_BYTES], cost: Cost) -> Result<Secret, KeyError> {
        let refused = |error: argon2::Error| KeyError::Derivation {
            reason: error.to_string(),
        };
        let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, cost.params()?);
        let mut key = Zeroizing::new([0; 32]);
        argon
            .hash_password_into(&self.0, salt, key.as_mut_slice())
            .map_err(refused)?;
        Ok(Secret::from_bytes(*key))
    }
}

/// The cost of one guess.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Memory, in KiB.
    pub memory_kib: u32,
    /// Passes over it.
    pub passes: u32,
    /// Lanes that it is divided into.
    pub lanes: u32,
}

impl Cost {
    /// The second choice recommended by RFC 9106, for machines with little memory.
    pub const USUAL: Self = Self {
        memory_kib: 64 << 10,
        passes: 3,
        lanes: 4,
    };
    /// The highest cost that is accepted from a file.
    pub const MOST: Self = Self {
        memory_kib: 256 << 10,
        passes: 16,
        lanes: 16,
    };

    pub(super) fn to_bytes(self) -> [u8; COST_BYTES] {
        let mut bytes = [0; COST_BYTES];
        let numbers = [self.memory_kib, self.passes, self.lanes];
        for (place, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; COST_BYTES]) -> Result<Self, KeyError> {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        let cost = Self {
            memory_kib: u32::from_be_bytes([a, b, c, d]),
            passes: u32::from_be_bytes([e, f, g, h]),
            lanes: u32::from_be_bytes([i, j, k, l]),
        };
        cost.params()?;
        Ok(cost)
    }

    fn params(self) -> Result<Params, KeyError> {
        let most = Self::MOST;
        let fits = self.memory_kib <= most.memory_kib
            && self.passes <= most.passes
            && self.lanes <= most.lanes;
        let params = Params::new(self.memory_kib, self.passes, self.lanes, Some(32));
        params
            .ok()
            .filter(|_| fits)
            .ok_or_else(|| KeyError::Untrusted {
                what: "the key file",
                reason: format!(
                    "it asks for {} KiB of memory, {} passes and {} lanes to open it, and at most \
                     {}, {} and {} are spent; take it from a backup",
                    self.memory_kib,
                    self.passes,
                    self.lanes,
                    most.memory_kib,
                    most.passes,
                    most.lanes
                ),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passphrase(text: &[u8]) -> Result<Passphrase, KeyError> {
        Passphrase::from_bytes(Zeroizing::new(text.to_vec()))
    }

    #[test]
    fn the_end_of_a_line_is_no_part_of_a_passphrase() {
        for text in [b"words".as_slice(), b"words\n", b"words\r\n"] {
            assert_eq!(passphrase(text).unwrap().expose(), b"words");
        }
        assert_eq!(passphrase(b" words \n\n").unwrap().expose(), b" words \n");
        assert!(matches!(passphrase(b"\n"), Err(KeyError::EmptyPassphrase)));
        let long = vec![b'x'; PASSPHRASE_BYTES_MAX + 1];
        assert!(matches!(passphrase(&long), Err(KeyError::TooLong { .. })));
        assert_eq!(
            format!("{:?}", passphrase(b"words").unwrap()),
            "Passphrase(…)"
        );
    }

    #[test]
    fn a_cost_beyond_the_bounds_is_refused_before_it_is_paid() {
        let good = Cost::MOST;
        assert_eq!(Cost::from_bytes(good.to_bytes()).unwrap(), good);
        for bad in [
            Cost {
                memory_kib: good.memory_kib + 1,
                ..good
            },
            Cost {
                passes: good.passes + 1,
                ..good
            },
            Cost { passes: 0, ..good },
            Cost {
                lanes: good.lanes + 1,
                ..good
            },
            Cost { lanes: 0, ..good },
            Cost {
                memory_kib: 7,
                passes: 1,
                lanes: 1,
            },
            Cost {
                memory_kib: u32::MAX,
                passes: u32::MAX,
                lanes: u32::MAX,
            },
        ] {
            let error = Cost::from_bytes(bad.to_bytes()).unwrap_err().to_string();
            assert!(error.contains("at most"), "{bad:?}: {error}");
        }
    }

    /// The bytes are those of the reference implementation for the same input.
    #[test]
    fn the_derived_key_is_pinned_to_its_golden_bytes() {
        let cost = Cost {
            memory_kib: 64,
            passes: 2,
            lanes: 2,
        };
        let key = passphrase(b"correct horse")
            .unwrap()
            .key(&[7; SALT_BYTES], cost)
            .unwrap();
        crate::keys::lines::assert_golden("passphrase_key", key.expose());
        let other = passphrase(b"correct horsf")
            .unwrap()
            .key(&[7; SALT_BYTES], cost)
            .unwrap();
        assert_ne!(key, other);
    }
}
