//! The price of what was used of a cloud, by kind.

use super::money::Money;
use super::price::PriceList;

/// Days of a month, for what is charged by the day.
const DAYS: u64 = 30;

/// What is or was used of a cloud in a month.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloudUse {
    /// Puts.
    pub puts: u64,
    /// Gets.
    pub gets: u64,
    /// Questions for a length.
    pub heads: u64,
    /// Pages of listings.
    pub lists: u64,
    /// Deletions.
    pub deletes: u64,
    /// Bytes that were sent to it.
    pub bytes_sent: u64,
    /// Bytes that it sent.
    pub bytes_received: u64,
    /// Bytes that it stores.
    pub stored: u64,
    /// Objects that it stores.
    pub objects: u64,
    /// Bytes of objects that were deleted.
    pub bytes_deleted: u64,
    /// How many days old they were; the price of early deletion depends on it.
    pub days_old: u64,
}

impl CloudUse {
    /// All requests together.
    #[must_use]
    pub fn requests(&self) -> u64 {
        let all = [self.puts, self.gets, self.heads, self.lists, self.deletes];
        all.iter().fold(0, |sum, it| sum.saturating_add(*it))
    }
}

/// How much of a month is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartOfMonth {
    /// Seconds of it.
    pub seconds: u64,
    /// Seconds of the whole month.
    pub of: u64,
}

impl PartOfMonth {
    /// All of it.
    pub const WHOLE: Self = Self { seconds: 1, of: 1 };
}

/// The price of a use, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bill {
    /// Storing.
    pub storage: Money,
    /// Puts.
    pub put: Money,
    /// Gets.
    pub get: Money,
    /// Questions for a length.
    pub head: Money,
    /// Listings.
    pub list: Money,
    /// Deletions.
    pub delete: Money,
    /// Traffic out of the cloud.
    pub egress: Money,
    /// Reading at all, where that is charged for.
    pub retrieval: Money,
    /// Storing deleted objects for the rest of their least time.
    pub early_deletion: Money,
}

impl Bill {
    /// Each kind and its price.
    #[must_use]
    pub fn entries(&self) -> [(&'static str, Money); 9] {
        [
            ("storage", self.storage),
            ("put", self.put),
            ("get", self.get),
            ("head", self.head),
            ("list", self.list),
            ("delete", self.delete),
            ("egress", self.egress),
            ("retrieval", self.retrieval),
            ("early_deletion", self.early_deletion),
        ]
    }

    /// All kinds together.
    #[must_use]
    pub fn total(&self) -> Money {
        self.entries().into_iter().map(|(_, money)| money).sum()
    }
}

/// The price of a use of a cloud, which stored what it stores for a part of the month.
#[must_use]
pub fn bill(prices: &PriceList, used: &CloudUse, time: PartOfMonth) -> Bill {
    let smallest = used.objects.saturating_mul(prices.object_bytes_min);
    let stored = used.stored.max(smallest).max(prices.bytes_min);
    let free = u128::from(used.stored) * u128::from(prices.free_egress_thousandths) / 1000;
    let free = u64::try_from(free).unwrap_or(u64::MAX);
    let early = prices.days_min.saturating_sub(used.days_old);
    Bill {
        storage: prices.storage.cost(stored).part(time.seconds, time.of),
        put: prices.put.cost(used.puts),
        get: prices.get.cost(used.gets),
        head: prices.head.cost(used.heads),
        list: prices.list.cost(used.lists),
        delete: prices.delete.cost(used.deletes),
        egress: prices.egress.cost(used.bytes_received.saturating_sub(free)),
        retrieval: prices.retrieval.cost(used.bytes_received),
        early_deletion: prices.storage.cost(used.bytes_deleted).part(early, DAYS),
    }
}

#[cfg(test)]
mod tests {
    use super::super::price::{Tariff, Tier};
    use super::*;
    use proptest::prelude::*;

    fn tariff(unit: u64, nanos: u64) -> Tariff {
        Tariff::new(unit, vec![Tier { up_to: None, nanos }])
    }

    fn prices() -> PriceList {
        PriceList {
            storage: tariff(1000, 23_000_000),
            put: tariff(1000, 5_000_000),
            get: tariff(1000, 400_000),
            head: tariff(1000, 400_000),
            list: tariff(1000, 5_000_000),
            delete: tariff(1000, 1000),
            egress: tariff(1000, 90_000_000),
            retrieval: tariff(1000, 10_000_000),
            ..PriceList::default()
        }
    }

    fn any_use() -> impl Strategy<Value = CloudUse> {
        prop::array::uniform9(0u64..1_000_000).prop_map(|it| CloudUse {
            puts: it[0] * 1000,
            gets: it[1] * 1000,
            heads: it[2] * 1000,
            lists: it[3] * 1000,
            deletes: it[4] * 1000,
            bytes_sent: it[5] * 1000,
            bytes_received: it[6] * 1000,
            stored: it[7] * 1000,
            objects: it[8],
            ..CloudUse::default()
        })
    }

    fn sum(one: &CloudUse, other: &CloudUse) -> CloudUse {
        CloudUse {
            puts: one.puts + other.puts,
            gets: one.gets + other.gets,
            heads: one.heads + other.heads,
            lists: one.lists + other.lists,
            deletes: one.deletes + other.deletes,
            bytes_sent: one.bytes_sent + other.bytes_sent,
            bytes_received: one.bytes_received + other.bytes_received,
            stored: one.stored + other.stored,
            objects: one.objects + other.objects,
            ..CloudUse::default()
        }
    }

    proptest! {
        #[test]
        fn without_tiers_the_bill_of_two_uses_is_the_sum_of_their_bills(
            one in any_use(), other in any_use(),
        ) {
            let of = |used: &CloudUse| bill(&prices(), used, PartOfMonth::WHOLE);
            let both = of(&sum(&one, &other));
            prop_assert_eq!(both.total(), of(&one).total() + of(&other).total());
            for (kind, (_, apart)) in both.entries().into_iter().zip(of(&one).entries()) {
                prop_assert!(kind.1 >= apart, "{}", kind.0);
            }
            prop_assert_eq!(of(&CloudUse::default()).total(), Money::ZERO);
        }
    }

    #[test]
    fn what_is_stored_for_half_of_a_month_costs_half_and_requests_cost_all() {
        let used = CloudUse {
            stored: 2000,
            puts: 1000,
            ..CloudUse::default()
        };
        let half = bill(&prices(), &used, PartOfMonth { seconds: 3, of: 6 });
        assert_eq!(half.storage, "0.023".parse().unwrap());
        assert_eq!(half.put, "0.005".parse().unwrap());
    }

    #[test]
    fn minimums_are_paid_for_and_allowances_are_not() {
        let used = CloudUse {
            stored: 1000,
            objects: 10,
            bytes_received: 5000,
            bytes_deleted: 1000,
            days_old: 20,
            ..CloudUse::default()
        };
        let with = |change: &dyn Fn(&mut PriceList)| {
            let mut list = prices();
            change(&mut list);
            bill(&list, &used, PartOfMonth::WHOLE)
        };
        let storage = |text: &str| text.parse::<Money>().unwrap();
        assert_eq!(with(&|_| {}).storage, storage("0.023"));
        assert_eq!(with(&|it| it.bytes_min = 4000).storage, storage("0.092"));
        assert_eq!(
            with(&|it| it.object_bytes_min = 300).storage,
            storage("0.069")
        );
        assert_eq!(
            with(&|it| it.free_egress_thousandths = 3000).egress,
            storage("0.18")
        );
        assert_eq!(
            with(&|it| it.free_egress_thousandths = 9000).egress,
            Money::ZERO
        );
        assert_eq!(with(&|it| it.days_min = 20).early_deletion, Money::ZERO);
        assert_eq!(
            with(&|it| it.days_min = 50).early_deletion,
            storage("0.023")
        );
    }
}
