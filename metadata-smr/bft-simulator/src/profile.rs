//! The kinds of faults that a run draws from.

use std::fmt;
use std::str::FromStr;

/// A family of fault plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// Everything below, mixed from the seed.
    Mixed,
    /// No faults: the normal case.
    Calm,
    /// Loss, duplication, reordering, corruption, partitions, one-way cuts, isolation.
    Network,
    /// Crashes and restarts of single replicas and of all of them at once, with torn tails.
    Crash,
    /// Slow disks, lost and damaged logs, disks that forget what they reported durable.
    Disk,
    /// Replicas that lie with their real keys.
    Byzantine,
    /// Two copies of one identity in changing partitions.
    Twins,
    /// Skew, drift and jumps of clocks.
    Clock,
    /// Clients that crash, flood, forge and contradict themselves.
    Clients,
    /// Replicas that are added, replaced, removed, and that lose their disks and rejoin.
    Membership,
    /// Unordered queries, answered by replicas of which some lie, lag or crash.
    Reads,
    /// Votes that the channels authenticate instead of signatures, with the faults of the others.
    Mac,
    /// All endpoints far apart, many reads, and a replica that loses its disk.
    Distant,
    /// Endpoints in regions of providers, which are cut off, flap, and become more distant for a
    /// while.
    Regions,
}

/// A name that is not a profile's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no profile {name:?}; there are {}", Profile::names())]
pub struct UnknownProfile {
    /// The name.
    name: String,
}

impl Profile {
    /// All profiles.
    pub const ALL: [Self; 14] = [
        Self::Mixed,
        Self::Calm,
        Self::Network,
        Self::Crash,
        Self::Disk,
        Self::Byzantine,
        Self::Twins,
        Self::Clock,
        Self::Clients,
        Self::Membership,
        Self::Reads,
        Self::Mac,
        Self::Distant,
        Self::Regions,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::Calm => "calm",
            Self::Network => "network",
            Self::Crash => "crash",
            Self::Disk => "disk",
            Self::Byzantine => "byzantine",
            Self::Twins => "twins",
            Self::Clock => "clock",
            Self::Clients => "clients",
            Self::Membership => "membership",
            Self::Reads => "reads",
            Self::Mac => "mac",
            Self::Distant => "distant",
            Self::Regions => "regions",
        }
    }

    fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        Self::ALL
            .into_iter()
            .find(|profile| profile.name() == name)
            .ok_or_else(|| UnknownProfile { name: name.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_back_and_an_unknown_name_lists_the_known_ones() {
        for profile in Profile::ALL {
            assert_eq!(profile.name().parse(), Ok(profile));
        }
        let error = "nonsense".parse::<Profile>().unwrap_err().to_string();
        assert!(error.contains("twins") && error.contains("nonsense"));
    }
}
