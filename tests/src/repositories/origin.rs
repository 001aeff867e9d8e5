//! A repository that follows from a seed, made at once on the local disk.
//!
//! It has texts of all lengths in directories of all depths, which each commit changes, adds and
//! removes; a few binaries of several MiB that deltas do not make smaller; and some tags.

use super::git::Git;
use crate::kills::manifest::content;
use quorumfs_bft_simulator::random::Random;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// A commit changes one file of this many, on average.
const CHANGED: usize = 200;
/// The most lines of a text.
const LINES_MAX: u64 = 120;
/// The size of a binary in bytes.
const BINARY_BYTES: (u64, u64) = (1 << 20, 6 << 20);
/// One commit of this many has a tag.
const TAGGED: u32 = 25;
/// The position of the commit that adds the file which bisecting looks for, as a fraction.
const BROKEN: (u32, u32) = (2, 3);

/// The file that exists from one commit on.
pub(super) const MARKER: &str = "broken";

struct OriginWriter<W> {
    stream: W,
    random: Random,
    /// Versions of the existing files.
    files: BTreeMap<String, u64>,
}

/// Makes a bare repository with approximately this many files at the end, and this many commits.
pub(super) fn make(directory: &Path, files: usize, commits: u32, seed: u64) {
    let git = Git::new(directory);
    std::fs::create_dir(directory).unwrap();
    git.run(&["init", "--quiet", "--bare", "--initial-branch=main"]);
    git.feed(&["fast-import", "--quiet"], |stream| {
        let mut origin = OriginWriter {
            stream,
            random: Random::new(seed),
            files: BTreeMap::new(),
        };
        for number in 1..=commits {
            origin.commit(number, files, commits);
        }
    });
}

impl<W: Write> OriginWriter<W> {
    fn write_command(&mut self, command: &str) {
        self.stream.write_all(command.as_bytes()).unwrap();
    }

    fn data(&mut self, bytes: &[u8]) {
        self.write_command(&format!("data {}\n", bytes.len()));
        self.stream.write_all(bytes).unwrap();
        self.write_command("\n");
    }

    fn commit(&mut self, number: u32, files: usize, commits: u32) {
        let time = 1_700_000_000 + 3600 * u64::from(number);
        self.write_command("commit refs/heads/main\n");
        self.write_command(&format!("committer A <a@example.invalid> {time} +0000\n"));
        self.data(format!("Change {number}\n").as_bytes());
        // The first commit adds half of them, the others the rest.
        let first = number == 1;
        let added = match first {
            true => files / 2,
            false => files / 2 / (commits as usize - 1).max(1),
        };
        for _ in 0..added {
            let path = self.path();
            self.write(&path);
        }
        for _ in 0..self.files.len() / CHANGED {
            let index = self.random.index(self.files.len());
            let path = self.files.keys().nth(index).unwrap().clone();
            if self.random.chance(1, 8) {
                self.files.remove(&path);
                self.write_command(&format!("D {path}\n"));
            } else {
                self.write(&path);
            }
        }
        if number == commits * BROKEN.0 / BROKEN.1 {
            self.write_command(&format!("M 100644 inline {MARKER}\n"));
            self.data(b"here\n");
        }
        if number.is_multiple_of(TAGGED) || first {
            self.write_command(&format!("M 100644 inline binary-{}\n", number % 4));
            let length = self.random.between(BINARY_BYTES.0, BINARY_BYTES.1);
            let bytes = content(&[u64::from(number)], 0, usize::try_from(length).unwrap());
            self.data(&bytes);
            self.write_command(&format!(
                "reset refs/tags/v{number}\nfrom refs/heads/main\n\n"
            ));
        }
    }

    fn path(&mut self) -> String {
        let mut path = String::new();
        for _ in 0..self.random.below(4) {
            path += &format!("part-{}/", self.random.below(12));
        }
        format!("{path}text-{:x}", self.random.next())
    }

    /// A text; each version differs from the one before in a few lines.
    fn write(&mut self, path: &str) {
        let version = self.files.entry(path.to_owned()).or_default();
        *version += 1;
        let (version, lines) = (*version, self.random.between(1, LINES_MAX));
        let mut text = String::new();
        for line in 0..lines {
            let changed = if line % 10 == version % 10 {
                version
            } else {
                0
            };
            text += &format!("{path}, line {line}, changed in {changed}\n");
        }
        let mode = if lines % 16 == 0 { "100755" } else { "100644" };
        self.write_command(&format!("M {mode} inline {path}\n"));
        self.data(text.as_bytes());
    }
}
