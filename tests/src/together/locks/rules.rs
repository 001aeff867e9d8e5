//! What POSIX and Linux say about locks, between processes on different mounts.

use super::super::players::SceneRun;
use super::{DONE, Holder, KINDS, REFUSED, attempt, order};
use anyhow::{Error, Result};
use std::time::Duration;

/// A waiter gets its lock once it is released, or its interruption once it comes.
const COMES_WITHIN: Duration = Duration::from_secs(5);

struct Rules {
    first: Holder,
    second: Holder,
    third: Holder,
}

type Rule = fn(&mut Rules) -> Result<()>;
type RuleOfKind = fn(&mut Rules, &str) -> Result<()>;

const OF_EACH_KIND: [(&str, RuleOfKind); 3] = [
    ("excludes", Rules::exclude),
    ("is waited for", Rules::wait),
    ("is waited for until a signal comes", Rules::interrupt),
];
const OTHERS: [(&str, Rule); 3] = [
    ("`fcntl` and `flock` do not meet", Rules::kinds),
    ("locks of ranges", Rules::ranges),
    ("locks that end with descriptors", Rules::close),
];

/// Plays all rules, each with processes of its own; returns the broken ones.
pub(super) fn play(run: &SceneRun) -> Vec<Error> {
    let mut broken = Vec::new();
    for kind in KINDS {
        for (name, rule) in OF_EACH_KIND {
            let outcome = with_three(run, |rules| rule(rules, kind));
            broken.extend(
                outcome
                    .err()
                    .map(|it| it.context(format!("`{kind}` {name}"))),
            );
        }
    }
    for (name, rule) in OTHERS {
        broken.extend(with_three(run, rule).err().map(|it| it.context(name)));
    }
    broken
}

fn with_three(run: &SceneRun, rule: impl FnOnce(&mut Rules) -> Result<()>) -> Result<()> {
    let mut rules = Rules {
        first: Holder::start(run, 0, "the first")?,
        second: Holder::start(run, 1, "the second")?,
        third: Holder::start(run, 2, "the third")?,
    };
    rule(&mut rules)?;
    for holder in [rules.first, rules.second, rules.third] {
        holder.0.finish()?;
    }
    Ok(())
}

impl Rules {
    /// An exclusive lock excludes, shared ones do not exclude one another.
    fn exclude(&mut self, kind: &str) -> Result<()> {
        self.first.must(&order(kind, "exclusive"), DONE)?;
        self.second.must(&attempt(kind, "exclusive"), REFUSED)?;
        self.third.must(&attempt(kind, "shared"), REFUSED)?;
        self.first.must(&order(kind, "shared"), DONE)?;
        self.second.must(&order(kind, "shared"), DONE)?;
        self.third.must(&attempt(kind, "exclusive"), REFUSED)?;
        self.first.must(&order(kind, "none"), DONE)?;
        self.third.must(&attempt(kind, "exclusive"), REFUSED)?;
        self.second.must(&order(kind, "none"), DONE)?;
        self.third.must(&attempt(kind, "exclusive"), DONE)?;
        self.third.must(&order(kind, "none"), DONE)
    }

    /// One that waits gets the lock when it is released, and then excludes.
    fn wait(&mut self, kind: &str) -> Result<()> {
        self.first.must(&order(kind, "exclusive"), DONE)?;
        self.second.waits(&order(kind, "exclusive"))?;
        self.first.must(&order(kind, "none"), DONE)?;
        self.second.comes(DONE, COMES_WITHIN)?;
        self.first.must(&attempt(kind, "shared"), REFUSED)?;
        self.second.must(&order(kind, "none"), DONE)
    }

    /// One that waits is interrupted by a signal, and does not get the lock later.
    fn interrupt(&mut self, kind: &str) -> Result<()> {
        self.first.must(&order(kind, "exclusive"), DONE)?;
        self.second.must("interrupted_after(1)", DONE)?;
        self.second.waits(&order(kind, "exclusive"))?;
        self.second.comes("interrupted", COMES_WITHIN)?;
        self.first.must(&order(kind, "none"), DONE)?;
        self.third.must(&order(kind, "exclusive"), DONE)?;
        self.third.must(&order(kind, "none"), DONE)?;
        // The other one can still lock.
        self.second.must(&order(kind, "exclusive"), DONE)?;
        self.second.must(&order(kind, "none"), DONE)
    }

    fn kinds(&mut self) -> Result<()> {
        self.first.must(&order("fcntl", "exclusive"), DONE)?;
        self.second.must(&attempt("flock", "exclusive"), DONE)?;
        // Locks of open files and of processes do meet.
        self.third.must(&attempt("ofd", "exclusive"), REFUSED)?;
        self.third.must(&attempt("flock", "shared"), REFUSED)?;
        self.first.must(&order("fcntl", "none"), DONE)?;
        self.third.must(&attempt("ofd", "exclusive"), DONE)?;
        self.first.must(&attempt("fcntl", "shared"), REFUSED)?;
        self.third.must(&order("ofd", "none"), DONE)?;
        self.second.must(&order("flock", "none"), DONE)
    }

    /// Ranges that do not meet, a range with a hole, and the question what is in the way.
    fn ranges(&mut self) -> Result<()> {
        for kind in ["fcntl", "ofd"] {
            let lock = |how: &str, start: u64, length: u64| {
                format!("lock('{kind}', '{how}', a, False, {start}, {length})")
            };
            let asks = |how: &str, start: u64, length: u64| {
                format!("= conflict('{kind}', '{how}', a, {start}, {length})")
            };
            self.first.must(&lock("exclusive", 100, 50), DONE)?;
            self.second.must(&lock("exclusive", 150, 0), DONE)?;
            self.second.must(&lock("exclusive", 99, 2), REFUSED)?;
            self.third.must(&lock("exclusive", 0, 100), DONE)?;
            self.third
                .must(&asks("exclusive", 100, 10), "exclusive 0 100 50")?;
            self.third
                .must(&asks("shared", 149, 1), "exclusive 0 100 50")?;
            self.third
                .must(&asks("exclusive", 200, 1), "exclusive 0 150 0")?;
            self.first.must(&lock("none", 110, 10), DONE)?;
            self.third.must(&asks("exclusive", 110, 10), "none")?;
            self.third.must(&lock("exclusive", 110, 10), DONE)?;
            self.first.must(&lock("shared", 120, 30), DONE)?;
            self.third.must(&lock("shared", 125, 5), DONE)?;
            self.second
                .must(&asks("exclusive", 140, 5), "shared 0 120 30")?;
            self.second.must(&asks("shared", 140, 5), "none")?;
            for holder in [&mut self.first, &mut self.second, &mut self.third] {
                holder.must(&lock("none", 0, 0), DONE)?;
            }
            self.second.must(&lock("exclusive", 0, 0), DONE)?;
            self.second.must(&lock("none", 0, 0), DONE)?;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        // Any descriptor of the file drops what the process has locked.
        self.first.must(&order("fcntl", "exclusive"), DONE)?;
        self.second.must(&attempt("fcntl", "exclusive"), REFUSED)?;
        self.first.must("b = opened(); os.close(b)", DONE)?;
        self.second.must(&order("fcntl", "exclusive"), DONE)?;
        self.second.must(&order("fcntl", "none"), DONE)?;
        for kind in ["ofd", "flock"] {
            let (locks, takes) = (order(kind, "exclusive"), order(kind, "none"));
            self.first.must("b = os.dup(a); c = opened()", DONE)?;
            self.first.must(&locks, DONE)?;
            self.first.must("os.close(c); os.close(a)", DONE)?;
            self.second.must(&attempt(kind, "shared"), REFUSED)?;
            self.third.waits(&locks)?;
            self.first.must("os.close(b)", DONE)?;
            self.third.comes(DONE, COMES_WITHIN)?;
            self.third.must(&takes, DONE)?;
            self.first.must("a = opened()", DONE)?;
        }
        Ok(())
    }
}
