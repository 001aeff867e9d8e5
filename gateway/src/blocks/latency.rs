//! How long a cloud takes, by what is asked of it and how much.
//!
//! A listing says nothing about how long two megabytes take, nor a put about a get. So answers are
//! remembered apart: by direction and by the order of magnitude of their bytes, some of each. What
//! was never asked is guessed from the next smaller amount, then the next larger, then the other
//! direction. What is old is forgotten: a cloud that is left alone because it was slow becomes
//! unknown, and whoever is unknown is tried.

use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// How many answers of each kind are remembered.
const REMEMBERED: usize = 64;
/// For how long.
const MEMORY: Duration = Duration::from_secs(120);
/// Up to how many bytes the classes of a direction reach; one more lies above.
const CLASS_BYTES: [u64; 3] = [32 << 10, 512 << 10, 4 << 20];
const CLASSES: usize = CLASS_BYTES.len() + 1;

/// What is asked of a cloud.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Exchange {
    /// To take so many bytes.
    Put(u64),
    /// To give so many bytes.
    Get(u64),
    /// A question with a short answer.
    Ask,
}

impl Exchange {
    /// Direction, and class in it.
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
struct Window(VecDeque<(Instant, Duration)>);

impl Window {
    fn enter(&mut self, now: Instant, latency: Duration) {
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
    windows: [[Window; CLASSES]; 2],
    all: Window,
}

impl Latencies {
    pub(super) fn enter(&mut self, exchange: Exchange, latency: Duration) {
        let now = Instant::now();
        let (direction, class) = exchange.place();
        let windows = self.windows.get_mut(direction);
        if let Some(window) = windows.and_then(|windows| windows.get_mut(class)) {
            window.enter(now, latency);
        }
        self.all.enter(now, latency);
    }

    /// What so many of a hundred answers took at most, whatever they were to.
    pub(super) fn percentile(&self, percent: usize) -> Option<Duration> {
        self.all.percentile(Instant::now(), percent)
    }

    /// What so many of a hundred answers to this took at most, or to what is most like it.
    pub(super) fn expected(&self, exchange: Exchange, percent: usize) -> Option<Duration> {
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
            latencies.enter(Exchange::Get(1 << 10), ms(20));
            latencies.enter(Exchange::Put(2 << 20), ms(90));
        }
        assert_eq!(latencies.expected(Exchange::Get(10), 95), Some(ms(20)));
        assert_eq!(latencies.expected(Exchange::Get(2 << 20), 95), Some(ms(20)));
        assert_eq!(latencies.expected(Exchange::Put(2 << 20), 5), Some(ms(90)));
        assert_eq!(latencies.expected(Exchange::Put(1), 5), Some(ms(90)));
        latencies.enter(Exchange::Get(2 << 20), ms(70));
        assert_eq!(latencies.expected(Exchange::Get(3 << 20), 50), Some(ms(70)));
        assert_eq!(latencies.expected(Exchange::Get(9 << 20), 50), Some(ms(70)));
        assert_eq!(latencies.expected(Exchange::Ask, 50), Some(ms(20)));
        tokio::time::advance(MEMORY).await;
        assert_eq!(latencies.expected(Exchange::Get(10), 95), None);
    }
}
