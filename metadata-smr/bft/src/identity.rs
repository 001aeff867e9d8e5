//! The newtypes of the protocol.
//!
//! No bare integer crosses a module border: a view is not a sequence, and a time that all replicas
//! agreed on is not the time of one replica's own clock.

use borsh::{BorshDeserialize, BorshSerialize};
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// Declares a kind of number: it is copied, compared, printed and encoded as its integer is.
///
/// For this workspace's services, which number things too; a crate that uses it depends on borsh.
#[doc(hidden)]
#[macro_export]
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default,
            ::borsh::BorshSerialize, ::borsh::BorshDeserialize,
        )]
        pub struct $name(pub $inner);

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number! {
    /// A replica's index in its epoch's membership, counted from 0.
    ReplicaId(u16)
}
number! {
    /// One membership and protocol; epochs follow each other from genesis (0).
    Epoch(u64)
}
number! {
    /// One ordering instance over the replicas; 0 unless several leaders run in parallel.
    Group(u16)
}
number! {
    /// A leader's term: the leader of view v in group g is replica (v + g) mod n.
    View(u64)
}
number! {
    /// A batch's position in the order, counted from 1; 0 stands for genesis.
    Sequence(u64)
}
number! {
    /// A client session, assigned by order and never reused.
    SessionId(u64)
}
number! {
    /// One closed loop of a session.
    Lane(u16)
}
number! {
    /// A request's number in its lane, counted from 1.
    RequestNumber(u64)
}
number! {
    /// Nanoseconds since the Unix epoch, as agreed in a batch or as read off one wall clock.
    Time(u64)
}
number! {
    /// A length of time in nanoseconds.
    Nanos(u64)
}
number! {
    /// Nanoseconds on one process's monotonic clock; comparable only within that process.
    Monotonic(u64)
}
number! {
    /// A transport connection of a client to one replica; means nothing elsewhere.
    ConnectionId(u64)
}

impl Nanos {
    /// `count` milliseconds.
    #[must_use]
    pub const fn from_millis(count: u64) -> Self {
        Self(count.saturating_mul(1_000_000))
    }
    /// `count` seconds.
    #[must_use]
    pub const fn from_secs(count: u64) -> Self {
        Self(count.saturating_mul(1_000_000_000))
    }
}

impl Time {
    /// This time moved forward, stopping at the end of what can be represented.
    #[must_use]
    pub const fn plus(self, length: Nanos) -> Self {
        Self(self.0.saturating_add(length.0))
    }
    /// How long after `earlier` this is; zero if it is not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Monotonic {
    /// This instant moved forward.
    #[must_use]
    pub const fn plus(self, length: Nanos) -> Self {
        Self(self.0.saturating_add(length.0))
    }
    /// How long after `earlier` this is; zero if it is not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Sequence {
    /// The position after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl View {
    /// The view after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl ReplicaId {
    /// No member's number.
    pub const NONE: Self = Self(u16::MAX);
}

/// Text that does not encode the expected bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has to be {digits} hexadecimal digits")]
pub struct NotHexadecimal {
    /// How many are expected.
    pub digits: usize,
}

macro_rules! bytes {
    ($(#[$doc:meta])* $name:ident[$length:literal]) => {
        const _: () = assert!($length % 8 == 0, "it is compared by words of eight bytes");
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, BorshSerialize, BorshDeserialize)]
        pub struct $name(pub [u8; $length]);

        impl Ord for $name {
            /// By bytes; compared eight at a time, since map keys are compared often.
            fn cmp(&self, other: &Self) -> Ordering {
                let (own, others) = (self.0.as_chunks::<8>().0, other.0.as_chunks::<8>().0);
                let words = own.iter().zip(others);
                let mut words =
                    words.map(|(a, b)| u64::from_be_bytes(*a).cmp(&u64::from_be_bytes(*b)));
                words.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
            }
        }
        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self([0; $length])
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
        impl FromStr for $name {
            type Err = NotHexadecimal;

            fn from_str(text: &str) -> Result<Self, NotHexadecimal> {
                let wrong = NotHexadecimal { digits: 2 * $length };
                let mut digits = text.chars().map(|digit| digit.to_digit(16));
                let mut bytes = [0; $length];
                for byte in &mut bytes {
                    let (high, low) = (digits.next().flatten(), digits.next().flatten());
                    let both = high.zip(low).ok_or(wrong)?;
                    *byte = u8::try_from(16 * both.0 + both.1).map_err(|_| wrong)?;
                }
                match digits.next() {
                    None => Ok(Self(bytes)),
                    Some(_) => Err(wrong),
                }
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}(", stringify!($name))?;
                self.0.iter().take(6).try_for_each(|byte| write!(f, "{byte:02x}"))?;
                f.write_str(")")
            }
        }
    };
}

bytes! {
    /// A cluster's random identity, chosen at genesis; a volume's id is its cluster's.
    ClusterId[16]
}
bytes! {
    /// The identity at the beginning of a replica's journal: random, and another one after each
    /// loss.
    Incarnation[16]
}
bytes! {
    /// BLAKE3-256 under a derive-key context that names what was hashed.
    Digest[32]
}
bytes! {
    /// An Ed25519 verification key.
    PublicKey[32]
}
bytes! {
    /// An Ed25519 signature, checked by ZIP-215 rules.
    Signature[64]
}

/// The time that a driver passes to the core with every event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// This process's wall clock: may jump, may be wrong; proposals are stamped with it.
    pub clock: Time,
    /// This process's monotonic clock: waits are measured with it.
    pub monotonic: Monotonic,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn digests_are_sorted_by_their_bytes(a: [u8; 32], b: [u8; 32], same in 0..=32_usize) {
            let mut b = b;
            b[..same].copy_from_slice(&a[..same]);
            prop_assert_eq!(Digest(a).cmp(&Digest(b)), a.cmp(&b));
        }

        #[test]
        fn bytes_are_what_they_print(bytes: [u8; 16], cut in 0..32_usize) {
            let incarnation = Incarnation(bytes);
            let digits = incarnation.to_string();
            prop_assert_eq!(digits.parse(), Ok(incarnation));
            prop_assert_eq!(digits.to_uppercase().parse(), Ok(incarnation));
            let signed = format!("+{}", &digits[1..]);
            for wrong in [digits[..cut].to_owned(), format!("{digits}0"), signed] {
                prop_assert!(wrong.parse::<Incarnation>().is_err(), "{}", wrong);
            }
        }
    }
}
