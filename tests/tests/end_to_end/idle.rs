//! An idle mount uses almost no processor time, whatever it was used for before.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_tests::harness::{Cluster, mount_in_background, require_fuse};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Writes are committed after five seconds, and times of access are sent after thirty.
const SETTLED_AFTER: Duration = Duration::from_secs(35);
const MEASURED_FOR: Duration = Duration::from_secs(20);
/// The unit in which the kernel reports processor time, whatever its own clock is.
const TICKS_A_SECOND: u64 = 100;
/// The largest permitted share of one processor.
const SHARE_MAX: f64 = 0.005;

/// The processor time of a process so far.
fn processor_time(process: i32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let after_the_name = stat.rsplit_once(") ").unwrap().1;
    let fields: Vec<_> = after_the_name.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 1000 / TICKS_A_SECOND)
}

fn use_it(point: &Path) {
    for number in 0..20 {
        let directory = point.join(format!("directory-{number}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..10 {
            let bytes = vec![number; 100 << (file % 10)];
            fs::write(directory.join(file.to_string()), bytes).unwrap();
        }
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 10);
        assert_eq!(fs::read(directory.join("3")).unwrap().len(), 800);
        fs::remove_file(directory.join("4")).unwrap();
    }
}

fn idle_share(tier: &str) -> f64 {
    let mut cluster = Cluster::prepare();
    cluster.set_tier(tier);
    cluster.start();
    let point = cluster.mount_point();
    let process = mount_in_background(&cluster, &point, &[]).as_raw_pid();
    use_it(&point);
    std::thread::sleep(SETTLED_AFTER);
    let (before, began) = (processor_time(process), Instant::now());
    std::thread::sleep(MEASURED_FOR);
    let share = (processor_time(process) - before).as_secs_f64() / began.elapsed().as_secs_f64();
    println!("tier {tier}: {:.3} % of a processor", share * 100.0);
    cluster.quorumfs().args(["umount"]).run().ok();
    cluster.stop();
    share
}

#[test]
fn an_idle_mount_uses_almost_no_processor_time_at_any_tier() {
    require_fuse();
    let shares = std::thread::scope(|scope| {
        let tiers =
            ["clouds", "local", "memory"].map(|tier| (tier, scope.spawn(move || idle_share(tier))));
        tiers.map(|(tier, share)| (tier, share.join().unwrap()))
    });
    assert!(shares.iter().all(|(_, it)| *it < SHARE_MAX), "{shares:?}");
}
