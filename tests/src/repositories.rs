//! Runs git on a large repository in a mount of tier `local`, and the same on the local disk.
//!
//! git exercises a file system in many ways: it renames lock files over others, links objects, maps
//! packs and the index into memory, and compares times to detect changes. The repository and all
//! steps follow from a seed; after every step the output in both places has to be the same, commit
//! names included.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

pub(crate) mod git;
mod origin;

use crate::harness::{Cluster, drop_caches, mount_in_background, require_fuse};
use git::Git;
use origin::MARKER;
use serde::Serialize;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct RepositoryPlan {
    /// Files of the newest commit, approximately.
    pub files: usize,
    /// How many commits.
    pub commits: u32,
    /// Decides their content.
    pub seed: u64,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct RepositoryReport {
    /// Files of the newest commit.
    pub files: usize,
    /// Bytes of the clone's packs.
    pub pack_bytes: u64,
    /// The steps, and the duration of each in the mount and on the local disk, in seconds.
    pub steps: Vec<(&'static str, f64, f64)>,
}

/// The two places, and the steps executed in both.
struct RepositoryRun {
    ours: PathBuf,
    local: PathBuf,
    origin: String,
    steps: Vec<(&'static str, f64, f64)>,
}

/// Runs the whole test.
///
/// # Panics
/// If a command fails, or gives another output in the mount than on the local disk.
#[must_use]
pub fn run(plan: RepositoryPlan) -> RepositoryReport {
    require_fuse();
    let elsewhere = tempfile::tempdir().unwrap();
    let origin = elsewhere.path().join("origin");
    origin::make(&origin, plan.files, plan.commits, plan.seed);
    let local = elsewhere.path().join("local");
    fs::create_dir(&local).unwrap();

    let mut cluster = Cluster::prepare();
    cluster.set_tier("local");
    cluster.start();
    let point = cluster.mount_point();
    let _ = mount_in_background(&cluster, &point, &[]);
    let mut places = RepositoryRun {
        ours: point.clone(),
        local,
        origin: origin.to_str().unwrap().to_owned(),
        steps: Vec::new(),
    };
    places.clone_it();
    places.move_about(plan.commits);
    places.rewrite();
    places.collect();

    cluster.quorumfs().args(["umount"]).run().ok();
    drop_caches();
    let _ = mount_in_background(&cluster, &point, &[]);
    places.both("the same after another mount", |git, _| {
        let head = git.run(&["rev-parse", "HEAD"]);
        let status = git.run(&["status", "--porcelain"]);
        let checked = git.run(&["fsck", "--full", "--strict"]);
        assert_eq!(status, "");
        head + &checked
    });
    let clone = point.join("clone");
    let report = RepositoryReport {
        files: Git::new(&clone).run(&["ls-files"]).lines().count(),
        pack_bytes: packs(&clone.join(".git")).iter().map(|it| it.len()).sum(),
        steps: places.steps,
    };
    cluster.quorumfs().args(["umount"]).run().ok();
    cluster.stop();
    report
}

/// The files of a repository's packs.
fn packs(repository: &Path) -> Vec<fs::Metadata> {
    let packs = fs::read_dir(repository.join("objects/pack")).unwrap();
    packs.map(|it| it.unwrap().metadata().unwrap()).collect()
}

impl RepositoryRun {
    /// Does the same in both clones; the results have to be equal.
    #[track_caller]
    fn both(&mut self, step: &'static str, work: impl Fn(&Git, &Path) -> String) {
        self.both_parents(step, |place| {
            let clone = place.join("clone");
            work(&Git::new(&clone), &clone)
        });
    }

    /// The same in the parent directories of the clones.
    #[track_caller]
    fn both_parents(&mut self, step: &'static str, work: impl Fn(&Path) -> String) {
        let [(ours, ours_took), (local, local_took)] = [&self.ours, &self.local].map(|place| {
            let began = Instant::now();
            (work(place), began.elapsed().as_secs_f64())
        });
        assert_eq!(ours, local, "{step}: in the mount, and on the local disk");
        self.steps.push((step, ours_took, local_took));
    }

    fn clone_it(&mut self) {
        let origin = self.origin.clone();
        self.both_parents("clone", |place| {
            Git::new(place).run(&["clone", "--quiet", "--no-local", &origin, "clone"])
        });
        self.both("status", |git, _| {
            let status = git.run(&["status", "--porcelain"]);
            assert_eq!(status, "");
            git.run(&["rev-parse", "HEAD", "HEAD^{tree}"]) + &git.run(&["ls-files", "--stage"])
        });
        self.both_parents("clone with hard links", |place| {
            let arguments = ["clone", "--quiet", "--local", "--bare", "clone", "linked"];
            Git::new(place).run(&arguments);
            let shared = packs(&place.join("linked")).iter().all(|it| it.nlink() > 1);
            assert!(shared, "packs of {} are not linked", place.display());
            Git::new(&place.join("linked")).run(&["rev-parse", "HEAD"])
        });
    }

    /// Checks out commits that lie far apart, in the clone and in a second working tree.
    fn move_about(&mut self, commits: u32) {
        let far = format!("HEAD~{}", commits * 3 / 4);
        self.both("checkout of a distant commit and back", |git, _| {
            git.run(&["checkout", "--quiet", &far]);
            let files = git.run(&["ls-files", "--stage"]);
            let status = git.run(&["status", "--porcelain"]);
            git.run(&["checkout", "--quiet", "main"]);
            assert_eq!(git.run(&["status", "--porcelain"]), "");
            files + &status
        });
        self.both("worktree", |git, clone| {
            let tree = clone.with_file_name("tree");
            let arguments = ["worktree", "add", "--quiet", "--detach", "../tree", "v1"];
            git.run(&arguments);
            fs::write(tree.join("new"), "new\n").unwrap();
            let status = Git::new(&tree).run(&["status", "--porcelain"]);
            assert_eq!(status, "?? new\n");
            git.run(&["worktree", "remove", "--force", "../tree"]);
            assert!(!tree.exists());
            git.run(&["worktree", "prune"])
        });
        let first = format!("HEAD~{}", commits - 1);
        self.both("bisect", |git, _| {
            git.run(&["bisect", "start", "HEAD", &first]);
            let output = git.run(&["bisect", "run", "test", "!", "-e", MARKER]);
            git.run(&["bisect", "reset"]);
            let found = |line: &&str| line.contains("is the first bad commit");
            output.lines().find(found).unwrap().to_owned()
        });
    }

    /// Commits, stashes and rebases.
    fn rewrite(&mut self) {
        self.both("commits on a branch", |git, clone| {
            git.run(&["checkout", "--quiet", "-b", "topic", "HEAD~5"]);
            for number in 0..4 {
                for file in 0..6 {
                    let path = clone.join(format!("topic-{file}/file-{number}"));
                    fs::create_dir_all(path.parent().unwrap()).unwrap();
                    fs::write(path, format!("{number}\n").repeat(100 * file)).unwrap();
                }
                fs::write(clone.join("topic"), format!("{number}\n")).unwrap();
                git.run(&["add", "--all"]);
                git.run(&["commit", "--quiet", "-m", &format!("Topic {number}")]);
            }
            git.run(&["rev-parse", "HEAD"])
        });
        self.both("stash", |git, clone| {
            fs::write(clone.join("topic"), "changed\n").unwrap();
            fs::write(clone.join("untracked"), "new\n").unwrap();
            let before = git.run(&["status", "--porcelain"]);
            git.run(&["stash", "push", "--quiet", "--include-untracked"]);
            assert_eq!(git.run(&["status", "--porcelain"]), "");
            git.run(&["stash", "pop", "--quiet"]);
            assert_eq!(git.run(&["status", "--porcelain"]), before);
            git.run(&["reset", "--quiet", "--hard"]);
            git.run(&["clean", "--quiet", "--force"]);
            before
        });
        self.both("rebase", |git, _| {
            git.run(&["rebase", "--quiet", "main"]);
            git.run(&["checkout", "--quiet", "main"]);
            git.run(&["merge", "--quiet", "--no-ff", "-m", "Merge", "topic"]);
            assert_eq!(git.run(&["status", "--porcelain"]), "");
            git.run(&["log", "--format=%H %s", "-n", "20"])
        });
    }

    /// Repacks everything and checks every object.
    fn collect(&mut self) {
        self.both("repack", |git, _| {
            git.run(&["repack", "--quiet", "-a", "-d", "-f", "--window=20"])
        });
        self.both("gc --aggressive", |git, _| {
            git.run(&["reflog", "expire", "--expire=now", "--all"]);
            git.run(&["gc", "--quiet", "--aggressive", "--prune=now"]);
            git.run(&["count-objects"])
        });
        self.both("fsck", |git, _| {
            git.run(&["fsck", "--full", "--strict"]) + &git.run(&["status", "--porcelain"])
        });
    }
}
