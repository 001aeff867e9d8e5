//! One driver: it draws steps, executes each on one of the mounts, and keeps the tree that is
//! promised.
//!
//! A step begins when the one before has returned. Most of them do not wait until the other mounts
//! have seen the one before, so that what a mount knows may be older than the tree, by at most the
//! bound. Such a mount may refuse a step, if what it refuses for was so within the bound: a name
//! that another mount has just removed, or made. If it accepts the step, the step has to fit the
//! tree as it is: a creation that succeeds where another mount has a file is a broken promise.
//! Directories are the exception. After a change of one the driver waits until all mounts show it,
//! so that a path leads to the same directory on all of them.

use super::held::HeldFile;
use super::mounts::Mounts;
use super::promise::{BrokenPromise, Delays, Kept, StepRecord};
use super::tree::{ExpectedTree, InodeKind, NamePlace};
use crate::harness::noise;
use quorumfs_bft_simulator::random::Random;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Names of files in each directory, and of directories: few, so that steps meet.
const FILE_NAMES: usize = 9;
/// After so many steps everything is compared.
const COMPARE_EVERY: usize = 400;
/// The longest file.
const LENGTH_MAX: u64 = 150_000;

/// What was done and found.
#[derive(Clone, Debug, Default)]
pub(super) struct StageCounts {
    /// Steps by kind.
    pub(super) steps: BTreeMap<&'static str, u64>,
    /// Steps that a mount refused because of what another one had changed within the bound.
    pub(super) refused: BTreeMap<&'static str, u64>,
    /// How long others took to see names, attributes, and what was appended.
    pub(super) names: Delays,
    pub(super) attributes: Delays,
    pub(super) appended: Delays,
    /// Files that were read and compared, and their bytes.
    pub(super) files: u64,
    pub(super) bytes: u64,
}

impl StageCounts {
    pub(super) fn step(&mut self, kind: &'static str) {
        *self.steps.entry(kind).or_default() += 1;
    }

    pub(super) fn append(&mut self, other: Self) {
        for (kind, count) in other.steps {
            *self.steps.entry(kind).or_default() += count;
        }
        for (kind, count) in other.refused {
            *self.refused.entry(kind).or_default() += count;
        }
        self.names.append(other.names);
        self.attributes.append(other.attributes);
        self.appended.append(other.appended);
        self.files += other.files;
        self.bytes += other.bytes;
    }
}

/// A driver with a tree of its own.
#[derive(Debug)]
pub(super) struct Stage<'a> {
    pub(super) mounts: &'a Mounts,
    pub(super) home: String,
    pub(super) record: StepRecord,
    pub(super) random: Random,
    pub(super) tree: ExpectedTree,
    pub(super) held: Vec<HeldFile>,
    pub(super) counts: StageCounts,
    /// The mounts that take part in no step now: stopped, cut off, or ended.
    pub(super) away: Vec<usize>,
    /// Names that a call is changing which has not returned.
    pub(super) reserved: BTreeSet<NamePlace>,
}

impl<'a> Stage<'a> {
    /// Makes the directory of the stage, and waits until all mounts show it.
    pub(super) fn new(mounts: &'a Mounts, home: &str, seed: u64) -> Kept<Self> {
        let root = super::scenes::make_home(mounts, home, seed)?;
        let mut stage = Self {
            mounts,
            home: home.to_owned(),
            record: StepRecord::new(seed),
            random: Random::new(seed),
            tree: ExpectedTree::new(mounts.count(), root),
            held: Vec::new(),
            counts: StageCounts::default(),
            away: Vec::new(),
            reserved: BTreeSet::new(),
        };
        for _ in 0..2 {
            stage.make_directory(0)?;
        }
        Ok(stage)
    }

    /// Executes so many steps, with what `meanwhile` does before each, and compares everything.
    pub(super) fn run(
        &mut self,
        steps: std::ops::Range<usize>,
        mut meanwhile: impl FnMut(&mut Self) -> Kept,
    ) -> Kept {
        for step in steps {
            self.begin(step);
            meanwhile(self)?;
            self.ordinary()?;
            if step % COMPARE_EVERY == COMPARE_EVERY - 1 {
                self.compare()?;
            }
        }
        self.compare()
    }

    /// What is drawn in a step follows from the seed, the step, and the tree.
    fn begin(&mut self, step: usize) {
        self.record.step = step;
        let concern = self.home.bytes().map(u64::from).sum();
        let seed = self.record.seed.wrapping_mul(1_000_003) ^ step as u64;
        self.random = Random::new(seed).fork(concern);
    }

    /// One step on one mount.
    pub(super) fn ordinary(&mut self) -> Kept {
        let mount = self.draw_mount();
        match self.random.below(100) {
            0..=11 => self.create(mount),
            12..=16 => self.rewrite(mount),
            17..=28 => self.patch(mount),
            29..=32 => self.append(mount),
            33..=35 => self.truncate(mount),
            36..=38 => self.change_mode(mount),
            39..=41 => self.change_times(mount),
            42..=45 => self.change_label(mount),
            46..=49 => self.link(mount),
            50..=55 => self.unlink(mount),
            56..=63 => self.rename(mount),
            64..=65 => self.make_link(mount),
            66 if self.away.is_empty() => self.make_directory(mount),
            67 if self.away.is_empty() => self.remove_directory(mount),
            68 if self.away.is_empty() => self.rename_directory(mount),
            66..=79 => self.read(mount),
            80..=85 => self.stat(mount),
            86..=88 => self.list(mount),
            89..=90 => self.show_label(mount),
            91..=93 => self.hold(mount),
            _ => self.use_held(),
        }
    }

    fn draw_mount(&mut self) -> usize {
        let mounts: Vec<_> = self.answering().collect();
        *self.random.pick(&mounts).expect("one takes part")
    }

    /// The mounts that take part in steps.
    pub(super) fn answering(&self) -> impl Iterator<Item = usize> + use<> {
        let away = self.away.clone();
        (0..self.mounts.count()).filter(move |mount| !away.contains(mount))
    }

    /// The others that take part in steps.
    pub(super) fn others(&self, than: usize) -> Vec<usize> {
        self.answering().filter(|mount| *mount != than).collect()
    }

    /// A name of a file or link that is there, and that no call is changing.
    pub(super) fn draw_leaf(&mut self) -> Option<NamePlace> {
        let mut leaves = self.tree.live_leaves();
        leaves.retain(|place| !self.reserved.contains(place));
        self.random.pick(&leaves).cloned()
    }

    /// A name of a file that is there, of whose names no call is changing one.
    pub(super) fn draw_file(&mut self) -> Option<NamePlace> {
        let busy: BTreeSet<_> = self.reserved.iter().map(|it| self.tree.at(it)).collect();
        let mut files = self.tree.live_files();
        files.retain(|place| !busy.contains(&self.tree.at(place)));
        self.random.pick(&files).cloned()
    }

    /// A name that may be there or not.
    pub(super) fn draw_name(&mut self) -> NamePlace {
        let directories = self.tree.directories();
        loop {
            let directory = *self.random.pick(&directories).expect("there is the root");
            let place = (directory, format!("f{}", self.random.index(FILE_NAMES)));
            if !self.reserved.contains(&place) {
                return place;
            }
        }
    }

    /// A name that is not there now, after a few tries.
    pub(super) fn draw_free_name(&mut self) -> Option<NamePlace> {
        for _ in 0..8 {
            let place = self.draw_name();
            if self.tree.at(&place).is_none() {
                return Some(place);
            }
        }
        None
    }

    /// Bytes that follow from the seed, mostly few.
    pub(super) fn draw_bytes(&mut self) -> Vec<u8> {
        let length = match self.random.below(8) {
            0 => self.random.below(3),
            1 => 4096 - 1 + self.random.below(3),
            2 => self.random.below(LENGTH_MAX),
            _ => self.random.below(9000),
        };
        noise(self.random.next(), length as usize)
    }

    /// Whether a mount cannot but know what a name is now.
    pub(super) fn is_certain(&mut self, mount: usize, place: &NamePlace) -> bool {
        let horizon = self.mounts.horizon(mount, Instant::now(), false);
        self.tree.allowed(mount, place, horizon).len() == 1
    }

    /// Whether a mount may believe that a name is there, or that it is not.
    pub(super) fn may_believe(
        &mut self,
        mount: usize,
        place: &NamePlace,
        is_there: bool,
        began: Instant,
    ) -> bool {
        let horizon = self.mounts.horizon(mount, began, false);
        let allowed = self.tree.allowed(mount, place, horizon);
        allowed.iter().any(|number| number.is_some() == is_there)
    }

    /// A mount refused a step for a name that it believes to be there, or not to be there.
    pub(super) fn refused(
        &mut self,
        (mount, call): (usize, &'static str),
        place: &NamePlace,
        began: Instant,
        error: Errno,
    ) -> Kept {
        let is_there = match error {
            Errno::EXIST => true,
            Errno::NOENT => false,
            _ => return Err(self.failed(mount, call, &self.tree.path(place), error)),
        };
        if self.may_believe(mount, place, is_there, began) {
            *self.counts.refused.entry(call).or_default() += 1;
            return Ok(());
        }
        let path = self.tree.path(place);
        let expected = match is_there {
            true => "success: the name was not there within the bound",
            false => "success: the name was there all the time within the bound",
        };
        Err(self.broken(mount, "names are shown as they are", &path, expected, error))
    }

    /// A call failed that has to succeed.
    pub(super) fn failed(
        &self,
        mount: usize,
        call: &str,
        path: &str,
        error: Errno,
    ) -> Box<BrokenPromise> {
        let seen = format!("{call} failed: {error} {}", self.mounts.overdue());
        let promise = "a call that can be executed succeeds";
        let mut broken = self.record.broken(mount, promise, path, "success", seen);
        broken.failure = Some(error);
        broken
    }

    pub(super) fn broken(
        &self,
        mount: usize,
        promise: &str,
        path: &str,
        expected: impl Into<String>,
        seen: impl std::fmt::Display,
    ) -> Box<BrokenPromise> {
        let seen = seen.to_string();
        self.record.broken(mount, promise, path, expected, seen)
    }

    /// Notes a step.
    pub(super) fn note(&mut self, mount: usize, kind: &'static str, paths: &[&str]) {
        self.counts.step(kind);
        self.record.note(mount, kind, paths);
    }

    /// Whether an inode is a file.
    pub(super) fn is_file(&self, number: u64) -> bool {
        self.tree.inodes[&number].kind == InodeKind::File
    }
}
