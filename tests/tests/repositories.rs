//! git at work in a mount, beside the same on the local disk; `repositories` does the same with as
//! large a repository as one likes.

use quorumfs_tests::repositories::{Plan, run};

#[test]
fn whatever_git_does_in_a_mount_comes_out_as_on_the_local_disk() {
    let plan = Plan {
        files: 120,
        commits: 30,
        seed: 2,
    };
    let report = run(plan);
    println!("{report:?}");
    assert!(report.files > 90 && report.pack_bytes > 1 << 20);
    assert_eq!(report.steps.len(), 13);
}
