//! The acceptor's half of a link: accept, secure, hear the greeting, decide.
//!
//! Anybody can open a TCP connection and say nothing. Such half-open connections are bounded in
//! number and time, and when there are too many the *oldest* is given up: an honest handshake
//! takes milliseconds, so a flood has to be thousands a second before it keeps anybody out.
//!
//! What a key may do is decided by the [`Gatekeeper`]; the listener only carries its verdict.

use super::LinkError;
use super::connection::{Greeted, write_frame};
use super::frame::{Frame, Kind, Reader};
use super::hello::{HELLO_BYTES, Hello, Refusal, Role};
use crate::limits;
use crate::tls::Acceptor;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::identity::{ClusterId, PublicKey};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Decides who comes in, and takes over who did.
pub trait Gatekeeper: Send + Sync + 'static {
    /// A place for this process of the holder of `key` in this role, or the reason why there is
    /// none. The place is held until it is dropped.
    ///
    /// # Errors
    /// The refusal that the dialer is told.
    fn admit(&self, key: PublicKey, role: Role, process: u64) -> Result<Self::Place, Refusal>;

    /// Serves a connection until it ends.
    fn serve(
        self: Arc<Self>,
        place: Self::Place,
        greeted: Greeted,
    ) -> impl Future<Output = LinkError> + Send;

    /// What an admitted connection holds.
    type Place: Send;
}

/// Accepts connections for one replica.
pub struct Listener<G> {
    /// Where.
    pub socket: TcpListener,
    /// Secures what is accepted.
    pub acceptor: Acceptor,
    /// The cluster that dialers must belong to.
    pub cluster: ClusterId,
    /// What authenticates votes: other replicas must do it alike.
    pub authentication: Authentication,
    /// Who decides.
    pub gatekeeper: Arc<G>,
}

/// A half-open connection: given up with its guard.
struct HalfOpen(JoinHandle<()>);

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<G: Gatekeeper> Listener<G> {
    /// Accepts until the task that runs it is stopped.
    pub async fn run(self) {
        let this = Arc::new(self);
        let mut greeting: VecDeque<HalfOpen> = VecDeque::new();
        let mut serving = tokio::task::JoinSet::new();
        let (greeted_tx, mut greeted_rx) = tokio::sync::mpsc::channel(limits::HANDSHAKES_MAX);
        loop {
            tokio::select! {
                accepted = this.socket.accept() => match accepted {
                    Ok((stream, _)) => {
                        greeting.retain(|half_open| !half_open.0.is_finished());
                        while greeting.len() >= limits::HANDSHAKES_MAX {
                            greeting.pop_front();
                        }
                        let (this, greeted_tx) = (this.clone(), greeted_tx.clone());
                        greeting.push_back(HalfOpen(tokio::spawn(async move {
                            match this.greet(stream).await {
                                Ok(greeted) => {
                                    let _ = greeted_tx.send(greeted).await;
                                }
                                Err(error) => tracing::debug!(%error, "no connection"),
                            }
                        })));
                    }
                    Err(error) => {
                        // Out of descriptors, or the connection is gone already.
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

    async fn greet(&self, stream: TcpStream) -> Result<(G::Place, Greeted), LinkError> {
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

    async fn secure(&self, stream: TcpStream) -> Result<(G::Place, Greeted), LinkError> {
        let (stream, key) = self.acceptor.secure(stream).await?;
        let mut reader = Reader::new(stream, HELLO_BYTES);
        let hello = reader.next().await?;
        if hello.kind != Kind::Hello {
            return Err(LinkError::Malformed("a connection without a greeting"));
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

    fn judge(&self, key: PublicKey, hello: &Hello) -> Result<G::Place, Refusal> {
        if hello.cluster != self.cluster {
            return Err(Refusal::WrongCluster);
        }
        if !hello.speaks_ours() {
            return Err(Refusal::Version);
        }
        let replica = matches!(hello.role, Role::Replica(_));
        if replica && hello.authentication != self.authentication {
            return Err(Refusal::Authentication);
        }
        self.gatekeeper.admit(key, hello.role, hello.process)
    }
}
