//! The acceptor's half of a link: accept, secure, read the greeting, decide.
//!
//! Any host can open a TCP connection and send nothing. Such half-open connections are bounded in
//! number and time. When there are too many, the address with the most of them loses its *oldest*:
//! a flood from one address displaces its own connections, and an honest handshake takes
//! milliseconds, so a flood from many addresses has to be thousands of connections a second before
//! it keeps an honest one out.
//!
//! The [`Gatekeeper`] decides what a key may do; the listener only carries out its verdict.

use super::LinkError;
use super::connection::{Greeted, write_frame};
use super::frame::{Frame, Kind, Reader};
use super::hello::{HELLO_BYTES, Hello, Refusal, Role};
use crate::limits;
use crate::tls::Acceptor;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::identity::{ClusterId, PublicKey};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Decides which dialers are admitted, and serves them.
pub trait Gatekeeper: Send + Sync + 'static {
    /// Admits this process of the holder of `key` in this role, or returns the reason for refusing
    /// it. The guard reserves its place until it is dropped.
    ///
    /// # Errors
    /// The refusal that the dialer receives.
    fn admit(&self, key: PublicKey, role: Role, process: u64) -> Result<Self::Guard, Refusal>;

    /// Serves a connection until it ends.
    fn serve(
        self: Arc<Self>,
        place: Self::Guard,
        greeted: Greeted,
    ) -> impl Future<Output = LinkError> + Send;

    /// Reserves the place of an admitted connection.
    type Guard: Send;
}

/// Accepts connections for one replica.
pub struct Listener<G> {
    /// The listening socket.
    pub socket: TcpListener,
    /// Secures accepted connections.
    pub acceptor: Acceptor,
    /// The cluster that dialers must belong to.
    pub cluster: ClusterId,
    /// What authenticates votes: it must be the same on other replicas.
    pub authentication: Authentication,
    /// Decides about dialers.
    pub gatekeeper: Arc<G>,
}

/// A half-open connection: closed when it is dropped.
struct HalfOpen(JoinHandle<()>);

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The half-open connections, the oldest first, with their addresses.
struct Greeting<T> {
    most: usize,
    all: VecDeque<(IpAddr, T)>,
}

impl<T> Greeting<T> {
    const fn new(most: usize) -> Self {
        Self {
            most,
            all: VecDeque::new(),
        }
    }

    /// Adds one: if there are too many, the address with the most of them loses its oldest.
    fn enter(&mut self, from: IpAddr, one: T) {
        let from = neighbourhood(from);
        while self.all.len() >= self.most.max(1) {
            let mut counts = BTreeMap::new();
            for (address, _) in &self.all {
                *counts.entry(*address).or_insert(0_usize) += 1;
            }
            let most = counts.values().max().copied().unwrap_or_default();
            let crowds = |(address, _): &(IpAddr, T)| counts.get(address) == Some(&most);
            let oldest = self.all.iter().position(crowds);
            self.all.remove(oldest.unwrap_or_default());
        }
        self.all.push_back((from, one));
    }
}

/// The addresses that are counted together: one of IPv4, or a network of IPv6, which may belong to
/// one machine.
fn neighbourhood(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address => address,
    }
}

impl<G: Gatekeeper> Listener<G> {
    /// Accepts connections until the task that runs it is stopped.
    pub async fn run(self) {
        let this = Arc::new(self);
        let mut greeting = Greeting::new(limits::HANDSHAKES_MAX);
        let mut serving = tokio::task::JoinSet::new();
        let (greeted_tx, mut greeted_rx) = tokio::sync::mpsc::channel(limits::HANDSHAKES_MAX);
        loop {
            tokio::select! {
                accepted = this.socket.accept() => match accepted {
                    Ok((stream, from)) => {
                        let under_way = |(_, it): &(_, HalfOpen)| !it.0.is_finished();
                        greeting.all.retain(under_way);
                        let (this, greeted_tx) = (this.clone(), greeted_tx.clone());
                        greeting.enter(from.ip(), HalfOpen(tokio::spawn(async move {
                            match this.greet(stream).await {
                                Ok(greeted) => {
                                    let _ = greeted_tx.send(greeted).await;
                                }
                                Err(error) => tracing::debug!(%error, "a handshake failed"),
                            }
                        })));
                    }
                    Err(error) => {
                        // Out of descriptors, or the connection has ended already.
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(limits::REDIAL_MIN).await;
                    }
                },
                Some((place, greeted)) = greeted_rx.recv() => {
                    let gatekeeper = this.gatekeeper.clone();
                    serving.spawn(async move {
                        let error = gatekeeper.serve(place, greeted).await;
                        tracing::debug!(%error, "a connection has ended");
                    });
                }
                Some(_) = serving.join_next() => {}
            }
        }
    }

    async fn greet(&self, stream: TcpStream) -> Result<(G::Guard, Greeted), LinkError> {
        stream.set_nodelay(true).map_err(LinkError::Broken)?;
        let deadline = limits::HANDSHAKE_DEADLINE;
        match tokio::time::timeout(deadline, self.secure(stream)).await {
            Ok(greeted) => greeted,
            Err(_) => Err(LinkError::Timeout {
                doing: "securing an accepted connection",
                deadline,
            }),
        }
    }

    async fn secure(&self, stream: TcpStream) -> Result<(G::Guard, Greeted), LinkError> {
        let (stream, key) = self.acceptor.secure(stream).await?;
        let mut reader = Reader::new(stream, HELLO_BYTES);
        let hello = reader.next().await?;
        if hello.kind != Kind::Hello {
            return Err(LinkError::Malformed("the first frame is not a greeting"));
        }
        let hello = Hello::decode(&hello.payload)?;
        let admitted = self.judge(key, &hello);
        let mut answer = Hello::new(self.cluster, Role::Replica(hello.wanted), hello.wanted);
        answer.authentication = self.authentication;
        answer.refusal = admitted.as_ref().err().copied();
        let frame = Frame {
            kind: Kind::Hello,
            payload: answer.encode().to_vec().into(),
        };
        write_frame(reader.stream(), frame).await?;
        match admitted {
            Ok(place) => Ok((place, Greeted { reader })),
            Err(refusal) => {
                use tokio::io::AsyncWriteExt;
                reader
                    .stream()
                    .shutdown()
                    .await
                    .map_err(LinkError::Broken)?;
                Err(LinkError::TurnedAway { key, refusal })
            }
        }
    }

    fn judge(&self, key: PublicKey, hello: &Hello) -> Result<G::Guard, Refusal> {
        if hello.cluster != self.cluster {
            return Err(Refusal::WrongCluster);
        }
        if !hello.is_compatible() {
            return Err(Refusal::Version);
        }
        let replica = matches!(hello.role, Role::Replica(_));
        if replica && hello.authentication != self.authentication {
            return Err(Refusal::Authentication);
        }
        self.gatekeeper.admit(key, hello.role, hello.process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_that_has_most_half_open_connections_loses_its_oldest() {
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let mut greeting = Greeting::new(8);
        greeting.enter(address(1), 0);
        for number in 1..100 {
            greeting.enter(address(2), number);
        }
        greeting.enter(address(3), 100);
        let left: Vec<_> = greeting.all.iter().map(|(_, number)| *number).collect();
        assert_eq!(left, [0, 94, 95, 96, 97, 98, 99, 100]);
        // One machine may have all addresses of an IPv6 network.
        let network = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]);
        let mut greeting = Greeting::new(4);
        for number in 0..10_u16 {
            greeting.enter(network(number), number);
            greeting.enter(address(4), 1_000);
        }
        let known = |wanted| greeting.all.iter().filter(|(_, it)| *it == wanted).count();
        assert_eq!((known(1_000), known(9), known(8)), (2, 1, 1));
        let mapped = "::ffff:192.0.2.9".parse().expect("an address");
        assert_eq!(neighbourhood(mapped), address(9));
    }
}
