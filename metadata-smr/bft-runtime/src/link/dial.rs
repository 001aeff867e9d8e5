//! The dialer's half of a link: connect, secure, greet; again after a growing pause.
//!
//! Every failure is kept as the reason why the peer is unreachable, until a connection is made.

use super::LinkError;
use super::connection::{Greeted, write_frame};
use super::frame::{Frame, Kind, Reader};
use super::hello::{HELLO_BYTES, Hello, Refusal, Role};
use crate::address::Address;
use crate::limits;
use crate::tls::Connector;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::identity::{ClusterId, ReplicaId};
use std::time::Duration;
use tokio::net::TcpStream;

/// Dials one replica.
#[derive(Clone)]
pub struct Dialer {
    /// The replica to dial, by its number in the current epoch.
    pub wanted: ReplicaId,
    /// Its addresses: successive attempts go to successive ones.
    pub addresses: Vec<Address>,
    /// Proves our identity and checks the peer's.
    pub connector: Connector,
    /// The cluster that both must belong to.
    pub cluster: ClusterId,
    /// The role in which we dial.
    pub role: Role,
    /// What authenticates votes; the default for clients.
    pub authentication: Authentication,
    /// The number of this process, if it is a replica; 0 for clients.
    pub process: u64,
}

impl Dialer {
    /// Makes the first attempt.
    ///
    /// # Errors
    /// Like [`Dialer::dial_at`].
    pub async fn dial(&self) -> Result<Greeted, LinkError> {
        self.dial_at(0).await
    }

    /// The address of the attempt with this number.
    ///
    /// # Errors
    /// If no address of the replica is known.
    pub fn address(&self, attempt: usize) -> Result<&Address, LinkError> {
        let place = attempt.checked_rem(self.addresses.len());
        let address = place.and_then(|place| self.addresses.get(place));
        address.ok_or(LinkError::Malformed("no address to dial"))
    }

    /// Makes one attempt; `attempt` counts them.
    ///
    /// # Errors
    /// If no process listens there, or the process that listens is not the wanted replica or
    /// refuses us.
    pub async fn dial_at(&self, attempt: usize) -> Result<Greeted, LinkError> {
        let address = self.address(attempt)?;
        let stream = within("connecting", limits::CONNECT_DEADLINE, async {
            let connected = async {
                let found = address.resolve().await?;
                TcpStream::connect(found.as_slice()).await
            };
            connected.await.map_err(|source| LinkError::Connect {
                address: address.clone(),
                source,
            })
        })
        .await?;
        stream.set_nodelay(true).map_err(LinkError::Broken)?;
        within(
            "securing the connection",
            limits::HANDSHAKE_DEADLINE,
            self.greet(stream),
        )
        .await
    }

    async fn greet(&self, stream: TcpStream) -> Result<Greeted, LinkError> {
        let stream = self.connector.secure(stream).await?;
        let mut reader = Reader::new(stream, HELLO_BYTES);
        let mut hello = Hello::new(self.cluster, self.role, self.wanted);
        hello.authentication = self.authentication;
        hello.process = self.process;
        let frame = Frame {
            kind: Kind::Hello,
            payload: hello.encode().to_vec().into(),
        };
        write_frame(reader.stream(), frame).await?;
        let answer = reader.next().await?;
        if answer.kind != Kind::Hello {
            return Err(LinkError::Malformed("the answer is not a greeting"));
        }
        let answer = Hello::decode(&answer.payload)?;
        if answer.cluster != self.cluster {
            return Err(LinkError::WrongCluster {
                ours: self.cluster,
                theirs: answer.cluster,
            });
        }
        if let Some(refusal) = answer.refusal {
            return Err(LinkError::Refused(refusal));
        }
        if !answer.is_compatible() {
            return Err(LinkError::Refused(Refusal::Version));
        }
        Ok(Greeted { reader })
    }
}

async fn within<T>(
    doing: &'static str,
    deadline: Duration,
    work: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    match tokio::time::timeout(deadline, work).await {
        Ok(done) => done,
        Err(_) => Err(LinkError::Timeout { doing, deadline }),
    }
}

/// The growing pause between attempts.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            next: limits::REDIAL_MIN,
        }
    }
}

impl Backoff {
    /// Waits; the pause is randomised by half its length, so that peers do not dial in step.
    pub async fn pause(&mut self) {
        let random = getrandom::u32().unwrap_or(u32::MAX / 2);
        let share = 0.5 + f64::from(random) / f64::from(u32::MAX);
        tokio::time::sleep(self.next.mul_f64(share)).await;
        self.next = (self.next * 2).min(limits::REDIAL_MAX);
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}
