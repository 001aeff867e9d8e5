//! Links over loopback with hostile and broken peers.

use super::connection::Greeted;
use super::dial::Dialer;
use super::frame::{Frame, Kind};
use super::hello::{Refusal, Role};
use super::listen::{Gatekeeper, Listener};
use super::outbox::{Bounds, Outbox};
use super::*;
use crate::keys::NodeKey;
use crate::limits;
use crate::tls::{Identity, TlsError};
use bytes::Bytes;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::identity::ReplicaId;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

const CLUSTER: ClusterId = ClusterId([7; 16]);
const ME: ReplicaId = ReplicaId(2);
const FRAME_MAX: usize = 1 << 20;
const BOUNDS: Bounds = Bounds {
    frames_max: 64,
    frames_away_max: 8,
    bytes_max: 4 << 20,
};

/// Echoes every frame and reports it to the test; refuses one key.
struct Echo {
    unwanted: PublicKey,
    seen: mpsc::Sender<Result<Bytes, LinkError>>,
}

impl Gatekeeper for Echo {
    type Guard = PublicKey;

    fn admit(&self, key: PublicKey, _role: Role, _: u64) -> Result<PublicKey, Refusal> {
        if key == self.unwanted {
            return Err(Refusal::NotThatReplica);
        }
        Ok(key)
    }

    async fn serve(self: Arc<Self>, _place: PublicKey, greeted: Greeted) -> LinkError {
        let outbox = Arc::new(Outbox::new(BOUNDS));
        outbox.set_connected(true);
        let (mut reader, _writing) = greeted.start(outbox.clone(), FRAME_MAX);
        loop {
            match reader.next().await {
                Ok(frame) => {
                    outbox.push(frame.clone());
                    let _ = self.seen.try_send(Ok(frame.payload));
                }
                Err(error) => {
                    let _ = self.seen.try_send(Err(error));
                    return LinkError::Ended;
                }
            }
        }
    }
}

struct Fixture {
    server: Identity,
    address: std::net::SocketAddr,
    seen: mpsc::Receiver<Result<Bytes, LinkError>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn identity() -> Identity {
    Identity::new(Arc::new(NodeKey::generate().expect("randomness"))).expect("identity")
}

async fn listener(unwanted: PublicKey) -> Fixture {
    let server = identity();
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = socket.local_addr().expect("address");
    let (seen_tx, seen) = mpsc::channel(4096);
    let listener = Listener {
        socket,
        acceptor: server.acceptor().expect("acceptor"),
        cluster: CLUSTER,
        authentication: Authentication::Sig,
        gatekeeper: Arc::new(Echo {
            unwanted,
            seen: seen_tx,
        }),
    };
    Fixture {
        server,
        address,
        seen,
        task: tokio::spawn(listener.run()),
    }
}

fn dialer(fixture: &Fixture, client: &Identity) -> Dialer {
    Dialer {
        wanted: ME,
        addresses: vec![fixture.address.into()],
        connector: client.connector(fixture.server.key()).expect("connector"),
        cluster: CLUSTER,
        role: Role::Client,
        authentication: Authentication::Sig,
        process: 0,
    }
}

fn outbox() -> Arc<Outbox> {
    let outbox = Arc::new(Outbox::new(BOUNDS));
    outbox.set_connected(true);
    outbox
}

#[tokio::test]
async fn frames_go_both_ways() {
    let fixture = listener(PublicKey([0; 32])).await;
    let greeted = dialer(&fixture, &identity()).dial().await.expect("dial");
    let outbox = outbox();
    let (mut reader, _writing) = greeted.start(outbox.clone(), FRAME_MAX);
    for length in [0_usize, 1, 1000, FRAME_MAX] {
        let frame = Frame::message(vec![3; length].into());
        outbox.push(frame.clone());
        assert_eq!(reader.next().await.expect("echo"), frame);
    }
}

#[tokio::test]
async fn a_replica_with_another_key_is_refused_by_the_dialer() {
    let fixture = listener(PublicKey([0; 32])).await;
    let client = identity();
    let mut dialer = dialer(&fixture, &client);
    dialer.connector = client.connector(identity().key()).expect("connector");
    let error = dialer.dial().await.expect_err("wrong key");
    assert!(
        matches!(error, LinkError::Tls(TlsError::WrongKey { .. })),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains(&fixture.server.key().to_string()),
        "{error}"
    );
}

#[tokio::test]
async fn a_dialer_with_a_refused_key_gets_the_refusal() {
    let client = identity();
    let fixture = listener(client.key()).await;
    let error = dialer(&fixture, &client)
        .dial()
        .await
        .expect_err("wrong key");
    assert!(
        matches!(error, LinkError::Refused(Refusal::NotThatReplica)),
        "{error}"
    );
}

#[tokio::test]
async fn a_dialer_learns_the_name_of_the_other_cluster() {
    let fixture = listener(PublicKey([0; 32])).await;
    let mut dialer = dialer(&fixture, &identity());
    dialer.cluster = ClusterId([8; 16]);
    let error = dialer.dial().await.expect_err("wrong cluster");
    match error {
        LinkError::WrongCluster { ours, theirs } => {
            assert_eq!((ours, theirs), (ClusterId([8; 16]), CLUSTER));
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_dialer_with_the_right_key_is_admitted_under_a_number_of_another_epoch() {
    let fixture = listener(PublicKey([0; 32])).await;
    let mut dialer = dialer(&fixture, &identity());
    for (wanted, role) in [(0, 5), (u16::MAX, u16::MAX)] {
        dialer.wanted = ReplicaId(wanted);
        dialer.role = Role::Replica(ReplicaId(role));
        assert!(dialer.dial().await.is_ok());
    }
}

#[tokio::test]
async fn a_port_without_a_listener_is_named() {
    let fixture = listener(PublicKey([0; 32])).await;
    let mut dialer = dialer(&fixture, &identity());
    let free = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = free.local_addr().expect("address");
    dialer.addresses = vec![address.into()];
    drop(free);
    let error = dialer.dial().await.expect_err("refused");
    assert!(matches!(error, LinkError::Connect { .. }), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[tokio::test]
async fn an_oversized_frame_ends_its_connection_and_no_other() {
    let mut fixture = listener(PublicKey([0; 32])).await;
    let good = dialer(&fixture, &identity()).dial().await.expect("dial");
    let bad = dialer(&fixture, &identity()).dial().await.expect("dial");
    let (good_out, bad_out) = (outbox(), outbox());
    let (mut good_in, _good) = good.start(good_out.clone(), FRAME_MAX);
    let (mut bad_in, _bad) = bad.start(bad_out.clone(), FRAME_MAX);
    bad_out.push(Frame::message(vec![0; FRAME_MAX + 1].into()));
    let seen = fixture.seen.recv().await.expect("seen");
    assert!(matches!(seen, Err(LinkError::Oversized { .. })));
    assert!(bad_in.next().await.is_err());
    good_out.push(Frame::message(Bytes::from_static(b"still here")));
    assert_eq!(good_in.next().await.expect("echo").payload, "still here");
}

#[tokio::test]
async fn half_open_connections_do_not_keep_others_out() {
    let fixture = listener(PublicKey([0; 32])).await;
    let mut half_open = Vec::new();
    for _ in 0..limits::HANDSHAKES_MAX + 32 {
        half_open.push(TcpStream::connect(fixture.address).await.expect("connect"));
    }
    let dialing = dialer(&fixture, &identity());
    let greeted = tokio::time::timeout(Duration::from_millis(4500), dialing.dial()).await;
    assert!(greeted.expect("in time").is_ok());
    drop(half_open);
}

#[tokio::test]
async fn a_peer_that_does_not_read_costs_its_bound_and_delays_no_other() {
    let fixture = listener(PublicKey([0; 32])).await;
    let slow = dialer(&fixture, &identity()).dial().await.expect("dial");
    let slow_out = outbox();
    // The client never reads: the echoes pile up in the server's outbox for this connection.
    let (_unread, _writing) = slow.start(slow_out.clone(), FRAME_MAX);
    for _ in 0..200 {
        slow_out.push(Frame::message(vec![1; 256 << 10].into()));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let quick = dialer(&fixture, &identity()).dial().await.expect("dial");
    let quick_out = outbox();
    let (mut reader, _writing) = quick.start(quick_out.clone(), FRAME_MAX);
    quick_out.push(Frame::message(Bytes::from_static(b"quick")));
    let echo = tokio::time::timeout(Duration::from_secs(20), reader.next()).await;
    assert_eq!(echo.expect("in time").expect("echo").payload, "quick");
}

#[tokio::test]
async fn a_silent_peer_is_disconnected() {
    let (near, far) = tokio::io::duplex(64);
    let mut reader = super::frame::Reader::new(far, 64);
    let silent = reader.next().await.expect_err("silent");
    assert!(matches!(silent, LinkError::Silent(_)), "{silent}");
    drop(near);
}

#[tokio::test]
async fn keepalives_flow_when_there_is_nothing_to_send() {
    let fixture = listener(PublicKey([0; 32])).await;
    let greeted = dialer(&fixture, &identity()).dial().await.expect("dial");
    let outbox = outbox();
    let (mut reader, _writing) = greeted.start(outbox.clone(), FRAME_MAX);
    let idle = limits::IDLE_DEADLINE + Duration::from_secs(1);
    let nothing = tokio::time::timeout(idle, reader.next()).await;
    assert!(nothing.is_err(), "neither a frame nor an end: {nothing:?}");
    outbox.push(Frame::empty(Kind::Hello));
    assert_eq!(reader.next().await.expect("echo").kind, Kind::Hello);
}
