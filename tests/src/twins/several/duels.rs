//! Duels: two mounts do something with one name or file at the same time.
//!
//! The outcome is not known before, but the set of outcomes is: those of one call after the other,
//! in either order. Of two that want the same, exactly one gets it. Of two that change different
//! things, neither loses its change. Afterwards all mounts show the same.

use super::hand::{CallResult, Hand};
use super::promise::{FileBytes, Kept, first_difference};
use super::scenes::Arena;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LENGTH_MAX: u64 = 120_000;
const BLOCK_MAX: u64 = 9000;
/// Files that each of two makes in one directory.
const CROWD: usize = 6;
/// One of two begins up to this much later.
const HEADSTART_MAX_MICROS: u64 = 4000;

const ONE_WINS: &str = "of two mounts that want the same, exactly one gets it";
const BOTH_STAY: &str = "changes of different parts of a file are both there after both closed";
const EITHER: &str = "each byte that two mounts wrote is one of the two writers'";
const REPLACE: &str = "a name that is replaced is never absent, and shows one file, whole";

impl<'a> Arena<'a> {
    /// One duel.
    pub(super) fn duel(&mut self) -> Kept {
        match self.random.below(15) {
            0 | 1 => self.create_one_name(),
            2 => self.make_one("mkdir", |hand, path, _| hand.make_directory(path)),
            3 => self.make_one("symlink", |hand, path, side| {
                hand.make_link(["a", "b"][side], path)
            }),
            4 => self.link_one_name(),
            5 => self.remove_one_name(),
            6 => self.rename_one_name(),
            7 => self.remove_and_rename(),
            8 => self.replace_one_name(),
            9 => self.swap(),
            10 => self.remove_a_directory_and_create_in_it(),
            11 => self.write_different_ranges(),
            12 => self.write_the_same_range(),
            13 => self.write_and_replace(),
            _ => self.crowd(),
        }
    }

    fn path(&self, name: &str) -> String {
        format!("{name}-{}", self.record.step)
    }

    /// Both at the same time; one of them with a little headstart.
    fn both<A: Send, B: Send>(
        &mut self,
        (first, second): (usize, usize),
        one: impl FnOnce(Hand<'a>) -> A + Send,
        other: impl FnOnce(Hand<'a>) -> B + Send,
    ) -> (A, B) {
        let mut waits = [Duration::ZERO; 2];
        let wait = self.random.below(HEADSTART_MAX_MICROS);
        waits[self.random.index(2)] = Duration::from_micros(wait);
        let (start, hands) = (Barrier::new(2), (self.hand(first), self.hand(second)));
        std::thread::scope(|scope| {
            let one = scope.spawn(|| {
                start.wait();
                std::thread::sleep(waits[0]);
                one(hands.0)
            });
            start.wait();
            std::thread::sleep(waits[1]);
            let other = other(hands.1);
            (one.join().unwrap(), other)
        })
    }

    /// Exactly one of two succeeded, and the other one failed with one of these errors; returns
    /// which.
    fn winner(
        &self,
        mounts: (usize, usize),
        path: &str,
        results: (CallResult, CallResult),
        errors: &[Errno],
    ) -> Kept<usize> {
        match results {
            (Ok(()), Err(error)) if errors.contains(&error) => Ok(0),
            (Err(error), Ok(())) if errors.contains(&error) => Ok(1),
            _ => {
                let expected = format!("one success, and one of {errors:?}");
                let seen = format!("{results:?} {}", self.mounts.overdue());
                Err(self.broken(mounts.0.max(mounts.1), ONE_WINS, path, expected, seen))
            }
        }
    }

    fn create_one_name(&mut self) -> Kept {
        let (mounts, path) = (self.draw_two(), self.path("exclusive"));
        self.note(mounts.0, "duel: create", &path);
        let contents = [self.draw_bytes(BLOCK_MAX), self.draw_bytes(BLOCK_MAX)];
        let act = |side: usize| {
            let (path, bytes) = (&path, &contents[side]);
            move |hand: Hand<'a>| {
                let file = hand.create(path)?;
                // The one that has created the file has it alone.
                let written = hand.write(&file, bytes).and_then(|()| hand.sync(&file));
                hand.close(file);
                written
            }
        };
        let results = self.both(mounts, act(0), act(1));
        let winner = self.winner(mounts, &path, results, &[Errno::EXIST])?;
        self.agreed(&path, Instant::now())?;
        self.read_everywhere(ONE_WINS, &path, &contents[winner])?;
        self.clear(&[&path])
    }

    fn make_one(
        &mut self,
        kind: &'static str,
        make: impl Fn(&Hand<'a>, &str, usize) -> CallResult + Sync,
    ) -> Kept {
        let (mounts, path) = (self.draw_two(), self.path(kind));
        self.note(mounts.0, "duel: mkdir or symlink", &path);
        let (make, at) = (&make, &path);
        let results = self.both(
            mounts,
            move |hand| make(&hand, at, 0),
            move |hand| make(&hand, at, 1),
        );
        let winner = self.winner(mounts, &path, results, &[Errno::EXIST])?;
        let number = self.agreed(&path, Instant::now())?;
        let hand = self.hand(mounts.0);
        if kind == "mkdir" {
            return self.must(mounts.0, "rmdir", &path, hand.remove_directory(&path));
        }
        let target = self.must(mounts.0, "readlink", &path, hand.read_link(&path))?;
        if target != ["a", "b"][winner].as_bytes() {
            let expected = format!("the target that mount {winner} of the two gave");
            let seen = format!("{target:?} of inode {number:?}");
            return Err(self.broken(mounts.0, ONE_WINS, &path, expected, seen));
        }
        self.clear(&[&path])
    }

    fn link_one_name(&mut self) -> Kept {
        let (mounts, path) = (self.draw_two(), self.path("linked"));
        self.note(mounts.0, "duel: link", &path);
        let sources = [self.path("source-a"), self.path("source-b")];
        let contents = [self.draw_bytes(BLOCK_MAX), self.draw_bytes(BLOCK_MAX)];
        for (source, bytes) in sources.iter().zip(&contents) {
            self.make(mounts.0, source, bytes)?;
        }
        let act = |side: usize| {
            let (source, path) = (&sources[side], &path);
            move |hand: Hand<'a>| {
                let file = hand.open(source, OFlags::RDONLY)?;
                let linked = hand.link(&file, path);
                hand.close(file);
                linked
            }
        };
        let results = self.both(mounts, act(0), act(1));
        let winner = self.winner(mounts, &path, results, &[Errno::EXIST])?;
        self.agreed(&path, Instant::now())?;
        self.read_everywhere(ONE_WINS, &path, &contents[winner])?;
        self.clear(&[&path, &sources[0], &sources[1]])
    }

    fn remove_one_name(&mut self) -> Kept {
        let (mounts, path) = (self.draw_two(), self.path("removed"));
        self.note(mounts.0, "duel: unlink", &path);
        let bytes = self.draw_bytes(BLOCK_MAX);
        self.make(mounts.0, &path, &bytes)?;
        let act = || |hand: Hand<'a>| hand.unlink(&path);
        let results = self.both(mounts, act(), act());
        self.winner(mounts, &path, results, &[Errno::NOENT])?;
        self.everywhere(&path, None, Instant::now())
    }

    fn rename_one_name(&mut self) -> Kept {
        let (mounts, path) = (self.draw_two(), self.path("moved"));
        self.note(mounts.0, "duel: rename", &path);
        let bytes = self.draw_bytes(BLOCK_MAX);
        let number = self.make(mounts.0, &path, &bytes)?;
        let targets = [self.path("target-a"), self.path("target-b")];
        let act = |side: usize| {
            let (path, target) = (&path, &targets[side]);
            move |hand: Hand<'a>| hand.rename(path, target)
        };
        let results = self.both(mounts, act(0), act(1));
        let winner = self.winner(mounts, &path, results, &[Errno::NOENT])?;
        let since = Instant::now();
        self.everywhere(&path, None, since)?;
        self.everywhere(&targets[winner], Some(number), since)?;
        self.everywhere(&targets[1 - winner], None, since)?;
        self.read_everywhere(ONE_WINS, &targets[winner], &bytes)?;
        self.clear(&[&targets[winner]])
    }

    fn remove_and_rename(&mut self) -> Kept {
        let (mounts, path) = (self.draw_two(), self.path("contested"));
        self.note(mounts.0, "duel: unlink and rename", &path);
        let (bytes, target) = (self.draw_bytes(BLOCK_MAX), self.path("rescued"));
        let number = self.make(mounts.0, &path, &bytes)?;
        let results = self.both(
            mounts,
            |hand| hand.unlink(&path),
            |hand| hand.rename(&path, &target),
        );
        let winner = self.winner(mounts, &path, results, &[Errno::NOENT])?;
        let since = Instant::now();
        self.everywhere(&path, None, since)?;
        let left = (winner == 1).then_some(number);
        self.everywhere(&target, left, since)?;
        self.clear(&[&target])
    }

    /// Both rename over one name, which is opened all the time.
    fn replace_one_name(&mut self) -> Kept {
        let (mounts, path) = (self.draw_two(), self.path("over"));
        self.note(mounts.0, "duel: rename over", &path);
        let sources = [self.path("new-a"), self.path("new-b")];
        let contents: Vec<_> = (0..3).map(|_| self.draw_bytes(BLOCK_MAX)).collect();
        self.make(mounts.0, &path, &contents[2])?;
        for (source, bytes) in sources.iter().zip(&contents) {
            self.make(mounts.1, source, bytes)?;
        }
        let reader = (0..self.mounts.count()).find(|it| *it != mounts.0 && *it != mounts.1);
        let reader = reader.unwrap_or(mounts.1);
        let (hand, ends) = (self.hand(reader), AtomicBool::new(false));
        let act = |side: usize| {
            let (source, path) = (&sources[side], &path);
            move |hand: Hand<'a>| hand.rename(source, path)
        };
        let (results, polled) = std::thread::scope(|scope| {
            let polling = scope.spawn(|| {
                let mut seen = Vec::new();
                while !ends.load(Ordering::Acquire) {
                    let opened = hand.open(&path, OFlags::RDONLY);
                    seen.push(opened.map(|file| {
                        let bytes = hand.read_from(&file, 0);
                        hand.close(file);
                        bytes
                    }));
                }
                seen
            });
            let results = self.both(mounts, act(0), act(1));
            ends.store(true, Ordering::Release);
            (results, polling.join().unwrap())
        });
        self.must(mounts.0, "rename", &path, results.0)?;
        self.must(mounts.1, "rename", &path, results.1)?;
        let mut is_old = true;
        for seen in polled {
            if seen.as_ref().is_err_and(|error| self.mounts.allows(*error)) {
                continue;
            }
            let seen = self.must(reader, "open", &path, seen)?;
            let seen = self.must(reader, "read", &path, seen)?;
            let which = contents.iter().position(|it| *it == seen);
            is_old &= which == Some(2);
            if which.is_none() || which == Some(2) && !is_old {
                let expected = "the old file or one of the new ones, and not the old one again";
                let seen = format!("{:?}, which is {which:?}", FileBytes::of(seen));
                return Err(self.broken(reader, REPLACE, &path, expected, seen));
            }
        }
        let since = Instant::now();
        for source in &sources {
            self.everywhere(source, None, since)?;
        }
        self.agreed(&path, since)?;
        let seen = self.hand(mounts.0).read(&path);
        let seen = self.must(mounts.0, "read", &path, seen)?;
        if !contents[..2].contains(&seen) {
            let seen = format!("{:?}", FileBytes::of(seen));
            return Err(self.broken(mounts.0, REPLACE, &path, "one of the new files", seen));
        }
        self.read_everywhere(REPLACE, &path, &seen)?;
        self.clear(&[&path])
    }

    /// Each renames its file over the other's: one is left, under the name of the later rename.
    fn swap(&mut self) -> Kept {
        let (mounts, names) = (self.draw_two(), [self.path("left"), self.path("right")]);
        self.note(mounts.0, "duel: rename over each other", &names[0]);
        let contents = [self.draw_bytes(BLOCK_MAX), self.draw_bytes(BLOCK_MAX)];
        for (name, bytes) in names.iter().zip(&contents) {
            self.make(mounts.0, name, bytes)?;
        }
        let act = |side: usize| {
            let (from, to) = (&names[side], &names[1 - side]);
            move |hand: Hand<'a>| hand.rename(from, to)
        };
        let results = self.both(mounts, act(0), act(1));
        self.must(mounts.0, "rename", &names[0], results.0)?;
        self.must(mounts.1, "rename", &names[1], results.1)?;
        let since = Instant::now();
        let left = [
            self.agreed(&names[0], since)?,
            self.agreed(&names[1], since)?,
        ];
        let stays = match left {
            // The second rename moved back what the first one had moved.
            [Some(_), None] => 0,
            [None, Some(_)] => 1,
            _ => {
                let expected = "one of the two names";
                let seen = format!("{left:?}");
                return Err(self.broken(mounts.0, REPLACE, &names[0], expected, seen));
            }
        };
        // If a mount learns of the other's rename for one of the names first, both names lead to
        // one file there, and its kernel renames nothing.
        let seen = self.hand(mounts.0).read(&names[stays]);
        let seen = self.must(mounts.0, "read", &names[stays], seen)?;
        let kept = contents.iter().find(|bytes| **bytes == seen);
        let kept = kept.unwrap_or(&contents[stays]);
        self.read_everywhere(REPLACE, &names[stays], kept)?;
        self.clear(&[&names[stays]])
    }

    fn remove_a_directory_and_create_in_it(&mut self) -> Kept {
        let (mounts, path) = (self.draw_two(), self.path("directory"));
        self.note(mounts.0, "duel: rmdir and create", &path);
        let made = self.hand(mounts.0).make_directory(&path);
        self.must(mounts.0, "mkdir", &path, made)?;
        let seen = self.hand(mounts.0).stat(&path);
        let number = self.must(mounts.0, "stat", &path, seen)?.inode;
        self.everywhere(&path, Some(number), Instant::now())?;
        let inside = format!("{path}/inside");
        let results = self.both(
            mounts,
            |hand| hand.remove_directory(&path),
            |hand| {
                let file = hand.create(&inside)?;
                hand.close(file);
                Ok(())
            },
        );
        let errors = [Errno::NOTEMPTY, Errno::NOENT, Errno::STALE];
        let winner = self.winner(mounts, &path, results, &errors)?;
        if winner == 1 {
            self.agreed(&inside, Instant::now())?;
            self.clear(&[&inside])?;
            let removed = self.hand(mounts.0).remove_directory(&path);
            self.must(mounts.0, "rmdir", &path, removed)?;
        }
        self.everywhere(&path, None, Instant::now())
    }

    /// Each writes every other block, and closes.
    fn write_different_ranges(&mut self) -> Kept {
        let (mounts, path) = (self.draw_two(), self.path("ranges"));
        self.note(mounts.0, "duel: write different ranges", &path);
        let (base, block) = (
            self.draw_bytes(LENGTH_MAX),
            1 + self.random.below(BLOCK_MAX),
        );
        self.make(mounts.0, &path, &base)?;
        let blocks = (1 + self.random.below(LENGTH_MAX))
            .div_ceil(block)
            .clamp(2, 48);
        let new = [self.draw_bytes(block), self.draw_bytes(block)];
        let mut expected = base;
        let length = expected.len().max((blocks * block) as usize);
        expected.resize(length, 0);
        for number in 0..blocks {
            let (at, bytes) = ((number * block) as usize, &new[(number % 2) as usize]);
            expected[at..at + bytes.len()].copy_from_slice(bytes);
        }
        // Beyond the old end, the last byte of a block may never be written: it is a hole.
        let last = (0..blocks).map(|it| it * block + new[(it % 2) as usize].len() as u64);
        let before = self.hand(mounts.0).stat(&path);
        let before = self.must(mounts.0, "stat", &path, before)?.length;
        expected.truncate(last.max().unwrap_or(0).max(before) as usize);
        let sync = self.random.chance(1, 2);
        let act = |side: u64| {
            let (path, bytes) = (&path, &new[side as usize]);
            move |hand: Hand<'a>| {
                let file = hand.open(path, OFlags::WRONLY)?;
                for number in (side..blocks).step_by(2) {
                    hand.write_at(&file, number * block, bytes)?;
                }
                if sync {
                    hand.sync(&file)?;
                }
                hand.close(file);
                Ok(())
            }
        };
        let results = self.both(mounts, act(0), act(1));
        self.must(mounts.0, "write", &path, results.0)?;
        self.must(mounts.1, "write", &path, results.1)?;
        self.read_everywhere(BOTH_STAY, &path, &expected)?;
        self.clear(&[&path])
    }

    /// Both write over the same bytes, and close.
    fn write_the_same_range(&mut self) -> Kept {
        let (mounts, path) = (self.draw_two(), self.path("overlap"));
        self.note(mounts.0, "duel: write the same range", &path);
        let base = self.draw_bytes(LENGTH_MAX);
        self.make(mounts.0, &path, &base)?;
        let parts = [(); 2].map(|()| {
            let at = self.random.below(base.len() as u64 + 1);
            (at as usize, self.draw_bytes(LENGTH_MAX))
        });
        let act = |side: usize| {
            let (path, (at, bytes)) = (&path, &parts[side]);
            move |hand: Hand<'a>| {
                let file = hand.open(path, OFlags::WRONLY)?;
                let written = hand.write_at(&file, *at as u64, bytes);
                hand.close(file);
                written
            }
        };
        let results = self.both(mounts, act(0), act(1));
        self.must(mounts.0, "write", &path, results.0)?;
        self.must(mounts.1, "write", &path, results.1)?;
        let seen = self.hand(mounts.0).read(&path);
        let seen = self.must(mounts.0, "read", &path, seen)?;
        let end = parts.iter().map(|(at, bytes)| at + bytes.len()).max();
        let length = end.unwrap_or(0).max(base.len());
        let of = |part: &(usize, Vec<u8>), at: usize| {
            let place = at.checked_sub(part.0)?;
            part.1.get(place).copied()
        };
        let wrong = (0..seen.len().min(length)).find(|at| {
            let mut writers = parts.iter().filter_map(|part| of(part, *at)).peekable();
            match writers.peek() {
                Some(_) => !writers.any(|byte| byte == seen[*at]),
                None => base.get(*at).copied().unwrap_or(0) != seen[*at],
            }
        });
        if seen.len() != length || wrong.is_some() {
            let expected = format!("{length} bytes, each from one of the writers");
            let seen = format!("{} bytes, the first other one at {wrong:?}", seen.len());
            return Err(self.broken(mounts.0, EITHER, &path, expected, seen));
        }
        self.read_everywhere(EITHER, &path, &seen)?;
        self.clear(&[&path])
    }

    /// One writes to a file, another renames a new one over its name: the name has the new one, and
    /// the descriptor the old one.
    fn write_and_replace(&mut self) -> Kept {
        let (mounts, path) = (self.draw_two(), self.path("old"));
        self.note(mounts.0, "duel: write and rename over", &path);
        let (old, new) = (self.draw_bytes(BLOCK_MAX), self.draw_bytes(BLOCK_MAX));
        let (more, source) = (self.draw_bytes(BLOCK_MAX), self.path("new"));
        self.make(mounts.0, &path, &old)?;
        self.make(mounts.1, &source, &new)?;
        let opened = self.hand(mounts.0).open(&path, OFlags::RDWR);
        let file = self.must(mounts.0, "open", &path, opened)?;
        let (open, end) = (&file, old.len() as u64);
        let results = self.both(
            mounts,
            |hand| {
                hand.write_at(open, end, &more)?;
                hand.sync(open)?;
                hand.read_from(open, 0)
            },
            |hand| hand.rename(&source, &path),
        );
        self.must(mounts.1, "rename", &path, results.1)?;
        let seen = self.must(mounts.0, "write", &path, results.0)?;
        let expected = [old, more].concat();
        if seen != expected {
            let difference = first_difference(&expected, &seen);
            let expected = format!("{:?}", FileBytes::of(expected));
            return Err(self.broken(mounts.0, REPLACE, &path, expected, difference));
        }
        self.hand(mounts.0).close(file);
        self.agreed(&path, Instant::now())?;
        self.read_everywhere(REPLACE, &path, &new)?;
        self.clear(&[&path])
    }

    /// Both make and remove files of their own in one directory.
    fn crowd(&mut self) -> Kept {
        let (mounts, path) = (self.draw_two(), self.path("crowd"));
        self.note(mounts.0, "duel: make and remove different files", &path);
        let made = self.hand(mounts.0).make_directory(&path);
        self.must(mounts.0, "mkdir", &path, made)?;
        let seen = self.hand(mounts.0).stat(&path);
        let number = self.must(mounts.0, "stat", &path, seen)?.inode;
        self.everywhere(&path, Some(number), Instant::now())?;
        let name = |side: usize, number: usize| format!("{side}-{number}");
        let act = |side: usize| {
            let path = &path;
            move |hand: Hand<'a>| -> CallResult {
                for number in 0..CROWD {
                    let at = format!("{path}/{}", name(side, number));
                    hand.close(hand.create(&at)?);
                    if number % 3 == 0 {
                        hand.unlink(&at)?;
                    }
                }
                Ok(())
            }
        };
        let results = self.both(mounts, act(0), act(1));
        self.must(mounts.0, "create", &path, results.0)?;
        self.must(mounts.1, "create", &path, results.1)?;
        let since = Instant::now();
        let left = (0..2 * CROWD).map(|it| (it % 2, it / 2));
        let left = left.filter(|(_, number)| number % 3 != 0);
        let left: BTreeSet<_> = left.map(|(side, number)| name(side, number)).collect();
        for mount in 0..self.mounts.count() {
            loop {
                let began = Instant::now();
                let seen = self.hand(mount).list(&path);
                let seen = self.must(mount, "readdir", &path, seen)?;
                let seen: BTreeSet<_> = seen.into_keys().collect();
                if seen == left {
                    self.counts.names.add(since.elapsed());
                    break;
                }
                if began > since + self.mounts.bound {
                    let (expected, seen) = (format!("{left:?}"), format!("{seen:?}"));
                    return Err(self.broken(mount, BOTH_STAY, &path, expected, seen));
                }
                std::thread::sleep(super::look::POLL_EVERY);
            }
        }
        for name in &left {
            self.clear(&[&format!("{path}/{name}")])?;
        }
        let removed = self.hand(mounts.0).remove_directory(&path);
        self.must(mounts.0, "rmdir", &path, removed)
    }
}
