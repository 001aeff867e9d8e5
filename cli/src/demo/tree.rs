//! A real tree of files: choosing one, copying it concurrently, comparing it byte for byte.
//!
//! The usual tree is cargo's own registry: the sources that this program was built from are on
//! every machine that built it, thousands of files of every size. Comparing works both ways: an
//! unexpected file is as wrong as a missing one.

use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Files to copy at the same time.
pub(crate) const HANDS: usize = 16;
const BUFFER_BYTES: usize = 256 << 10;

/// The content of a tree, as paths from its root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    /// Its root.
    pub(crate) root: PathBuf,
    /// Directories, parents before children.
    directories: Vec<PathBuf>,
    /// Files.
    files: Vec<PathBuf>,
    /// Symbolic links.
    links: Vec<PathBuf>,
    /// Bytes in all files together.
    pub(crate) bytes: u64,
}

/// The result of a copy or a comparison.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measured {
    /// Files.
    pub(crate) files: usize,
    /// Bytes in them.
    pub(crate) bytes: u64,
    /// How long it took.
    pub(crate) seconds: f64,
}

impl Measured {
    /// Files in a second.
    pub(crate) fn files_per_second(self) -> f64 {
        self.files as f64 / self.seconds.max(1e-9)
    }

    /// MiB in a second.
    pub(crate) fn mib_per_second(self) -> f64 {
        self.bytes as f64 / f64::from(1 << 20) / self.seconds.max(1e-9)
    }
}

/// The progress of a copy, and its limit.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Files that have arrived.
    pub(crate) arrived: AtomicUsize,
    /// How many files may arrive for now; threads finish the ones that they have begun.
    most: AtomicUsize,
}

impl Default for Progress {
    fn default() -> Self {
        Self::up_to(usize::MAX)
    }
}

impl Progress {
    /// A copy that pauses after so many files until it is [released](Self::release).
    pub(crate) const fn up_to(most: usize) -> Self {
        Self {
            arrived: AtomicUsize::new(0),
            most: AtomicUsize::new(most),
        }
    }

    /// Removes the limit.
    pub(crate) fn release(&self) {
        self.most.store(usize::MAX, Ordering::Release);
    }

    fn may_go_on(&self) {
        while self.arrived.load(Ordering::Relaxed) >= self.most.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Tree {
    /// Lists everything under `root`.
    pub(crate) fn list(root: &Path) -> io::Result<Self> {
        let mut tree = Self {
            root: root.to_path_buf(),
            ..Self::default()
        };
        tree.add(Path::new(""))?;
        Ok(tree)
    }

    fn add(&mut self, relative: &Path) -> io::Result<()> {
        let mut entries: Vec<_> =
            fs::read_dir(self.root.join(relative))?.collect::<io::Result<_>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = relative.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.directories.push(path.clone());
                self.add(&path)?;
            } else if kind.is_symlink() {
                self.links.push(path);
            } else if kind.is_file() {
                self.bytes += entry.metadata()?.len();
                self.files.push(path);
            }
        }
        Ok(())
    }

    /// The directories of `root` that together hold at least so many files and bytes: in order of
    /// their names until there are enough files, then those with the largest files.
    pub(crate) fn choose(
        root: &Path,
        files_min: usize,
        bytes_min: u64,
    ) -> io::Result<Option<Self>> {
        let mut parts: Vec<Self> = Vec::new();
        let mut names: Vec<_> = fs::read_dir(root)?.collect::<io::Result<_>>()?;
        names.sort_by_key(fs::DirEntry::file_name);
        for entry in names {
            if entry.file_type()?.is_dir() {
                let mut part = Self {
                    root: root.to_path_buf(),
                    ..Self::default()
                };
                part.directories.push(entry.file_name().into());
                part.add(Path::new(&entry.file_name()))?;
                parts.push(part);
            }
        }
        let mut chosen = Self {
            root: root.to_path_buf(),
            ..Self::default()
        };
        let mut rest = Vec::new();
        for part in parts {
            if chosen.files.len() < files_min && !part.files.is_empty() {
                chosen.take(part);
            } else {
                rest.push(part);
            }
        }
        rest.sort_by_key(|part| part.bytes / (part.files.len() as u64 + 1));
        while chosen.bytes < bytes_min {
            let Some(part) = rest.pop() else { break };
            chosen.take(part);
        }
        Ok((chosen.files.len() >= files_min && chosen.bytes >= bytes_min).then_some(chosen))
    }

    fn take(&mut self, mut part: Self) {
        self.directories.append(&mut part.directories);
        self.files.append(&mut part.files);
        self.links.append(&mut part.links);
        self.bytes += part.bytes;
    }

    /// The part of this tree with its first `count` files, and every directory.
    pub(crate) fn first(&self, count: usize) -> io::Result<Self> {
        let files: Vec<_> = self.files.iter().take(count).cloned().collect();
        let mut bytes = 0;
        for file in &files {
            bytes += fs::metadata(self.root.join(file))?.len();
        }
        let within = |directory: &&PathBuf| files.iter().any(|file| file.starts_with(directory));
        let directories = self.directories.iter().filter(within).cloned().collect();
        Ok(Self {
            root: self.root.clone(),
            directories,
            files,
            links: Vec::new(),
            bytes,
        })
    }

    /// How many files there are.
    pub(crate) fn count(&self) -> usize {
        self.files.len()
    }

    /// Copies everything into a new directory, as far as `progress` allows.
    pub(crate) fn copy(&self, target: &Path, progress: &Progress) -> CommandResult<Measured> {
        let began = Instant::now();
        let failed = |doing, path: &Path, error: io::Error| Failure::file(doing, path, &error);
        fs::create_dir(target).map_err(|error| failed("create the directory", target, error))?;
        for directory in &self.directories {
            let path = target.join(directory);
            fs::create_dir(&path).map_err(|error| failed("create the directory", &path, error))?;
        }
        for link in &self.links {
            let path = target.join(link);
            let to = fs::read_link(self.root.join(link));
            let linked = to.and_then(|to| symlink(to, &path));
            linked.map_err(|error| failed("create the link", &path, error))?;
        }
        by_many_hands(&self.files, |file| {
            progress.may_go_on();
            let path = target.join(file);
            let copied = copy_file(&self.root.join(file), &path);
            copied.map_err(|error| failed("copy to", &path, error))?;
            progress.arrived.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })?;
        Ok(self.measured(began))
    }

    /// Compares everything with a copy, both ways.
    pub(crate) fn compare(&self, copy: &Path) -> CommandResult<Measured> {
        let began = Instant::now();
        let failed = |path: &Path, error: io::Error| Failure::file("read back", path, &error);
        let found = Self::list(copy).map_err(|error| failed(copy, error))?;
        let same = |what: &str, expected: &[PathBuf], found: &[PathBuf]| {
            let expected: BTreeSet<_> = expected.iter().collect();
            let found: BTreeSet<_> = found.iter().collect();
            match expected.symmetric_difference(&found).next() {
                None => Ok(()),
                Some(odd) if expected.contains(odd) => {
                    Err(differs(&copy.join(odd), &format!("the {what} is missing")))
                }
                Some(odd) => Err(differs(&copy.join(odd), &format!("the {what} is not ours"))),
            }
        };
        same("directory", &self.directories, &found.directories)?;
        same("file", &self.files, &found.files)?;
        same("link", &self.links, &found.links)?;
        for link in &self.links {
            let path = copy.join(link);
            let here = fs::read_link(&path).map_err(|error| failed(&path, error))?;
            if Some(here) != fs::read_link(self.root.join(link)).ok() {
                return Err(differs(&path, "the link has another target"));
            }
        }
        by_many_hands(&self.files, |file| {
            let path = copy.join(file);
            match same_bytes(&self.root.join(file), &path) {
                Ok(true) => Ok(()),
                Ok(false) => Err(differs(&path, "the content is not the one written")),
                Err(error) => Err(failed(&path, error)),
            }
        })?;
        Ok(self.measured(began))
    }

    fn measured(&self, began: Instant) -> Measured {
        let seconds = began.elapsed().as_secs_f64();
        Measured {
            files: self.files.len(),
            bytes: self.bytes,
            seconds,
        }
    }
}

fn differs(path: &Path, how: &str) -> Failure {
    Failure::new(Exit::Damaged, format!("{} differs: {how}", path.display()))
}

/// Applies the same to every path, several at a time; stops at the first failure.
fn by_many_hands(
    paths: &[PathBuf],
    work: impl Fn(&Path) -> CommandResult<()> + Sync,
) -> CommandResult<()> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..HANDS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) else {
                        return;
                    };
                    if let Err(first) = work(path) {
                        stop.store(true, Ordering::Relaxed);
                        let mut slot = failure.lock().unwrap_or_else(|lock| lock.into_inner());
                        slot.get_or_insert(first);
                    }
                }
            });
        }
    });
    match failure
        .into_inner()
        .unwrap_or_else(|lock| lock.into_inner())
    {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

/// Copies as `cp` does: read, write, close. An error of close(2) is lost in `drop`, as with `cp`;
/// the comparison that follows every copy finds its effects.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    io::copy(&mut File::open(from)?, &mut File::create_new(to)?).map(drop)
}

fn same_bytes(left: &Path, right: &Path) -> io::Result<bool> {
    let (mut left, mut right) = (File::open(left)?, File::open(right)?);
    let (mut a, mut b) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    loop {
        let (in_a, in_b) = (fill(&mut left, &mut a)?, fill(&mut right, &mut b)?);
        if in_a != in_b || a.get(..in_a) != b.get(..in_b) {
            return Ok(false);
        }
        if in_a == 0 {
            return Ok(true);
        }
    }
}

fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(root: &Path) -> Tree {
        for (path, content) in [("a/one", "1"), ("a/b/two", "22"), ("c/three", "333")] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        symlink("one", root.join("a/link")).unwrap();
        Tree::list(root).unwrap()
    }

    #[test]
    fn a_copy_is_equal_until_something_is_changed() {
        let directory = tempfile::tempdir().unwrap();
        let tree = sample(&directory.path().join("from"));
        let copy = directory.path().join("to");
        let progress = Progress::default();
        tree.copy(&copy, &progress).unwrap();
        assert_eq!(progress.arrived.into_inner(), 3);
        assert_eq!(tree.compare(&copy).unwrap().bytes, 6);

        fs::write(copy.join("a/b/two"), "2x").unwrap();
        assert!(
            tree.compare(&copy)
                .unwrap_err()
                .message
                .contains("a/b/two differs")
        );
        fs::write(copy.join("a/b/two"), "22").unwrap();
        fs::write(copy.join("extra"), "").unwrap();
        assert!(
            tree.compare(&copy)
                .unwrap_err()
                .message
                .contains("not ours")
        );
        fs::remove_file(copy.join("extra")).unwrap();
        fs::remove_file(copy.join("c/three")).unwrap();
        assert!(tree.compare(&copy).unwrap_err().message.contains("missing"));
    }

    #[test]
    fn enough_is_chosen_and_too_little_is_said() {
        let directory = tempfile::tempdir().unwrap();
        sample(directory.path());
        let chosen = Tree::choose(directory.path(), 1, 5).unwrap().unwrap();
        assert_eq!((chosen.count(), chosen.bytes), (3, 6));
        assert_eq!(
            Tree::choose(directory.path(), 2, 0)
                .unwrap()
                .unwrap()
                .count(),
            2
        );
        assert_eq!(Tree::choose(directory.path(), 4, 0).unwrap(), None);
    }
}
