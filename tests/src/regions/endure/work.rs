//! Programs that use a mount: a worker makes, writes, lists, looks at, renames and removes files in
//! a directory of its own; a publisher replaces files that a reader on another mount reads.
//!
//! Each knows what has to be there. What a call has acknowledged counts; a call that failed may
//! have had its effect or not, and the names that it was about are left out from then on. So a
//! worker can go on behind a link that is cut.

use crate::harness::noise;
use anyhow::{Context, bail, ensure};
use quorumfs_bft_simulator::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Files that a worker has at a time, so that comparing them takes a bounded time.
const FILES_MAX: usize = 40;
/// The longest content that a worker writes.
const BYTES_MAX: u64 = 24 << 10;
/// Files that a publisher replaces in turn.
const PUBLISHED: u64 = 4;
/// The length of what is published.
const PUBLISHED_BYTES: usize = 3000;
/// Bytes of a published file that say which version it is.
const VERSION_BYTES: usize = 8;
/// How long a reader waits between two files.
const READER_PAUSE: Duration = Duration::from_millis(20);

/// What calls took, by their kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    took: BTreeMap<&'static str, Vec<Duration>>,
    failures: Vec<(Instant, String)>,
}

impl Calls {
    /// Does something and notes how long it took.
    fn time<T>(
        &mut self,
        kind: &'static str,
        call: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let began = Instant::now();
        let outcome = call();
        match &outcome {
            Ok(_) => self.took.entry(kind).or_default().push(began.elapsed()),
            Err(error) => {
                let after = began.elapsed().as_secs_f64();
                let failure = format!("{kind}: {error}, after {after:.1} s");
                self.failures.push((Instant::now(), failure));
            }
        }
        outcome
    }

    /// Adds those of another one.
    pub(super) fn add(&mut self, other: Self) {
        for (kind, took) in other.took {
            self.took.entry(kind).or_default().extend(took);
        }
        self.failures.extend(other.failures);
    }

    /// How many there were.
    pub(super) fn count(&self) -> usize {
        self.took.values().map(Vec::len).sum()
    }

    /// Those that failed: when, and how.
    pub(super) fn failures(&self) -> impl Iterator<Item = (Instant, &str)> {
        self.failures.iter().map(|(at, how)| (*at, how.as_str()))
    }

    /// How many of each kind, and the median and the longest in milliseconds.
    pub(super) fn described(&self) -> String {
        let each = self.took.iter().map(|(kind, took)| {
            let mut took = took.clone();
            took.sort();
            let ms = |index: usize| took.get(index).map_or(0, Duration::as_millis);
            let (median, longest) = (ms(took.len() / 2), ms(took.len().saturating_sub(1)));
            format!(
                "{} × {kind} ({median} ms, at most {longest} ms)",
                took.len()
            )
        });
        each.collect::<Vec<_>>().join(", ")
    }
}

/// The content of a file, made again from these.
#[derive(Clone, Copy, Debug)]
struct DrawnContent {
    seed: u64,
    bytes: usize,
}

impl DrawnContent {
    fn draw(random: &mut Random) -> Self {
        Self {
            seed: random.next(),
            bytes: usize::try_from(random.below(BYTES_MAX)).unwrap_or(0),
        }
    }

    fn made(self) -> Vec<u8> {
        noise(self.seed, self.bytes)
    }
}

/// A worker, its directory, and what has to be in there.
#[derive(Debug)]
pub(super) struct Worker {
    directory: PathBuf,
    random: Random,
    files: BTreeMap<String, DrawnContent>,
    /// Names that may be there or not, with any content.
    unsure: BTreeSet<String>,
    made: u64,
    /// What it has done so far.
    pub(super) calls: Calls,
}

impl Worker {
    /// One with a new directory.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub(super) fn new(directory: PathBuf, seed: u64) -> io::Result<Self> {
        fs::create_dir(&directory)?;
        Ok(Self {
            directory,
            random: Random::new(seed),
            files: BTreeMap::new(),
            unsure: BTreeSet::new(),
            made: 0,
            calls: Calls::default(),
        })
    }

    /// Works until it is told to end. Calls may fail.
    pub(super) fn work(&mut self, end: &AtomicBool) {
        while !end.load(Ordering::Relaxed) {
            // It is counted, and the names are marked.
            let _ = self.step();
        }
    }

    /// How many files have to be there.
    pub(super) fn files(&self) -> usize {
        self.files.len()
    }

    fn some_file(&mut self) -> Option<String> {
        let names: Vec<_> = self.files.keys().cloned().collect();
        self.random.pick(&names).cloned()
    }

    fn step(&mut self) -> io::Result<()> {
        let many = self.files.len() >= FILES_MAX;
        let kind = self.random.below(10);
        let chosen = self.some_file();
        match (kind, chosen) {
            (0..=3, _) | (_, None) if !many => self.make(),
            (4, Some(name)) => self.rename(&name),
            (5, Some(name)) => self.append(&name),
            (6, _) => self.list(),
            (7 | 8, Some(name)) if !many => self.look(&name),
            (_, Some(name)) => self.remove(&name),
            (_, None) => self.list(),
        }
    }

    fn new_name(&mut self) -> String {
        self.made += 1;
        format!("file-{}", self.made)
    }

    fn make(&mut self) -> io::Result<()> {
        let (name, content) = (self.new_name(), DrawnContent::draw(&mut self.random));
        let path = self.directory.join(&name);
        let made = self.calls.time("write with fsync", || {
            let mut file = File::create(path)?;
            file.write_all(&content.made())?;
            file.sync_all()
        });
        match made {
            Ok(()) => {
                self.files.insert(name, content);
            }
            Err(_) => self.lose(&[&name]),
        }
        made
    }

    /// Replaces the content of a file in place.
    fn append(&mut self, name: &str) -> io::Result<()> {
        let content = DrawnContent::draw(&mut self.random);
        let path = self.directory.join(name);
        let written = self.calls.time("overwrite with fsync", || {
            let mut file = File::options().write(true).truncate(true).open(path)?;
            file.write_all(&content.made())?;
            file.sync_all()
        });
        match written {
            Ok(()) => {
                self.files.insert(name.to_owned(), content);
            }
            Err(_) => self.lose(&[name]),
        }
        written
    }

    fn rename(&mut self, name: &str) -> io::Result<()> {
        let new = self.new_name();
        let (from, to) = (self.directory.join(name), self.directory.join(&new));
        let renamed = self.calls.time("rename", || fs::rename(from, to));
        match renamed {
            Ok(()) => {
                if let Some(content) = self.files.remove(name) {
                    self.files.insert(new, content);
                }
            }
            Err(_) => self.lose(&[name, &new]),
        }
        renamed
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        let path = self.directory.join(name);
        let removed = self.calls.time("remove", || fs::remove_file(path));
        match removed {
            Ok(()) => {
                self.files.remove(name);
            }
            Err(_) => self.lose(&[name]),
        }
        removed
    }

    fn list(&mut self) -> io::Result<()> {
        let directory = self.directory.clone();
        let listed = self.calls.time("list", || {
            fs::read_dir(directory)?
                .map(|it| Ok(it?.file_name()))
                .collect::<io::Result<Vec<_>>>()
        });
        listed.map(|_| ())
    }

    fn look(&mut self, name: &str) -> io::Result<()> {
        let path = self.directory.join(name);
        let looked = self.calls.time("stat", || fs::metadata(path));
        looked.map(|_| ())
    }

    fn lose(&mut self, names: &[&str]) {
        for name in names {
            self.files.remove(*name);
            self.unsure.insert((*name).to_owned());
        }
    }

    /// Compares everything that has to be there with what the same directory of another mount has.
    ///
    /// # Errors
    /// What is missing, too much, or different.
    pub(super) fn compare(&self, other: &Path) -> anyhow::Result<()> {
        let name = self.directory.file_name().unwrap_or_default();
        let directory = other.join(name);
        let listed = fs::read_dir(&directory);
        let listed = listed.with_context(|| format!("list {}", directory.display()))?;
        let mut there = BTreeSet::new();
        for entry in listed {
            there.insert(entry?.file_name().to_string_lossy().into_owned());
        }
        for name in there.difference(&self.files.keys().cloned().collect()) {
            ensure!(
                self.unsure.contains(name),
                "{} has {name}, which was removed or never made",
                directory.display()
            );
        }
        for (name, content) in &self.files {
            let path = directory.join(name);
            let read = fs::read(&path);
            let read = read.with_context(|| format!("read {}", path.display()))?;
            ensure!(
                read == content.made(),
                "{} has {} bytes that are not the {} that were written",
                path.display(),
                read.len(),
                content.bytes
            );
        }
        Ok(())
    }
}

/// Replaces files by new versions, so that others see each whole or not at all.
#[derive(Debug)]
pub(super) struct Publisher {
    directory: PathBuf,
    /// The newest version of each file that was acknowledged.
    versions: BTreeMap<u64, u64>,
    /// What it has done so far.
    pub(super) calls: Calls,
}

fn published(version: u64) -> Vec<u8> {
    let mut bytes = version.to_le_bytes().to_vec();
    bytes.extend(noise(version, PUBLISHED_BYTES));
    bytes
}

fn published_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("published-{number}"))
}

impl Publisher {
    /// One with a new directory, in which the first versions are.
    ///
    /// # Errors
    /// If these cannot be made.
    pub(super) fn new(directory: PathBuf) -> io::Result<Self> {
        fs::create_dir(&directory)?;
        let mut publisher = Self {
            directory,
            versions: BTreeMap::new(),
            calls: Calls::default(),
        };
        for number in 0..PUBLISHED {
            publisher.publish(number)?;
        }
        Ok(publisher)
    }

    /// Publishes until it is told to end.
    ///
    /// # Errors
    /// If a call fails.
    pub(super) fn work(&mut self, end: &AtomicBool) -> io::Result<()> {
        for number in (0..PUBLISHED).cycle() {
            if end.load(Ordering::Relaxed) {
                break;
            }
            self.publish(number)?;
        }
        Ok(())
    }

    fn publish(&mut self, number: u64) -> io::Result<()> {
        let version = self.versions.get(&number).map_or(1, |version| version + 1);
        let (path, new) = (
            published_path(&self.directory, number),
            self.directory.join(format!("new-{number}")),
        );
        self.calls.time("publish", || {
            let mut file = File::create(&new)?;
            file.write_all(&published(version))?;
            file.sync_all()?;
            fs::rename(&new, path)
        })?;
        self.versions.insert(number, version);
        Ok(())
    }

    /// Whether another mount shows the newest versions.
    ///
    /// # Errors
    /// If it does not.
    pub(super) fn compare(&self, other: &Path) -> anyhow::Result<()> {
        let directory = other.join(self.directory.file_name().unwrap_or_default());
        for (number, version) in &self.versions {
            let path = published_path(&directory, *number);
            let read = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            let found = version_of(&read)?;
            ensure!(
                found == *version,
                "{} has version {found}, and version {version} was published",
                path.display()
            );
        }
        Ok(())
    }
}

/// The version of what a reader got.
fn version_of(read: &[u8]) -> anyhow::Result<u64> {
    let version = read.first_chunk::<VERSION_BYTES>();
    let version = version.context("a published file is too short")?;
    let version = u64::from_le_bytes(*version);
    ensure!(
        read == published(version),
        "a published file is no version, but {} other bytes",
        read.len()
    );
    Ok(version)
}

/// Reads what is published on another mount, and looks at what workers do there, until it is told
/// to end.
///
/// # Errors
/// If a version is not whole or older than one that was read before, or a call fails.
pub(super) fn read_others(
    published_in: &Path,
    workers: &[PathBuf],
    end: &AtomicBool,
) -> anyhow::Result<Calls> {
    let mut calls = Calls::default();
    let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
    for number in (0..PUBLISHED).cycle() {
        if end.load(Ordering::Relaxed) {
            break;
        }
        let path = published_path(published_in, number);
        // The file that the name stood for may be removed before it is opened.
        let read = calls.time("read of the other mount's", || fs::read(&path))?;
        let version = version_of(&read).with_context(|| path.display().to_string())?;
        let before = seen.insert(number, version).unwrap_or(0);
        if version < before {
            bail!(
                "{} went back from version {before} to {version}",
                path.display()
            );
        }
        let worked = usize::try_from(number).unwrap_or(0) % workers.len().max(1);
        if let Some(directory) = workers.get(worked) {
            look_at(&mut calls, directory)?;
        }
        std::thread::sleep(READER_PAUSE);
    }
    Ok(calls)
}

/// Lists a directory in which another mount works, and looks at one of its files.
fn look_at(calls: &mut Calls, directory: &Path) -> io::Result<()> {
    let names = calls.time("list of the other mount's", || {
        let entries = fs::read_dir(directory)?;
        entries
            .map(|it| Ok(it?.path()))
            .collect::<io::Result<Vec<_>>>()
    })?;
    let Some(last) = names.last() else {
        return Ok(());
    };
    calls.time("stat of the other mount's", || match fs::metadata(last) {
        // It was removed or renamed meanwhile.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map(|_| ()),
    })
}
