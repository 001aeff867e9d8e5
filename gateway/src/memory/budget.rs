//! The size of a mount's memory budget, and the source of that number.

use super::host::{Limit, Usable};
use super::{MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MIN, MemoryPlan};
use std::fmt;

/// The default budget is one such part of the usable memory: the rest is for the programs that use
/// the mount, and for the kernel's pages of their files.
const PART: u64 = 4;

/// A budget of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryBudget {
    /// The size, in bytes.
    pub bytes: u64,
    /// The source of the size.
    pub from: BudgetSource,
}

/// The source of a budget's size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BudgetSource {
    /// The configuration.
    Configured,
    /// The default: no setting, and plenty of memory.
    Default,
    /// No setting: a part of the usable memory.
    PartOf(Usable),
    /// No setting, and little memory: the minimum.
    Least(Usable),
}

impl MemoryBudget {
    /// The configured budget.
    #[must_use]
    pub fn configured(bytes: u64) -> Self {
        let from = BudgetSource::Configured;
        Self { bytes, from }
    }

    /// The budget without a setting, given the usable memory.
    #[must_use]
    pub fn usual(usable: Option<Usable>) -> Self {
        let (bytes, from) = match usable {
            Some(usable) if usable.bytes / PART < MEMORY_BYTES_MIN => {
                (MEMORY_BYTES_MIN, BudgetSource::Least(usable))
            }
            Some(usable) if usable.bytes / PART < MEMORY_BYTES_DEFAULT => {
                (usable.bytes / PART, BudgetSource::PartOf(usable))
            }
            _ => (MEMORY_BYTES_DEFAULT, BudgetSource::Default),
        };
        Self { bytes, from }
    }

    /// The division of the budget.
    #[must_use]
    pub fn plan(&self) -> MemoryPlan {
        MemoryPlan::of(self.bytes)
    }
}

impl fmt::Display for BudgetSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |usable: &Usable| {
            let mib = usable.bytes >> 20;
            match &usable.limit {
                Limit::Machine => format!("the machine's {mib} MiB"),
                Limit::ControlGroup(path) => format!("the {mib} MiB of {}", path.display()),
            }
        };
        match self {
            Self::Configured => f.write_str("`memory_mib` of [data]"),
            Self::Default => f.write_str("the default"),
            Self::PartOf(usable) => write!(f, "a quarter of {}", of(usable)),
            Self::Least(usable) => {
                write!(
                    f,
                    "the minimum, which is more than a quarter of {}",
                    of(usable)
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_setting_it_is_the_default_or_a_quarter_and_never_below_the_minimum() {
        let usual = |mib: u64| {
            let limit = Limit::Machine;
            let bytes = mib << 20;
            MemoryBudget::usual(Some(Usable { bytes, limit }))
        };
        for (usable, budget) in [
            (24 << 10, 768),
            (3072, 768),
            (3068, 767),
            (1024, 256),
            (512, 128),
            (508, 128),
            (64, 128),
        ] {
            assert_eq!(usual(usable).bytes >> 20, budget, "{usable}");
        }
        assert_eq!(MemoryBudget::usual(None).bytes, MEMORY_BYTES_DEFAULT);
        assert_eq!(usual(24 << 10).from, BudgetSource::Default);
        let said = usual(1024).from.to_string();
        assert_eq!(said, "a quarter of the machine's 1024 MiB");
        assert!(matches!(usual(64).from, BudgetSource::Least(_)));
    }
}
