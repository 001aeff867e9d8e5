//! How durable what a replica has promised is, as its runtime writes it.
//!
//! Each replica chooses for itself, and says so in its status report. With `os`, a loss of power
//! makes a replica forget; it notices, and has to rejoin. So replicas that lose power together fail
//! together, and if those are more than u, what they confirmed last is lost.

use borsh::{BorshDeserialize, BorshSerialize};
use std::fmt;
use std::str::FromStr;

/// When a record counts as persisted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, BorshSerialize, BorshDeserialize)]
pub enum Durability {
    /// `fdatasync`: survives the loss of power.
    #[default]
    Strict,
    /// Written to the kernel: survives the end of the process, not of the machine.
    Os,
    /// No guarantee: every restart loses the journal. For benchmarks.
    None,
}

impl Durability {
    /// Its name in configurations and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Os => "os",
            Self::None => "none",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "strict" => Ok(Self::Strict),
            "os" => Ok(Self::Os),
            "none" => Ok(Self::None),
            other => Err(format!("{other} is not one of strict, os, none")),
        }
    }
}
