//! A cloud's latencies, by kind and size of the request.
//!
//! A listing predicts nothing about two megabytes, nor a put about a get. So answers are remembered
//! separately, some for each direction and order of magnitude of bytes. A class without samples is
//! estimated from the next smaller one, then the next larger, then the other direction. Old samples
//! expire: a cloud that is avoided because it was slow becomes unknown, and an unknown cloud is
//! tried.

use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// The number of answers that are remembered for each class.
const REMEMBERED: usize = 64;
/// How long they are remembered.
const MEMORY: Duration = Duration::from_secs(120);
/// The largest bytes of each class of a direction; one more class lies above.
const CLASS_BYTES: [u64; 3] = [32 << 10, 512 << 10, 4 << 20];
const CLASSES: usize = CLASS_BYTES.len() + 1;

/// A request to a cloud.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::blocks) enum Exchange {
    /// A put of so many bytes.
    Put(u64),
    /// A get of so many bytes.
    Get(u64),
    /// A request with a short answer.
    Ask,
}

impl Exchange {
    /// The direction, and the class in it.
    fn place(self) -> (usize, usize) {
        let class = |bytes: u64| CLASS_BYTES.iter().take_while(|most| bytes > **most).count();
        match self {
            Self::Get(bytes) => (0, class(bytes)),
            Self::Put(bytes) => (1, class(bytes)),
            Self::Ask => (0, 0),
        }
    }
}

#[derive(Debug, Default)]
struct LatencyWindow(VecDeque<(Instant, Duration)>);

impl LatencyWindow {
    fn record(&mut self, now: Instant, latency: Duration) {
        if self.0.len() >= REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back((now, latency));
    }

    fn percentile(&self, now: Instant, percent: usize) -> Option<Duration> {
        let young = |entry: &&(Instant, Duration)| now.duration_since(entry.0) < MEMORY;
        let mut sorted: Vec<Duration> = self.0.iter().filter(young).map(|entry| entry.1).collect();
        let last = sorted.len().checked_sub(1)?;
        let at = last * percent.min(100) / 100;
        let (_, found, _) = sorted.select_nth_unstable(at);
        Some(*found)
    }
}

/// One cloud's answers.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    windows: [[LatencyWindow; CLASSES]; 2],
    all: LatencyWindow,
}

impl Latencies {
    pub(in crate::blocks) fn record(&mut self, exchange: Exchange, latency: Duration) {
        let now = Instant::now();
        let (direction, class) = exchange.place();
        let windows = self.windows.get_mut(direction);
        if let Some(window) = windows.and_then(|windows| windows.get_mut(class)) {
            window.record(now, latency);
        }
        self.all.record(now, latency);
    }

    /// The latency percentile over all answers.
    pub(super) fn percentile(&self, percent: usize) -> Option<Duration> {
        self.all.percentile(Instant::now(), percent)
    }

    /// The latency percentile of this kind of request, or of the most similar one.
    pub(in crate::blocks) fn expected(
        &self,
        exchange: Exchange,
        percent: usize,
    ) -> Option<Duration> {
        let now = Instant::now();
        let (direction, class) = exchange.place();
        let of = |direction: usize| {
            let windows = self.windows.get(direction)?;
            let smaller = windows.iter().take(class + 1).rev();
            let larger = windows.iter().skip(class + 1);
            let mut nearest = smaller.chain(larger);
            nearest.find_map(|window| window.percentile(now, percent))
        };
        of(direction).or_else(|| of(1 - direction.min(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_kept_apart_guessed_from_their_neighbours_and_forgotten() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.expected(Exchange::Get(1), 50), None);
        for _ in 0..100 {
            latencies.record(Exchange::Get(1 << 10), ms(20));
            latencies.record(Exchange::Put(2 << 20), ms(90));
        }
        assert_eq!(latencies.expected(Exchange::Get(10), 95), Some(ms(20)));
        assert_eq!(latencies.expected(Exchange::Get(2 << 20), 95), Some(ms(20)));
        assert_eq!(latencies.expected(Exchange::Put(2 << 20), 5), Some(ms(90)));
        assert_eq!(latencies.expected(Exchange::Put(1), 5), Some(ms(90)));
        latencies.record(Exchange::Get(2 << 20), ms(70));
        assert_eq!(latencies.expected(Exchange::Get(3 << 20), 50), Some(ms(70)));
        assert_eq!(latencies.expected(Exchange::Get(9 << 20), 50), Some(ms(70)));
        assert_eq!(latencies.expected(Exchange::Ask, 50), Some(ms(20)));
        tokio::time::advance(MEMORY).await;
        assert_eq!(latencies.expected(Exchange::Get(10), 95), None);
    }
}
