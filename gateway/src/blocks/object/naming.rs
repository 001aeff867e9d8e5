//! Object names, and the keys of one cloud.
//!
//! A name is one block of AES-256 under the cloud's naming key, in hexadecimal behind its own first
//! two digits:
//!
//! ```text
//! block   allocation u64 ‖ counter u32 ‖ class u8 ‖ shard u8 ‖ attempt u8 ‖ generation u8
//!                                                                        (big-endian, 16)
//! name    2 hex / 32 hex of AES-256(naming key, block)
//! ```
//!
//! Without the key, names look random: a cloud cannot tell which of its objects belong together,
//! nor recognise an object's shard on another cloud. With the key, a name can be inverted, so a
//! collector needs no index. A permutation of distinct blocks never gives the same name twice. When
//! a shard has to be put again under create-only names, the *attempt* gives it another name.

use super::error::BlockError;
use crate::keys::CloudSecret;
use aws_lc_rs::cipher::{
    AES_256, DecryptingKey, DecryptionContext, EncryptingKey, UnboundCipherKey,
};
use quorumfs_backends::ObjectName;
use quorumfs_metadata::identity::{AllocationId, ObjectClass, ObjectId, ShardIndex};
use std::fmt;
use std::fmt::Write;
use zeroize::Zeroizing;

const NAMING_CONTEXT: &str = "quorumfs 2026 object names";
const HEADER_CONTEXT: &str = "quorumfs 2026 object header code";

/// The meaning of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    /// The object.
    pub object: ObjectId,
    /// The object's class.
    pub class: ObjectClass,
    /// The shard.
    pub shard: ShardIndex,
    /// The number of the shard's name.
    pub attempt: u8,
    /// The coding that the shard is of.
    pub generation: u8,
}

/// The keys that are derived from one cloud's secret.
#[derive(Clone)]
pub struct CloudKeys {
    naming: Zeroizing<[u8; 32]>,
    header: Zeroizing<[u8; 32]>,
}

impl fmt::Debug for CloudKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CloudKeys(…)")
    }
}

impl CloudKeys {
    /// Derives the keys.
    #[must_use]
    pub fn derive(secret: &CloudSecret) -> Self {
        Self {
            naming: Zeroizing::new(blake3::derive_key(NAMING_CONTEXT, secret.expose())),
            header: Zeroizing::new(blake3::derive_key(HEADER_CONTEXT, secret.expose())),
        }
    }

    /// The name of a shard.
    ///
    /// # Errors
    /// If the cipher fails, which it does not for keys and blocks of the right length.
    pub fn name(&self, named: &Named) -> Result<ObjectName, BlockError> {
        let mut block = [0; 16];
        let parts = named.object.to_be_bytes().into_iter().chain([
            named.class.0,
            named.shard.0,
            named.attempt,
            named.generation,
        ]);
        for (to, from) in block.iter_mut().zip(parts) {
            *to = from;
        }
        let failed = || BlockError::Naming {
            object: named.object,
        };
        UnboundCipherKey::new(&AES_256, self.naming.as_slice())
            .and_then(EncryptingKey::ecb)
            .and_then(|key| key.encrypt(&mut block))
            .map_err(|_| failed())?;
        let mut name = String::with_capacity(35);
        for byte in block.iter().take(1) {
            let _ = write!(name, "{byte:02x}/");
        }
        for byte in block {
            let _ = write!(name, "{byte:02x}");
        }
        ObjectName::parse(&name).map_err(|_| failed())
    }

    /// The meaning of a name; `None` if this key did not make it.
    #[must_use]
    pub fn invert(&self, name: &ObjectName) -> Option<Named> {
        let (place, digits) = name.parts();
        if digits.len() != 32 || !digits.starts_with(place) {
            return None;
        }
        let mut block = u128::from_str_radix(digits, 16).ok()?.to_be_bytes();
        let key = UnboundCipherKey::new(&AES_256, self.naming.as_slice()).ok()?;
        let key = DecryptingKey::ecb(key).ok()?;
        let plain = key.decrypt(&mut block, DecryptionContext::None).ok()?;
        let (allocation, rest) = plain.split_first_chunk::<8>()?;
        let (counter, rest) = rest.split_first_chunk::<4>()?;
        let [class, shard, attempt, generation] = rest else {
            return None;
        };
        Some(Named {
            object: ObjectId {
                allocation: AllocationId(u64::from_be_bytes(*allocation)),
                counter: u32::from_be_bytes(*counter),
            },
            class: ObjectClass(*class),
            shard: ShardIndex(*shard),
            attempt: *attempt,
            generation: *generation,
        })
    }

    /// The MAC at the end of a header.
    pub(super) fn header_code(&self, header: &[u8], object: ObjectId) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.header);
        hasher.update(header);
        hasher.update(&object.to_be_bytes());
        hasher.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Secret;
    use proptest::prelude::*;

    fn keys(secret: u8) -> CloudKeys {
        CloudKeys::derive(&CloudSecret::from_secret(Secret::from_bytes([secret; 32])))
    }

    proptest! {
        #[test]
        fn a_name_can_be_inverted_with_its_key_and_with_no_other(
            allocation: u64, counter: u32, class: u8, shard: u8, attempt: u8, generation: u8,
        ) {
            let object = ObjectId { allocation: AllocationId(allocation), counter };
            let named =
                Named {
                    object, class: ObjectClass(class), shard: ShardIndex(shard), attempt,
                    generation,
                };
            let name = keys(1).name(&named).unwrap();
            prop_assert_eq!(keys(1).invert(&name), Some(named));
            prop_assert_ne!(keys(2).invert(&name), Some(named));
            prop_assert_ne!(keys(2).name(&named).unwrap(), name);
        }
    }

    #[test]
    fn names_are_pinned() {
        let object = ObjectId {
            allocation: AllocationId(1),
            counter: 2,
        };
        let named = Named {
            object,
            class: ObjectClass::BLOCK,
            shard: ShardIndex(3),
            attempt: 0,
            generation: 0,
        };
        assert_eq!(
            keys(1).name(&named).unwrap().as_str(),
            "9c/9c3cac958e7e5f62ee2be0d97fd5abe2"
        );
    }
}
