//! The processes of a scene, and the watchdog that ends them.
//!
//! What always holds: a player is killed by its own process id when its handle is dropped. Past the
//! deadline of the scene the watchdog kills all players. If the scene has not returned soon after
//! that, it kills the mounts: a call that waits for one cannot be interrupted in another way.

use super::mounts::ThreeMounts;
use super::{Scene, TogetherPlan};
use crate::harness::Reaped;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long a scene may take to return once its players are dead.
const GRACE: Duration = Duration::from_secs(10);
/// How long a new directory may take to show on all mounts.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

type SharedProcess = Arc<Mutex<Reaped>>;

/// What the watchdog watches.
#[derive(Debug)]
struct WatchedScene {
    until: Instant,
    players: Mutex<Vec<Weak<Mutex<Reaped>>>>,
    ended: AtomicBool,
    passed: AtomicBool,
    mounts_ended: AtomicBool,
}

impl WatchedScene {
    fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn kill_players(&self) {
        let players = self.players.lock().unwrap_or_else(PoisonError::into_inner);
        for player in players.iter().filter_map(Weak::upgrade) {
            let mut player = player.lock().unwrap_or_else(PoisonError::into_inner);
            // It does nothing if the process has been waited for.
            let _ = player.0.kill();
        }
    }
}

fn watch(watched: &WatchedScene, mounts: &ThreeMounts) {
    let wait_until = |moment: Instant| {
        while !watched.ended() && Instant::now() < moment {
            std::thread::sleep(LOOK_EVERY);
        }
    };
    wait_until(watched.until);
    if !watched.ended() {
        watched.passed.store(true, Ordering::Release);
        watched.kill_players();
        wait_until(watched.until + GRACE);
    }
    while !watched.ended() {
        watched.mounts_ended.store(true, Ordering::Release);
        watched.kill_players();
        mounts.kill_all();
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// A scene while it is played.
#[derive(Debug)]
pub(super) struct SceneRun<'a> {
    pub(super) plan: &'a TogetherPlan,
    pub(super) mounts: Arc<ThreeMounts>,
    home: &'static str,
    watched: Arc<WatchedScene>,
    watchdog: Option<JoinHandle<()>>,
    /// A directory outside of the mounts.
    outside: tempfile::TempDir,
}

impl<'a> SceneRun<'a> {
    /// Makes the directory of a scene, and waits until all mounts show it.
    pub(super) fn begin(
        plan: &'a TogetherPlan,
        scene: Scene,
        mounts: &Arc<ThreeMounts>,
    ) -> Result<Self> {
        let watched = Arc::new(WatchedScene {
            until: Instant::now() + plan.within,
            players: Mutex::default(),
            ended: AtomicBool::new(false),
            passed: AtomicBool::new(false),
            mounts_ended: AtomicBool::new(false),
        });
        let (watching, theirs) = (watched.clone(), mounts.clone());
        let run = Self {
            plan,
            mounts: mounts.clone(),
            home: scene.name(),
            watched,
            watchdog: Some(std::thread::spawn(move || watch(&watching, &theirs))),
            outside: tempfile::tempdir()?,
        };
        fs::create_dir(run.path(0, "")).context("the directory of the scene")?;
        for mount in 1..super::mounts::MOUNTS {
            run.until(SEEN_WITHIN, || match run.path(mount, "").is_dir() {
                true => Ok(()),
                false => bail!("mount {mount} does not show {}", run.home),
            })?;
        }
        Ok(run)
    }

    /// A path in the directory of the scene, on a mount.
    pub(super) fn path(&self, mount: usize, name: &str) -> PathBuf {
        self.mounts.point(mount).join(self.home).join(name)
    }

    /// A path outside of the mounts.
    pub(super) fn outside(&self, name: &str) -> PathBuf {
        self.outside.path().join(name)
    }

    /// Repeats a check until it succeeds, for at most `patience`; the last failure counts.
    pub(super) fn until<T>(
        &self,
        patience: Duration,
        mut check: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let began = Instant::now();
        loop {
            match check() {
                Err(error) if began.elapsed() > patience || self.is_late() => {
                    return Err(error.context(format!("and not within {patience:?}")));
                }
                Err(_) => std::thread::sleep(LOOK_EVERY),
                fine => return fine,
            }
        }
    }

    /// Starts a player of this program.
    pub(super) fn player(&self, name: String, task: &[&str]) -> Result<Player> {
        let mut command = Command::new(&self.plan.program);
        command.arg("player").args(task);
        self.start(name, command)
    }

    /// Starts a process; its standard input stays open until its end is awaited.
    pub(super) fn start(&self, name: String, mut command: Command) -> Result<Player> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let started = command.stderr(Stdio::piped()).spawn();
        let started = started.with_context(|| format!("{name}: {command:?} does not start"))?;
        let mut process = Reaped(started);
        let input = process.0.stdin.take();
        let mut stderr = process.0.stderr.take().unwrap();
        let output = BufReader::new(process.0.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let complaints = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).trim().to_owned()
        });
        let process = Arc::new(Mutex::new(process));
        let mut players = self.watched.players.lock().unwrap();
        players.retain(|it| it.strong_count() > 0);
        players.push(Arc::downgrade(&process));
        Ok(Player {
            name,
            process,
            input,
            lines,
            complaints,
            until: self.watched.until + GRACE,
        })
    }

    /// Runs a command to its end, which may be a failure.
    pub(super) fn run(&self, name: String, command: Command) -> Result<PlayerEnd> {
        self.start(name, command)?.wait()
    }

    /// Whether the deadline has passed.
    pub(super) fn is_late(&self) -> bool {
        self.watched.passed.load(Ordering::Acquire)
    }

    /// Whether the watchdog has ended the mounts.
    pub(super) fn has_no_mounts(&self) -> bool {
        self.watched.mounts_ended.load(Ordering::Acquire)
    }
}

impl Drop for SceneRun<'_> {
    fn drop(&mut self) {
        self.watched.ended.store(true, Ordering::Release);
        if let Some(watchdog) = self.watchdog.take() {
            let _ = watchdog.join();
        }
    }
}

/// A process of a scene; killed when dropped.
#[derive(Debug)]
pub(super) struct Player {
    name: String,
    process: SharedProcess,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    complaints: JoinHandle<String>,
    until: Instant,
}

/// How a player ended.
#[derive(Debug)]
pub(super) struct PlayerEnd {
    name: String,
    status: ExitStatus,
    /// What it printed that was not read before.
    pub(super) lines: Vec<String>,
    /// Its standard error.
    pub(super) complaints: String,
}

impl PlayerEnd {
    /// Whether it succeeded.
    pub(super) fn is_success(&self) -> bool {
        self.status.success()
    }

    /// Its exit code.
    pub(super) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Requires success.
    pub(super) fn success(self) -> Result<Vec<String>> {
        ensure!(self.is_success(), "{}", self.describe());
        Ok(self.lines)
    }

    /// Who it was, how it ended, and what it complained about.
    pub(super) fn describe(&self) -> String {
        let signal = self.status.signal();
        let how = signal.map_or_else(|| self.status.to_string(), |it| format!("signal {it}"));
        format!("{} ended with {how}: {}", self.name, self.complaints)
    }
}

impl Player {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Sends a line.
    pub(super) fn tell(&mut self, order: &str) -> Result<()> {
        let input = self.input.as_mut().context("its input is closed")?;
        let told = writeln!(input, "{order}");
        told.with_context(|| format!("{} does not listen", self.name))
    }

    /// The next line that it prints; `None` if there is none in this time.
    pub(super) fn hear(&self, patience: Duration) -> Result<Option<String>> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("{} has ended", self.name),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Reaped> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills it, and returns how long it took to end.
    pub(super) fn kill(self) -> Result<Duration> {
        let began = Instant::now();
        let _ = self.lock().0.kill();
        while self.lock().0.try_wait()?.is_none() {
            let patient = Instant::now() < self.until;
            ensure!(patient, "{} was killed and has not ended", self.name);
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(began.elapsed())
    }

    /// Closes its input and waits for its end.
    pub(super) fn wait(mut self) -> Result<PlayerEnd> {
        drop(self.input.take());
        let status = loop {
            if let Some(status) = self.lock().0.try_wait()? {
                break status;
            }
            ensure!(Instant::now() < self.until, "{} does not end", self.name);
            std::thread::sleep(LOOK_EVERY);
        };
        // Its output ends with the last process that has it open, which may be a child of it.
        let mut lines = Vec::new();
        while let Some(line) = self.next_of_the_rest()? {
            lines.push(line);
        }
        let complaints = self.complaints.join().unwrap_or_default();
        Ok(PlayerEnd {
            name: self.name,
            status,
            lines,
            complaints,
        })
    }

    fn next_of_the_rest(&self) -> Result<Option<String>> {
        let left = self.until.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => bail!("the output of {} does not end", self.name),
        }
    }

    /// Waits for its end, which has to be a success; returns what it printed.
    pub(super) fn finish(self) -> Result<Vec<String>> {
        self.wait()?.success()
    }
}

/// In a player: it ends when the process that started it does.
pub(super) fn end_with_the_parent() -> Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(
        Signal::KILL,
    ))?)
}

/// A path as an argument.
pub(super) fn text(path: &Path) -> &str {
    path.to_str()
        .expect("temporary directories have such names")
}
