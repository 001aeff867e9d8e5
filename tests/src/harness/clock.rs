//! A wall clock that a test steps while the program runs, as if the machine's time were set.
//!
//! A program that starts [with it](SteppedClock::shown_to) loads a small library before the C
//! library, which adds seconds to each reading of the wall clock. Timeouts do not notice: they are
//! measured with the monotonic clock, which no one sets.

use super::command::Quorumfs;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("stepped_clock.c");
const LIBRARY: &str = "stepped_clock.so";

/// The wall clock of the programs that start with it.
#[derive(Debug)]
pub struct SteppedClock {
    library: PathBuf,
    added: fs::File,
    path: PathBuf,
}

impl SteppedClock {
    /// A clock that shows the right time, with files of its own in a directory.
    ///
    /// # Panics
    /// If its library cannot be compiled.
    #[must_use]
    #[track_caller]
    pub fn new(directory: &Path, name: &str) -> Self {
        let library = directory.join(LIBRARY);
        if !library.exists() {
            let source = directory.join("stepped_clock.c");
            fs::write(&source, SOURCE).unwrap();
            let mut compile = Command::new("cc");
            compile.args(["-shared", "-fPIC", "-O1", "-o"]);
            compile.args([&library, &source]).arg("-ldl");
            assert!(compile.status().unwrap().success(), "cc failed");
        }
        let path = directory.join(format!("{name}.seconds"));
        fs::write(&path, 0_i64.to_ne_bytes()).unwrap();
        let added = fs::OpenOptions::new().write(true).open(&path).unwrap();
        Self {
            library,
            added,
            path,
        }
    }

    /// The same run with this clock.
    #[must_use]
    pub fn shown_to(&self, run: Quorumfs) -> Quorumfs {
        let run = run.env("LD_PRELOAD", &self.library);
        run.env("QUORUMFS_ADDED_SECONDS", &self.path)
    }

    /// Sets it: so many seconds ahead of the right time, or behind.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn set_ahead(&self, seconds: i64) {
        self.added.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds of the wall clock that another program shows.
    fn shown(clock: &SteppedClock) -> i64 {
        let mut date = Command::new("date");
        date.arg("+%s").env("LD_PRELOAD", &clock.library);
        let date = date.env("QUORUMFS_ADDED_SECONDS", &clock.path);
        let output = date.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.trim().parse().unwrap()
    }

    #[test]
    fn a_program_sees_the_time_that_was_set() {
        let directory = tempfile::tempdir().unwrap();
        let clock = SteppedClock::new(directory.path(), "clock");
        let right = shown(&clock);
        for ahead in [7200, -86_400, 0] {
            clock.set_ahead(ahead);
            let off = shown(&clock) - right - ahead;
            assert!((0..10).contains(&off), "{ahead} s ahead are off by {off} s");
        }
    }
}
