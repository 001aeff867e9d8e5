//! A writer that writes in a directory of the mount until it is killed, and then checks what is
//! left.

use super::directory;
use super::manifest::{BLOCK_BYTES, Manifest, Stamp, block, content};
use quorumfs_bft_simulator::random::Random;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Files that are replaced as a whole.
const WHOLE_FILES: u64 = 12;
/// Blocks that are written in place.
const BLOCKS: u64 = 64;
/// The longest file and the longest addition to the log, in bytes; sometimes of several slices.
const LENGTH_MAX: u64 = 200 << 10;
const LONG_MAX: u64 = 6 << 20;

/// A writer; see the module.
pub(super) struct Writer {
    number: usize,
    random: Random,
    manifest: Manifest,
    version: u64,
    /// Syncs that were acknowledged.
    pub(super) synced: u64,
    /// Renames and removals that were acknowledged.
    pub(super) renamed: u64,
}

impl Writer {
    pub(super) fn new(number: usize, random: Random) -> Self {
        Self {
            number,
            random,
            manifest: Manifest::default(),
            version: 0,
            synced: 0,
            renamed: 0,
        }
    }

    /// Writes until an operation fails. `names` is whether names may change, which waits for
    /// clouds.
    pub(super) fn run(&mut self, point: &Path, ending: &AtomicBool, names: bool) {
        self.manifest.pending = None;
        loop {
            match self.step(point, names) {
                Ok(()) => {}
                Err(_) if ending.load(Ordering::Acquire) => return,
                Err(error) => panic!("writer {} is refused: {error}", self.number),
            }
        }
    }

    fn step(&mut self, point: &Path, names: bool) -> Result<()> {
        let directory = directory(point, self.number);
        match fs::create_dir(&directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        match self.random.below(if names { 8 } else { 4 }) {
            0 | 1 => self.append(&directory),
            2 | 3 => self.patch(&directory),
            4..=6 => self.replace(&directory),
            _ => self.remove(&directory),
        }
    }

    fn sync(&mut self, file: &File) -> Result<()> {
        match self.random.chance(1, 2) {
            true => file.sync_all()?,
            false => file.sync_data()?,
        }
        self.synced += 1;
        Ok(())
    }

    fn length(&mut self) -> usize {
        let most = match self.random.chance(1, 30) {
            true => LONG_MAX,
            false => LENGTH_MAX,
        };
        self.random.below(most + 1) as usize
    }

    fn append(&mut self, directory: &Path) -> Result<()> {
        let path = directory.join("log");
        let mut log = OpenOptions::new().create(true).append(true).open(path)?;
        let from = self.manifest.log.1;
        let length = self.length().min(LENGTH_MAX as usize);
        // From now on the log may be longer by any part of it.
        self.manifest.log.1 = from + length;
        log.write_all(&content(&[self.number as u64], from, length))?;
        if self.random.chance(1, 2) {
            self.sync(&log)?;
            self.manifest.log.0 = from + length;
        }
        Ok(())
    }

    fn patch(&mut self, directory: &Path) -> Result<()> {
        let path = directory.join("blocks");
        let open = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path);
        let blocks = open?;
        for _ in 0..self.random.between(1, 8) {
            let place = self.random.below(BLOCKS);
            let versions = self.manifest.blocks.entry(place).or_default();
            versions.1 += 1;
            let bytes = block(self.number, place, versions.1);
            blocks.write_all_at(&bytes, place * BLOCK_BYTES as u64)?;
        }
        if self.random.chance(1, 2) {
            self.sync(&blocks)?;
            self.manifest.blocks_synced();
        }
        Ok(())
    }

    fn whole(directory: &Path, number: u64) -> PathBuf {
        directory.join(format!("whole-{number}"))
    }

    fn replace(&mut self, directory: &Path) -> Result<()> {
        let number = self.random.below(WHOLE_FILES);
        self.version += 1;
        let stamp = Stamp {
            version: self.version,
            length: self.length(),
        };
        let next = directory.join("next");
        let mut file = File::create(&next)?;
        file.write_all(&self.content_of(stamp))?;
        // The rename waits for the content, synced or not.
        if self.random.chance(1, 2) {
            self.sync(&file)?;
        }
        drop(file);
        self.manifest.pending = Some((number, Some(stamp)));
        fs::rename(next, Self::whole(directory, number))?;
        self.manifest.pending = None;
        self.manifest.whole.insert(number, stamp);
        self.renamed += 1;
        Ok(())
    }

    fn remove(&mut self, directory: &Path) -> Result<()> {
        let number = self.random.below(WHOLE_FILES);
        if !self.manifest.whole.contains_key(&number) {
            return Ok(());
        }
        self.manifest.pending = Some((number, None));
        fs::remove_file(Self::whole(directory, number))?;
        self.manifest.pending = None;
        self.manifest.whole.remove(&number);
        self.renamed += 1;
        Ok(())
    }

    /// The version comes first, so that the content identifies itself.
    fn content_of(&self, stamp: Stamp) -> Vec<u8> {
        let mut bytes = stamp.version.to_le_bytes().to_vec();
        bytes.extend((stamp.length as u64).to_le_bytes());
        bytes.extend(content(
            &[self.number as u64, stamp.version],
            0,
            stamp.length,
        ));
        bytes
    }

    /// Compares all files; returns the number of files and bytes.
    pub(super) fn compare(&mut self, point: &Path) -> (u64, u64) {
        let directory = directory(point, self.number);
        let (mut files, mut compared) = (0, 0);
        let mut read = |path: &Path| match fs::read(path) {
            Ok(bytes) => {
                files += 1;
                compared += bytes.len() as u64;
                Some(bytes)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => panic!("{}: {error}", path.display()),
        };
        for number in 0..WHOLE_FILES {
            let path = Self::whole(&directory, number);
            let found = read(&path).map(|bytes| {
                let word = |at: usize| {
                    let word = bytes.get(at..at + 8).expect("it has a head");
                    u64::from_le_bytes(word.try_into().expect("eight"))
                };
                let stamp = Stamp {
                    version: word(0),
                    length: word(8) as usize,
                };
                let good = bytes.len() == stamp.length + 16 && bytes == self.content_of(stamp);
                assert!(good, "{} is not as it was written", path.display());
                stamp
            });
            self.manifest.found_whole(number, found);
        }
        let log = read(&directory.join("log")).unwrap_or_default();
        let good = log == content(&[self.number as u64], 0, log.len());
        assert!(good, "the log of {} is not as it was written", self.number);
        self.manifest.found_log(log.len());
        let blocks = read(&directory.join("blocks")).unwrap_or_default();
        for place in 0..BLOCKS {
            let from = place as usize * BLOCK_BYTES;
            let bytes = blocks.get(from..).unwrap_or_default();
            let bytes = bytes.get(..BLOCK_BYTES).unwrap_or(bytes);
            let head = bytes.get(..8).map(|head| head.try_into().expect("eight"));
            let version = head.map_or(0, u64::from_le_bytes);
            let good = match version {
                0 => bytes.iter().all(|byte| *byte == 0),
                _ => bytes == block(self.number, place, version),
            };
            let number = self.number;
            assert!(good, "block {place} of {number} is not as it was written");
            self.manifest.found_block(place, version);
        }
        self.manifest.pending = None;
        (files, compared)
    }
}
