//! The recording that is replayed, and the store that the core reads from it.
//!
//! A core reads in the middle of a step, where the store can only report a failed read. So the
//! error of a read is kept, and handled after the step.

use bytes::Bytes;
use quorumfs_bft::recording::{Entry, Recording, Start, Unreadable};
use quorumfs_bft::state::{StateError, Store};
use quorumfs_bft::step::Token;
use std::cell::RefCell;
use std::io::Read;
use std::rc::Rc;

/// Why a read failed.
pub(super) enum TapeError {
    /// The recording ends.
    Cut,
    /// The recording has something else here.
    Different(String),
    Unreadable(Unreadable),
}

pub(super) struct Tape<R> {
    recording: Recording<R>,
    /// An entry that was read ahead.
    next: Option<Entry>,
    pub(super) reads: u64,
    pub(super) error: Option<TapeError>,
}

impl<R: Read> Tape<R> {
    pub(super) const fn new(recording: Recording<R>) -> Self {
        Self {
            recording,
            next: None,
            reads: 0,
            error: None,
        }
    }

    pub(super) const fn start(&self) -> &Start {
        self.recording.start()
    }

    pub(super) fn take(&mut self) -> Result<Option<Entry>, Unreadable> {
        match self.next.take() {
            Some(entry) => Ok(Some(entry)),
            None => self.recording.next_entry(),
        }
    }

    /// The next record of the recorded journal, if there is one more.
    pub(super) fn found(&mut self) -> Result<Option<(Token, Bytes)>, Unreadable> {
        Ok(match self.take()? {
            Some(Entry::JournalRecord { token, record }) => Some((token, record)),
            other => {
                self.next = other;
                None
            }
        })
    }

    fn read(&mut self, wanted: &[u8]) -> Result<Result<Option<Bytes>, String>, TapeError> {
        match self.take() {
            Ok(Some(Entry::Read { key, found })) if key == wanted => {
                self.reads += 1;
                Ok(found)
            }
            Ok(Some(other)) => {
                let (wanted, other) = (
                    super::description::key(wanted),
                    super::description::entry(&other),
                );
                let what = format!("the replay reads {wanted}, the recording has {other}");
                Err(TapeError::Different(what))
            }
            Ok(None) => Err(TapeError::Cut),
            Err(error) => Err(TapeError::Unreadable(error)),
        }
    }
}

/// The rows of a recording, each returned when it is read.
pub(super) struct Rows<R>(pub(super) Rc<RefCell<Tape<R>>>);

impl<R: Read> Store for Rows<R> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let failed = |reason: String| StateError::Store {
            doing: "reading a row",
            reason,
        };
        let mut tape = self.0.borrow_mut();
        if tape.error.is_none() {
            match tape.read(key) {
                Ok(found) => return found.map_err(failed),
                Err(error) => tape.error = Some(error),
            }
        }
        Err(failed("the recording has no such read".to_owned()))
    }
}
