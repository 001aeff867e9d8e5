//! The faults that a mount has to tolerate while the twins are compared: one cloud is damaged
//! continuously, and one replica lies. The mount is killed by steps ([`Step::Kill`]).
//!
//! The policy tolerates f = 1 cloud and the replicas r = 1 liar, so that no fault may ever show.
//!
//! [`Step::Kill`]: super::step::Step::Kill

use super::draw::Weather;
use super::liar::Lies;
use super::place::Mount;
use crate::harness::{Cluster, eventually};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The weather in which mounts are killed.
pub const FOUL: Weather = Weather {
    drop_caches: 300,
    wait: 700,
    remount: 1500,
    kill: Some(150),
};
/// The replica that lies, and the cloud that is damaged.
const LIAR: usize = 1;
const DAMAGED: usize = 2;
const PAUSE: Duration = Duration::from_millis(200);
const CHECKPOINT_WITHIN: Duration = Duration::from_secs(60);
/// Pairs of operations between two checks of the liar's counts.
const AT_ONCE: usize = 32;

/// Counts of the attack.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct AttackCounts {
    /// Objects of a cloud in which a bit was flipped.
    pub objects_damaged: u64,
    /// Lies in the results of operations.
    pub lies_in_replies: u64,
    /// Lies in the answers to unordered queries.
    pub lies_in_answers: u64,
    /// Checkpoints with the digest of no real state.
    pub lies_in_checkpoints: u64,
    /// How often the mount was killed.
    pub kills: u32,
}

impl AttackCounts {
    /// Checks that every part of the attack took place.
    ///
    /// # Panics
    /// If one did not.
    pub fn assert_everything_happened(&self) {
        let all = [
            self.objects_damaged,
            self.lies_in_replies,
            self.lies_in_answers,
            self.lies_in_checkpoints,
            self.kills.into(),
        ];
        assert!(!all.contains(&0), "something did not happen: {self:?}");
    }
}

/// A running attack.
#[derive(Debug)]
pub struct Attack {
    lies: PathBuf,
    ends: Arc<AtomicBool>,
    damaged: Arc<AtomicU64>,
    damaging: Option<JoinHandle<()>>,
}

impl Attack {
    /// A mount of tier `local` under attack; the liar is the program at `liar`.
    ///
    /// # Panics
    /// If a process cannot be started.
    #[must_use]
    pub fn begin(liar: &Path, seed: u64) -> (Self, Mount) {
        let mut cluster = Cluster::prepare();
        cluster.set_tier("local");
        let lies = cluster.directory().join("lies");
        for number in 0..cluster.addresses.len() {
            if number != LIAR {
                cluster.start_some(number..number + 1);
                continue;
            }
            let mut command = Command::new(liar);
            command.arg("--state").arg(cluster.replica(number));
            command
                .arg("--genesis")
                .arg(cluster.volume().join("volume.genesis"));
            command.args(["--listen", &cluster.addresses[number].to_string()]);
            command.arg("--lies").arg(&lies);
            command.args(["--seed", &seed.to_string()]);
            cluster.start_as(number, command);
        }
        let (ends, damaged) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let cloud = cluster.cloud(DAMAGED);
        let (until, count) = (ends.clone(), damaged.clone());
        let damaging = std::thread::spawn(move || damage(&cloud, &until, &count));
        let attack = Self {
            lies,
            ends,
            damaged,
            damaging: Some(damaging),
        };
        (attack, Mount::new(cluster))
    }

    /// Executes operations in the mount until the liar has lied about a checkpoint: a slow machine
    /// orders fewer operations for the same steps, and may not reach the first checkpoint.
    ///
    /// # Panics
    /// If that takes more than a minute.
    pub fn wait_for_checkpoint(&self, mount: &Mount) {
        let directory = mount.point().join("until-a-checkpoint");
        eventually(
            "the liar lies about a checkpoint",
            CHECKPOINT_WITHIN,
            || {
                for _ in 0..AT_ONCE {
                    fs::create_dir(&directory).unwrap();
                    fs::remove_dir(&directory).unwrap();
                }
                Lies::load(&self.lies).is_ok_and(|[_, _, checkpoints]| checkpoints > 0)
            },
        );
    }

    /// Ends the attack, and returns its counts. The mount is unmounted and all replicas stop
    /// successfully.
    ///
    /// # Panics
    /// If a process does not stop.
    #[must_use]
    pub fn end(mut self, mut mount: Mount) -> AttackCounts {
        mount.unmount();
        mount.cluster.stop();
        self.ends.store(true, Ordering::Release);
        self.damaging.take().unwrap().join().unwrap();
        let [replies, answers, checkpoints] = Lies::load(&self.lies).unwrap();
        AttackCounts {
            objects_damaged: self.damaged.load(Ordering::Relaxed),
            lies_in_replies: replies,
            lies_in_answers: answers,
            lies_in_checkpoints: checkpoints,
            kills: mount.kills,
        }
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
    }
}

/// Flips a bit in every object that appears in a cloud.
fn damage(cloud: &Path, ends: &AtomicBool, damaged: &AtomicU64) {
    let mut known = BTreeSet::new();
    while !ends.load(Ordering::Acquire) {
        for object in objects(cloud).unwrap_or_default() {
            // The object may be deleted meanwhile, or not be complete yet: then it is retried
            // later.
            if !known.contains(&object) && flip(&object).is_ok() {
                damaged.fetch_add(1, Ordering::Relaxed);
                known.insert(object);
            }
        }
        std::thread::sleep(PAUSE);
    }
}

fn objects(cloud: &Path) -> io::Result<Vec<PathBuf>> {
    let mut objects = Vec::new();
    for group in fs::read_dir(cloud)? {
        let group = group?.path();
        let is_group = group.file_name().is_some_and(|name| name.len() == 2);
        if is_group && group.is_dir() {
            for object in fs::read_dir(group)? {
                objects.push(object?.path());
            }
        }
    }
    Ok(objects)
}

fn flip(object: &Path) -> io::Result<()> {
    let mode = fs::metadata(object)?.permissions().mode();
    fs::set_permissions(object, fs::Permissions::from_mode(mode | 0o600))?;
    let file = File::options().read(true).write(true).open(object)?;
    let place = file.metadata()?.len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, place)?;
    file.write_all_at(&byte.map(|byte| byte ^ 1), place)
}
