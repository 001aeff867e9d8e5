//! Running one seed over the service that its parity chooses.

use quorumfs_bft_simulator::counters::Counters;
use quorumfs_bft_simulator::key_value::KeyValueWorkload;
use quorumfs_bft_simulator::profile::Profile;
use quorumfs_bft_simulator::report::Report;
use quorumfs_bft_simulator::simulation::{Options, Simulation, Trace};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

mod clouds;
mod metadata;
mod people;
mod recorded;
mod summary;

pub use clouds::{
    CloudOptions, CloudReport, CloudSummary, KNOWN as CLOUDS_KNOWN,
    MEASURED_MIN as CLOUDS_MEASURED_MIN, POLICIES, run_clouds,
};
pub use metadata::{FileSystem, MetadataWorkload, PlantedMetadata, ServiceDefect};
pub use people::{PeopleDefect, PeopleService, PeopleWorkload};
pub use recorded::{replay, replay_flawed};
pub use summary::{MEASURED_MIN, OPERATIONS_MIN, RARE_MIN, Summary};

/// The service that is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The key-value service for even seeds, the metadata service for odd ones.
    Alternate,
    /// The key-value service.
    KeyValue,
    /// The metadata service.
    Metadata,
    /// The metadata service, whose clients lock nothing: for seeds that failed before there were
    /// locks.
    Unlocked,
    /// The metadata service, whose clients admit and dismiss each other.
    People,
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alternate => "alternate",
            Self::KeyValue => "key-value",
            Self::Metadata => "metadata",
            Self::Unlocked => "unlocked",
            Self::People => "people",
        })
    }
}

impl FromStr for Service {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [
            Self::Alternate,
            Self::KeyValue,
            Self::Metadata,
            Self::Unlocked,
            Self::People,
        ];
        let found = all.into_iter().find(|it| it.to_string() == name);
        found.ok_or_else(|| {
            format!(
                "there is no service {name:?}: alternate, key-value, metadata, unlocked, people"
            )
        })
    }
}

/// The name of a planted defect on the command line.
#[must_use]
pub fn name(defect: impl fmt::Debug) -> String {
    spelled(&format!("{defect:?}"))
}

/// A type's name as it is spelled on the command line.
#[must_use]
pub fn spelled(name: &str) -> String {
    let mut spelled = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !spelled.is_empty() {
            spelled.push('-');
        }
        spelled.extend(letter.to_lowercase());
    }
    spelled
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("a panic: {}", text.unwrap_or("without a message"))
}

/// Runs one seed, of a metadata service with this defect. A panic counts as a violation.
#[must_use]
pub fn run_seed(
    options: Options,
    service: Service,
    defect: Option<ServiceDefect>,
    trace: Trace<'_>,
) -> Report {
    let Options { seed, profile, .. } = options;
    let metadata = match service {
        Service::Alternate => seed % 2 == 1,
        Service::KeyValue => false,
        Service::Metadata | Service::Unlocked | Service::People => true,
    };
    let run = || match metadata {
        true if service == Service::People => {
            Simulation::run(options, PeopleWorkload::default(), trace)
        }
        true if service == Service::Unlocked => {
            Simulation::run(options, MetadataWorkload::unlocked(defect), trace)
        }
        true => Simulation::run(options, MetadataWorkload::planted(defect), trace),
        false if profile == Profile::Reads => {
            Simulation::run(options, KeyValueWorkload::toggling(), trace)
        }
        false => Simulation::run(options, KeyValueWorkload::default(), trace),
    };
    let failure = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(report)) => return report,
        Ok(Err(error)) => error.to_string(),
        Err(panic) => panic_text(panic.as_ref()),
    };
    Report {
        seed,
        profile,
        violations: vec![failure],
        stalls: Vec::new(),
        operations: 0,
        faults: 0,
        virtual_nanos: 0,
        events: 0,
        counters: Counters::new(),
    }
}
