//! The mounts of a run, each on a machine of its own, and what may be expected of each at a moment.
//!
//! What always holds: every call on a mount has a deadline. A watchdog kills the process behind a
//! mount that answers too late, so that the call returns; that is a broken promise. A mount that is
//! stopped or cut off may show what was current a bound before that, until a bound after it goes
//! on. But one that is cut off opens nothing that is out of date.

use super::SeveralPlan;
use super::hand::Hand;
use crate::harness::{Cable, Cluster, Quorumfs, RecoveredMachine, SteppedClock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What each machine's configuration has in addition: some files are of tier `local`.
const CONFIGURATION: &str = "[cache]\nsize_mib = 0\n\n[journal]\nalways = true\n";
/// A call that takes longer has no end. A mount is stopped for at most twenty seconds.
const CALL_WITHIN: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The replica that is killed and whose clock is set: one and the same, so that no second one is
/// behind when it is killed.
pub(super) const VICTIM: usize = 2;

/// When a mount was away last.
#[derive(Clone, Copy, Debug)]
struct Away {
    since: Instant,
    until: Option<Instant>,
    /// It was cut off, and knows that by itself: so what it opens is as it is.
    opens_exactly: bool,
}

#[derive(Debug)]
struct OneMount {
    machine: Mutex<RecoveredMachine>,
    point: PathBuf,
    away: Mutex<Option<Away>>,
}

/// The calls that have not returned.
#[derive(Debug, Default)]
struct Calls {
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, (Instant, usize, &'static str)>>,
    processes: Mutex<BTreeMap<usize, Pid>>,
    overdue: Mutex<Vec<String>>,
    ends: AtomicBool,
}

/// A call that the watchdog watches until this is dropped.
#[derive(Debug)]
pub(super) struct WatchedCall<'a> {
    calls: &'a Calls,
    number: u64,
}

impl Drop for WatchedCall<'_> {
    fn drop(&mut self) {
        self.calls.open.lock().unwrap().remove(&self.number);
    }
}

/// Several mounts of one volume.
#[derive(Debug)]
pub(super) struct Mounts {
    // Before the cluster: mounts end while its replicas run.
    each: Vec<OneMount>,
    cluster: Mutex<Cluster>,
    /// Of the replica that is killed.
    victims_clock: SteppedClock,
    pub(super) bound: Duration,
    allow_stale_opens: bool,
    stale_opens: AtomicU64,
    calls: Arc<Calls>,
    watchdog: Option<JoinHandle<()>>,
}

impl Mounts {
    /// Mounts the volume of a cluster, whose replicas run, on so many machines.
    pub(super) fn new(cluster: Cluster, plan: &SeveralPlan) -> Self {
        let count = plan.mounts;
        let each = (0..count).map(|number| {
            let machine = match plan.attack {
                true => RecoveredMachine::recover_apart(&cluster, number, CONFIGURATION),
                false => RecoveredMachine::recover(&cluster, number, CONFIGURATION),
            };
            OneMount {
                point: machine.point().to_owned(),
                machine: Mutex::new(machine),
                away: Mutex::new(None),
            }
        });
        let each = each.collect();
        let calls = Arc::<Calls>::default();
        let watching = calls.clone();
        let mounts = Self {
            each,
            victims_clock: SteppedClock::new(cluster.directory(), "replica"),
            cluster: Mutex::new(cluster),
            bound: plan.bound,
            allow_stale_opens: plan.allow_stale_opens,
            stale_opens: AtomicU64::new(0),
            watchdog: Some(std::thread::spawn(move || watch(&watching))),
            calls,
        };
        (0..count).for_each(|mount| mounts.mount(mount));
        mounts
    }

    pub(super) fn count(&self) -> usize {
        self.each.len()
    }

    pub(super) fn point(&self, mount: usize) -> &Path {
        &self.each[mount].point
    }

    /// Calls on a mount, in a directory at its root.
    pub(super) fn hand<'a>(&'a self, mount: usize, home: &str) -> Hand<'a> {
        Hand::new(self, mount, home)
    }

    pub(super) fn cluster(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap()
    }

    /// The command on the machine of a mount.
    pub(super) fn quorumfs(&self, mount: usize) -> Quorumfs {
        self.each[mount].machine.lock().unwrap().quorumfs()
    }

    fn machine(&self, mount: usize) -> MutexGuard<'_, RecoveredMachine> {
        self.each[mount].machine.lock().unwrap()
    }

    fn away(&self, mount: usize) -> MutexGuard<'_, Option<Away>> {
        self.each[mount].away.lock().unwrap()
    }

    fn begin_away(&self, mount: usize, opens_exactly: bool) {
        *self.away(mount) = Some(Away {
            since: Instant::now(),
            until: None,
            opens_exactly,
        });
    }

    fn end_away(&self, mount: usize) {
        if let Some(away) = self.away(mount).as_mut() {
            away.until = Some(Instant::now());
        }
    }

    /// Starts the replica that was killed.
    pub(super) fn start_victim(&self) {
        let mut cluster = self.cluster();
        cluster.start_with_clock(VICTIM, &self.victims_clock);
    }

    /// Sets the clock that this replica sees from its next start on so many seconds ahead.
    pub(super) fn set_victim_ahead(&self, seconds: i64) {
        self.victims_clock.set_ahead(seconds);
    }

    /// Sets the clock that a mount sees so many seconds ahead.
    pub(super) fn set_ahead(&self, mount: usize, seconds: i64) {
        self.machine(mount).set_ahead(seconds);
    }

    /// Mounts; the mount knows nothing from before.
    pub(super) fn mount(&self, mount: usize) {
        let mut machine = self.machine(mount);
        machine.mount();
        let process = machine.process().unwrap();
        self.calls.processes.lock().unwrap().insert(mount, process);
        *self.away(mount) = None;
    }

    /// Kills the process behind a mount, if it runs.
    pub(super) fn kill(&self, mount: usize) {
        self.calls.processes.lock().unwrap().remove(&mount);
        let mut machine = self.machine(mount);
        if machine.runs() {
            machine.kill();
        }
    }

    /// Stops the process behind a mount: its calls wait from then on.
    pub(super) fn stop(&self, mount: usize) {
        self.begin_away(mount, false);
        self.machine(mount).signal(Signal::STOP);
    }

    /// Lets a stopped process go on.
    pub(super) fn resume(&self, mount: usize) {
        self.machine(mount).signal(Signal::CONT);
        self.end_away(mount);
    }

    /// Cuts a mount off from the replicas.
    pub(super) fn cut(&self, mount: usize, cable: Cable) {
        self.begin_away(mount, true);
        self.machine(mount).set_cable(cable);
    }

    /// Lets it reach them again.
    pub(super) fn mend(&self, mount: usize) {
        self.machine(mount).set_cable(Cable::Whole);
        self.end_away(mount);
    }

    /// Whether an open of a name that is being replaced may fail with this; it is counted.
    pub(super) fn allows(&self, error: Errno) -> bool {
        let allowed = self.allow_stale_opens && error == Errno::STALE;
        if allowed {
            self.stale_opens.fetch_add(1, Ordering::Relaxed);
        }
        allowed
    }

    pub(super) fn stale_opens(&self) -> u64 {
        self.stale_opens.load(Ordering::Relaxed)
    }

    /// Unmounts all.
    pub(super) fn unmount(&self) {
        (0..self.count()).for_each(|mount| self.unmount_one(mount));
    }

    /// Unmounts one.
    pub(super) fn unmount_one(&self, mount: usize) {
        self.calls.processes.lock().unwrap().remove(&mount);
        self.machine(mount).unmount();
    }

    /// Whether a mount is the only one, and is alone.
    pub(super) fn is_alone(&self, mount: usize) -> bool {
        let listed = self.quorumfs(mount).run_with(["mounts"]).ok();
        let modes = listed.records("mount").into_iter();
        modes.map(|mount| mount["mode"] == "alone").eq([true])
    }

    /// A call that begins now: it may show what was current at this moment or later. An exact call
    /// has no bound.
    pub(super) fn horizon(&self, mount: usize, began: Instant, exact: bool) -> Instant {
        let is_over = |away: &Away| away.until.is_some_and(|until| began > until + self.bound);
        let away = self.away(mount).filter(|away| !is_over(away));
        match away {
            Some(away) if !(exact && away.opens_exactly) => away.since - self.bound,
            _ if exact => began,
            _ => began - self.bound,
        }
    }

    /// Watches a call until the guard is dropped.
    pub(super) fn watched(&self, mount: usize, what: &'static str) -> WatchedCall<'_> {
        let number = self.calls.next.fetch_add(1, Ordering::Relaxed);
        let mut open = self.calls.open.lock().unwrap();
        open.insert(number, (Instant::now(), mount, what));
        WatchedCall {
            calls: &self.calls,
            number,
        }
    }

    /// The calls that took so long that their mounts were killed.
    pub(super) fn overdue(&self) -> String {
        self.calls.overdue.lock().unwrap().join("; ")
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        self.calls.ends.store(true, Ordering::Release);
        if let Some(watchdog) = self.watchdog.take() {
            let _ = watchdog.join();
        }
    }
}

/// Kills the process behind a mount that does not answer.
fn watch(calls: &Calls) {
    while !calls.ends.load(Ordering::Acquire) {
        let open = calls.open.lock().unwrap().clone();
        for (began, mount, what) in open.into_values() {
            if began.elapsed() < CALL_WITHIN {
                continue;
            }
            // Once for a process: its calls return after that.
            if let Some(process) = calls.processes.lock().unwrap().remove(&mount) {
                let _ = kill_process(process, Signal::KILL);
                let late = format!(
                    "{what} on mount {mount} took {CALL_WITHIN:?}, and the mount was killed for it"
                );
                calls.overdue.lock().unwrap().push(late);
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
