//! Amounts of money, without a currency: whole numbers of 10⁻¹⁵ units.
//!
//! A price of a nano-unit a thousand requests, or a gigabyte, is divided once and cut off below
//! 10⁻¹⁵; sums are exact, and stop at the largest amount in place of overflowing.

use std::fmt;
use std::iter::Sum;
use std::ops::Add;
use std::str::FromStr;

/// Femto-units in a unit.
const UNIT: u128 = 1_000_000_000_000_000;
/// Femto-units in a nano-unit.
pub(super) const NANO: u128 = 1_000_000;
/// The most digits after the point that a typed amount has.
const DECIMALS: usize = 9;

/// An amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Money(u128);

impl Money {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    pub(super) const fn femtos(femtos: u128) -> Self {
        Self(femtos)
    }

    /// `part` of `whole` parts of it; all of it if `whole` is zero.
    #[must_use]
    pub fn part(self, part: u64, whole: u64) -> Self {
        // A fraction of an astronomical amount may be cut off, not wrap around.
        let scaled = self.0.saturating_mul(u128::from(part));
        Self(scaled.checked_div(u128::from(whole)).unwrap_or(self.0))
    }

    /// In units, for machines that read it.
    #[must_use]
    pub fn units(self) -> f64 {
        self.0 as f64 / UNIT as f64
    }
}

impl Add for Money {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sum for Money {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

/// With two decimals; less than a hundredth, but more than nothing, with four.
impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = match self.0 {
            1..10_000_000_000_000 => 4,
            _ => 2,
        };
        let step = UNIT / 10_u128.pow(decimals);
        let rounded = self.0.saturating_add(step / 2) / step;
        let (whole, rest) = (
            rounded / 10_u128.pow(decimals),
            rounded % 10_u128.pow(decimals),
        );
        f.pad(&format!(
            "{whole}.{rest:0width$}",
            width = decimals as usize
        ))
    }
}

/// A text that is no amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an amount is a number such as 20 or 0.0045, with at most {DECIMALS} decimals")]
pub struct NoAmount;

impl FromStr for Money {
    type Err = NoAmount;

    fn from_str(text: &str) -> Result<Self, NoAmount> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
        if !is_number(whole) || !is_number(decimals) || decimals.len() > DECIMALS {
            return Err(NoAmount);
        }
        let number = |part: &str| part.parse::<u64>().map_err(|_| NoAmount).map(u128::from);
        let nanos = number(&format!("{decimals:0<DECIMALS$}"))?;
        Ok(Self(
            number(whole)?.saturating_mul(UNIT) + nanos.saturating_mul(NANO),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_read_and_shown() {
        for (text, shown) in [
            ("20", "20.00"),
            ("0.004", "0.0040"),
            ("0.005", "0.0050"),
            ("0", "0.00"),
            ("1.999", "2.00"),
            ("0.00004", "0.0000"),
            ("12345.678901234", "12345.68"),
        ] {
            assert_eq!(text.parse::<Money>().unwrap().to_string(), shown);
        }
        for bad in [
            "",
            ".",
            "1.",
            ".5",
            "-1",
            "1e3",
            "1,5",
            "20 USD",
            "0.1234567891",
        ] {
            assert_eq!(bad.parse::<Money>(), Err(NoAmount), "{bad}");
        }
        let half = "3".parse::<Money>().unwrap().part(1, 2);
        assert_eq!(half, "1.5".parse().unwrap());
        assert_eq!(half.part(7, 0), half);
    }
}
