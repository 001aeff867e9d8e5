//! The costs of a month: from what was counted, what is stored, and the prices.
//!
//! Pure: the caller has read the files and asked the servers. A cloud without prices costs nothing
//! here, which is said.

use super::month::MonthSoFar;
use super::usage::{CountedUse, MonthCounts};
use crate::clouds::{NamedCloud, sections_of};
use crate::configuration::{PastHard, VolumeConfiguration};
use crate::failure::CommandResult;
use crate::prices::{PriceBook, PriceEntry, PriceOf};
use quorumfs_gateway::blocks::Preference;
use quorumfs_gateway::cost::{
    Bill, Budget, BudgetLevel, CloudUse, Money, PartOfMonth, PlannedWorkload, bill, plan,
};
use quorumfs_gateway::volume::Volume;
use quorumfs_metadata::fleet::CloudState;
use quorumfs_metadata::identity::CloudIndex;
use quorumfs_metadata::limits::NAME_CHARGE;
use quorumfs_metadata::placement::Policy;
use quorumfs_metadata::row::Amount;
use serde::{Deserialize, Serialize};

/// A projection from less than this is of the whole of it: a month that is an hour old says little.
const PROJECTED_FROM: u64 = 86_400;

/// What a volume's costs depend on, apart from its use.
#[derive(Clone, Debug)]
pub(crate) struct CostBasis {
    book: PriceBook,
    clouds: Vec<CloudBasis>,
    budget: Budget,
    past_hard: PastHard,
    policy: Policy,
    preference: Preference,
}

/// The same of a cloud.
#[derive(Clone, Debug)]
struct CloudBasis {
    /// Its number in the volume, which no other cloud gets.
    number: u16,
    name: String,
    state: CloudState,
    price: PriceOf,
    budget: Budget,
}

/// What the volume holds, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HeldContent {
    /// Bytes of files.
    pub(super) bytes: u64,
    /// Files.
    pub(super) files: u64,
    /// Bytes of objects, on all clouds together, that nothing refers to and that are not deleted.
    pub(super) garbage: u64,
}

impl HeldContent {
    /// From the quota, which charges for each name too.
    pub(super) fn of(used: &Amount) -> Self {
        let names = used.inodes.saturating_mul(NAME_CHARGE);
        Self {
            bytes: used.bytes.saturating_sub(names),
            files: used.inodes,
            garbage: 0,
        }
    }
}

/// The costs of one cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CloudAccount {
    pub(super) name: String,
    pub(super) state: CloudState,
    pub(super) price: PriceOf,
    pub(super) used: CloudUse,
    pub(super) so_far: Bill,
    pub(super) projected: Bill,
    pub(super) level: BudgetLevel,
}

/// The costs of a month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) month: MonthSoFar,
    pub(super) clouds: Vec<CloudAccount>,
    /// How far the budget is spent, by the volume or by any cloud.
    pub(super) level: BudgetLevel,
}

impl Account {
    pub(super) fn so_far(&self) -> Money {
        self.clouds.iter().map(|cloud| cloud.so_far.total()).sum()
    }

    pub(super) fn projected(&self) -> Money {
        let all = self.clouds.iter();
        all.map(|cloud| cloud.projected.total()).sum()
    }
}

/// How a mount stands to the budget, for `status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct BudgetReport {
    /// How far it is spent: `within`, `past soft` or `past hard`.
    pub(crate) level: String,
    /// What was spent this month, as far as it is known.
    pub(crate) spent: f64,
    /// The currency.
    pub(crate) currency: String,
    /// Whether new content is refused.
    pub(crate) writes_stopped: bool,
}

impl BudgetReport {
    /// The text form; nothing while both bounds are far.
    pub(crate) fn text(&self) -> String {
        let spent = format!("{:.2} {}", self.spent, self.currency);
        match (self.level.as_str(), self.writes_stopped) {
            ("within", _) => String::new(),
            (_, true) => format!(
                "; THE HARD BUDGET OF THE MONTH IS SPENT ({spent}): nothing can be written, see \
                 `quorumfs cost`"
            ),
            ("past hard", false) => format!(
                "; THE HARD BUDGET OF THE MONTH IS SPENT ({spent}): compaction and sweeps wait, \
                 writes go on"
            ),
            (_, false) => {
                format!(
                    "; the soft budget of the month is spent ({spent}): compaction, sweeps \
                         and scrubs wait"
                )
            }
        }
    }
}

impl CostBasis {
    /// Of a configuration, with these prices, and of the clouds that the volume ever had.
    pub(in crate::commands) fn of(
        configuration: &VolumeConfiguration,
        book: PriceBook,
        named: &[NamedCloud],
        volume: &Volume,
    ) -> CommandResult<Self> {
        let mut clouds = Vec::new();
        let fleet = volume.fleet();
        for cloud in named {
            let mut sections = sections_of(configuration);
            let section = sections.find(|(number, _)| *number == cloud.index);
            let section = section.map(|(_, section)| section);
            let price = section.and_then(|it| it.price.as_deref());
            clouds.push(CloudBasis {
                number: u16::from(cloud.index),
                name: cloud.name.clone(),
                state: fleet.state(CloudIndex(cloud.index)),
                price: book.of_cloud(price, &cloud.location)?,
                budget: match section {
                    Some(section) => section.budget.budget(&section.name, &book.currency)?,
                    None => Budget::default(),
                },
            });
        }
        Ok(Self {
            budget: configuration.budget.budget(&book.currency)?,
            past_hard: configuration.budget.past_hard,
            preference: configuration.data.prefer.into(),
            book,
            clouds,
            policy: volume.policy(),
        })
    }

    pub(in crate::commands) fn book(&self) -> &PriceBook {
        &self.book
    }

    pub(super) fn budget(&self) -> Budget {
        self.budget
    }

    /// Whether any bound is set.
    pub(super) fn has_budget(&self) -> bool {
        let all = self.clouds.iter().map(|cloud| cloud.budget);
        all.chain([self.budget]).any(|it| it != Budget::default())
    }

    /// Whether writes stop at a hard bound.
    pub(super) fn hard_stops_writes(&self) -> bool {
        self.past_hard == PastHard::StopWrites
    }

    /// For `status`.
    pub(super) fn report(&self, account: &Account) -> BudgetReport {
        BudgetReport {
            level: account.level.name().to_owned(),
            spent: account.so_far().units(),
            currency: self.book.currency.clone(),
            writes_stopped: self.hard_stops_writes() && account.level == BudgetLevel::PastHard,
        }
    }

    /// The costs of a month.
    pub(super) fn account(
        &self,
        month: MonthSoFar,
        counts: &MonthCounts,
        content: HeldContent,
    ) -> Account {
        let stored = self.stored(content);
        let over = month.over;
        let clouds = self.clouds.iter().zip(stored);
        let clouds = clouds.map(|(cloud, stored)| {
            let counted = counts.get(&cloud.number).copied().unwrap_or_default();
            let used = used(&counted, stored);
            let none = bill(&Default::default(), &used, PartOfMonth::WHOLE);
            let (so_far, projected) = match cloud.price.entry() {
                None => (none, none),
                Some(entry) => (
                    bill(&entry.list, &used, over),
                    bill(&entry.list, &projected(&used, over), PartOfMonth::WHOLE),
                ),
            };
            CloudAccount {
                name: cloud.name.clone(),
                state: cloud.state,
                price: cloud.price.clone(),
                used,
                so_far,
                projected,
                level: cloud.budget.level(so_far.total()),
            }
        });
        let mut account = Account {
            month,
            clouds: clouds.collect(),
            level: BudgetLevel::Within,
        };
        let levels = account.clouds.iter().map(|cloud| cloud.level);
        let worst = levels.max().unwrap_or_default();
        account.level = worst.max(self.budget.level(account.so_far()));
        account
    }

    /// Stored bytes and objects of each cloud: estimated as a plan does. A replaced cloud counts in
    /// full until it is retired, for how much of it was moved already is not known here.
    fn stored(&self, content: HeldContent) -> Vec<(u64, u64)> {
        let workload = PlannedWorkload {
            bytes: content.bytes,
            files: content.files.max(1),
            bytes_read: 0,
            bytes_written: 0,
            together: true,
        };
        let active = |cloud: &&CloudBasis| cloud.state == CloudState::Active;
        let read_price = |cloud: &CloudBasis| cloud.price.entry().map_or(0, PriceEntry::read_price);
        let read_prices: Vec<u64> = self.clouds.iter().filter(active).map(read_price).collect();
        let planned = plan(&workload, self.policy, self.preference, &read_prices);
        let garbage = content.garbage / (planned.len() as u64).max(1);
        let shares: Vec<_> = planned
            .into_iter()
            .map(|it| {
                let stored = it.monthly.stored.saturating_add(garbage);
                (stored, it.monthly.objects)
            })
            .collect();
        let share = shares.iter().max().copied().unwrap_or_default();
        let mut shares = shares.into_iter();
        let clouds = self.clouds.iter().map(|cloud| match cloud.state {
            CloudState::Active => shares.next().unwrap_or_default(),
            CloudState::Draining => share,
            CloudState::Spare | CloudState::Retired => (0, 0),
        });
        clouds.collect()
    }
}

fn used(counted: &CountedUse, (stored, objects): (u64, u64)) -> CloudUse {
    CloudUse {
        puts: counted.puts,
        gets: counted.gets,
        heads: counted.heads,
        lists: counted.lists,
        deletes: counted.deletes,
        bytes_sent: counted.bytes_sent,
        bytes_received: counted.bytes_received,
        stored,
        objects,
        ..CloudUse::default()
    }
}

/// The use of the whole month if it goes on like this.
fn projected(used: &CloudUse, over: PartOfMonth) -> CloudUse {
    let over_seconds = over.seconds.max(PROJECTED_FROM).min(over.of).max(1);
    let all = |count: u64| {
        let scaled = u128::from(count) * u128::from(over.of) / u128::from(over_seconds);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    };
    CloudUse {
        puts: all(used.puts),
        gets: all(used.gets),
        heads: all(used.heads),
        lists: all(used.lists),
        deletes: all(used.deletes),
        bytes_sent: all(used.bytes_sent),
        bytes_received: all(used.bytes_received),
        ..*used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A volume of four active clouds, one that is drained, one retired and one spare.
    fn basis() -> CostBasis {
        let book = PriceBook::open(None).unwrap();
        let price = PriceOf::Named(book.find("amazon").unwrap().clone());
        use CloudState::{Active, Draining, Retired, Spare};
        let states = [Draining, Active, Active, Retired, Active, Active, Spare];
        let clouds = states
            .into_iter()
            .zip(0..)
            .map(|(state, number)| CloudBasis {
                number,
                name: format!("cloud {number}"),
                state,
                price: price.clone(),
                budget: Budget::default(),
            });
        CostBasis {
            clouds: clouds.collect(),
            book,
            budget: Budget::default(),
            past_hard: PastHard::default(),
            policy: Policy::new(4, 1, 2, 4).unwrap(),
            preference: Preference::Fast,
        }
    }

    fn month() -> MonthSoFar {
        MonthSoFar {
            name: "2026-11".to_owned(),
            over: PartOfMonth { seconds: 1, of: 2 },
        }
    }

    #[test]
    fn clouds_that_come_and_go_keep_their_counts_and_are_paid_while_they_store() {
        let counted = |puts| CountedUse {
            puts,
            ..CountedUse::default()
        };
        let counts = MonthCounts::from([(0, counted(5)), (3, counted(7)), (5, counted(9))]);
        let content = HeldContent {
            bytes: 4 << 30,
            files: 1000,
            garbage: 0,
        };
        let account = basis().account(month(), &counts, content);
        let puts: Vec<u64> = account.clouds.iter().map(|it| it.used.puts).collect();
        assert_eq!(puts, [5, 0, 0, 7, 0, 9, 0]);
        let stores: Vec<bool> = account.clouds.iter().map(|it| it.used.stored > 0).collect();
        assert_eq!(stores, [true, true, true, false, true, true, false]);
        let parts = account.clouds.iter().map(|it| it.so_far.total());
        assert_eq!(parts.sum::<Money>(), account.so_far());
        let (retired, spare) = (&account.clouds[3], &account.clouds[6]);
        assert!(retired.so_far.total() > Money::ZERO && retired.so_far.storage == Money::ZERO);
        assert_eq!(spare.so_far.total(), Money::ZERO);
        let replaced = &account.clouds[0];
        assert!(replaced.so_far.storage < replaced.projected.storage);
    }
}
