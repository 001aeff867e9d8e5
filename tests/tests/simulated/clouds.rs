//! Simulated clouds under the real block store: the same seed gives the same run, and a gateway may
//! crash anywhere. `scripts/test` runs thousands of seeds, and the planted defects, with the
//! program `simulate`.

use quorumfs_tests::simulate::{CloudOptions, CloudReport, run_clouds};

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
        let first = run_clouds(CloudOptions::new(seed), Some(&mut keep));
        let again = run_clouds(CloudOptions::new(seed), None);
        assert_eq!(first.trace, again.trace, "seed {seed}");
        assert!(lines.len() > 20, "seed {seed}: {} lines", lines.len());
        assert_ne!(
            first.trace,
            run_clouds(CloudOptions::new(seed + 100), None).trace
        );
    }
}

#[test]
fn a_gateway_may_crash_at_every_step() {
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
