//! How safe what was written is before it is committed: the tiers, and what the journal is told.
//!
//! ```text
//! tier      close and fsync return when it is   lost with
//! memory    in this process                     this process
//! local     in the journal on this host's disk  this host's disk
//! clouds    committed, on w = k + f clouds      more than f clouds
//! ```
//!
//! The tier is the mount's, unless the file has one of its own ([`tier`](super::extended::tier)).
//!
//! At every tier the content goes on to the clouds in the background, and names are ordered at
//! once. At `local`, whatever waits in memory waits in the journal as well:
//!
//! * A write is journalled with what it does to the file, under the file's lock, so that the
//!   journal tells it in the order in which readers see it.
//! * **Before a commit is ordered**, the journal says durably that it will be. After a crash nobody
//!   need guess then whether a file that has changed was changed by us.
//! * **After it**, the journal says that what went is void, and what the file is now. It may take
//!   its time with that; but before anything else is ordered that changes the content of the file
//!   or its times, that is durable too ([`Inner::flush_settled`]).
//! * **rename, link and unlink of one of several names wait for the commit** of what the file
//!   holds, at every tier. The journal could keep the content over a crash; but the new name is
//!   seen by everybody at once, and the old content that it replaces is gone for good. If this
//!   host never came back, or only before it does, a name would stand there without its bytes.
//! * **A mount that was taken over keeps its journal**: what waits there is put in place by the
//!   next mount from here, or rescued if somebody else has changed the file since ([`replay`]).
//!
//! * **What waits of a file is in the journal from its first record on**, until it is settled,
//!   whatever the file's tier becomes meanwhile: a replay that knew only the older ones of two
//!   writes would lay them over the newer.
//! * **Or none of it is** (`unkept`): of a file that became `local` while something waited that the
//!   journal has not, and of what is first written while the journal's disk is below its floor.
//!   Close and fsync wait for the commit then, and so does the file's way back into the journal: a
//!   replay that knew only the newer ones of two writes would show what never was.
//!
//! Below the floor commits make room in the journal, but perhaps not on the disk, which others have
//! filled: writers wait for the commit of what the journal has of their file, and no longer.
//!
//! If the journal fails, `local` is `clouds`: what waits is in memory, and close and fsync wait for
//! its commit.
//!
//! [`replay`]: super::replay

use super::VfsError;
use super::clock;
use super::file_system::Inner;
use super::node::{Departure, Node, State};
use crate::journal::{Entry, Ground, Journal, Record, Sequence, WRITE_BYTES_MAX};
use bytes::Bytes;
use quorumfs_metadata::attributes::Attributes;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What close and fsync wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tier {
    /// Nothing: what was written may be lost with this process, until it was committed.
    Memory,
    /// The journal on this host. Without one, as [`Tier::Clouds`].
    Local,
    /// The commit, after w clouds have acknowledged.
    #[default]
    Clouds,
}

impl Tier {
    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Local => "local",
            Self::Clouds => "clouds",
        }
    }

    /// The one of that name.
    #[must_use]
    pub fn named(name: &[u8]) -> Option<Self> {
        [Self::Memory, Self::Local, Self::Clouds]
            .into_iter()
            .find(|tier| tier.name().as_bytes() == name)
    }
}

impl Inner {
    /// What close and fsync of the file wait for.
    pub(crate) fn tier_of(&self, state: &State) -> Tier {
        state.tier().unwrap_or(self.options.tier)
    }

    /// The journal, if what is written goes there.
    fn kept_in(&self, state: &State) -> Option<&Journal> {
        // Nobody can see what is written to a deleted file after a crash.
        let journal = self.journal.as_deref().filter(|_| !state.unlinked)?;
        let begins = || !state.unkept && !journal.is_below_floor();
        let wanted = state.kept.is_some() || (self.tier_of(state) == Tier::Local && begins());
        wanted.then_some(journal)
    }

    /// The journal, if what is written to the file goes there and it has no room for more.
    pub(crate) fn full_journal(&self, node: &Node) -> Option<&Journal> {
        let journal = self.kept_in(&node.state())?;
        (!journal.has_space()).then_some(journal)
    }

    pub(crate) fn journal_is_pressed(&self) -> bool {
        self.journal.as_deref().is_some_and(Journal::is_pressed)
    }

    fn keep(&self, node: &Node, state: &mut State, entry: Entry) {
        let Some(journal) = self.kept_in(state) else {
            state.unkept = true;
            return;
        };
        if state.kept.is_none() {
            journal.push(Entry::from(Record::Stands {
                inode: node.inode,
                through: Sequence(0),
                ground: Ground::of(&state.base),
            }));
        }
        let pushed = journal.push(entry);
        state.unkept |= pushed.is_none();
        state.kept = pushed.or(state.kept);
    }

    /// Takes written bytes in, here and in the journal.
    pub(crate) fn take_in(&self, node: &Node, state: &mut State, offset: u64, data: &Bytes) {
        let mtime = clock::now();
        state.dirty.write(offset, data);
        state.told = false;
        self.room_known.wrote(data.len() as u64);
        state.pending.mtime = Some(mtime);
        state.pending.changed = Some(self.metadata.agreed(mtime));
        state.wait_for_commit();
        if self.kept_in(state).is_none() {
            state.unkept = true;
            return;
        }
        let (mut at, mut rest) = (offset, data.clone());
        while !rest.is_empty() {
            let record = Record::Write {
                inode: node.inode,
                offset: at,
                mtime,
            };
            let bytes = rest.split_to(rest.len().min(WRITE_BYTES_MAX));
            at = at.saturating_add(bytes.len() as u64);
            self.keep(node, state, Entry { record, bytes });
        }
    }

    /// Journals attributes that ride with the next commit.
    pub(crate) fn keep_riding(&self, node: &Node, state: &mut State) {
        if state.pending.is_empty() {
            return;
        }
        let record = Record::Attributes {
            inode: node.inode,
            mode: state.pending.mode,
            atime: state.pending.atime,
            mtime: state.pending.mtime,
        };
        self.keep(node, state, Entry::from(record));
    }

    /// An operation of ours changed the inode, and not its content.
    pub(crate) fn keep_ground(&self, node: &Node, state: &State) {
        if let (Some(journal), Some(_)) = (&self.journal, state.kept) {
            journal.push(Entry::from(Record::Stands {
                inode: node.inode,
                through: Sequence(0),
                ground: Ground::of(&state.base),
            }));
        }
    }

    /// An operation of ours that changes the inode is about to go out.
    pub(crate) fn tell_of_change(&self, node: &Node) {
        let state = node.state();
        if let (Some(journal), Some(_)) = (&self.journal, state.kept) {
            journal.push(Entry::from(Record::Ordering {
                inode: node.inode,
                version: state.base.version,
                mtime: None,
            }));
        }
    }

    /// Makes durable that a commit is about to be ordered.
    pub(crate) async fn tell_of_commit(&self, node: &Node, departure: &Departure) {
        let Some(journal) = &self.journal else {
            return;
        };
        if departure.through.is_none() {
            // What goes now is not in the journal; that what went before is void has to be.
            let settled = node.state().settled.take();
            if let Some(settled) = settled {
                let _ = journal.synced(settled).await;
            }
            return;
        }
        let version = node.state().base.version;
        let told = journal.push(Entry::from(Record::Ordering {
            inode: node.inode,
            version,
            mtime: departure.pending.mtime,
        }));
        if let Some(told) = told {
            // If that fails the journal is broken, and nobody relies on it any more.
            let _ = journal.synced(told).await;
        }
    }

    /// What departed is in the clouds, and the file as `attributes` say.
    pub(crate) fn settle(
        &self,
        state: &mut State,
        through: Option<Sequence>,
        attributes: &Attributes,
    ) {
        let (Some(journal), Some(through)) = (&self.journal, through) else {
            return;
        };
        state.settled = journal.push(Entry::from(Record::Stands {
            inode: attributes.inode,
            through,
            ground: Ground::of(attributes),
        }));
        if state.kept == Some(through) {
            state.kept = None;
        }
    }

    /// Commits what the file has waiting, and has the journal say so durably; the caller holds
    /// `content` and is about to change it.
    pub(crate) async fn flush_settled(self: &Arc<Self>, node: &Arc<Node>) -> Result<(), VfsError> {
        self.flush_locked(node).await?;
        let settled = node.state().settled.take();
        if let (Some(journal), Some(settled)) = (&self.journal, settled) {
            let _ = journal.synced(settled).await;
        }
        Ok(())
    }

    /// What waits will never be committed, and nobody minds.
    pub(crate) fn give_up(&self, node: &Node, state: &mut State) {
        self.forget_kept(node, state);
        state.give_up(None);
        self.book(state);
    }

    /// What the journal has of the file counts no more.
    pub(crate) fn forget_kept(&self, node: &Node, state: &mut State) {
        if let (Some(journal), Some(_)) = (&self.journal, state.kept.take()) {
            journal.push(Entry::from(Record::GivenUp { inode: node.inode }));
        }
    }

    /// What waits can never be committed through this mount; whoever asks is told.
    pub(crate) fn lose(
        &self,
        node: &Node,
        state: &mut State,
        departure: &Departure,
        error: &VfsError,
    ) {
        let inode = node.inode;
        let journalled = self.journal.as_ref().filter(|it| it.usable().is_ok());
        let kept = state.kept.is_some() && journalled.is_some();
        // Only what the end of the session takes from us may be put in place by another one.
        let (errno, reason) = (error.errno(), error.to_string());
        let told = if kept && matches!(error, VfsError::Fenced) {
            tracing::error!(%inode, %error, "written data stays in the journal");
            state.kept = None;
            VfsError::LeftInJournal { errno, reason }
        } else {
            if departure.end.is_some() {
                tracing::error!(%inode, %error, "written data is lost");
                self.files_lost.fetch_add(1, Ordering::Relaxed);
            }
            self.forget_kept(node, state);
            VfsError::Lost { errno, reason }
        };
        state.give_up(Some(told));
    }

    /// Makes what the file has waiting as safe as its tier says, and reports what was given up
    /// earlier.
    pub(crate) async fn make_safe(self: &Arc<Self>, node: &Arc<Node>) -> Result<(), VfsError> {
        let tier = self.tier_of(&node.state());
        self.make_safe_at(node, tier).await
    }

    /// As [`Inner::make_safe`], at a tier of the caller's.
    pub(crate) async fn make_safe_at(
        self: &Arc<Self>,
        node: &Arc<Node>,
        tier: Tier,
    ) -> Result<(), VfsError> {
        let (kept, nothing, unkept, full, written, owner) = {
            let state = node.state();
            let written = state.holds_written() && !state.unlinked;
            let nothing = state.unlinked || !state.is_waiting();
            (
                state.kept,
                nothing,
                state.unkept && !nothing,
                state.full.is_some(),
                written,
                state.base.uid,
            )
        };
        let safe = match (tier, &self.journal, kept) {
            (Tier::Memory, ..) => true,
            // What was written after it failed is not in it.
            (Tier::Local, Some(journal), Some(kept)) if !unkept => {
                journal.synced(kept).await.is_ok() && journal.usable().is_ok()
            }
            (Tier::Local, Some(journal), None) => nothing && journal.usable().is_ok(),
            _ => false,
        };
        // What a quota may refuse later is not promised.
        let safe = safe && !full && (!written || self.is_sure_of_room(owner, 0).await);
        if !safe {
            return self.flush_file(node).await;
        }
        let mut state = node.state();
        match state.lost.clone() {
            Some(lost) => Err(lost),
            None => {
                state.promised = state.holds_written();
                Ok(())
            }
        }
    }
}
