//! What a cloud charges.
//!
//! A [`Tariff`] is a price for each unit (a gigabyte, a thousand requests), in tiers: the first
//! units may be free or dear, and further ones cheaper. A free allowance is a first tier of price
//! zero. What providers charge for is the same everywhere; what they call it differs, so the names
//! here are those of the requests that this program makes.

use super::money::{Money, NANO};

/// One step of a tariff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Up to how many units it goes; `None`: without an end.
    pub up_to: Option<u64>,
    /// The price of a unit, in nano-units of the currency.
    pub nanos: u64,
}

/// A price for each unit, in tiers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tariff {
    /// Bytes or requests in a unit.
    unit: u64,
    tiers: Vec<Tier>,
}

impl Tariff {
    /// Tiers in ascending order. The last one also holds beyond its end.
    #[must_use]
    pub fn new(unit: u64, tiers: Vec<Tier>) -> Self {
        Self { unit, tiers }
    }

    /// The price of so many bytes or requests.
    #[must_use]
    pub fn cost(&self, amount: u64) -> Money {
        let (mut charged, mut from) = (0_u128, 0_u64);
        for (number, tier) in self.tiers.iter().enumerate() {
            let is_last = number + 1 == self.tiers.len();
            let end = match tier.up_to {
                Some(units) if !is_last => units.saturating_mul(self.unit),
                _ => u64::MAX,
            };
            let part = amount.min(end).saturating_sub(from);
            charged += u128::from(part) * u128::from(tier.nanos);
            from = from.max(end);
        }
        let femtos = charged.saturating_mul(NANO);
        Money::femtos(femtos.checked_div(u128::from(self.unit)).unwrap_or(0))
    }

    /// The first price that is not zero, in nano-units for a unit.
    #[must_use]
    pub fn first_paid(&self) -> u64 {
        let paid = self.tiers.iter().map(|tier| tier.nanos);
        paid.filter(|nanos| *nanos > 0).take(1).sum()
    }
}

/// What a cloud charges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriceList {
    /// A gigabyte that is stored for a month.
    pub storage: Tariff,
    /// A thousand puts.
    pub put: Tariff,
    /// A thousand gets.
    pub get: Tariff,
    /// A thousand questions for a length.
    pub head: Tariff,
    /// A thousand pages of listings.
    pub list: Tariff,
    /// A thousand deletions.
    pub delete: Tariff,
    /// A gigabyte that leaves the cloud.
    pub egress: Tariff,
    /// A gigabyte that is read at all, in addition.
    pub retrieval: Tariff,
    /// Egress that is free for each stored byte, in thousandths of it.
    pub free_egress_thousandths: u64,
    /// Days that every object is paid for, even if it is deleted before.
    pub days_min: u64,
    /// Bytes that are paid for even if less is stored.
    pub bytes_min: u64,
    /// Bytes that each object is paid for even if it has less.
    pub object_bytes_min: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tiers(prices: &[(u64, u64)]) -> Tariff {
        let tier = |(width, nanos): &(u64, u64)| (*width, *nanos);
        let mut end = 0_u64;
        let tiers = prices.iter().map(tier).map(|(width, nanos)| {
            end += width;
            Tier {
                up_to: Some(end),
                nanos,
            }
        });
        Tariff::new(1000, tiers.collect())
    }

    #[test]
    fn an_allowance_is_free_and_what_is_beyond_it_is_not() {
        let tariff = tiers(&[(10, 0), (10, 5), (1, 2)]);
        assert_eq!(tariff.cost(10_000), Money::ZERO);
        assert_eq!(tariff.cost(11_000), Money::femtos(5 * NANO));
        assert_eq!(tariff.cost(30_000), Money::femtos(70 * NANO));
        assert_eq!(tariff.cost(10_001), Money::femtos(5 * NANO / 1000));
        assert_eq!(tariff.first_paid(), 5);
        assert_eq!(Tariff::default().cost(u64::MAX), Money::ZERO);
    }

    proptest! {
        #[test]
        fn more_never_costs_less_and_nothing_is_free(
            prices in prop::collection::vec((1u64..50, 0u64..1_000_000), 1..4),
            amount in 0u64..100_000, more in 0u64..100_000,
        ) {
            let tariff = tiers(&prices);
            prop_assert_eq!(tariff.cost(0), Money::ZERO);
            prop_assert!(tariff.cost(amount) <= tariff.cost(amount + more));
        }
    }
}
