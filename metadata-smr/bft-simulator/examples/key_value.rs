//! Simulates the key-value service over many seeds:
//! `key_value [first seed] [seeds] [profile] [trace]`.
//!
//! To simulate a service of your own, replace [`KeyValueWorkload`] with your workload: nothing else
//! is needed.

use quorumfs_bft_simulator::counters::Counters;
use quorumfs_bft_simulator::key_value::KeyValueWorkload;
use quorumfs_bft_simulator::profile::Profile;
use quorumfs_bft_simulator::simulation::{Options, Simulation};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let first: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let seeds: u64 = arguments.next().map_or(Ok(100), |text| text.parse())?;
    let profile = arguments.next().map_or(Ok(Profile::Mixed), |t| t.parse())?;
    let traced = arguments.next().is_some();
    let mut failed = 0;
    let mut counters = Counters::new();
    for seed in first..first + seeds {
        let options = Options::new(seed, profile);
        let mut print = |line: &str| println!("{line}");
        let trace: Option<&mut dyn FnMut(&str)> = if traced { Some(&mut print) } else { None };
        let report = Simulation::run(options, KeyValueWorkload::default(), trace)?;
        for what in report.violations.iter().chain(&report.stalls) {
            println!("seed {seed}: {what}");
        }
        failed += u64::from(!report.passed());
        counters.merge(&report.counters);
    }
    for (name, count) in counters.iter() {
        println!("{count:>12} {name}");
    }
    println!("{failed} of {seeds} seeds failed");
    Ok(())
}
