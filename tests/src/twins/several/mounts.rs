//! The mounts of a run, each on a machine of its own, and what may be expected of each at a moment.
//!
//! What always holds: every call on a mount has a deadline. A watchdog kills the process behind a
//! mount that answers too late, so that the call returns; that is a broken promise. A stopped mount
//! may show what was current a bound before it was stopped, until a bound after it goes on.

use super::SeveralPlan;
use super::hand::Hand;
use crate::harness::{Cluster, Quorumfs, RecoveredMachine};
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

/// When a mount was stopped last.
#[derive(Clone, Copy, Debug)]
struct Stop {
    since: Instant,
    until: Option<Instant>,
}

#[derive(Debug)]
struct OneMount {
    machine: Mutex<RecoveredMachine>,
    point: PathBuf,
    stop: Mutex<Option<Stop>>,
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
            let machine = RecoveredMachine::recover(&cluster, number, CONFIGURATION);
            OneMount {
                point: machine.point().to_owned(),
                machine: Mutex::new(machine),
                stop: Mutex::new(None),
            }
        });
        let each = each.collect();
        let calls = Arc::<Calls>::default();
        let watching = calls.clone();
        let mounts = Self {
            each,
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

    fn stopped(&self, mount: usize) -> MutexGuard<'_, Option<Stop>> {
        self.each[mount].stop.lock().unwrap()
    }

    /// Mounts; the mount knows nothing from before.
    pub(super) fn mount(&self, mount: usize) {
        let mut machine = self.machine(mount);
        machine.mount();
        let process = machine.process().unwrap();
        self.calls.processes.lock().unwrap().insert(mount, process);
        *self.stopped(mount) = None;
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
        let since = Instant::now();
        *self.stopped(mount) = Some(Stop { since, until: None });
        self.machine(mount).signal(Signal::STOP);
    }

    /// Lets a stopped process go on.
    pub(super) fn resume(&self, mount: usize) {
        self.machine(mount).signal(Signal::CONT);
        if let Some(stop) = self.stopped(mount).as_mut() {
            stop.until = Some(Instant::now());
        }
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
        let stop = *self.stopped(mount);
        let over = |stop: &Stop| stop.until.is_some_and(|until| began > until + self.bound);
        match stop.filter(|stop| !over(stop)) {
            Some(stop) => stop.since - self.bound,
            None if exact => began,
            None => began - self.bound,
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
