//! What a copy of the state needs of a client: its connections, its session, and the frames of
//! replicas that concern copies.
//!
//! ```text
//!   readers of the links ──► core (under its lock) ──► CopyFeed (bounded) ──► the copy's thread
//! ```
//!
//! Always: the feed is bounded by frames and by bytes, and delays nothing. What does not fit is
//! dropped, and the copy asks again.

use super::Client;
use super::error::ClientError;
use super::machine::Machine;
use crate::limits::{COPY_INBOX_BYTES_MAX, COPY_INBOX_FRAMES_MAX};
use bytes::Bytes;
use quorumfs_bft::checkpoint::CheckpointAnswer;
use quorumfs_bft::client::OperationKind;
use quorumfs_bft::identity::{Monotonic, PublicKey};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An input of a copy.
#[derive(Clone, Debug)]
pub(crate) enum CopyInput {
    /// This replica is connected.
    Connected(PublicKey),
    /// It is not connected any more.
    Disconnected(PublicKey),
    /// It sent this.
    Frame(PublicKey, Bytes),
}

#[derive(Debug, Default)]
struct WaitingInputs {
    inputs: VecDeque<CopyInput>,
    /// Of frames among them.
    frames: usize,
    bytes: usize,
    ended: bool,
}

/// The inputs that wait for one copy.
#[derive(Debug, Default)]
pub(crate) struct CopyFeed {
    waiting: Mutex<WaitingInputs>,
    changed: Condvar,
}

impl CopyFeed {
    fn waiting(&self) -> MutexGuard<'_, WaitingInputs> {
        // Each change below is complete before anything can panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an input. Connections are few: of them none is dropped.
    pub(super) fn push(&self, input: CopyInput) {
        let mut waiting = self.waiting();
        if let CopyInput::Frame(_, frame) = &input {
            let full = waiting.frames >= COPY_INBOX_FRAMES_MAX
                || waiting.bytes.saturating_add(frame.len()) > COPY_INBOX_BYTES_MAX;
            if full {
                return;
            }
            waiting.frames += 1;
            waiting.bytes += frame.len();
        }
        waiting.inputs.push_back(input);
        drop(waiting);
        self.changed.notify_one();
    }

    /// No more inputs are wanted: the copy's thread ends.
    fn end(&self) {
        self.waiting().ended = true;
        self.changed.notify_one();
    }

    /// Whether the owner has gone.
    pub(crate) fn has_ended(&self) -> bool {
        self.waiting().ended
    }

    /// The next input, within `patience`.
    pub(crate) fn next(&self, patience: Duration) -> Option<CopyInput> {
        let waits = |waiting: &mut WaitingInputs| waiting.inputs.is_empty() && !waiting.ended;
        let waited = self
            .changed
            .wait_timeout_while(self.waiting(), patience, waits);
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let input = waiting.inputs.pop_front()?;
        if let CopyInput::Frame(_, frame) = &input {
            waiting.frames = waiting.frames.saturating_sub(1);
            waiting.bytes = waiting.bytes.saturating_sub(frame.len());
        }
        Some(input)
    }
}

/// A client's service to one copy. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct CopyLink {
    feed: Arc<CopyFeed>,
    machine: Arc<Machine>,
}

impl CopyLink {
    /// The inputs.
    pub(crate) const fn feed(&self) -> &Arc<CopyFeed> {
        &self.feed
    }

    /// What sends frames and reads the clock.
    pub(crate) fn sender(&self) -> CopySender {
        CopySender(self.machine.clone())
    }
}

impl Drop for CopyLink {
    fn drop(&mut self) {
        self.machine.end_copy(&self.feed);
        self.feed.end();
    }
}

/// Sends a copy's frames over the client's connections.
#[derive(Debug)]
pub(crate) struct CopySender(Arc<Machine>);

impl CopySender {
    /// To this replica, if it is connected.
    pub(crate) fn send(&self, to: &PublicKey, frame: Bytes) {
        self.0.send(to, frame);
    }

    pub(crate) fn now(&self) -> Monotonic {
        self.0.now()
    }
}

impl Client {
    /// Serves a copy of the state.
    pub(crate) fn copy_link(&self) -> CopyLink {
        let (feed, machine) = (Arc::new(CopyFeed::default()), self.inner.machine.clone());
        machine.copy_to(feed.clone());
        CopyLink { feed, machine }
    }

    /// Orders a checkpoint, however little was ordered since the last one: the state after this
    /// request's batch will be one. A principal that may not copy the state is refused.
    ///
    /// # Errors
    /// Like [`Client::execute`].
    pub async fn order_checkpoint(&self) -> Result<CheckpointAnswer, ClientError> {
        let answer = self.submit(OperationKind::Checkpoint, Bytes::new()).await?;
        CheckpointAnswer::decode(&answer).ok_or(ClientError::UnknownAnswer)
    }
}
