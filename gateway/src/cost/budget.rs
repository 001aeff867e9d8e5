//! What yields when the money of a month is spent.
//!
//! ```text
//!              read   complete, repair, collect   compact, sweep, scrub   write
//!   within      yes             yes                       yes              yes
//!   past soft   yes             yes                       no               yes
//!   past hard   yes             yes                       no               (1)
//! ```
//!
//! (1) Writes go on, and the owner is told, unless the owner has asked for them to be stopped.
//!
//! **Reads never stop**: a budget must not make a volume unavailable. **Nothing that keeps content
//! safe stops**: an object that lacks shards is completed and repaired whatever it costs, for what
//! it protects costs more. Collection goes on because it ends costs. So do backups of the metadata,
//! and the draining of replaced clouds, which the owner has asked for and which ends costs too. The
//! rest can wait for the next month: it saves space later, or finds faults earlier. Prefetching
//! goes on, because a sequential reader that gets whole blocks makes fewer requests than one that
//! does not.

use super::money::Money;
use std::sync::atomic::{AtomicU8, Ordering};

/// Work that a budget can stop. All other work never asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaidWork {
    /// Writing new content.
    Write,
    /// Moving live slices out of sparse packs.
    Compaction,
    /// Listing clouds for what no row names.
    Sweep,
    /// Checking what is rarely read.
    Scrub,
}

/// How far a month's budget is spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum BudgetLevel {
    /// Neither bound is reached.
    #[default]
    Within,
    /// The soft one is.
    PastSoft,
    /// The hard one is.
    PastHard,
}

impl BudgetLevel {
    /// Its name for operators and machines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Within => "within",
            Self::PastSoft => "past soft",
            Self::PastHard => "past hard",
        }
    }
}

/// The bounds of a month's costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// From here on work that can wait yields.
    pub soft: Option<Money>,
    /// From here on the owner is warned, and writes stop if so asked.
    pub hard: Option<Money>,
}

impl Budget {
    /// How far it is spent.
    #[must_use]
    pub fn level(&self, spent: Money) -> BudgetLevel {
        let is_past = |bound: Option<Money>| bound.is_some_and(|bound| spent >= bound);
        match (is_past(self.soft), is_past(self.hard)) {
            (_, true) => BudgetLevel::PastHard,
            (true, false) => BudgetLevel::PastSoft,
            (false, false) => BudgetLevel::Within,
        }
    }
}

/// What may go on now: shared by those who measure and those who work.
#[derive(Debug, Default)]
pub struct Allowance(AtomicU8);

/// In the allowance: writes have stopped.
const WRITES_STOPPED: u8 = 4;

impl Allowance {
    /// Sets the level, and whether the hard bound stops writes.
    pub fn set(&self, level: BudgetLevel, hard_stops_writes: bool) {
        let stops = hard_stops_writes && level == BudgetLevel::PastHard;
        let writes = if stops { WRITES_STOPPED } else { 0 };
        self.0.store(level as u8 | writes, Ordering::Relaxed);
    }

    /// Whether work of this kind may go on.
    #[must_use]
    pub fn allows(&self, work: PaidWork) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        match work {
            PaidWork::Compaction | PaidWork::Sweep | PaidWork::Scrub => now == 0,
            PaidWork::Write => now & WRITES_STOPPED == 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVELS: [BudgetLevel; 3] = [
        BudgetLevel::Within,
        BudgetLevel::PastSoft,
        BudgetLevel::PastHard,
    ];

    fn allowed(level: BudgetLevel, stops: bool, work: PaidWork) -> bool {
        let allowance = Allowance::default();
        allowance.set(level, stops);
        allowance.allows(work)
    }

    #[test]
    fn what_can_wait_yields_first_and_writes_stop_only_if_the_owner_asked() {
        let waits = [PaidWork::Compaction, PaidWork::Sweep, PaidWork::Scrub];
        for work in waits {
            let allowed = LEVELS.map(|level| allowed(level, false, work));
            assert_eq!(allowed, [true, false, false], "{work:?}");
        }
        let writes = |stops| LEVELS.map(|level| allowed(level, stops, PaidWork::Write));
        assert_eq!(writes(false), [true; 3]);
        assert_eq!(writes(true), [true, true, false]);
        assert!(Allowance::default().allows(PaidWork::Compaction));
    }

    #[test]
    fn a_bound_is_reached_by_what_equals_it_and_without_bounds_nothing_is() {
        let money = |text: &str| text.parse::<Money>().unwrap();
        let budget = Budget {
            soft: Some(money("20")),
            hard: Some(money("40")),
        };
        let level = |text| budget.level(money(text));
        let spent = ["0", "19.99", "20", "39.9", "40", "1000"];
        use BudgetLevel::{PastHard, PastSoft, Within};
        let expected = [Within, Within, PastSoft, PastSoft, PastHard, PastHard];
        assert_eq!(spent.map(level), expected);
        assert_eq!(Budget::default().level(money("1000000")), Within);
    }
}
