//! `quorumfs demo --check`: an unattended test of everything on real files.
//!
//! ```text
//! copy in ─► compare ─► compare ─────────► compare ────────► compare ─────────► kill the leader
//!            plainly    all stopped and    one cloud moved   a byte flipped in  during a copy,
//!                       started            away, then back   every shard of     then another
//!                                                            another cloud      replica
//!
//! over servers of the providers' protocols, each cloud in turn: stopped, frozen, every object
//! damaged, then all of them deleted, adopted again and filled
//! ```
//!
//! Before each comparison the gateway is restarted and the kernel's caches are dropped, so that the
//! compared content comes from the clouds. The check observes the cluster through `quorumfs status
//! --json` alone, as an operator would. The last line that it prints is the summary.

use super::cluster::DemoCluster;
use super::damage;
use super::layout::Demo;
use super::observe::{ClusterSnapshot, Observer};
use super::places::DemoCloud;
use super::tree::{HANDS, Measured, Progress, Tree};
use crate::arguments::{DemoArguments, DemoClouds, General};
use crate::commands::Configured;
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::stop::Stop;
use quorumfs_backends::ObjectStore;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const FILES_MIN: u32 = 5_000;
/// Over emulators the tree is compared many times, and every file is an object on each of them.
const EMULATED_FILES_MIN: u32 = 400;
/// The least average size of files.
const BYTES_A_FILE_MIN: u64 = 20 << 10;
/// How many files are copied while the leader dies, and the least number to arrive before its death
/// and after.
const FILES_DURING: usize = 600;
const FILES_BEFORE_KILL: usize = 50;
const FILES_AFTER_KILL: usize = 100;
/// The check is stuck if it takes longer.
const CHECK_WITHIN: Duration = Duration::from_secs(40 * 60);
/// How long a change of the cluster may take to become visible.
const SEEN_WITHIN: Duration = Duration::from_secs(180);

/// The last line.
#[derive(Debug, Serialize)]
struct DemoSummary {
    files: usize,
    bytes: u64,
    files_per_second: f64,
    mib_per_second_in: f64,
    mib_per_second_out: f64,
    shards_refused: u64,
    shards_replaced: u64,
    views: u64,
    caches_dropped: bool,
    seconds: f64,
}

/// Runs the check in a fresh directory, or in the given one.
pub(crate) async fn run(
    general: &General,
    arguments: &DemoArguments,
    output: Output,
) -> CommandResult {
    let (state, temporary) = match &general.state {
        Some(path) => (StateDirectory::find(Some(path), "demo")?, false),
        None => (fresh_directory()?, true),
    };
    let mut stop = Stop::of_a_command()?;
    let mount = arguments.mount.as_deref();
    let demo = Demo::open(&state, mount, arguments.clouds).await?;
    if !demo.is_new {
        let message = format!("there is a demo already in {}", state.path().display());
        return Err(Failure::new(Exit::Held, message)
            .hint("the check moves and damages clouds; give it an empty directory with --state"));
    }
    let cluster = DemoCluster::new(&demo)?;
    let check = Check {
        observer: Observer::new(&state)?,
        demo: &demo,
        cluster: &cluster,
        began: Instant::now(),
        tree: choose_tree(arguments)?,
    };
    let outcome = tokio::select! {
        outcome = tokio::time::timeout(CHECK_WITHIN, check.all()) => outcome.unwrap_or_else(|_| {
            let message = format!("the check did not end within {} s", CHECK_WITHIN.as_secs());
            Err(Failure::new(Exit::Error, message))
        }),
        () = stop.wanted() => Err(Failure::new(Exit::Cancelled, "cancelled")),
    };
    let stopped = cluster.stop().await;
    demo.end().await;
    match outcome.and_then(|summary| stopped.map(|()| summary)) {
        Ok(summary) => {
            if temporary {
                let _ = fs::remove_dir_all(state.path());
            }
            // One line of JSON, for people and programs alike.
            let _ = output;
            Output::new(true).record("check", &summary, |_| String::new())?;
            Ok(Exit::Success)
        }
        Err(failure) if failure.hint.is_none() => {
            Err(failure.hint(format!("the logs are in {}", state.join("log").display())))
        }
        Err(failure) => Err(failure),
    }
}

fn fresh_directory() -> CommandResult<StateDirectory> {
    let base = std::env::temp_dir();
    let path = base.join(format!("quorumfs-check-{}", std::process::id()));
    fs::create_dir(&path).map_err(|error| Failure::file("create the directory", &path, &error))?;
    StateDirectory::find(Some(&path), "demo")
}

/// The given tree; else the sources in cargo's registry.
fn choose_tree(arguments: &DemoArguments) -> CommandResult<Tree> {
    let usual = match arguments.clouds {
        Some(DemoClouds::Emulators) => EMULATED_FILES_MIN,
        _ => FILES_MIN,
    };
    let files_min = arguments.files.unwrap_or(usual);
    let bytes_min = u64::from(files_min) * BYTES_A_FILE_MIN;
    let roots = match &arguments.tree {
        Some(tree) => vec![tree.clone()],
        None => registries(),
    };
    for root in &roots {
        let chosen = Tree::choose(root, files_min as usize, bytes_min)
            .map_err(|error| Failure::file("list", root, &error))?;
        if let Some(tree) = chosen {
            return Ok(tree);
        }
    }
    let looked: Vec<_> = roots
        .iter()
        .map(|root| root.display().to_string())
        .collect();
    let message = format!(
        "found no tree with {files_min} files and {} MiB to copy (looked in: {})",
        bytes_min >> 20,
        looked.join(", ")
    );
    Err(Failure::new(Exit::Usage, message).hint("name a directory of directories with --tree DIR"))
}

fn registries() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cargo = variable("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cargo")));
    let sources = cargo.map(|cargo| cargo.join("registry/src"));
    let entries = sources.and_then(|path| fs::read_dir(path).ok());
    let mut found: Vec<_> = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .collect();
    found.sort();
    found
}

struct Check<'a> {
    observer: Observer,
    demo: &'a Demo,
    cluster: &'a DemoCluster,
    began: Instant,
    tree: Tree,
}

impl Check<'_> {
    async fn all(&self) -> CommandResult<DemoSummary> {
        let (files, mib) = (self.tree.count(), self.tree.bytes >> 20);
        self.note(&format!(
            "starting; {files} files with {mib} MiB will be copied"
        ));
        self.cluster.start().await?;
        let first_view = self.observer.cluster().await?.view;

        let copy = self.demo.mount.join("tree");
        let copied = self.copy(self.tree.clone(), &copy, &Arc::default()).await?;
        self.note(&format!(
            "copied in: {:.0} files/s, {:.1} MiB/s",
            copied.files_per_second(),
            copied.mib_per_second()
        ));
        let seen = self.settled().await?;
        self.all_requests_were_counted(&seen).await?;

        let (compared, caches_dropped) = self.compare_afresh(&copy, "plainly").await?;
        self.cluster.stop().await?;
        self.cluster.start().await?;
        self.compare_afresh(&copy, "after stopping and starting everything")
            .await?;
        let (shards_refused, shards_replaced) = self.with_failing_clouds(&copy).await?;
        let last_view = self.with_replicas_killed().await?;

        Ok(DemoSummary {
            files,
            bytes: self.tree.bytes,
            files_per_second: copied.files_per_second(),
            mib_per_second_in: copied.mib_per_second(),
            mib_per_second_out: compared.mib_per_second(),
            shards_refused,
            shards_replaced,
            views: last_view.saturating_sub(first_view),
            caches_dropped,
            seconds: self.began.elapsed().as_secs_f64(),
        })
    }

    fn note(&self, text: &str) {
        eprintln!(
            "check {:>5.0} s: {text}",
            self.began.elapsed().as_secs_f64()
        );
    }

    async fn copy(
        &self,
        tree: Tree,
        target: &Path,
        progress: &Arc<Progress>,
    ) -> CommandResult<Measured> {
        let (target, progress) = (target.to_path_buf(), Arc::clone(progress));
        blocking(move || tree.copy(&target, &progress)).await
    }

    /// Restarts the gateway, drops the kernel's caches, and compares everything.
    async fn compare_afresh(&self, copy: &Path, how: &str) -> CommandResult<(Measured, bool)> {
        self.cluster.gateway().stop().await?;
        let dropped = drop_caches();
        self.cluster.gateway().start().await?;
        let (tree, copy) = (self.tree.clone(), copy.to_path_buf());
        let compared = blocking(move || tree.compare(&copy))
            .await
            .map_err(|failure| Failure {
                message: format!("compared {how}: {}", failure.message),
                ..failure
            })?;
        self.note(&format!(
            "equal {how}: {:.1} MiB/s",
            compared.mib_per_second()
        ));
        Ok((compared, dropped))
    }

    /// Waits until every object is complete.
    async fn settled(&self) -> CommandResult<ClusterSnapshot> {
        self.observer
            .until(SEEN_WITHIN, "every object is complete", |seen| {
                seen.completion_queue == Some(0)
            })
            .await
    }

    /// Checks that each server received at least one request for each object that it holds. Small
    /// files share objects, so there are fewer of these than files.
    async fn all_requests_were_counted(&self, seen: &ClusterSnapshot) -> CommandResult<()> {
        for (index, place) in self.demo.clouds.iter().enumerate() {
            if !place.freezes() {
                continue;
            }
            let objects = damage::count(&self.store(index).await?).await? as u64;
            let requests = seen.requests.get(index).copied().unwrap_or_default();
            if requests < objects || objects == 0 {
                let name = place.name;
                let message = format!(
                    "cloud `{name}` holds {objects} objects and counted {requests} requests"
                );
                return Err(Failure::new(Exit::Error, message));
            }
        }
        Ok(())
    }

    /// Makes clouds unreachable and damages them, one at a time.
    async fn with_failing_clouds(&self, copy: &Path) -> CommandResult<(u64, u64)> {
        if !self.demo.clouds.iter().any(DemoCloud::freezes) {
            self.with_a_cloud_stopped(1, copy).await?;
            return self.with_a_cloud_damaged(0, copy).await;
        }
        let mut sum = (0, 0);
        for index in 0..self.demo.clouds.len() {
            let objects = damage::count(&self.store(index).await?).await?;
            self.with_a_cloud_stopped(index, copy).await?;
            self.with_a_cloud_frozen(index, copy).await?;
            let (refused, replaced) = self.with_a_cloud_damaged(index, copy).await?;
            sum = (sum.0 + refused, sum.1 + replaced);
            self.with_a_cloud_emptied(index, objects, copy).await?;
        }
        Ok(sum)
    }

    async fn with_a_cloud_stopped(&self, index: usize, copy: &Path) -> CommandResult<()> {
        let place = self.place(index)?;
        place.stop().await?;
        let how = format!("with cloud `{}` unreachable", place.name);
        let compared = self.compare_afresh(copy, &how).await;
        let back = place.start_again().await;
        compared?;
        back
    }

    async fn with_a_cloud_frozen(&self, index: usize, copy: &Path) -> CommandResult<()> {
        let place = self.place(index)?;
        if !place.freezes() {
            return Ok(());
        }
        place.freeze().await;
        let how = format!("with cloud `{}` frozen", place.name);
        let compared = self.compare_afresh(copy, &how).await;
        place.thaw().await;
        compared.map(drop)
    }

    async fn with_a_cloud_damaged(&self, index: usize, copy: &Path) -> CommandResult<(u64, u64)> {
        let place = self.place(index)?;
        self.cluster.gateway().stop().await?;
        let flipped = damage::flip_a_byte_in_every_object(&self.store(index).await?).await?;
        self.note(&format!(
            "flipped a byte in each of the {flipped} objects of cloud `{}`",
            place.name
        ));
        let how = format!("with cloud `{}` damaged", place.name);
        self.compare_afresh(copy, &how).await?;
        let seen = self.observer.everything().await?;
        if seen.shards_refused == 0 || seen.shards_replaced == 0 {
            let message = format!(
                "a whole cloud is damaged, but {} shards were refused and {} replaced",
                seen.shards_refused, seen.shards_replaced
            );
            return Err(Failure::new(Exit::Error, message));
        }
        self.run(&["scrub", "--full", "--cloud", place.name])
            .await?;
        Ok((seen.shards_refused, seen.shards_replaced))
    }

    /// Empties a cloud, with its marker, adopts it again, and has it filled: with as many objects
    /// as it had before any of them was damaged and written again.
    async fn with_a_cloud_emptied(
        &self,
        index: usize,
        objects: usize,
        copy: &Path,
    ) -> CommandResult<()> {
        let place = self.place(index)?;
        self.cluster.gateway().stop().await?;
        let deleted = damage::empty(&self.store(index).await?).await?;
        self.note(&format!(
            "deleted all {deleted} objects of cloud `{}`",
            place.name
        ));
        let how = format!("with cloud `{}` emptied", place.name);
        self.compare_afresh(copy, &how).await?;
        self.run(&["cloud", "adopt", place.name]).await?;
        self.run(&["scrub", "--cloud", place.name]).await?;
        let filled = damage::count(&self.store(index).await?).await?;
        if filled < objects {
            let name = place.name;
            let message = format!("cloud `{name}` had {objects} objects and has {filled} again");
            return Err(Failure::new(Exit::Error, message));
        }
        self.note(&format!("cloud `{}` is filled again", place.name));
        Ok(())
    }

    /// Runs a command of this program on the demo's volume, as an operator would.
    async fn run(&self, arguments: &[&str]) -> CommandResult<()> {
        let what = format!("`quorumfs {}`", arguments.join(" "));
        let failed = |words: String| Failure::new(Exit::Error, format!("{what}: {words}"));
        let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
        let output = tokio::process::Command::new(program)
            .args(arguments)
            .arg("--state")
            .arg(self.demo.state.path())
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| failed(error.to_string()))?;
        // An exit code for restored shards is the expected one.
        let restored = output.status.code() == Some(i32::from(Exit::Restored.code()));
        if !output.status.success() && !restored {
            let words = String::from_utf8_lossy(&output.stderr);
            return Err(failed(format!("{}: {}", output.status, words.trim())));
        }
        Ok(())
    }

    /// Kills the leader during a copy, brings it back into the quorum, kills another.
    async fn with_replicas_killed(&self) -> CommandResult<u64> {
        let before = self.observer.cluster().await?;
        let during = self
            .tree
            .first(FILES_DURING)
            .map_err(|error| Failure::file("list", &self.tree.root, &error))?;
        let target = self.demo.mount.join("during");
        // However long it takes to find the leader, enough files are left to arrive after the kill.
        let most = during.count().saturating_sub(FILES_AFTER_KILL + HANDS);
        let progress = Arc::new(Progress::up_to(most.max(FILES_BEFORE_KILL)));
        let arrived = &progress.arrived;
        let copying = self.copy(during.clone(), &target, &progress);
        let killing = async {
            while arrived.load(Ordering::Relaxed) < FILES_BEFORE_KILL {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let leader = self.observer.cluster().await?.leader;
            let at_kill = arrived.load(Ordering::Relaxed);
            self.cluster.replica(leader)?.kill().await?;
            progress.release();
            self.note(&format!(
                "killed replica {leader}, which led, after {at_kill} files"
            ));
            let risen = |seen: &ClusterSnapshot| seen.view > before.view;
            let seen = self
                .observer
                .until(SEEN_WITHIN, "the view rises", risen)
                .await?;
            self.note(&format!(
                "view {} is led by replica {}",
                seen.view, seen.leader
            ));
            Ok::<_, Failure>((leader, at_kill))
        };
        let killing = async {
            let killed = killing.await;
            // The copy ends even if this failed.
            progress.release();
            killed
        };
        let (copied, killed) = tokio::join!(copying, killing);
        let (copied, (first, at_kill)) = (copied?, killed?);
        if copied.files < at_kill + FILES_AFTER_KILL {
            let after = copied.files.saturating_sub(at_kill);
            let message = format!("only {after} files were left to arrive after the kill");
            return Err(Failure::new(Exit::Error, message));
        }
        blocking(move || during.compare(&target)).await?;
        self.note(&format!("{} more files arrived", copied.files - at_kill));

        let quiet = self.observer.cluster().await?.committed();
        self.cluster.replica(first)?.start().await?;
        let file = self.demo.mount.join("traffic");
        let votes = |seen: &ClusterSnapshot| {
            // Certificates are of operations: make some.
            let _ = fs::write(&file, seen.committed().to_string());
            seen.voted_since(first, quiet)
        };
        let again = format!("replica {first} votes again");
        let seen = self.observer.until(SEEN_WITHIN, &again, votes).await?;
        self.note(&format!("replica {first} is back in a certificate"));

        let second = if seen.leader == first {
            (first + 1) % 4
        } else {
            seen.leader
        };
        self.cluster.replica(second)?.kill().await?;
        let last = self
            .tree
            .first(FILES_AFTER_KILL)
            .map_err(|error| Failure::file("list", &self.tree.root, &error))?;
        let target = self.demo.mount.join("after");
        self.copy(last.clone(), &target, &Arc::default()).await?;
        blocking(move || last.compare(&target)).await?;
        self.note(&format!(
            "killed replica {second}; {FILES_AFTER_KILL} more files arrived"
        ));
        let view = self.observer.cluster().await?.view;
        self.cluster.replica(second)?.start().await?;
        Ok(view)
    }

    fn place(&self, index: usize) -> CommandResult<&DemoCloud> {
        let none = || Failure::new(Exit::Error, format!("there is no cloud {index}"));
        self.demo.clouds.get(index).ok_or_else(none)
    }

    /// A cloud as the volume uses it.
    async fn store(&self, index: usize) -> CommandResult<Arc<dyn ObjectStore>> {
        let general = General {
            state: Some(self.demo.state.path().to_path_buf()),
            json: false,
            log: None,
            log_file: None,
        };
        let configured = Configured::read(&general)?;
        let none = || Failure::new(Exit::Error, format!("there is no cloud {index}"));
        let cloud = configured.clouds().get(index).ok_or_else(none)?;
        cloud.attach_to_found().await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> CommandResult<T> + Send + 'static,
) -> CommandResult<T> {
    let failed = |error| Failure::new(Exit::Error, format!("a thread of the check died: {error}"));
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

/// Only root can; restarting the gateway clears the kernel's caches of the mount in any case.
fn drop_caches() -> bool {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}
