//! Clients that keep so many operations in flight, and what they saw.

use super::failed;
use crate::failure::Outcome;
use bytes::Bytes;
use hdrhistogram::Histogram;
use quorumfs_bft_runtime::client::Client;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Longer than any deadline of a client, so that nothing is ever cut off.
const LATENCY_MAX_NANOS: u64 = 600_000_000_000;

/// When it counts, and when the last answer came.
struct Watch {
    began: Instant,
    counts: AtomicBool,
    over: AtomicBool,
    last: AtomicU64,
    gap: AtomicU64,
}

impl Watch {
    fn nanos(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Somebody was answered; says when.
    fn answered(&self) -> u64 {
        let now = self.nanos();
        let before = self.last.swap(now, Ordering::Relaxed);
        self.gap
            .fetch_max(now.saturating_sub(before), Ordering::Relaxed);
        now
    }
}

fn histogram() -> Outcome<Histogram<u64>> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NANOS, 3)
        .map_err(|error| failed("keep latencies", &error))
}

/// What the hands of one client saw: one for all of them, because a histogram is large enough to
/// push everything else out of a processor's cache.
type Latency = Arc<Mutex<Histogram<u64>>>;

/// Clients at work.
pub(super) struct Load {
    watch: Arc<Watch>,
    latencies: Vec<Latency>,
    hands: JoinSet<Outcome<()>>,
}

impl Load {
    /// Keeps `in_flight` operations of every client under way on `thread` from now on.
    pub(super) fn start(
        clients: &[Client],
        in_flight: u16,
        operation: &Bytes,
        thread: &Handle,
    ) -> Outcome<Self> {
        let watch = Arc::new(Watch {
            began: Instant::now(),
            counts: AtomicBool::new(false),
            over: AtomicBool::new(false),
            last: AtomicU64::new(0),
            gap: AtomicU64::new(0),
        });
        let mut hands = JoinSet::new();
        let mut latencies = Vec::new();
        for client in clients {
            let latency: Latency = Arc::new(Mutex::new(histogram()?));
            for _ in 0..in_flight {
                let (client, operation) = (client.clone(), operation.clone());
                let hand = hand(client, operation, watch.clone(), latency.clone());
                hands.spawn_on(hand, thread);
            }
            latencies.push(latency);
        }
        Ok(Self {
            watch,
            latencies,
            hands,
        })
    }

    /// Counts for so long; gives the time that it really was, and the longest gap in it.
    pub(super) async fn count(&self, time: Duration) -> (Duration, Duration) {
        let watch = &self.watch;
        let started = Instant::now();
        watch.last.store(watch.nanos(), Ordering::Relaxed);
        watch.gap.store(0, Ordering::Relaxed);
        watch.counts.store(true, Ordering::Relaxed);
        tokio::time::sleep(time).await;
        watch.counts.store(false, Ordering::Relaxed);
        let counted = started.elapsed();
        watch.answered();
        let gap = Duration::from_nanos(watch.gap.load(Ordering::Relaxed));
        (counted, gap)
    }

    /// Ends the work, and gives the latencies of what was counted, in nanoseconds.
    pub(super) async fn finish(mut self) -> Outcome<Histogram<u64>> {
        self.watch.over.store(true, Ordering::Relaxed);
        let mut latency = histogram()?;
        while let Some(hand) = self.hands.join_next().await {
            hand.map_err(|error| failed("run a client", &error))??;
        }
        for seen in &self.latencies {
            let added = latency.add(&*lock(seen));
            added.map_err(|error| failed("keep latencies", &error))?;
        }
        Ok(latency)
    }
}

fn lock(latency: &Latency) -> MutexGuard<'_, Histogram<u64>> {
    // A count that a panic cut short is as good as none.
    latency.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One operation after the other, until it is over.
async fn hand(
    client: Client,
    operation: Bytes,
    watch: Arc<Watch>,
    latency: Latency,
) -> Outcome<()> {
    while !watch.over.load(Ordering::Relaxed) {
        let start = watch.nanos();
        client
            .execute(operation.clone())
            .await
            .map_err(|error| failed("execute an operation", &error))?;
        if watch.counts.load(Ordering::Relaxed) {
            let nanos = watch.answered().saturating_sub(start);
            lock(&latency).saturating_record(nanos);
        }
    }
    Ok(())
}
