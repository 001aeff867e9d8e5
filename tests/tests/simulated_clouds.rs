//! Simulated clouds under the real block store: what has to hold, and that it would be seen if not.

use quorumfs_gateway::blocks::Sabotage;
use quorumfs_tests::simulate::{
    CLOUDS_MEASURED_MIN, CloudOptions, CloudReport, CloudSummary, run_clouds,
};

#[track_caller]
fn holds(options: CloudOptions) -> CloudReport {
    let report = run_clouds(options, None);
    let (seed, crash) = (options.seed, options.crash_at);
    assert!(
        report.passed(),
        "seed {seed}, crash {crash:?}: {:?} {:?}",
        report.violations,
        report.stalls
    );
    report
}

#[test]
fn the_same_seed_gives_the_same_trace_to_the_last_request() {
    for seed in 1..=8 {
        let mut lines = Vec::new();
        let mut keep = |line: &str| lines.push(line.to_owned());
        let told = run_clouds(CloudOptions::new(seed), Some(&mut keep));
        let again = run_clouds(CloudOptions::new(seed), None);
        assert_eq!(told.trace, again.trace, "seed {seed}");
        assert!(lines.len() > 20, "seed {seed}: {} lines", lines.len());
        assert_ne!(
            told.trace,
            run_clouds(CloudOptions::new(seed + 100), None).trace
        );
    }
}

/// Every lie, every kind of weather, every poison, and all that the block store does about them.
#[test]
fn nothing_is_lost_or_wrong_and_everything_is_exercised() {
    let mut summary = CloudSummary::default();
    for seed in 1..=CLOUDS_MEASURED_MIN {
        summary.add(&holds(CloudOptions::new(seed)), 0.0);
    }
    assert_eq!(summary.shortcomings(), Vec::<String>::new());
}

#[test]
fn a_gateway_may_die_at_every_step() {
    for seed in [3, 4] {
        let mut step = 1;
        loop {
            let report = holds(CloudOptions {
                crash_at: Some(step),
                ..CloudOptions::new(seed)
            });
            if report.first_life_steps < step {
                break;
            }
            step += 1;
        }
        assert!(step > 30, "seed {seed}: {step} steps");
    }
}

#[test]
fn every_built_in_defect_is_seen_within_a_hundred_seeds() {
    for sabotage in Sabotage::ALL {
        let seen = (1..=100).any(|seed| {
            let options = CloudOptions {
                sabotage: Some(sabotage),
                ..CloudOptions::new(seed)
            };
            !run_clouds(options, None).passed()
        });
        assert!(seen, "{sabotage:?}");
    }
}
