//! The thread of a refresh: inputs to the machine, its effects to the store and the connections.
//!
//! It waits for the disk, so it is none of the asynchronous runtime's own threads. It ends when the
//! refresh does, when the store fails, or when its owner has dropped the refresh: at the latest
//! after one tick and one write.

use super::{ClusterVerifier, CopyError, Shared};
use crate::client::copy_feed::{CopyFeed, CopyInput, CopySender};
use crate::limits::COPY_PATIENCE;
use crate::store::DiskStore;
use quorumfs_bft::identity::{Sequence, SessionId};
use quorumfs_bft::state_copy::{CopyOutcome, Effect, Effects, Event, StateCopy};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// What the owner has to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Notice {
    /// Order a checkpoint.
    NeedCheckpoint,
    /// Nothing of use came for so long that waiting on is pointless.
    Idle,
}

/// A refresh with its surroundings.
pub(super) struct Running {
    pub(super) copier: Shared,
    pub(super) store: DiskStore,
    pub(super) verifier: ClusterVerifier,
    pub(super) feed: Arc<CopyFeed>,
    pub(super) sender: CopySender,
    pub(super) notices: mpsc::Sender<Notice>,
}

impl Running {
    /// Refreshes until the end.
    pub(super) fn run(
        self,
        session: SessionId,
        at_least: Sequence,
    ) -> Result<CopyOutcome, CopyError> {
        let mut shared = self.copier.lock().unwrap_or_else(PoisonError::into_inner);
        let mut copier = shared.take().ok_or(CopyError::Failed)?;
        let ended = self.refresh(&mut copier, session, at_least);
        // After a failure of the store its content is not known.
        if !matches!(ended, Err(CopyError::Disk(_) | CopyError::State(_))) {
            *shared = Some(copier);
        }
        ended
    }

    fn refresh(
        &self,
        copier: &mut StateCopy<DiskStore>,
        session: SessionId,
        at_least: Sequence,
    ) -> Result<CopyOutcome, CopyError> {
        let mut effects = Effects::default();
        let now = self.sender.now();
        copier.begin(now, (session, at_least), &self.verifier, &mut effects)?;
        let (mut more, mut ticked) = (false, Instant::now());
        let (mut progress, mut progressed) = (copier.progress(), Instant::now());
        let tick = Duration::from_nanos(StateCopy::<DiskStore>::TICK.0);
        loop {
            if let Some(outcome) = self.carry_out(copier, &mut effects)? {
                return Ok(outcome);
            }
            if self.feed.has_ended() {
                if let Some((batch, _)) = copier.flush_import() {
                    self.store.apply(&batch)?;
                    copier.step(now, Event::Written, &self.verifier, &mut effects)?;
                }
                return Err(CopyError::Failed);
            }
            if copier.progress() > progress {
                (progress, progressed) = (copier.progress(), Instant::now());
            } else if progressed.elapsed() >= COPY_PATIENCE {
                // The owner has one notice at a time, and ends with this one.
                let _ = self.notices.blocking_send(Notice::Idle);
                return Err(CopyError::Failed);
            }
            let left = tick.saturating_sub(ticked.elapsed());
            let patience = if more { Duration::ZERO } else { left };
            // Time passes also while there is always an input.
            let input = match left.is_zero() {
                true => None,
                false => self.feed.next(patience),
            };
            let event = match input {
                Some(CopyInput::Connected(peer)) => Event::Connected { peer },
                Some(CopyInput::Disconnected(peer)) => Event::Disconnected { peer },
                Some(CopyInput::Frame(peer, frame)) => Event::Received { peer, frame },
                None => {
                    ticked = Instant::now();
                    Event::Tick
                }
            };
            more = copier.step(self.sender.now(), event, &self.verifier, &mut effects)?;
        }
    }

    /// Carries effects out, and those of what was written; returns the outcome once there is one.
    fn carry_out(
        &self,
        copier: &mut StateCopy<DiskStore>,
        effects: &mut Effects,
    ) -> Result<Option<CopyOutcome>, CopyError> {
        while !effects.is_empty() {
            for effect in effects.drain().collect::<Vec<_>>() {
                match effect {
                    Effect::Send { to, frame } => self.sender.send(&to, frame),
                    Effect::Write { batch } => {
                        self.store.apply(&batch)?;
                        let now = self.sender.now();
                        copier.step(now, Event::Written, &self.verifier, effects)?;
                    }
                    Effect::NeedCheckpoint => {
                        // Its owner may have gone: then the feed has ended.
                        let _ = self.notices.blocking_send(Notice::NeedCheckpoint);
                    }
                    Effect::Done { outcome } => return Ok(Some(outcome)),
                }
            }
        }
        Ok(None)
    }
}
