//! Tasks that count, each one counter, and the check of every answer.

use super::cluster::Cluster;
use super::ledger;
use anyhow::{Context as _, ensure};
use bytes::Bytes;
use quorumfs_bft_runtime::client::Client;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Clients at work.
pub struct Load {
    clients: Vec<Client>,
    hands: JoinSet<anyhow::Result<(Bytes, u64)>>,
    watch: Arc<Watch>,
}

struct Watch {
    began: Instant,
    over: AtomicBool,
    acknowledged: AtomicU64,
    last: AtomicU64,
    gap: AtomicU64,
}

impl Watch {
    fn answered(&self) {
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let before = self.last.swap(now, Ordering::Relaxed);
        self.gap
            .fetch_max(now.saturating_sub(before), Ordering::Relaxed);
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
    }
}

/// The result of the counting.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Operations that were acknowledged.
    pub acknowledged: u64,
    /// The longest time without an acknowledged operation.
    pub longest_gap: Duration,
}

impl Load {
    /// Starts this many clients with this many counting tasks each.
    ///
    /// # Errors
    /// If a client cannot connect.
    pub async fn start(cluster: &Cluster, clients: usize, hands: usize) -> anyhow::Result<Self> {
        let watch = Arc::new(Watch {
            began: Instant::now(),
            over: AtomicBool::new(false),
            acknowledged: AtomicU64::new(0),
            last: AtomicU64::new(0),
            gap: AtomicU64::new(0),
        });
        let mut load = Self {
            clients: Vec::new(),
            hands: JoinSet::new(),
            watch,
        };
        for client in 0..clients {
            load.clients.push(Client::connect(cluster.client()?).await?);
            for hand in 0..hands {
                let name = Bytes::from(format!("{client}/{hand}"));
                let client = load.clients.last().context("just connected")?.clone();
                load.hands.spawn(count(client, name, load.watch.clone()));
            }
        }
        Ok(load)
    }

    /// Operations that were acknowledged so far.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.watch.acknowledged.load(Ordering::Relaxed)
    }

    /// Reports an error of a task as soon as there is one.
    ///
    /// # Errors
    /// That error.
    pub fn check(&mut self) -> anyhow::Result<()> {
        while let Some(ended) = self.hands.try_join_next() {
            ended??;
        }
        Ok(())
    }

    /// Ends the counting and compares every counter with its last acknowledged value.
    ///
    /// # Errors
    /// If an acknowledged operation was lost or executed twice, or was never answered.
    pub async fn finish(mut self) -> anyhow::Result<Counted> {
        self.watch.over.store(true, Ordering::Relaxed);
        let reader = self.clients.first().context("there are no clients")?;
        while let Some(ended) = self.hands.join_next().await {
            let (name, acknowledged) = ended??;
            let found = ledger::decode(&reader.query(name.clone()).await?);
            ensure!(
                found == acknowledged,
                "counter {name:?} is {found}, but {acknowledged} was acknowledged"
            );
        }
        for client in &self.clients {
            client.close().await?;
        }
        Ok(Counted {
            acknowledged: self.acknowledged(),
            longest_gap: Duration::from_nanos(self.watch.gap.load(Ordering::Relaxed)),
        })
    }
}

/// Increments one counter until the run is over; returns the last acknowledged value.
async fn count(client: Client, name: Bytes, watch: Arc<Watch>) -> anyhow::Result<(Bytes, u64)> {
    let mut last = 0;
    while !watch.over.load(Ordering::Relaxed) {
        let answer = client.execute(name.clone()).await;
        let answer = answer.with_context(|| format!("{name:?} after {last}"))?;
        let value = ledger::decode(&answer);
        ensure!(
            value == last + 1,
            "{name:?} was answered {value} after {last}"
        );
        last = value;
        watch.answered();
    }
    Ok((name, last))
}
