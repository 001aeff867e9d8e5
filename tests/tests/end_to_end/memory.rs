//! A mount stays within its memory setting, whatever passes through it.
//!
//! Content is counted byte by byte, so the risk is elsewhere: buffers of all sizes are allocated on
//! one thread and freed on another, and an allocator may retain some for each thread and size.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_tests::harness::{Cluster, OVERHEAD_MIB, mount_in_background, peak_mib, require_fuse};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// The memory setting of the mount.
const MEMORY_MIB: u64 = 128;
/// Concurrent writers.
const WRITERS: u64 = 4;
/// The number of files that each writes and reads.
const FILES: u64 = 800;
/// Each file's length, in bytes, is below this.
const LENGTH_MAX: u64 = 160 << 10;

/// Writes files of all lengths, syncs each, reads those written before, and removes them.
fn use_it(directory: &Path) {
    fs::create_dir(directory).unwrap();
    let path = |number: u64| directory.join(number.to_string());
    let length = |number: u64| (number * 40_503 + 977) % LENGTH_MAX;
    for number in 0..FILES {
        let bytes = vec![number as u8; usize::try_from(length(number)).unwrap()];
        let mut file = File::create(path(number)).unwrap();
        file.write_all(&bytes).unwrap();
        file.sync_all().unwrap();
        if number >= 50 {
            let old = number - 50;
            assert_eq!(fs::read(path(old)).unwrap().len() as u64, length(old));
            fs::remove_file(path(old)).unwrap();
        }
    }
}

#[test]
fn a_mount_stays_within_its_memory_while_files_of_all_sizes_come_and_go() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.configure(&format!("[data]\nmemory_mib = {MEMORY_MIB}\n"));
    cluster.set_tier("local");
    cluster.start();
    let point = cluster.mount_point();
    let process = mount_in_background(&cluster, &point, &[]).as_raw_pid();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let directory = point.join(format!("writer-{writer}"));
            scope.spawn(move || use_it(&directory));
        }
    });
    let peak = peak_mib(u32::try_from(process).unwrap()).expect("it is mounted");
    println!("a peak of {peak} MiB");
    cluster.quorumfs().args(["umount"]).run().ok();
    cluster.stop();
    assert!(
        peak <= MEMORY_MIB + OVERHEAD_MIB,
        "the mount used {peak} MiB; its setting is {MEMORY_MIB}"
    );
}
