//! Scenes: what several mounts do with one file or name over some time, with files of their own.
//!
//! A reader polls a file that grows (`tail -f`); readers open a name that is replaced again and
//! again; a file of tier `local` reaches the others when it is committed. The [`duels`] are scenes
//! too. Scenes of locks across mounts belong here, once a volume has such locks.
//!
//! [`duels`]: super::duels

use super::hand::{CallResult, Hand};
use super::look::POLL_EVERY;
use super::mounts::Mounts;
use super::promise::{BrokenPromise, FileBytes, Kept, StepRecord, first_difference, is_mixture};
use super::stage::StageCounts;
use crate::harness::noise;
use quorumfs_bft_simulator::random::Random;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Appends of one scene, replacements of one scene, and the pause between them.
const APPENDS: u64 = 12;
const REPLACEMENTS: u64 = 12;
const PAUSE_MAX_MS: u64 = 120;
const PIECE_MAX: u64 = 20_000;
/// A file of tier `local` is committed in the background, some seconds after it was written.
const COMMITTED_WITHIN: Duration = Duration::from_secs(40);

const TAIL: &str = "a reader that has the file open sees what was appended and committed within \
                    the bound, and nothing else";
const REPLACED: &str = "a name that is replaced shows the old file or the new one, whole, and the \
                        new one within the bound";
const LOCAL: &str = "a file of tier `local` is seen by others once it is committed, and nothing \
                     else of it before";
const VISIBLE: &str = "others see a change of names within the bound";

/// Makes a directory at the root, and waits until all mounts show it.
pub(super) fn make_home(mounts: &Mounts, home: &str, seed: u64) -> Kept<u64> {
    let mut arena = Arena::at_the_root(mounts, seed);
    let made = arena.hand(0).make_directory(home);
    arena.must(0, "mkdir", home, made)?;
    let seen = arena.hand(0).stat(home);
    let number = arena.must(0, "stat", home, seen)?.inode;
    arena.everywhere(home, Some(number), Instant::now())?;
    Ok(number)
}

/// A directory for scenes.
#[derive(Debug)]
pub(super) struct Arena<'a> {
    pub(super) mounts: &'a Mounts,
    home: String,
    pub(super) record: StepRecord,
    pub(super) random: Random,
    pub(super) counts: StageCounts,
}

impl<'a> Arena<'a> {
    fn at_the_root(mounts: &'a Mounts, seed: u64) -> Self {
        Self {
            mounts,
            home: String::new(),
            record: StepRecord::new(seed),
            random: Random::new(seed),
            counts: StageCounts::default(),
        }
    }

    /// Makes the directory.
    pub(super) fn new(mounts: &'a Mounts, home: &str, seed: u64) -> Kept<Self> {
        make_home(mounts, home, seed)?;
        Ok(Self {
            home: home.to_owned(),
            ..Self::at_the_root(mounts, seed)
        })
    }

    pub(super) fn begin(&mut self, step: usize) {
        self.record.step = step;
        let seed = self.record.seed.wrapping_mul(1_000_033) ^ step as u64;
        self.random = Random::new(seed);
    }

    pub(super) fn hand(&self, mount: usize) -> Hand<'a> {
        self.mounts.hand(mount, &self.home)
    }

    /// Two mounts, which differ if there are two.
    pub(super) fn draw_two(&mut self) -> (usize, usize) {
        let count = self.mounts.count();
        let first = self.random.index(count);
        match count {
            1 => (first, first),
            _ => (first, (first + 1 + self.random.index(count - 1)) % count),
        }
    }

    pub(super) fn draw_bytes(&mut self, most: u64) -> Vec<u8> {
        let length = 1 + self.random.below(most) as usize;
        noise(self.random.next(), length)
    }

    pub(super) fn broken(
        &self,
        mount: usize,
        promise: &str,
        path: &str,
        expected: impl Into<String>,
        seen: impl std::fmt::Display,
    ) -> Box<BrokenPromise> {
        let path = if path.is_empty() { &self.home } else { path };
        self.record
            .broken(mount, promise, path, expected, seen.to_string())
    }

    /// The result of a call that has to succeed.
    pub(super) fn must<T>(
        &self,
        mount: usize,
        call: &str,
        path: &str,
        answer: CallResult<T>,
    ) -> Kept<T> {
        answer.map_err(|error| {
            let seen = format!("{call} failed: {error} {}", self.mounts.overdue());
            let promise = "a call that can be executed succeeds";
            self.broken(mount, promise, path, "success", seen)
        })
    }

    /// Waits until every mount shows this inode at a name, which has it since a moment.
    pub(super) fn everywhere(&mut self, path: &str, number: Option<u64>, since: Instant) -> Kept {
        for mount in 0..self.mounts.count() {
            loop {
                let began = Instant::now();
                let seen = match self.hand(mount).stat(path) {
                    Err(Errno::NOENT) => None,
                    seen => Some(self.must(mount, "stat", path, seen)?.inode),
                };
                if seen == number {
                    self.counts.names.add(since.elapsed());
                    break;
                }
                if began > since + self.mounts.bound {
                    let late = began.duration_since(since).as_millis();
                    let seen = format!("inode {seen:?} {late} ms later");
                    let expected = format!("inode {number:?}");
                    return Err(self.broken(mount, VISIBLE, path, expected, seen));
                }
                std::thread::sleep(POLL_EVERY);
            }
        }
        Ok(())
    }

    /// Waits until all mounts show the same inode at a name, or none.
    pub(super) fn agreed(&mut self, path: &str, since: Instant) -> Kept<Option<u64>> {
        loop {
            let (began, mut seen) = (Instant::now(), Vec::new());
            for mount in 0..self.mounts.count() {
                seen.push(match self.hand(mount).stat(path) {
                    Err(Errno::NOENT) => None,
                    found => Some(self.must(mount, "stat", path, found)?.inode),
                });
            }
            if seen.iter().all(|it| *it == seen[0]) {
                return Ok(seen[0]);
            }
            if began > since + self.mounts.bound {
                let expected = "the same inode on all mounts";
                return Err(self.broken(0, VISIBLE, path, expected, format!("{seen:?}")));
            }
            std::thread::sleep(POLL_EVERY);
        }
    }

    /// A new file, committed, which all mounts show.
    pub(super) fn make(&mut self, mount: usize, path: &str, bytes: &[u8]) -> Kept<u64> {
        let hand = self.hand(mount);
        let file = self.must(mount, "create", path, hand.create(path))?;
        self.must(mount, "write", path, hand.write(&file, bytes))?;
        let seen = self.must(mount, "fstat", path, hand.state(&file))?;
        hand.close(file);
        self.everywhere(path, Some(seen.inode), Instant::now())?;
        Ok(seen.inode)
    }

    /// Every mount reads exactly these bytes.
    pub(super) fn read_everywhere(&mut self, promise: &str, path: &str, bytes: &[u8]) -> Kept {
        for mount in 0..self.mounts.count() {
            let seen = self.hand(mount).read(path);
            let seen = self.must(mount, "read", path, seen)?;
            self.counts.files += 1;
            self.counts.bytes += seen.len() as u64;
            if seen != bytes {
                let expected = format!("{:?}", FileBytes::of(bytes.to_vec()));
                let difference = first_difference(bytes, &seen);
                let seen = format!("{:?}, {difference}", FileBytes::of(seen));
                return Err(self.broken(mount, promise, path, expected, seen));
            }
        }
        Ok(())
    }

    /// Removes what a scene has left, on any mount.
    pub(super) fn clear(&mut self, paths: &[&str]) -> Kept {
        let (mount, _) = self.draw_two();
        for path in paths {
            match self.hand(mount).unlink(path) {
                Err(Errno::NOENT) => {}
                removed => self.must(mount, "unlink", path, removed)?,
            }
        }
        Ok(())
    }

    pub(super) fn note(&mut self, mount: usize, kind: &'static str, path: &str) {
        self.counts.step(kind);
        self.record.note(mount, kind, &[path]);
    }

    /// One mount appends, another has the file open and polls.
    pub(super) fn tail(&mut self) -> Kept {
        let ((writer, reader), path) = (self.draw_two(), format!("tail-{}", self.record.step));
        self.note(writer, "tail", &path);
        let mut pieces = vec![self.draw_bytes(PIECE_MAX)];
        for _ in 0..APPENDS {
            pieces.push(self.draw_bytes(PIECE_MAX));
        }
        self.make(writer, &path, &pieces[0])?;
        let opened = self.hand(reader).open(&path, OFlags::RDONLY);
        let open = self.must(reader, "open", &path, opened)?;
        let all = pieces.concat();
        let acknowledged = Mutex::new(vec![(Instant::now(), pieces[0].len())]);
        let (begun, ends) = (
            AtomicU64::new(pieces[0].len() as u64),
            AtomicBool::new(false),
        );
        let pauses: Vec<_> = pieces
            .iter()
            .map(|_| Duration::from_millis(self.random.below(PAUSE_MAX_MS)))
            .collect();
        let this = &*self;
        let (written, delays) = std::thread::scope(|scope| {
            let polling = scope.spawn(|| {
                this.poll_tail(reader, &path, &open, &all, (&acknowledged, &begun, &ends))
            });
            let written = this.write_tail(writer, &path, &pieces, &pauses, (&acknowledged, &begun));
            ends.store(true, Ordering::Release);
            (written, polling.join().unwrap())
        });
        written?;
        delays?
            .into_iter()
            .for_each(|it| self.counts.appended.add(it));
        self.hand(reader).close(open);
        self.read_everywhere(TAIL, &path, &all)?;
        self.clear(&[&path])
    }

    fn write_tail(
        &self,
        mount: usize,
        path: &str,
        pieces: &[Vec<u8>],
        pauses: &[Duration],
        (acknowledged, begun): (&Mutex<Vec<(Instant, usize)>>, &AtomicU64),
    ) -> Kept {
        let hand = self.hand(mount);
        let flags = OFlags::WRONLY | OFlags::APPEND;
        let mut file = self.must(mount, "open", path, hand.open(path, flags))?;
        let mut length = pieces[0].len();
        for (number, piece) in pieces.iter().enumerate().skip(1) {
            length += piece.len();
            begun.store(length as u64, Ordering::Release);
            self.must(mount, "write", path, hand.write(&file, piece))?;
            if number % 3 == 0 {
                hand.close(file);
                acknowledged.lock().unwrap().push((Instant::now(), length));
                file = self.must(mount, "open", path, hand.open(path, flags))?;
            } else {
                self.must(mount, "fsync", path, hand.sync(&file))?;
                acknowledged.lock().unwrap().push((Instant::now(), length));
            }
            std::thread::sleep(pauses[number]);
        }
        hand.close(file);
        Ok(())
    }

    /// Reads what comes until everything has come; returns how long each piece took.
    fn poll_tail(
        &self,
        mount: usize,
        path: &str,
        file: &OwnedFd,
        all: &[u8],
        (acknowledged, begun, ends): (&Mutex<Vec<(Instant, usize)>>, &AtomicU64, &AtomicBool),
    ) -> Kept<Vec<Duration>> {
        let (hand, mut length, mut delays) = (self.hand(mount), 0, Vec::new());
        // Of the first piece, which was there before, no delay is measured.
        let mut measured = 1;
        loop {
            let began = Instant::now();
            let came = hand.read_from(file, length as u64);
            let came = self.must(mount, "read", path, came)?;
            let (now, most) = (Instant::now(), begun.load(Ordering::Acquire) as usize);
            let end = length + came.len();
            if end > most || came != all[length..end] {
                let expected = format!("at most {most} bytes, each as it was written");
                let due = &all[length..most.max(length)];
                let seen = format!("{end} bytes, {}", first_difference(due, &came));
                return Err(self.broken(mount, TAIL, path, expected, seen));
            }
            let known = acknowledged.lock().unwrap().clone();
            for (at, due) in &known {
                if *due > end && began > *at + self.mounts.bound {
                    let late = began.duration_since(*at).as_millis();
                    let (expected, seen) =
                        (format!("{due} bytes"), format!("{end} {late} ms later"));
                    return Err(self.broken(mount, TAIL, path, expected, seen));
                }
            }
            // What was seen before it was acknowledged was seen without delay.
            while let Some((at, _)) = known.get(measured).filter(|(_, due)| *due <= end) {
                let seen = if length < known[measured].1 { now } else { *at };
                delays.push(seen.saturating_duration_since(*at));
                measured += 1;
            }
            length = end;
            // The writer may have failed, which ends the scene as well.
            let over = ends.load(Ordering::Acquire);
            if over && known.last().is_none_or(|(_, due)| *due <= length) {
                return Ok(delays);
            }
            std::thread::sleep(POLL_EVERY);
        }
    }

    /// One mount renames new versions over a name, another opens and reads it all the time.
    pub(super) fn replaced(&mut self) -> Kept {
        let ((writer, reader), path) = (self.draw_two(), format!("replaced-{}", self.record.step));
        self.note(writer, "replaced", &path);
        let mut versions = Vec::new();
        for _ in 0..=REPLACEMENTS {
            versions.push(self.draw_bytes(PIECE_MAX));
        }
        self.make(writer, &path, &versions[0])?;
        let acknowledged = Mutex::new(vec![Instant::now()]);
        let ends = AtomicBool::new(false);
        let pauses: Vec<_> = versions
            .iter()
            .map(|_| Duration::from_millis(self.random.below(PAUSE_MAX_MS)))
            .collect();
        let this = &*self;
        let shared = (&acknowledged, &ends);
        let (replaced, polled) = std::thread::scope(|scope| {
            let polling = scope.spawn(|| this.poll_replaced(reader, &path, &versions, shared));
            let replaced = this.replace(writer, &path, &versions, &pauses, &acknowledged);
            ends.store(true, Ordering::Release);
            (replaced, polling.join().unwrap())
        });
        replaced?;
        let (files, bytes) = polled?;
        self.counts.files += files;
        self.counts.bytes += bytes;
        self.clear(&[&path])
    }

    fn replace(
        &self,
        mount: usize,
        path: &str,
        versions: &[Vec<u8>],
        pauses: &[Duration],
        acknowledged: &Mutex<Vec<Instant>>,
    ) -> Kept {
        let (hand, other) = (self.hand(mount), format!("{path}.new"));
        for (version, pause) in versions.iter().zip(pauses).skip(1) {
            let file = self.must(mount, "create", &other, hand.create(&other))?;
            self.must(mount, "write", &other, hand.write(&file, version))?;
            hand.close(file);
            self.must(mount, "rename", path, hand.rename(&other, path))?;
            acknowledged.lock().unwrap().push(Instant::now());
            std::thread::sleep(*pause);
        }
        Ok(())
    }

    fn poll_replaced(
        &self,
        mount: usize,
        path: &str,
        versions: &[Vec<u8>],
        (acknowledged, ends): (&Mutex<Vec<Instant>>, &AtomicBool),
    ) -> Kept<(u64, u64)> {
        let (hand, mut shown, mut counts) = (self.hand(mount), 0, (0, 0));
        loop {
            let (began, over) = (Instant::now(), ends.load(Ordering::Acquire));
            let file = match hand.open(path, OFlags::RDONLY) {
                Err(error) if !over && self.mounts.allows(error) => continue,
                file => self.must(mount, "open", path, file)?,
            };
            let seen = self.must(mount, "read", path, hand.read_from(&file, 0))?;
            hand.close(file);
            counts = (counts.0 + 1, counts.1 + seen.len() as u64);
            let known = acknowledged.lock().unwrap().clone();
            let due = known.partition_point(|at| *at + self.mounts.bound < began);
            let least = due.saturating_sub(1).max(shown);
            // The next one may be in place before its rename has returned.
            let most = (known.len() + 1).min(versions.len());
            let found = versions[least..most].iter().position(|it| *it == seen);
            let Some(found) = found else {
                let which = versions.iter().position(|it| *it == seen);
                let expected = format!("one of the versions {least} to {}", most - 1);
                let seen = format!("version {which:?}: {:?}", FileBytes::of(seen));
                return Err(self.broken(mount, REPLACED, path, expected, seen));
            };
            shown = least + found;
            let enough = Instant::now() > known[known.len() - 1] + self.mounts.bound;
            if over && (shown + 1 == known.len() || enough) {
                return Ok(counts);
            }
            std::thread::sleep(POLL_EVERY);
        }
    }

    /// A file whose own tier is `local`: what was closed reaches the others by itself, even if its
    /// mount is killed in between.
    pub(super) fn local(&mut self, kills: bool) -> Kept {
        let ((writer, _), path) = (self.draw_two(), format!("local-{}", self.record.step));
        self.note(writer, "local", &path);
        let (hand, bytes) = (self.hand(writer), self.draw_bytes(PIECE_MAX));
        let file = self.must(writer, "create", &path, hand.create(&path))?;
        let tier = hand.set_tier(&file, "local");
        self.must(writer, "setxattr", &path, tier)?;
        self.must(writer, "write", &path, hand.write(&file, &bytes))?;
        self.must(writer, "fsync", &path, hand.sync(&file))?;
        hand.close(file);
        let began = Instant::now();
        let seen = self.must(writer, "read", &path, hand.read(&path))?;
        if seen != bytes {
            let seen = first_difference(&bytes, &seen);
            return Err(self.broken(writer, LOCAL, &path, "its own bytes at once", seen));
        }
        if kills {
            self.mounts.kill(writer);
            self.mounts.mount(writer);
        }
        for mount in 0..self.mounts.count() {
            loop {
                let seen = match self.hand(mount).read(&path) {
                    Err(Errno::NOENT) if began.elapsed() < self.mounts.bound => Vec::new(),
                    seen => self.must(mount, "read", &path, seen)?,
                };
                if seen == bytes {
                    break;
                }
                let is_part = is_mixture(&[&[], &bytes], &seen);
                if !is_part || began.elapsed() > COMMITTED_WITHIN {
                    let late = began.elapsed().as_millis();
                    let difference = first_difference(&bytes, &seen);
                    let seen = format!("{} bytes {late} ms later, {difference}", seen.len());
                    let expected = format!("{} bytes, or none yet", bytes.len());
                    return Err(self.broken(mount, LOCAL, &path, expected, seen));
                }
                std::thread::sleep(20 * POLL_EVERY);
            }
        }
        self.clear(&[&path])
    }
}
