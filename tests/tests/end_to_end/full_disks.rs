//! Replicas whose disks fill: growth is refused while there is still space to remove things, and a
//! replica on a full disk starts again.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use quorumfs_tests::harness::{Cluster, mount_in_background};
use rustix::fs::{XattrFlags, setxattr, statvfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const REPLICAS: usize = 4;
const FLOOR_MIB: u32 = 64;

/// Small file systems in the place of the replicas' disks.
struct Disks(Vec<PathBuf>);

impl Disks {
    fn of_mib(cluster: &Cluster, mib: u32) -> Self {
        let mut all = Self(Vec::new());
        for number in 0..REPLICAS {
            let replica = cluster.replica(number);
            let configuration = replica.join("replica.toml");
            let text = fs::read_to_string(&configuration).unwrap();
            let text = text.replacen("key = ", "free_space_floor_mib = 64\nkey = ", 1);
            fs::write(&configuration, text).unwrap();
            let (data, aside) = (replica.join("data"), replica.join("aside"));
            fs::rename(&data, &aside).unwrap();
            fs::create_dir(&data).unwrap();
            let options = CString::new(format!("mode=0700,size={mib}m")).unwrap();
            mount(
                "tmpfs",
                &data,
                "tmpfs",
                MountFlags::NODEV,
                options.as_c_str(),
            )
            .unwrap();
            all.0.push(data.clone());
            copy(&aside, &data);
        }
        all
    }

    /// Leaves this much above the floor, once the reserves exist: the rest fills soon.
    fn leave_mib(&self, left: u64) {
        for (number, disk) in self.0.iter().enumerate() {
            let reserve = disk.join("reserve");
            let patience = Duration::from_secs(30);
            quorumfs_tests::harness::eventually("there is a reserve", patience, || {
                reserve.exists()
            });
            let much = self.free_mib(number) - u64::from(FLOOR_MIB) - left;
            fs::write(disk.join("filler"), vec![1; (much << 20) as usize]).unwrap();
        }
    }

    /// The state of a disk, for the message of a failed test.
    fn describe(&self, cluster: &Cluster, number: usize) -> String {
        let mut text = format!("{} MiB are free;", self.free_mib(number));
        let mut left = vec![self.0[number].clone()];
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(&directory)
                .unwrap()
                .map(|entry| entry.unwrap())
            {
                let kind = entry.metadata().unwrap();
                if kind.is_dir() {
                    left.push(entry.path());
                } else {
                    let (name, kib) = (entry.file_name(), kind.blocks() / 2);
                    text.push_str(&format!(" {} {kib} KiB;", name.display()));
                }
            }
        }
        text + "\n" + &fs::read_to_string(cluster.log(number)).unwrap()
    }

    fn free_mib(&self, number: usize) -> u64 {
        let found = statvfs(&self.0[number]).unwrap();
        (found.f_bavail * found.f_frsize) >> 20
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = unmount(path, UnmountFlags::DETACH);
        }
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// Creates files with as many attributes as possible, until there is no space; returns their
/// number.
fn fill(directory: &Path) -> usize {
    let value = [7; 60_000];
    for number in 0.. {
        let path = directory.join(number.to_string());
        let made = fs::File::create(&path)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let set = |name: &str| setxattr(&path, name, &value, XattrFlags::empty());
        let done = made
            .and_then(|_| set("user.one"))
            .and_then(|()| set("user.two"));
        match done {
            Ok(()) => {}
            Err(Errno::NOSPC) => return number,
            Err(other) => panic!("file {number}: {other}"),
        }
    }
    unreachable!("the disk never fills")
}

#[test]
fn replicas_whose_disks_are_nearly_full_refuse_growth_and_allow_removal() {
    let mut cluster = Cluster::prepare();
    let disks = Disks::of_mib(&cluster, 288);
    cluster.start();
    // The journal permanently takes half of that.
    disks.leave_mib(96);
    let point = cluster.mount_point();
    let _process = mount_in_background(&cluster, &point, &[]);
    let filled = point.join("filled");
    fs::create_dir(&filled).unwrap();
    let count = fill(&filled);
    assert!(count > 50, "only {count} files fit");
    for number in 0..REPLICAS {
        let free = disks.free_mib(number);
        assert!(
            free > u64::from(FLOOR_MIB) / 2,
            "disk {number} has {free} MiB left"
        );
    }
    assert_eq!(cluster.processes().count(), REPLICAS);
    // Reading, overwriting and removing still work.
    assert!(fs::read_dir(&filled).unwrap().count() >= count);
    fs::rename(filled.join("0"), filled.join("zero")).unwrap();
    fs::remove_dir_all(&filled).unwrap();
    let began = Instant::now();
    while let Err(error) = fs::create_dir(&filled) {
        assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSPC), "{error}");
        let patient = began.elapsed() < Duration::from_secs(120);
        assert!(
            patient,
            "no space was freed: {}",
            disks.describe(&cluster, 0)
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    cluster
        .quorumfs()
        .args(["umount"])
        .args([&point])
        .run()
        .ok();
}

#[test]
fn a_replica_starts_on_a_full_disk() {
    let mut cluster = Cluster::prepare();
    let disks = Disks::of_mib(&cluster, 320);
    cluster.start();
    let reserve = disks.0[0].join("reserve");
    quorumfs_tests::harness::eventually("there is a reserve", Duration::from_secs(30), || {
        reserve.exists()
    });
    cluster.stop_one(0);
    // Something else fills the disk.
    let filler = disks.0[0].join("filler");
    let mut file = fs::File::create(&filler).unwrap();
    let piece = vec![1; 1 << 20];
    while std::io::Write::write_all(&mut file, &piece).is_ok() {}
    drop(file);
    assert_eq!(disks.free_mib(0), 0);
    cluster.start_with(0, &[]);
    assert!(!reserve.exists() && disks.free_mib(0) > 16);
    cluster.quorumfs().run_with(["ls", "/"]).ok();
    cluster.stop_one(0);
    fs::remove_file(&filler).unwrap();
    cluster.start_with(0, &[]);
    let began = Instant::now();
    while !reserve.exists() {
        let patient = began.elapsed() < Duration::from_secs(30);
        assert!(patient, "no reserve: {}", disks.describe(&cluster, 0));
        std::thread::sleep(Duration::from_millis(100));
    }
}
