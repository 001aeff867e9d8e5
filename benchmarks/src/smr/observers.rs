//! Observers during the load: quick ones that read everything, and slow ones that hardly ever read.
//!
//! Each has connections of its own to every replica and asks for reports. The slow ones look at
//! their sockets for a moment every few seconds, just often enough to count as alive.

use super::cluster::{BenchCluster, ClusterPlan};
use crate::failure::{BenchResult, failed};
use quorumfs_bft_runtime::client::{ClientConfig, Observer, observe_replicas};
use quorumfs_bft_runtime::keys::NodeKey;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Runtime;

/// How long a slow one sleeps, and how long it looks at its sockets.
const ASLEEP: Duration = Duration::from_secs(3);
const AWAKE: Duration = Duration::from_millis(10);

/// How many observers there are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    pub(super) quick: u16,
    pub(super) slow: u16,
}

impl Count {
    pub(super) const fn any(self) -> bool {
        self.quick > 0 || self.slow > 0
    }
}

/// Running observers, on two threads of their own.
pub(super) struct Observers {
    stop: Arc<AtomicBool>,
    events_received: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Observers {
    /// Connects them.
    pub(super) fn start(
        count: Count,
        plan: &ClusterPlan,
        cluster: &BenchCluster,
    ) -> BenchResult<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let events_received = Arc::new(AtomicU64::new(0));
        let mut threads = Vec::new();
        for (number, slow) in [(count.quick, false), (count.slow, true)] {
            if number == 0 {
                continue;
            }
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| failed("start the observers' thread", &error))?;
            let mut observers = Vec::new();
            for _ in 0..number {
                let key = NodeKey::generate().map_err(|error| failed("make a key", &error))?;
                let members = cluster.members.clone();
                let key = Arc::new(key);
                let config = ClientConfig::new(plan.cluster(), plan.model, members, key);
                let _entered = runtime.enter();
                let observer = observe_replicas(config);
                observers.push(observer.map_err(|error| failed("observe", &error))?);
            }
            let (stop, events_received) = (stop.clone(), events_received.clone());
            let work = move || match slow {
                true => sleep(&runtime, observers, &stop),
                false => listen(&runtime, observers, &stop, &events_received),
            };
            let thread = std::thread::Builder::new().name("observers".to_owned());
            let thread = thread.spawn(work);
            threads.push(thread.map_err(|error| failed("start the observers' thread", &error))?);
        }
        Ok(Self {
            stop,
            events_received,
            threads,
        })
    }

    /// The events that the quick ones received so far.
    pub(super) fn events_received(&self) -> u64 {
        self.events_received.load(Ordering::Relaxed)
    }

    /// Ends them.
    pub(super) fn stop(self) -> BenchResult {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let ended = thread.join();
            ended.map_err(|_| failed("observe", &"a thread of the observers panicked"))?;
        }
        Ok(())
    }
}

/// Runs all tasks on this thread for so long.
fn pass(runtime: &Runtime, length: Duration) {
    runtime.block_on(async { tokio::time::sleep(length).await });
}

fn sleep(runtime: &Runtime, observers: Vec<Observer>, stop: &AtomicBool) {
    // First they connect.
    pass(runtime, Duration::from_millis(500));
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(ASLEEP);
        pass(runtime, AWAKE);
    }
    drop(observers);
}

fn listen(
    runtime: &Runtime,
    observers: Vec<Observer>,
    stop: &AtomicBool,
    events_received: &Arc<AtomicU64>,
) {
    for mut observer in observers {
        let events_received = events_received.clone();
        runtime.spawn(async move {
            while observer.next().await.is_some() {
                events_received.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while !stop.load(Ordering::Relaxed) {
        pass(runtime, Duration::from_millis(100));
    }
}
