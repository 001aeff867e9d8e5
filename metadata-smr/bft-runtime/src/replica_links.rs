//! A replica's connections: it dials every other replica and serves whoever dials it.

use crate::inbox::{Arrival, Class, Inbox};
use crate::limits;
use crate::link::LinkError;
use crate::link::connection::{FrameReader, Greeted};
use crate::link::dial::{Backoff, Dialer};
use crate::link::frame::Kind;
use crate::link::hello::{Refusal, Role};
use crate::link::listen::Gatekeeper;
use crate::link::outbox::Outbox;
use crate::pace::{Account, Accounts, Volumes};
use crate::roster::{Connection, Roster};
use crate::verification::Verification;
use bytes::Bytes;
use quorumfs_bft::identity::PublicKey;
use quorumfs_bft::step::Peer;
use quorumfs_bft::wire::limits::{FRAME_BYTES_MAX, REQUEST_BYTES_MAX};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Serves the connections that others open.
#[derive(Debug)]
pub(crate) struct Reception {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) roster: Arc<Roster>,
    pub(crate) verification: Arc<Verification>,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) volumes: Arc<Volumes>,
    /// The replica's thread, where connections are served once they are greeted.
    pub(crate) home: Handle,
}

/// An admitted connection's place; the event loop is told when it goes.
#[derive(Debug)]
pub(crate) struct Place {
    connection: Connection,
    inbox: Arc<Inbox>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Peer::Client(id) = self.connection.peer {
            self.inbox.gone(id);
        }
    }
}

impl Gatekeeper for Reception {
    type Place = Place;

    fn admit(&self, key: PublicKey, role: Role) -> Result<Place, Refusal> {
        Ok(Place {
            connection: self.roster.admit(key, role)?,
            inbox: self.inbox.clone(),
        })
    }

    async fn serve(self: Arc<Self>, place: Place, greeted: Greeted) -> LinkError {
        let home = self.home.clone();
        let mut serving = Serving(home.spawn(self.serve_at_home(place, greeted)));
        // Cancelled when the replica's thread is gone.
        (&mut serving.0).await.unwrap_or(LinkError::Ended)
    }
}

/// Ends what serves a connection when it goes out of scope.
struct Serving(JoinHandle<LinkError>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Reception {
    /// On the replica's thread.
    async fn serve_at_home(self: Arc<Self>, place: Place, mut greeted: Greeted) -> LinkError {
        if let Err(error) = greeted.settle() {
            return error;
        }
        let connection = &place.connection;
        let frame_bytes_max = match connection.peer {
            Peer::Replica(_) => FRAME_BYTES_MAX,
            Peer::Client(_) => REQUEST_BYTES_MAX,
        };
        let (reader, mut writing) = greeted.start(connection.outbox.clone(), frame_bytes_max);
        tokio::select! {
            error = self.receive(connection, reader) => error,
            error = writing.ended() => error,
            () = connection.end.notified() => LinkError::Ended,
        }
    }

    async fn receive(&self, connection: &Connection, mut reader: FrameReader) -> LinkError {
        let from = connection.peer;
        let allowance = Inbox::allowance(from);
        let account = self.accounts.of(connection.key, Instant::now());
        loop {
            self.pace(from, &account).await;
            let frame = match reader.next().await {
                Ok(frame) if frame.kind == Kind::Message => frame.payload,
                Ok(_) => return LinkError::Malformed("a second greeting"),
                Err(error) => return error,
            };
            let bytes = frame.len();
            if let Some(arrival) = self.arrive(connection, frame).await {
                let class = self.class(connection);
                if class == Class::Stranger {
                    account.charge(bytes, Instant::now());
                }
                let put = self.inbox.put(from, class, bytes, &allowance, arrival);
                put.await;
            }
        }
    }

    /// Waits if too much has come from there.
    async fn pace(&self, from: Peer, account: &Account) {
        let now = Instant::now();
        let pause = match from {
            Peer::Replica(replica) => self.volumes.count(replica, now),
            Peer::Client(_) => account.pause(now),
        };
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
    }

    fn class(&self, connection: &Connection) -> Class {
        match connection.peer {
            Peer::Replica(_) => Class::Peer,
            Peer::Client(_) if self.roster.has_session(&connection.key) => Class::Client,
            Peer::Client(_) => Class::Stranger,
        }
    }

    /// Leaves a frame's check to the event loop, which has a turn for each source; what is large
    /// is checked apart first.
    async fn arrive(&self, connection: &Connection, frame: Bytes) -> Option<Arrival> {
        let (from, key) = (connection.peer, connection.key);
        if frame.len() <= limits::INLINE_FRAME_BYTES_MAX {
            return Some(Arrival::Raw(frame, key));
        }
        match self.verification.check_apart(from, key, frame).await {
            Ok(message) => Some(Arrival::Admitted(Box::new(message), key)),
            Err(refused) => {
                if let Some(reason) = refused.blame {
                    self.roster.blacklist(from, &reason);
                }
                None
            }
        }
    }
}

/// How it stands with a link that this node dials.
#[derive(Clone, Debug, Default)]
pub struct LinkState {
    reason: Arc<Mutex<Option<String>>>,
}

impl LinkState {
    /// Why there is no connection; `None` while there is one.
    #[must_use]
    pub fn unreachable(&self) -> Option<String> {
        self.reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn set(&self, reason: Option<String>) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }
}

/// Keeps a connection to one other replica, for ever.
pub(crate) async fn keep_dialing(
    dialer: Dialer,
    outbox: Arc<Outbox>,
    state: LinkState,
    inbox: Arc<Inbox>,
) {
    let mut backoff = Backoff::default();
    state.set(Some("not dialed yet".to_owned()));
    loop {
        let error = match dialer.dial().await {
            Ok(greeted) => {
                backoff.reset();
                state.set(None);
                outbox.set_connected(true);
                inbox.connected(dialer.wanted);
                tracing::info!(replica = %dialer.wanted, address = %dialer.address, "connected");
                let error = send_all(greeted, outbox.clone()).await;
                outbox.set_connected(false);
                tracing::info!(replica = %dialer.wanted, %error, "disconnected");
                error
            }
            Err(error) => {
                tracing::debug!(replica = %dialer.wanted, %error, "cannot connect");
                error
            }
        };
        state.set(Some(error.to_string()));
        backoff.pause().await;
    }
}

/// Sends what the outbox holds until the connection ends. Only signs of life come back.
async fn send_all(greeted: Greeted, outbox: Arc<Outbox>) -> LinkError {
    let (mut reader, mut writing) = greeted.start(outbox, 0);
    tokio::select! {
        frame = reader.next() => match frame {
            Ok(_) => LinkError::Malformed("an answer on a connection that takes none"),
            Err(error) => error,
        },
        error = writing.ended() => error,
    }
}
