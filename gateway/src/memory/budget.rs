//! How much a mount may hold, and who said so.

use super::host::{Limit, Usable};
use super::{MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MIN, MemoryPlan};
use std::fmt;

/// What part of the memory that this process may use it takes if nobody says: the rest is for the
/// programs that use the mount, and for the kernel's pages of what they read.
const PART: u64 = 4;

/// A budget of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryBudget {
    /// How much, in bytes.
    pub bytes: u64,
    /// Who said so.
    pub from: BudgetSource,
}

/// Who said how much.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BudgetSource {
    /// The configuration.
    Configured,
    /// Nobody, and there is plenty.
    Default,
    /// Nobody, and it is a part of what there is.
    PartOf(Usable),
    /// Nobody, and there is so little that it is the least that works.
    Least(Usable),
}

impl MemoryBudget {
    /// What was said.
    #[must_use]
    pub fn configured(bytes: u64) -> Self {
        let from = BudgetSource::Configured;
        Self { bytes, from }
    }

    /// What is taken if nobody says, where this is what the process may use.
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

    /// How it is divided.
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
            Self::Default => f.write_str("what is usual"),
            Self::PartOf(usable) => write!(f, "a quarter of {}", of(usable)),
            Self::Least(usable) => {
                write!(
                    f,
                    "the least that works, more than a quarter of {}",
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
