//! A verified copy of the replicated state in a directory, for a client with the right.
//!
//! ```text
//!   refresh ─► the copy's thread: machine of bft::state_copy ◄─► DiskStore
//!      │            ▲ frames (bounded)         │ frames
//!      │            └── client's connections ◄─┘
//!      └─ an ordered checkpoint, if the newest one is too old
//! ```
//!
//! ```no_run
//! # use quorumfs_bft_runtime::{client::ClientConfig, state_copy::{CopyError, StateCopy}};
//! # async fn example(config: ClientConfig) -> Result<(), CopyError> {
//! use quorumfs_bft::identity::Sequence;
//! # let directory = std::path::Path::new("copy");
//! let mut copy = StateCopy::open(directory, config)?;
//! let before = copy.read().copied().map(|copied| copied.root);
//! let copied = copy.refresh(Sequence(1)).await?; // the newest: at operation 1 or later
//! let view = copy.read();
//! if let Some(before) = before
//!     && let Some(mut changes) = view.changes_since(&before)?
//! {
//!     while let Some(row) = changes.next()? { /* its key, and its value and birth, or none */ }
//! } else {
//!     let rows = view.rows(b"", 1_000)?; // all of them, by pages
//! }
//! # Ok(()) }
//! ```
//!
//! # What always holds
//!
//! * What is read is the state at one stable checkpoint that a quorum signed, whatever single
//!   replicas do ([`quorumfs_bft::state_copy`]).
//! * A refresh that fails, is dropped or crashes leaves the checkpoint that was there. The next one
//!   goes on where it was.
//! * The wait is bounded: a refresh goes on while it makes progress, and otherwise ends with an
//!   error after [`limits::COPY_PATIENCE`].
//! * The last two checkpoints stay readable. A reader that has consumed the rows of one of them
//!   gets the changes since; a reader that is further behind reads all rows.
//!
//! # What can go wrong
//!
//! [`CopyError`] says what and what to do. After an error of the disk or the store every call fails
//! until the copy is opened again.

mod error;
mod running;

pub use error::CopyError;

use crate::client::{Client, ClientConfig};
use crate::keys::Zip215;
use crate::limits;
use crate::store::DiskStore;
use crate::unsigned;
use quorumfs_bft::authentication::Verifier;
use quorumfs_bft::checkpoint::CheckpointAnswer;
use quorumfs_bft::identity::{ClusterId, Digest, PublicKey, Sequence, Signature};
use quorumfs_bft::state::{Area, BornRow, Changes, Proof};
use quorumfs_bft::state_copy::{Copied, CopyOutcome, StateCopy as Copier};
use running::{Notice, Running};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// The verifier of a cluster.
#[derive(Clone, Copy, Debug)]
struct ClusterVerifier(ClusterId);

impl Verifier for ClusterVerifier {
    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
        unsigned::applies(self.0) || Zip215.verify(key, message, signature)
    }
}

/// The machine over its store; nothing once it has failed.
type Shared = Arc<Mutex<Option<Copier<DiskStore>>>>;

/// A copy of a cluster's state. See the module's documentation.
#[derive(Debug)]
pub struct StateCopy {
    copier: Shared,
    store: DiskStore,
    config: ClientConfig,
}

impl StateCopy {
    /// Opens the copy in `directory`, or creates an empty one. It waits for the disk. The
    /// configuration is that of the client that refreshes it.
    ///
    /// # Errors
    /// If the directory cannot be used or holds something else.
    pub fn open(directory: &Path, config: ClientConfig) -> Result<Self, CopyError> {
        let store = DiskStore::open(directory)?;
        let memberships = (config.genesis(), config.known.clone());
        let verifier = ClusterVerifier(config.cluster);
        let copier = Copier::open(store.clone(), config.cluster, memberships, &verifier)?;
        Ok(Self {
            copier: Arc::new(Mutex::new(Some(copier))),
            store,
            config,
        })
    }

    /// Brings the copy to a stable checkpoint at `at_least` or later, in a session of its own. If
    /// the newest one is older, a checkpoint is ordered. A copy that is as new already stays as it
    /// is.
    ///
    /// # Errors
    /// If the principal has no right, too few replicas answer, or the disk fails.
    pub async fn refresh(&mut self, at_least: Sequence) -> Result<Copied, CopyError> {
        let client = Client::connect(self.config.clone()).await?;
        let refreshed = self.refresh_over(&client, at_least).await;
        if let Err(error) = client.close().await {
            tracing::debug!(%error, "the session of a state copy ends by itself");
        }
        refreshed
    }

    /// The same in the session and over the connections of a client of the same cluster.
    ///
    /// # Errors
    /// Like [`StateCopy::refresh`].
    pub async fn refresh_over(
        &mut self,
        client: &Client,
        at_least: Sequence,
    ) -> Result<Copied, CopyError> {
        let session = client.session().ok_or(crate::client::ClientError::Closed)?;
        let link = client.copy_link();
        let (notices, mut noticed) = mpsc::channel(1);
        let running = Running {
            copier: self.copier.clone(),
            store: self.store.clone(),
            verifier: ClusterVerifier(self.config.cluster),
            feed: link.feed().clone(),
            sender: link.sender(),
            notices,
        };
        let mut task = tokio::task::spawn_blocking(move || running.run(session, at_least));
        let mut ends = None;
        while ends.is_none() {
            tokio::select! {
                biased;
                Some(notice) = noticed.recv() => match notice {
                    Notice::NeedCheckpoint => order(client, at_least).await?,
                    Notice::Idle => return Err(self.idle(client, at_least)),
                },
                ended = &mut task => ends = Some(ended.map_err(|_| CopyError::Failed)??),
            }
        }
        match ends {
            Some(CopyOutcome::Refused) => Err(CopyError::NoRight),
            _ => self.read().copied().ok_or(CopyError::Failed),
        }
    }

    /// Why nothing came.
    fn idle(&self, client: &Client, at_least: Sequence) -> CopyError {
        if client.is_cut_off() {
            return client.too_few("copying the replicated state").into();
        }
        CopyError::Stuck {
            seconds: limits::COPY_PATIENCE.as_secs(),
            newest: self.read().newest(),
            at_least,
        }
    }

    /// The copy as it is, to be read.
    #[must_use]
    pub fn read(&self) -> CopyView<'_> {
        CopyView(self.copier.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Orders a checkpoint; the state after it will do.
async fn order(client: &Client, at_least: Sequence) -> Result<(), CopyError> {
    match client.order_checkpoint().await? {
        CheckpointAnswer::Refused => Err(CopyError::NoRight),
        CheckpointAnswer::At(executed) if executed < at_least => {
            Err(CopyError::TooNew { at_least, executed })
        }
        CheckpointAnswer::At(_) => Ok(()),
    }
}

/// A copy that is being read, on one thread that may wait for the disk. A refresh waits until this
/// is dropped.
#[derive(Debug)]
pub struct CopyView<'a>(MutexGuard<'a, Option<Copier<DiskStore>>>);

impl CopyView<'_> {
    fn copier(&self) -> Result<&Copier<DiskStore>, CopyError> {
        self.0.as_ref().ok_or(CopyError::Failed)
    }

    /// The checkpoint that is there, with what proves it; `None` before the first refresh.
    #[must_use]
    pub fn copied(&self) -> Option<Copied> {
        self.0.as_ref().and_then(Copier::copied)
    }

    fn newest(&self) -> Sequence {
        self.0.as_ref().map_or(Sequence(0), Copier::newest)
    }

    /// The first `limit` rows of the service whose keys are `from` or greater, with their births.
    /// A next page begins at the last key and a zero byte.
    ///
    /// # Errors
    /// If the copy cannot be read.
    pub fn rows(&self, from: &[u8], limit: usize) -> Result<Vec<BornRow>, CopyError> {
        let space = self.copier()?.space();
        Ok(space.durable_rows(Area::Service, from, limit)?)
    }

    /// The rows of the service that changed since the checkpoint with this digest, in the order of
    /// their keys, by descending only where both differ. `None` if it is neither the newest nor the
    /// one before: all rows have to be read.
    ///
    /// # Errors
    /// If the copy cannot be read.
    pub fn changes_since(&self, root: &Digest) -> Result<Option<Changes<'_>>, CopyError> {
        Ok(self.copier()?.space().changes_since(root, Area::Service)?)
    }

    /// What proves, together with all rows of the service, the digest of the checkpoint.
    ///
    /// # Errors
    /// If the copy cannot be read.
    pub fn proof(&self) -> Result<Proof, CopyError> {
        Ok(self.copier()?.space().proof()?)
    }
}
