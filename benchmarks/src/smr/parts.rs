//! `quorumfs-bench smr-parts`: the speed of each part of an ordering cluster alone.
//!
//! It shows where the rest of `bench smr`'s processor time goes: the core alone ([`super::core`]),
//! signatures and hashes, and a connection with TLS and frames between two threads over loopback.

use super::core;
use super::replica::CLUSTER;
use crate::arguments::PartsArguments;
use crate::failure::{BenchResult, failed};
use crate::output::Printer;
use crate::processor::thread_seconds;
use bytes::Bytes;
use quorumfs_bft::authentication::{Authentication, Signer};
use quorumfs_bft::identity::{PublicKey, ReplicaId, Signature};
use quorumfs_bft::wire::signed_bytes::answer_digest;
use quorumfs_bft_runtime::keys::{Batch, NodeKey, PreparedKey};
use quorumfs_bft_runtime::link::LinkError;
use quorumfs_bft_runtime::link::connection::Greeted;
use quorumfs_bft_runtime::link::dial::Dialer;
use quorumfs_bft_runtime::link::frame::Frame;
use quorumfs_bft_runtime::link::hello::{Refusal, Role};
use quorumfs_bft_runtime::link::listen::{Gatekeeper, Listener};
use quorumfs_bft_runtime::link::outbox::{Bounds, Outbox};
use quorumfs_bft_runtime::tls::Identity;
use serde::Serialize;
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// A vote is about this long.
const MESSAGE_BYTES: usize = 200;
/// A long bundle is about this long.
const HASHED_BYTES: usize = 64 << 10;
/// Signatures in one check, as on the event loop.
const BATCH: usize = 12;
/// Frames in flight when their rate is measured.
const WINDOW: usize = 256;
const FRAME_MAX: usize = 1 << 20;
const BOUNDS: Bounds = Bounds {
    frames_max: 4 * WINDOW,
    frames_away_max: WINDOW,
    bytes_max: 64 << 20,
};

#[derive(Serialize)]
struct PartsRecord {
    seconds: f64,
    /// The steps of one replica of four on a core of its own, bundles of one operation: of the
    /// leader or of another one, whichever is slower.
    core_ops_per_second: f64,
    core_operations_per_batch: f64,
    core_leader_ns: f64,
    core_follower_ns: f64,
    /// Before the steps: decoding and hashing a request's frame, without checking its signature.
    core_frames_ns: f64,
    sign_us: f64,
    verify_us: f64,
    /// Each of twelve that are checked together.
    verify_batched_us: f64,
    message_bytes: usize,
    /// BLAKE3, of long messages.
    hash_gib_per_second: f64,
    /// A round trip, one at a time, with TLS, between two threads.
    ping_pong_us: f64,
    /// Echoed, with many in flight.
    frames_per_second: f64,
}

/// Runs the command.
pub(crate) async fn run(arguments: &PartsArguments, output: Printer) -> BenchResult {
    let length = Duration::from_secs(arguments.seconds);
    let part = length / 6;
    let measuring = tokio::task::spawn_blocking(move || -> BenchResult<PartsRecord> {
        let core = core::measure(length / 2)?;
        let crypto = Crypto::new()?;
        let network = network(part)?;
        Ok(PartsRecord {
            seconds: length.as_secs_f64(),
            core_ops_per_second: core.operations_per_second,
            core_operations_per_batch: core.operations_per_batch,
            core_leader_ns: core.leader_ns,
            core_follower_ns: core.follower_ns,
            core_frames_ns: core.frames_ns,
            sign_us: micros(part / 3, 1, || crypto.sign()),
            verify_us: micros(part / 3, 1, || crypto.verify()),
            verify_batched_us: micros(part / 3, BATCH, || crypto.verify_batch()),
            message_bytes: MESSAGE_BYTES,
            hash_gib_per_second: hash_rate(part / 3),
            ping_pong_us: network.ping_pong_us,
            frames_per_second: network.frames_per_second,
        })
    });
    let record = measuring
        .await
        .map_err(|error| failed("measure", &error))??;
    output.record("bench_smr_parts", &record, describe)?;
    Ok(())
}

fn describe(record: &PartsRecord) -> String {
    format!(
        "{:>12.0} operations/s through the core of one replica on one core, {:.0} a batch\n\
         {:>12.0} ns each of a leader's steps, {:.0} of another one's; {:.0} before them\n\
         {:>12.2} µs to sign, {:.2} to verify, {:.2} each of {BATCH} together\n\
         {:>12.2} GiB/s hashed\n\
         {:>12.1} µs there and back over TLS, {:.0} frames/s echoed",
        record.core_ops_per_second,
        record.core_operations_per_batch,
        record.core_leader_ns,
        record.core_follower_ns,
        record.core_frames_ns,
        record.sign_us,
        record.verify_us,
        record.verify_batched_us,
        record.hash_gib_per_second,
        record.ping_pong_us,
        record.frames_per_second,
    )
}

/// Microseconds of processor time for one of the `each` items of `work`, over about so long.
fn micros(length: Duration, each: usize, mut work: impl FnMut()) -> f64 {
    let (began, given_before) = (Instant::now(), thread_seconds());
    let mut done = 0;
    while began.elapsed() < length {
        for _ in 0..16 {
            work();
        }
        done += 16 * each;
    }
    (thread_seconds() - given_before) * 1e6 / done as f64
}

/// The speed of hashing long messages.
fn hash_rate(length: Duration) -> f64 {
    let message = vec![7_u8; HASHED_BYTES];
    let each = micros(length, 1, || {
        black_box(answer_digest(black_box(&message)));
    });
    HASHED_BYTES as f64 / each * 1e6 / f64::from(1_u32 << 30)
}

/// Keys and their signatures.
struct Crypto {
    key: NodeKey,
    message: Vec<u8>,
    signed: Vec<(PreparedKey, Signature)>,
}

impl Crypto {
    fn new() -> BenchResult<Self> {
        let message = vec![7; MESSAGE_BYTES];
        let key = || NodeKey::generate().map_err(|error| failed("make a key", &error));
        let mut signed = Vec::new();
        for _ in 0..BATCH {
            let key = key()?;
            let prepared = PreparedKey::new(&key.public());
            let prepared = prepared.ok_or_else(|| failed("use a key", &"it is no point"))?;
            signed.push((prepared, key.sign(&message)));
        }
        Ok(Self {
            key: key()?,
            message,
            signed,
        })
    }

    fn sign(&self) {
        black_box(self.key.sign(&self.message));
    }

    fn verify(&self) {
        if let Some((key, signature)) = self.signed.first() {
            black_box(key.verify(&self.message, signature));
        }
    }

    fn verify_batch(&self) {
        let mut batch = Batch::default();
        for (key, signature) in &self.signed {
            batch.push(key, &self.message, signature);
        }
        black_box(batch.holds());
    }
}

struct Network {
    ping_pong_us: f64,
    frames_per_second: f64,
}

/// Sends everything back.
struct Echo;

impl Gatekeeper for Echo {
    type Guard = ();

    fn admit(&self, _: PublicKey, _: Role, _: u64) -> Result<(), Refusal> {
        Ok(())
    }

    async fn serve(self: Arc<Self>, (): (), greeted: Greeted) -> LinkError {
        let outbox = Arc::new(Outbox::new(BOUNDS));
        outbox.set_connected(true);
        let (mut reader, _writing) = greeted.start(outbox.clone(), FRAME_MAX);
        loop {
            match reader.next().await {
                Ok(frame) => outbox.push(frame),
                Err(error) => return error,
            }
        }
    }
}

fn identity() -> BenchResult<Identity> {
    let key = NodeKey::generate().map_err(|error| failed("make a key", &error))?;
    Identity::new(Arc::new(key)).map_err(|error| failed("make a certificate", &error))
}

fn runtime() -> BenchResult<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failed("start a thread", &error))
}

fn network(length: Duration) -> BenchResult<Network> {
    let (server, client) = (identity()?, identity()?);
    let there = runtime()?;
    let listening = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)));
    let describe = |error: std::io::Error| failed("listen on loopback", &error);
    let socket = there.block_on(listening).map_err(describe)?;
    let address = socket.local_addr().map_err(describe)?;
    let listener = Listener {
        socket,
        acceptor: server
            .acceptor()
            .map_err(|error| failed("use TLS", &error))?,
        cluster: CLUSTER,
        authentication: Authentication::Sig,
        gatekeeper: Arc::new(Echo),
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        there.block_on(async {
            tokio::select! {
                () = listener.run() => {}
                _ = stopped => {}
            }
        });
    });
    let dialer = Dialer {
        wanted: ReplicaId(0),
        addresses: vec![address.into()],
        connector: client
            .connector(server.key())
            .map_err(|error| failed("use TLS", &error))?,
        cluster: CLUSTER,
        role: Role::Client,
        authentication: Authentication::Sig,
        process: 0,
    };
    let measured = runtime()?.block_on(echoes(&dialer, length));
    drop(stop);
    thread
        .join()
        .map_err(|_| failed("stop a thread", &"it panicked"))?;
    measured.map_err(|error| failed("use a connection", &error))
}

async fn echoes(dialer: &Dialer, length: Duration) -> Result<Network, LinkError> {
    let outbox = Arc::new(Outbox::new(BOUNDS));
    outbox.set_connected(true);
    let greeted = dialer.dial().await?;
    let (mut reader, _writing) = greeted.start(outbox.clone(), FRAME_MAX);
    let frame = Frame::message(Bytes::from(vec![7; MESSAGE_BYTES]));
    let (began, mut rounds) = (Instant::now(), 0_u32);
    while began.elapsed() < length / 2 {
        outbox.push(frame.clone());
        reader.next().await?;
        rounds += 1;
    }
    let ping_pong_us = began.elapsed().as_secs_f64() * 1e6 / f64::from(rounds.max(1));
    for _ in 0..WINDOW {
        outbox.push(frame.clone());
    }
    let (began, mut frames) = (Instant::now(), 0_u32);
    while began.elapsed() < length / 2 {
        reader.next().await?;
        outbox.push(frame.clone());
        frames += 1;
    }
    Ok(Network {
        ping_pong_us,
        frames_per_second: f64::from(frames) / began.elapsed().as_secs_f64(),
    })
}
