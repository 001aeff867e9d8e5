//! The judge finds what it is for.

use super::{PeopleDefect, PeopleWorkload};
use quorumfs_bft_simulator::profile::Profile;
use quorumfs_bft_simulator::simulation::{Options, Simulation};

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
            let seen = (1..=20).filter(|seed| fails(*seed, profile, Some(defect)));
            // Many runs have one guest, which has no machine then.
            let least = match defect {
                PeopleDefect::MachinesStay => 3,
                _ => 10,
            };
            let seen = seen.count();
            assert!(seen >= least, "{defect:?} in {profile}: {seen}");
        }
        let wrong: Vec<_> = (1..=20)
            .filter(|seed| fails(*seed, profile, None))
            .collect();
        assert_eq!(wrong, [0_u64; 0], "{profile}");
    }
}
