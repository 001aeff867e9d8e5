//! Shamir's secret sharing: one share for each cloud, of which any f + 1 give the secret back.
//!
//! Byte by byte over GF(2⁸) with the polynomial of AES, 0x11b. Every byte of the secret is the
//! value at 0 of a polynomial of degree f; the share of cloud i is its value at i + 1. Given f
//! shares, every secret is equally likely. That holds only if **every coefficient is drawn from all
//! 256 values**: including 0, including the leading one, including repetitions. Libraries have got
//! this wrong (`sharks`, and the GF(2⁸) of `vsss-rs` before 2026), which is why this code exists:
//! the arithmetic is small, and the risk is not in the arithmetic.
//!
//! No branch and no table lookup depends on a secret byte. The cloud of a share is no secret. A
//! share does not prove its own correctness: digests of all shares are ordered with the epoch (see
//! `epoch`), and each share is compared with its digest before shares are joined.

use super::{KeyError, Secret};
use zeroize::Zeroizing;

/// A cloud's share: as long as the secret, and as secret.
pub type Share = Secret;

/// The product, in constant time.
fn times(mut a: u8, b: u8) -> u8 {
    let mut product = 0;
    for bit in 0..8 {
        product ^= a & 0_u8.wrapping_sub(b >> bit & 1);
        a = (a << 1) ^ (0x1b & 0_u8.wrapping_sub(a >> 7));
    }
    product
}

/// The inverse: a²⁵⁴, as 254 = 2 + 4 + 8 + … + 128.
fn inverse(a: u8) -> u8 {
    let (mut power, mut product) = (a, 1);
    for _ in 0..7 {
        power = times(power, power);
        product = times(product, power);
    }
    product
}

/// The x of a cloud: never 0, which is the secret's.
fn place(cloud: u8) -> Option<u8> {
    cloud.checked_add(1)
}

/// The value at `x` of a polynomial whose constant is the secret.
fn value(secret: &Secret, coefficients: &[Secret], x: u8) -> Share {
    let mut sum = Zeroizing::new([0; 32]);
    for coefficient in coefficients.iter().rev() {
        for (sum, coefficient) in sum.iter_mut().zip(coefficient.expose()) {
            *sum = times(*sum ^ coefficient, x);
        }
    }
    for (sum, secret) in sum.iter_mut().zip(secret.expose()) {
        *sum ^= secret;
    }
    Secret::from_bytes(*sum)
}

/// Shares for these clouds, any `faulty` + 1 of which give the secret back.
///
/// # Errors
/// If there is no randomness.
pub(super) fn split(
    secret: &Secret,
    clouds: impl Iterator<Item = u8>,
    faulty: u8,
) -> Result<Vec<Share>, KeyError> {
    let random = |_| Secret::random();
    let coefficients: Vec<Secret> = (0..faulty).map(random).collect::<Result<_, KeyError>>()?;
    let places = clouds.filter_map(place);
    Ok(places.map(|x| value(secret, &coefficients, x)).collect())
}

/// The secret, from shares each with its cloud; `None` if two are of the same cloud or there are
/// none. The number of shares must be the threshold of the split; all given shares are used.
pub(super) fn join(shares: &[(u8, Share)]) -> Option<Secret> {
    value_of(shares, 0)
}

/// The share of another cloud, or the same share again; `None` as with [`join`].
pub(super) fn share_of(shares: &[(u8, Share)], cloud: u8) -> Option<Share> {
    value_of(shares, place(cloud)?)
}

/// The value at `x` of the polynomial through the shares.
fn value_of(shares: &[(u8, Share)], x: u8) -> Option<Secret> {
    let places = shares.iter().map(|(cloud, _)| place(*cloud));
    let places: Vec<u8> = places.collect::<Option<_>>()?;
    let mut sum = Zeroizing::new([0; 32]);
    for (at, ((_, share), mine)) in shares.iter().zip(&places).enumerate() {
        // Lagrange's weight: the product of (x − other) / (mine − other), minus being plus.
        let mut weight = 1;
        for (_, other) in places.iter().enumerate().filter(|(index, _)| *index != at) {
            if mine == other {
                return None;
            }
            weight = times(weight, times(x ^ other, inverse(mine ^ other)));
        }
        for (sum, byte) in sum.iter_mut().zip(share.expose()) {
            *sum ^= times(*byte, weight);
        }
    }
    (!shares.is_empty()).then(|| Secret::from_bytes(*sum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn products_are_those_of_aes() {
        // FIPS 197, sections 4.2 and 4.2.1.
        assert_eq!(times(0x57, 0x83), 0xc1);
        assert_eq!(times(0x57, 0x13), 0xfe);
        for (b, product) in [(0x02, 0xae), (0x04, 0x47), (0x08, 0x8e), (0x10, 0x07)] {
            assert_eq!(times(0x57, b), product);
        }
        for a in 1..=255 {
            assert_eq!(times(a, inverse(a)), 1);
            assert_eq!(times(a, 1), a);
        }
    }

    #[test]
    fn a_share_is_the_value_of_the_polynomial() {
        // By hand: 0x57 + 0x83 · x at x = 1 and x = 0x57 (0x83 · 0x57 = 0xc1).
        let (secret, slope) = (
            Secret::from_bytes([0x57; 32]),
            Secret::from_bytes([0x83; 32]),
        );
        let at = |x| value(&secret, std::slice::from_ref(&slope), x);
        assert_eq!(*at(1).expose(), [0x57 ^ 0x83; 32]);
        assert_eq!(*at(0x57).expose(), [0x57 ^ 0xc1; 32]);
        assert_eq!(join(&[(0, at(1)), (0x56, at(0x57))]), Some(secret.clone()));
        crate::keys::lines::assert_golden("share", at(3).expose());
    }

    proptest! {
        #[test]
        fn any_f_plus_1_shares_give_the_secret_and_every_other_share_and_f_do_not(
            secret: [u8; 32], faulty in 0_u8..8, spare in 0_u8..9, order: u64,
        ) {
            let secret = Secret::from_bytes(secret);
            let clouds = faulty + 1 + spare;
            let mut shares: Vec<(u8, Share)> =
                (0..).zip(split(&secret, 0..clouds, faulty).unwrap()).collect();
            let all = shares.clone();
            shares.sort_by_key(|(cloud, _)| blake3::hash(
                &[&order.to_be_bytes()[..], &[*cloud]].concat()).as_bytes()[..8].to_vec());
            let enough = &shares[..=usize::from(faulty)];
            prop_assert_eq!(join(enough), Some(secret.clone()));
            prop_assert_eq!(join(&shares), Some(secret.clone()));
            for (cloud, share) in &all {
                prop_assert_eq!(share_of(enough, *cloud), Some(share.clone()));
            }
            if faulty > 0 {
                // 2⁻²⁵⁶ of all polynomials give the same value.
                prop_assert_ne!(join(&enough[1..]), Some(secret));
                let twice = [enough[0].clone(), enough[0].clone()];
                prop_assert_eq!(join(&twice), None);
            }
        }
    }

    #[test]
    fn invalid_shares_give_nothing() {
        assert_eq!(join(&[]), None);
        assert_eq!(join(&[(255, Secret::from_bytes([0; 32]))]), None);
    }

    /// With one share of two required, exactly one coefficient explains each secret byte: so a
    /// share reveals nothing if coefficients are drawn from all values.
    #[test]
    fn a_share_is_explained_by_every_secret_once() {
        for (x, share) in [(1, 0), (3, 0x42), (32, 0xff)] {
            let mut explained = [0; 256];
            for secret in 0..=255 {
                for coefficient in 0..=255_u8 {
                    if secret ^ times(coefficient, x) == share {
                        explained[usize::from(secret)] += 1;
                    }
                }
            }
            assert_eq!(explained, [1; 256]);
        }
    }

    #[test]
    fn coefficients_take_every_value() {
        let mut seen = [false; 256];
        for _ in 0..200 {
            let shares = split(&Secret::from_bytes([0; 32]), 0..1, 1).unwrap();
            for byte in shares[0].expose() {
                seen[usize::from(*byte)] = true;
            }
        }
        assert!(seen.iter().all(|seen| *seen));
    }
}
