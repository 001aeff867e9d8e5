//! Clients that keep a number of operations in flight, and their latencies.

use crate::arguments::{Bursts, SmrArguments};
use crate::failure::{BenchResult, failed};
use bytes::Bytes;
use hdrhistogram::Histogram;
use quorumfs_bft_runtime::client::Client;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// Longer than any deadline of a client, so that no latency is clipped.
const LATENCY_MAX_NANOS: u64 = 600_000_000_000;

/// Whether latencies count, and when the last answer came.
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

    /// A client was answered; returns when.
    fn answered(&self) -> u64 {
        let now = self.nanos();
        let before = self.last.swap(now, Ordering::Relaxed);
        self.gap
            .fetch_max(now.saturating_sub(before), Ordering::Relaxed);
        now
    }
}

/// Makes all workers work and rest in turns, as long as any worker listens. The durations are drawn
/// evenly from zero to twice the mean, the same in each run.
async fn rhythm(bursts: Bursts, works: watch::Sender<bool>, watch: Arc<Watch>) {
    let mut random = 1_u64;
    let mut about = |mean: Duration| {
        // The multiplier is Knuth's, of MMIX; the upper bits are the random ones.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        mean.mul_f64((random >> 32) as f64 / f64::from(u32::MAX) * 2.0)
    };
    loop {
        // Only the silence during work counts as a gap, not a rest.
        watch.last.store(watch.nanos(), Ordering::Relaxed);
        if works.send(true).is_err() {
            return;
        }
        tokio::time::sleep(about(bursts.work)).await;
        if works.send(false).is_err() {
            return;
        }
        tokio::time::sleep(about(bursts.rest)).await;
    }
}

fn histogram() -> BenchResult<Histogram<u64>> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NANOS, 3)
        .map_err(|error| failed("keep latencies", &error))
}

/// The latencies of all workers of one client, together, because a histogram is large enough to
/// evict everything else from a processor's cache.
type Shared = Arc<Mutex<Latencies>>;

/// Latencies in nanoseconds.
pub(super) struct Latencies {
    /// Ordered operations.
    pub(super) ordered: Histogram<u64>,
    /// Unordered queries.
    pub(super) reads: Histogram<u64>,
}

impl Latencies {
    fn new() -> BenchResult<Self> {
        Ok(Self {
            ordered: histogram()?,
            reads: histogram()?,
        })
    }

    fn add(&mut self, other: &Self) -> BenchResult {
        let added = self.ordered.add(&other.ordered);
        let added = added.and_then(|()| self.reads.add(&other.reads));
        added.map_err(|error| failed("keep latencies", &error))
    }

    /// How many there are.
    pub(super) fn len(&self) -> u64 {
        self.ordered.len() + self.reads.len()
    }
}

/// Running clients.
pub(super) struct Load {
    watch: Arc<Watch>,
    latencies: Vec<Shared>,
    hands: JoinSet<BenchResult>,
    rhythm: Option<AbortHandle>,
}

impl Load {
    /// Keeps `in_flight` operations of every client in flight on `thread` from now on; of a
    /// hundred, `reads` are unordered queries.
    pub(super) fn start(
        clients: &[Client],
        arguments: &SmrArguments,
        thread: &Handle,
    ) -> BenchResult<Self> {
        let operation = Bytes::from(vec![7; arguments.request_bytes as usize]);
        let watch = Arc::new(Watch {
            began: Instant::now(),
            counts: AtomicBool::new(false),
            over: AtomicBool::new(false),
            last: AtomicU64::new(0),
            gap: AtomicU64::new(0),
        });
        let mut hands = JoinSet::new();
        let mut latencies = Vec::new();
        let (works, working) = arguments
            .bursts
            .map(|bursts| (bursts, watch::channel(false)))
            .map(|(bursts, (sender, receiver))| ((bursts, sender), receiver))
            .unzip();
        for client in clients {
            let latency: Shared = Arc::new(Mutex::new(Latencies::new()?));
            for number in 0..arguments.load.in_flight {
                let work = Work {
                    client: client.clone(),
                    operation: operation.clone(),
                    reads: arguments.reads,
                    working: working.clone(),
                    // Not all of them read at the same time.
                    turn: u8::try_from(number % 100).unwrap_or_default(),
                };
                hands.spawn_on(worker(work, watch.clone(), latency.clone()), thread);
            }
            latencies.push(latency);
        }
        let rhythm = works.map(|(bursts, works)| {
            let rhythm = rhythm(bursts, works, watch.clone());
            thread.spawn(rhythm).abort_handle()
        });
        Ok(Self {
            watch,
            latencies,
            hands,
            rhythm,
        })
    }

    /// Counts for so long; returns the actual time, and the longest gap in it.
    pub(super) async fn count(&self, time: Duration) -> (Duration, Duration) {
        let watch = &self.watch;
        let started = Instant::now();
        watch.last.store(watch.nanos(), Ordering::Relaxed);
        watch.gap.store(0, Ordering::Relaxed);
        watch.counts.store(true, Ordering::Relaxed);
        tokio::time::sleep(time).await;
        watch.counts.store(false, Ordering::Relaxed);
        let counted = started.elapsed();
        if self.rhythm.is_none() {
            watch.answered(); // the silence at the end counts, unless it may be a rest
        }
        let gap = Duration::from_nanos(watch.gap.load(Ordering::Relaxed));
        (counted, gap)
    }

    /// Ends the work, and returns the counted latencies: those of all clients together, and those
    /// of the first one.
    pub(super) async fn finish(mut self) -> BenchResult<(Latencies, Latencies)> {
        self.watch.over.store(true, Ordering::Relaxed);
        if let Some(rhythm) = &self.rhythm {
            rhythm.abort();
        }
        let (mut all, mut first) = (Latencies::new()?, Latencies::new()?);
        while let Some(hand) = self.hands.join_next().await {
            hand.map_err(|error| failed("run a client", &error))??;
        }
        for (number, seen) in self.latencies.iter().enumerate() {
            let seen = lock(seen);
            all.add(&seen)?;
            if number == 0 {
                first.add(&seen)?;
            }
        }
        Ok((all, first))
    }
}

fn lock(latency: &Shared) -> MutexGuard<'_, Latencies> {
    // After a panic in a worker the histogram is still usable.
    latency.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The work of one worker.
struct Work {
    client: Client,
    operation: Bytes,
    reads: u8,
    turn: u8,
    /// Whether it is time to work; always, if there are no bursts.
    working: Option<watch::Receiver<bool>>,
}

/// Executes one operation after the other, until it is over.
async fn worker(mut work: Work, watch: Arc<Watch>, latency: Shared) -> BenchResult {
    while !watch.over.load(Ordering::Relaxed) {
        if let Some(working) = &mut work.working
            && working.wait_for(|working| *working).await.is_err()
        {
            break; // the rhythm has ended
        }
        // Spread evenly over every hundred, by steps of a number coprime to it.
        work.turn = (work.turn + 37) % 100;
        let (client, operation) = (&work.client, work.operation.clone());
        let reads = work.turn < work.reads;
        let start = watch.nanos();
        let done = if reads {
            client.read(operation).await
        } else {
            client.execute(operation).await
        };
        done.map_err(|error| failed("execute an operation", &error))?;
        if watch.counts.load(Ordering::Relaxed) {
            let nanos = watch.answered().saturating_sub(start);
            let mut latencies = lock(&latency);
            let Latencies {
                ordered,
                reads: read,
            } = &mut *latencies;
            let histogram = if reads { read } else { ordered };
            histogram.saturating_record(nanos);
        }
    }
    Ok(())
}
