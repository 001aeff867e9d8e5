//! A repository that follows from a seed, made in one go on the local disk.
//!
//! Texts of all lengths in directories of all depths, which each commit changes, adds to and takes
//! from; a few binaries of several MiB, which no delta makes small; tags now and then.

use super::git::Git;
use crate::kills::manifest::content;
use quorumfs_bft_simulator::random::Random;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// Commits change about one file in so many.
const CHANGED: usize = 200;
/// Lines of a text.
const LINES_MAX: u64 = 120;
/// Bytes of a binary.
const BINARY_BYTES: (u64, u64) = (1 << 20, 6 << 20);
/// A tag for so many commits.
const TAGGED: u32 = 25;
/// The commit that brings the file that bisecting looks for, of so many.
const BROKEN: (u32, u32) = (2, 3);

/// The file that is there from one commit on.
pub(super) const MARKER: &str = "broken";

struct Making<W> {
    stream: W,
    random: Random,
    /// Versions of the files that there are.
    files: BTreeMap<String, u64>,
}

/// Makes a bare repository with so many files in the end, more or less, and so many commits.
pub(super) fn make(directory: &Path, files: usize, commits: u32, seed: u64) {
    let git = Git::new(directory);
    std::fs::create_dir(directory).unwrap();
    git.run(&["init", "--quiet", "--bare", "--initial-branch=main"]);
    git.feed(&["fast-import", "--quiet"], |stream| {
        let mut making = Making {
            stream,
            random: Random::new(seed),
            files: BTreeMap::new(),
        };
        for number in 1..=commits {
            making.commit(number, files, commits);
        }
    });
}

impl<W: Write> Making<W> {
    fn say(&mut self, words: &str) {
        self.stream.write_all(words.as_bytes()).unwrap();
    }

    fn data(&mut self, bytes: &[u8]) {
        self.say(&format!("data {}\n", bytes.len()));
        self.stream.write_all(bytes).unwrap();
        self.say("\n");
    }

    fn commit(&mut self, number: u32, files: usize, commits: u32) {
        let time = 1_700_000_000 + 3600 * u64::from(number);
        self.say("commit refs/heads/main\n");
        self.say(&format!("committer A <a@example.invalid> {time} +0000\n"));
        self.data(format!("Change {number}\n").as_bytes());
        // The first commit brings half of them, the others what is missing.
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
                self.say(&format!("D {path}\n"));
            } else {
                self.write(&path);
            }
        }
        if number == commits * BROKEN.0 / BROKEN.1 {
            self.say(&format!("M 100644 inline {MARKER}\n"));
            self.data(b"here\n");
        }
        if number.is_multiple_of(TAGGED) || first {
            self.say(&format!("M 100644 inline binary-{}\n", number % 4));
            let length = self.random.between(BINARY_BYTES.0, BINARY_BYTES.1);
            let bytes = content(&[u64::from(number)], 0, usize::try_from(length).unwrap());
            self.data(&bytes);
            self.say(&format!(
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

    /// A text, of which each version differs from the one before in a few lines.
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
        self.say(&format!("M {mode} inline {path}\n"));
        self.data(text.as_bytes());
    }
}
