//! A git repository that is used from two mounts: first in turns, then at the same time.
//!
//! In turns one mount commits, branches or merges, and the other has to show the same history, a
//! clean working tree and sound objects. Names and attributes may follow within the bound of
//! [`BOUND`]: a first look that shows the state before is counted, and a look after it has to be
//! right. At the same time each mount tries to commit a file of its own. `index.lock` and the locks
//! of references decide: a commit is there, or git says that it was refused.

use super::SceneFigures;
use super::players::{PlayerEnd, SceneRun};
use crate::repositories::git::Git;
use crate::twins::several::BOUND;
use anyhow::{Context, Result, ensure};
use quorumfs_bft_simulator::random::Random;
use serde_json::json;
use std::fs;
use std::time::{Duration, Instant};

const REPOSITORY: &str = "repository";
const MAIN: &str = "main";
const HEADSTART_MAX_MS: u64 = 300;
/// What git says if another process was there first.
const CLEAN_REFUSALS: [&str; 4] = [
    "index.lock",
    "cannot lock ref",
    // The other mount committed this file too: it was in the index.
    "nothing to commit",
    "nothing added to commit",
];

struct Turns<'a> {
    run: &'a SceneRun<'a>,
    late_looks: u64,
    longest: Duration,
    commits: usize,
}

impl Turns<'_> {
    fn try_git(&self, mount: usize, arguments: &[&str]) -> Result<PlayerEnd> {
        let repository = self.run.path(mount, REPOSITORY);
        let name = format!("git {} on mount {mount}", arguments.join(" "));
        let command = Git::new(&repository).command(arguments);
        self.run.run(name, command).context("this scene needs git")
    }

    fn git(&self, mount: usize, arguments: &[&str]) -> Result<String> {
        Ok(self.try_git(mount, arguments)?.success()?.join("\n"))
    }

    fn write(&self, mount: usize, file: &str, content: &str) -> Result<()> {
        let path = self.run.path(mount, &format!("{REPOSITORY}/{file}"));
        fs::write(&path, content).with_context(|| format!("{file} on mount {mount}"))
    }

    /// Changes some files on a mount, adds one and commits.
    fn commit(&mut self, mount: usize, turn: usize) -> Result<()> {
        for file in 0..3 {
            let name = format!("file-{}", (turn + file) % 7);
            self.write(
                mount,
                &name,
                &format!("turn {turn}, mount {mount}\n").repeat(file * 40 + 1),
            )?;
        }
        self.write(mount, &format!("new-{turn}"), &format!("{turn}\n"))?;
        self.git(mount, &["add", "--all"])?;
        self.git(mount, &["commit", "--quiet", "-m", &format!("Turn {turn}")])?;
        self.commits += 1;
        Ok(())
    }

    /// One turn of a mount: a commit, a commit on a branch, or a merge of that branch.
    fn turn(&mut self, mount: usize, turn: usize) -> Result<()> {
        let topic = format!("topic-{}", turn / 3);
        match turn % 3 {
            0 => self.commit(mount, turn),
            1 => {
                self.git(mount, &["checkout", "--quiet", "-b", &topic])?;
                self.commit(mount, turn)?;
                self.git(mount, &["checkout", "--quiet", MAIN]).map(drop)
            }
            _ => {
                self.write(mount, &format!("main-{turn}"), "on main\n")?;
                self.git(mount, &["add", "--all"])?;
                self.git(mount, &["commit", "--quiet", "-m", "On main"])?;
                let merge = ["merge", "--quiet", "--no-ff", "-m", "Merge", &topic];
                self.git(mount, &merge)?;
                self.commits += 2;
                self.git(mount, &["branch", "--quiet", "-d", &topic])
                    .map(drop)
            }
        }
    }

    fn history(&self, mount: usize) -> Result<String> {
        self.git(mount, &["log", "--format=%H %s", "--all"])
    }

    /// A mount has to show this history, and no change of its own.
    fn shows(&mut self, mount: usize, history: &str) -> Result<()> {
        let (began, mut looks) = (Instant::now(), 0);
        self.run.until(BOUND, || {
            looks += 1;
            let status = self.git(mount, &["status", "--porcelain"])?;
            ensure!(
                status.is_empty(),
                "git status on mount {mount} shows {status:?}"
            );
            let shown = self.history(mount)?;
            ensure!(
                shown == history,
                "git log on mount {mount} shows another history"
            );
            Ok(())
        })?;
        if looks > 1 {
            self.late_looks += 1;
            self.longest = self.longest.max(began.elapsed());
        }
        self.sound(mount)
    }

    /// git's own check of a repository.
    fn sound(&self, mount: usize) -> Result<()> {
        let end = self.try_git(mount, &["fsck", "--full", "--strict"])?;
        let said = format!("{} {}", end.lines.join("; "), end.complaints);
        let fine = end.is_success() && !said.contains("missing") && !said.contains("error");
        ensure!(fine, "git fsck on mount {mount}: {said}");
        Ok(())
    }
}

/// What one mount did while the other one did the same.
enum Attempt {
    Committed(String),
    Refused,
}

/// Commits a file of this mount, or is refused.
fn attempt(turns: &Turns, mount: usize, round: usize) -> Result<Attempt> {
    let (file, content) = own(mount, round);
    turns.write(mount, &file, &content)?;
    let message = format!("Mount {mount} in round {round}");
    let commit = ["commit", "--quiet", "-m", &message];
    for arguments in [&["add", &file][..], &commit] {
        let end = turns.try_git(mount, arguments)?;
        if !end.is_success() {
            let said = format!("{} {}", end.lines.join("; "), end.complaints);
            let clean = CLEAN_REFUSALS.iter().any(|it| said.contains(it));
            ensure!(clean, "{}: {said}", end.describe());
            return Ok(Attempt::Refused);
        }
    }
    Ok(Attempt::Committed(message))
}

fn own(mount: usize, round: usize) -> (String, String) {
    (
        format!("own-{mount}"),
        format!("round {round} of mount {mount}\n"),
    )
}

/// Both mounts commit at the same time; returns how many commits there are.
fn contend(turns: &Turns, round: usize, random: &mut Random) -> Result<usize> {
    // One of them begins a little later: at best the other one is between two locks.
    let mut waits = [Duration::ZERO; 2];
    waits[random.index(2)] = Duration::from_millis(random.below(HEADSTART_MAX_MS));
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            std::thread::sleep(waits[1]);
            attempt(turns, 1, round)
        });
        std::thread::sleep(waits[0]);
        let first = attempt(turns, 0, round);
        (first, other.join().unwrap())
    });
    let attempts = [(0, first?), (1, second?)];
    // What is in the index and was refused is committed now, by one of them.
    turns.run.until(BOUND, || {
        turns.git(0, &["add", "--all"])?;
        let end = turns.try_git(0, &["commit", "--quiet", "-m", "What is left"])?;
        let nothing = end.lines.iter().any(|it| it.contains("nothing to commit"));
        ensure!(end.is_success() || nothing, "{}", end.describe());
        Ok(())
    })?;
    let log = turns.git(0, &["log", "--format=%s", MAIN])?;
    let mut committed = 0;
    for (mount, attempt) in attempts {
        let (file, content) = own(mount, round);
        if let Attempt::Committed(message) = attempt {
            committed += 1;
            let there = log.lines().any(|line| line == message);
            ensure!(
                there,
                "the commit `{message}` returned success, and is not in the history"
            );
        }
        let stored = turns.git(0, &["show", &format!("{MAIN}:{file}")])?;
        ensure!(
            stored == content.trim_end(),
            "{MAIN}:{file} is {stored:?} after round {round}"
        );
    }
    Ok(committed)
}

/// Plays the scene.
pub(super) fn play(run: &SceneRun) -> Result<SceneFigures> {
    let mut turns = Turns {
        run,
        late_looks: 0,
        longest: Duration::ZERO,
        commits: 0,
    };
    fs::create_dir(run.path(0, REPOSITORY))?;
    turns.git(0, &["init", "--quiet", "--initial-branch", MAIN, "."])?;
    let count = run.plan.sizes.turns;
    for turn in 0..count {
        let (mount, other) = (turn % 2, 1 - turn % 2);
        turns
            .turn(mount, turn)
            .with_context(|| format!("turn {turn}, of mount {mount}"))?;
        if turn == count / 2 {
            turns.git(mount, &["gc", "--quiet", "--prune=now"])?;
        }
        let history = turns.history(mount)?;
        turns
            .shows(other, &history)
            .with_context(|| format!("after turn {turn}, of mount {mount}"))?;
    }
    let (rounds, mut committed) = (count / 2, 0);
    let mut random = Random::new(run.plan.seed);
    for round in 0..rounds {
        let at_once = contend(&turns, round, &mut random);
        committed += at_once.with_context(|| format!("at the same time, round {round}"))?;
        let history = turns.history(0)?;
        turns
            .shows(1, &history)
            .with_context(|| format!("after round {round}"))?;
        turns.sound(0)?;
    }
    let refused = 2 * rounds - committed;
    let longest = (turns.longest.as_secs_f64() * 1e3).round();
    let commits = turns.commits;
    let figures = json!({
        "turns": count, "commits": commits, "at_the_same_time": 2 * rounds,
        "committed": committed, "refused": refused, "late_looks": turns.late_looks,
        "longest_look_ms": longest,
    });
    let sentence = format!(
        "{commits} commits in {count} turns of two mounts, with branches, merges and a collection, \
         were sound and clean on the other one each time; of {} commits at the same time \
         {committed} are there and {refused} were refused; {} looks showed the state before first.",
        2 * rounds,
        turns.late_looks
    );
    Ok(SceneFigures::new(figures, sentence))
}
