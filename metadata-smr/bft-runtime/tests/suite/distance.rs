//! Long-distance links: relays on loopback that delay the bytes.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use super::support::{TestCluster, add};
use bytes::Bytes;
use quorumfs_bft::wire::limits::CHECKPOINT_INTERVAL;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The delay in each direction, from now on.
#[derive(Clone, Debug, Default)]
pub struct Distance {
    milliseconds: Arc<AtomicU64>,
}

impl Distance {
    fn set(&self, milliseconds: u64) {
        self.milliseconds.store(milliseconds, Ordering::Relaxed);
    }

    /// The address of a relay to `to` with this delay.
    pub async fn relay_to(&self, to: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let distance = self.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(to).await else {
                    continue;
                };
                near.set_nodelay(true).expect("an option");
                far.set_nodelay(true).expect("an option");
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                tokio::spawn(distance.clone().carry(near_in, far_out));
                tokio::spawn(distance.clone().carry(far_in, near_out));
            }
        });
        address
    }

    async fn carry(
        self,
        mut from: impl AsyncRead + Unpin + Send,
        to: impl AsyncWrite + Unpin + Send + 'static,
    ) {
        let (put, take) = mpsc::unbounded_channel();
        tokio::spawn(deliver(take, to));
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let after = Duration::from_millis(self.milliseconds.load(Ordering::Relaxed));
            let piece = (Instant::now() + after, buffer[..length].to_vec());
            if put.send(piece).is_err() {
                return;
            }
        }
    }
}

async fn deliver(
    mut pieces: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>,
    mut to: impl AsyncWrite + Unpin,
) {
    while let Some((at, bytes)) = pieces.recv().await {
        tokio::time::sleep_until(at).await;
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distant_replicas_answer_unordered_queries_and_send_their_state() {
    let distance = Distance::default();
    let mut cluster = TestCluster::start_apart(1, 1, &distance).await;
    let client = cluster.client().await;
    assert_eq!(add(&client, "n").await, 1);
    let away = (cluster.leader() + 1) % 4;
    cluster.kill(away).await;
    let mut count = 1;
    while cluster.sequence() < 3 * CHECKPOINT_INTERVAL + 20 {
        count += 1;
        assert_eq!(add(&client, "n").await, count);
        add(&client, &format!("row-{count}")).await;
    }

    // As far as from Frankfurt to Oregon.
    distance.set(75);
    cluster.restart(away).await;
    cluster.all_at(cluster.sequence()).await;
    let status = cluster.status(away).expect("running").replica;
    assert_eq!(status.counters.transfers_finished, 1, "{status:#?}");

    let reader = cluster.client().await;
    for _ in 0..20 {
        let answer = reader.read(Bytes::from_static(b"n")).await;
        assert_eq!(answer.expect("answered"), count.to_string());
    }
    let (accepted, ordered) = reader.reads();
    assert!(accepted >= 18, "{accepted} and {ordered} ordered");

    cluster.kill(away).await;
    let trips = reader.round_trips(3).await;
    assert_eq!(trips.len(), 4);
    for (replica, trip) in trips {
        match trip {
            // A busy machine adds to the 150 ms, and nothing takes from them.
            Ok(took) => assert!(took >= Duration::from_millis(150), "{took:?}"),
            Err(error) => assert_eq!(usize::from(replica.0), away, "{error}"),
        }
    }
}
