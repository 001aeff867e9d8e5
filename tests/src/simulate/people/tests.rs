//! The judge finds what it is for.

use super::{PeopleDefect, PeopleWorkload};
use quorumfs_bft_simulator::profile::Profile;
use quorumfs_bft_simulator::simulation::{Options, Simulation};

/// So many seeds have to see a planted defect, …
const ENOUGH: usize = 3;
/// … of these.
const SEEDS_MAX: u64 = 60;

fn fails(seed: u64, profile: Profile, defect: Option<PeopleDefect>) -> bool {
    let options = Options::new(seed, profile);
    let report = Simulation::run(options, PeopleWorkload::planted(defect), None).unwrap();
    assert_eq!(report.stalls, Vec::<String>::new(), "seed {seed}");
    !report.violations.is_empty()
}

#[test]
fn every_planted_defect_is_found_and_nothing_without_one() {
    for profile in [Profile::Calm, Profile::Mixed] {
        for defect in PeopleDefect::ALL {
            // Most are seen by half of the seeds, and all by one in six: which ones those are
            // changes with everything that a run draws.
            let seen = (1..=SEEDS_MAX).filter(|seed| fails(*seed, profile, Some(defect)));
            let seen = seen.take(ENOUGH).count();
            assert_eq!(seen, ENOUGH, "{defect:?} in {profile}");
        }
        let wrong: Vec<_> = (1..=20)
            .filter(|seed| fails(*seed, profile, None))
            .collect();
        assert_eq!(wrong, [0_u64; 0], "{profile}");
    }
}
