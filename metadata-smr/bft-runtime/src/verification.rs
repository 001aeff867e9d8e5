//! From bytes to verified messages: `wire::admit` with this replica's keys and context.
//!
//! The check is pure and runs wherever it is called. Most frames are checked on the event loop,
//! because moving one to another thread costs more than a signature, and because there every source
//! has its turn. Large frames, which may hold hundreds of signatures, are checked on other threads,
//! as many as there are processors, so that sockets are served meanwhile.
//!
//! Waiting frames are checked together: the signatures of a dozen frames cost half as much in one
//! batch, and no verdict depends on it.
//!
//! *Expensive* frames carry certificates, dozens of signatures each, and a peer that repeats a
//! valid one cannot be blamed. So frames that were found valid recently are remembered by their
//! hash, and their repetition costs no signature: the same bytes have the same verdict, because
//! their content is signed by replicas, whose keys an epoch fixes.
//!
//! Votes for committed sequences are the only frames that are dropped unchecked: with n replicas
//! the last n − q votes of each phase come too late to matter, and each would cost a signature.
//!
//! A client's connection may carry only requests of its own principal: a node that saw a frame
//! could repeat it and would receive the answer. Other frames are dropped without blame.
//!
//! The core's effects, in order of execution, fill the directory of session keys, which is bounded
//! by the number of sessions that the core allows to be open.
//!
//! Context and keys are those of one epoch and change together. A verdict applies to an epoch: a
//! frame that was checked before the next epoch, and not handled by the core before, is checked
//! again.
//! was checked before the next one began, and not looked at by the core before, is checked again.

use crate::keys::{Batch, PreparedKey, Zip215};
use crate::unsigned;
use bytes::Bytes;
use quorumfs_bft::authentication::{KeyDirectory, Verifier};
use quorumfs_bft::identity::{Epoch, PublicKey, ReplicaId, Sequence, SessionId, Signature, View};
use quorumfs_bft::membership::Membership;
use quorumfs_bft::step::Peer;
use quorumfs_bft::wire::frame::{HEADER_BYTES, Header};
use quorumfs_bft::wire::message::{Kind, Message};
use quorumfs_bft::wire::{Context, Verified, admit};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tokio::sync::Semaphore;

/// Signatures checked together: more gain nothing, and one bad one makes all be checked again.
const BATCH_MAX: usize = 12;

/// A frame that was refused.
#[derive(Debug)]
pub(crate) struct Refused {
    /// What the sender did that no correct node does, if it did.
    pub(crate) blame: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    key: PublicKey,
    principal: PublicKey,
}

#[derive(Clone, Debug)]
struct Directory {
    context: Context,
    replicas: Vec<PublicKey>,
    sessions: BTreeMap<SessionId, Session>,
    /// Of replicas and sessions, which sign repeatedly.
    prepared: BTreeMap<PublicKey, PreparedKey>,
}

impl Directory {
    fn new(context: Context, replicas: Vec<PublicKey>) -> Self {
        let prepare = |key: &PublicKey| PreparedKey::new(key).map(|prepared| (*key, prepared));
        Self {
            context,
            prepared: replicas.iter().filter_map(prepare).collect(),
            replicas,
            sessions: BTreeMap::new(),
        }
    }

    fn enter(&mut self, context: Context, replicas: Vec<PublicKey>) {
        for key in &self.replicas {
            self.prepared.remove(key);
        }
        for key in &replicas {
            if let Some(prepared) = PreparedKey::new(key) {
                self.prepared.insert(*key, prepared);
            }
        }
        (self.context, self.replicas) = (context, replicas);
    }

    fn open(&mut self, id: SessionId, session: Session) {
        if let Some(prepared) = PreparedKey::new(&session.key) {
            self.prepared.insert(session.key, prepared);
        }
        self.sessions.insert(id, session);
    }

    fn close(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else {
            return;
        };
        // Two sessions may share a key, and so may a session and a replica: a key that is removed
        // here is prepared anew each time, and the verdict is the same.
        self.prepared.remove(&session.key);
    }
}

impl Verifier for Directory {
    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
        match self.prepared.get(key) {
            Some(prepared) => prepared.verify(message, signature),
            None => Zip215.verify(key, message, signature),
        }
    }
}

impl KeyDirectory for Directory {
    fn replica(&self, id: ReplicaId) -> Option<PublicKey> {
        self.replicas.get(usize::from(id.0)).copied()
    }

    fn session(&self, id: SessionId) -> Option<PublicKey> {
        self.sessions.get(&id).map(|session| session.key)
    }
}

/// Expensive frames that are remembered as valid: a few from each of many peers.
const KNOWN_MAX: usize = 256;

/// Whether checking this frame takes more than one signature.
fn is_expensive(frame: &[u8]) -> bool {
    let kind = frame.get(..8).and_then(Kind::of_tag);
    matches!(
        kind,
        Some(Kind::ViewChange | Kind::Claims | Kind::NewView | Kind::Committed)
    )
}

/// For frames that were verified before, or have no signature.
struct Trusting;

impl Verifier for Trusting {
    fn verify(&self, _: &PublicKey, _: &[u8], _: &Signature) -> bool {
        true
    }
}

/// A frame that was not checked, its sender, and the key that the sender proved.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    pub(crate) from: Peer,
    pub(crate) key: PublicKey,
    pub(crate) frame: Bytes,
}

/// Collects signatures instead of checking them: frames that it admits are not valid until
/// [`Gathering::hold`] has returned true.
struct Gathering<'a> {
    directory: &'a Directory,
    batch: RefCell<Batch>,
}

impl<'a> Gathering<'a> {
    fn new(directory: &'a Directory) -> Self {
        Self {
            directory,
            batch: RefCell::default(),
        }
    }

    fn len(&self) -> usize {
        self.batch.borrow().len()
    }

    fn hold(self) -> bool {
        self.batch.into_inner().holds()
    }
}

/// The outcome for a frame whose signatures were collected.
enum Checked {
    Finally(Result<Verified, Refused>),
    IfTheyHold(Raw, Verified),
}

impl Verifier for Gathering<'_> {
    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
        match self.directory.prepared.get(key) {
            Some(prepared) => {
                self.batch.borrow_mut().push(prepared, message, signature);
                true
            }
            None => Zip215.verify(key, message, signature),
        }
    }
}

/// Checks frames for one replica.
#[derive(Debug)]
pub(crate) struct Verification {
    /// Replaced as a whole, so that a long check does not delay the opening of a session.
    directory: RwLock<Arc<Directory>>,
    committed: AtomicU64,
    refused: AtomicU64,
    stale: AtomicU64,
    repeated: AtomicU64,
    known: Mutex<VecDeque<blake3::Hash>>,
    apart: Arc<Semaphore>,
}

impl Verification {
    /// Creates it with the voters' keys in the order of their numbers.
    pub(crate) fn new(context: Context, replicas: Vec<PublicKey>) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            directory: RwLock::new(Arc::new(Directory::new(context, replicas))),
            committed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            known: Mutex::default(),
            apart: Arc::new(Semaphore::new(threads)),
        }
    }

    /// An epoch begins: these are its voters, and frames are checked against it.
    pub(crate) fn enter(&self, membership: &Membership) {
        let voters = membership.voters.iter().map(|voter| voter.key).collect();
        self.change(|directory| {
            let mut context = membership.context(directory.context.cluster);
            context.authentication = directory.context.authentication;
            directory.enter(context, voters);
        });
        self.known().clear();
    }

    /// The epoch that frames are checked for.
    pub(crate) fn epoch(&self) -> Epoch {
        self.directory().context.epoch
    }

    /// The cluster and the epoch, for messages in them.
    pub(crate) fn header(&self) -> Header {
        self.directory().context.header(View(0))
    }

    /// A session is open: its requests are checked under this key, and come from this principal.
    pub(crate) fn open(&self, id: SessionId, key: PublicKey, principal: PublicKey) {
        self.change(|directory| directory.open(id, Session { key, principal }));
    }

    /// A session has ended.
    pub(crate) fn close(&self, id: SessionId) {
        self.change(|directory| directory.close(id));
    }

    fn change(&self, change: impl FnOnce(&mut Directory)) {
        let directory = self.directory.write();
        let mut directory = directory.unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut directory));
    }

    /// Whether the holder of `key`, on its own connection, may send this message.
    fn may_send(&self, directory: &Directory, key: PublicKey, message: &Verified) -> bool {
        let owns = |id| directory.sessions.get(id).map(|it| it.principal) == Some(key);
        let may = match message.message() {
            Message::OpenSession(open) => open.principal == key,
            Message::Request(request) => owns(&request.session),
            Message::CloseSession(close) => owns(&close.session),
            // It is not signed: the connection's key proves that its sender may know the answer.
            Message::Read(read) => owns(&read.session),
            Message::FetchCopy(fetch) => owns(&fetch.session),
            Message::Observe(observe) => observe.session.iter().all(owns),
            _ => true,
        };
        if !may {
            self.refused.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%key, "a frame of another sender on this connection is refused");
        }
        may
    }

    /// Everything up to here is committed.
    pub(crate) fn set_committed(&self, sequence: Sequence) {
        self.committed.store(sequence.0, Ordering::Relaxed);
    }

    /// Frames refused and votes dropped as stale so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (
            self.refused.load(Ordering::Relaxed),
            self.stale.load(Ordering::Relaxed),
        )
    }

    /// Whether this is a vote for a committed sequence.
    pub(crate) fn is_stale(&self, frame: &[u8]) -> bool {
        let is_vote = frame.get(..8).and_then(Kind::of_tag);
        if !matches!(is_vote, Some(Kind::Prepare | Kind::Commit)) {
            return false;
        }
        let sequence = frame
            .get(HEADER_BYTES..HEADER_BYTES + 8)
            .and_then(|bytes| <[u8; 8]>::try_from(bytes).ok())
            .map(u64::from_le_bytes);
        let stale = sequence.is_some_and(|it| it <= self.committed.load(Ordering::Relaxed));
        if stale {
            self.stale.fetch_add(1, Ordering::Relaxed);
        }
        stale
    }

    /// Checks a frame of the holder of `key`, on the calling thread.
    pub(crate) fn check(
        &self,
        from: Peer,
        key: PublicKey,
        frame: Bytes,
    ) -> Result<Verified, Refused> {
        let directory = self.directory();
        self.check_one(&directory, Raw { from, key, frame })
    }

    fn check_one(&self, directory: &Directory, raw: Raw) -> Result<Verified, Refused> {
        let Raw { from, key, frame } = raw;
        if !is_expensive(&frame) {
            return self.check_with(directory, directory, from, key, frame);
        }
        let mark = blake3::hash(&frame);
        if self.known().contains(&mark) {
            self.repeated.fetch_add(1, Ordering::Relaxed);
            return self.check_with(directory, &Trusting, from, key, frame);
        }
        let group = Gathering::new(directory);
        let mut verdict = self.check_with(directory, &group, from, key, frame.clone());
        if verdict.is_ok() && !group.hold() {
            verdict = self.check_with(directory, directory, from, key, frame);
        }
        if verdict.is_ok() {
            let mut known = self.known();
            known.truncate(KNOWN_MAX - 1);
            known.push_front(mark);
        }
        verdict
    }

    fn known(&self) -> MutexGuard<'_, VecDeque<blake3::Hash>> {
        // It is consistent between any two steps.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks frames, each of the holder of its key; the verdicts are those of [`Self::check`].
    ///
    /// The signatures of several frames are checked together, and one by one only if that fails.
    pub(crate) fn check_all(&self, frames: Vec<Raw>) -> Vec<Result<Verified, Refused>> {
        let directory = self.directory();
        let mut verdicts = Vec::with_capacity(frames.len());
        let mut frames = frames.into_iter().peekable();
        while frames.peek().is_some() {
            let group = Gathering::new(&directory);
            let mut taken = Vec::new();
            while group.len() < BATCH_MAX
                && let Some(raw) = frames.next()
            {
                let verdict = if is_expensive(&raw.frame) {
                    Checked::Finally(self.check_one(&directory, raw))
                } else {
                    let frame = raw.frame.clone();
                    match self.check_with(&directory, &group, raw.from, raw.key, frame) {
                        Ok(message) => Checked::IfTheyHold(raw, message),
                        refused => Checked::Finally(refused),
                    }
                };
                taken.push(verdict);
            }
            let hold = group.hold();
            verdicts.extend(taken.into_iter().map(|verdict| match verdict {
                Checked::Finally(verdict) => verdict,
                Checked::IfTheyHold(_, message) if hold => Ok(message),
                Checked::IfTheyHold(raw, _) => self.check_one(&directory, raw),
            }));
        }
        verdicts
    }

    fn directory(&self) -> Arc<Directory> {
        let directory = self.directory.read();
        directory.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn check_with(
        &self,
        directory: &Directory,
        verifier: &dyn Verifier,
        from: Peer,
        key: PublicKey,
        frame: Bytes,
    ) -> Result<Verified, Refused> {
        if self.is_stale(&frame) {
            return Err(Refused { blame: None });
        }
        let verifier = match unsigned::applies(directory.context.cluster) {
            true => &Trusting,
            false => verifier,
        };
        let admitted = admit(frame, from, directory, verifier, &directory.context);
        let message = admitted.map_err(|rejection| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(?from, %rejection, "a frame is refused");
            Refused {
                blame: rejection.blames_sender().then(|| rejection.to_string()),
            }
        })?;
        let may = matches!(from, Peer::Replica(_)) || self.may_send(directory, key, &message);
        may.then_some(message).ok_or(Refused { blame: None })
    }

    /// Checks a frame on another thread; returns the epoch that it was checked for.
    pub(crate) async fn check_on_another_thread(
        self: &Arc<Self>,
        from: Peer,
        key: PublicKey,
        frame: Bytes,
    ) -> Result<(Verified, Epoch), Refused> {
        let no_blame = Refused { blame: None };
        let Ok(permit) = self.apart.clone().acquire_owned().await else {
            return Err(no_blame);
        };
        let this = self.clone();
        let checking = tokio::task::spawn_blocking(move || {
            let directory = this.directory();
            let verdict = this.check_one(&directory, Raw { from, key, frame });
            drop(permit);
            verdict.map(|message| (message, directory.context.epoch))
        });
        checking.await.unwrap_or(Err(no_blame))
    }
}

#[cfg(test)]
mod tests;
