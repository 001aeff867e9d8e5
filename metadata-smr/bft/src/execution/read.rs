//! Queries answered out of order, from the state as it is.
//!
//! The caller is the owner of an open session, as for an ordered query: the driver of the replica
//! has checked that the connection is that principal's own, so no principal learns more this way
//! than the order would tell it. Nothing is written, so a replica's reads leave no trace in its
//! state.

use super::{Executor, session};
use crate::identity::{Sequence, SessionId};
use crate::service::Service;
use crate::state::{Area, KeySpace, LastChange, StateError, Store};
use crate::wire::limits::{READ_ANSWERS_BYTES_MAX, READ_SHORT_BYTES};
use crate::wire::message::{AnswerBody, Answered, Read};
use crate::wire::signed_bytes::answer_digest;

impl<S: Service> Executor<S> {
    /// Whether the principal of this session, if it is open, may copy the state.
    ///
    /// # Errors
    /// If the store fails.
    pub fn may_copy<D: Store>(
        &self,
        space: &KeySpace<D>,
        session: SessionId,
    ) -> Result<bool, StateError> {
        let row = self.session_row(&space.view(Area::Library), session)?;
        let Some(row) = row else {
            return Ok(false);
        };
        let rows = space.view(Area::Service);
        self.service().may_copy(&rows, &row.principal)
    }

    /// Answers queries from the state after the batch at `applied`; `None` if the session is not
    /// open in it. With `in_full` long answers are given, and not only their digests.
    ///
    /// # Errors
    /// If the store fails.
    pub fn read<D: Store>(
        &self,
        space: &KeySpace<D>,
        read: &Read,
        applied: Sequence,
        in_full: bool,
    ) -> Result<Option<Vec<Answered>>, StateError> {
        let library = space.view(Area::Library);
        let Some(row) = self.session_row(&library, read.session)? else {
            return Ok(None);
        };
        let caller = session::caller(read.session, &row);
        let view = space.view(Area::Service);
        let mut room = READ_ANSWERS_BYTES_MAX;
        let mut answers = Vec::with_capacity(read.queries.len());
        for query in &read.queries {
            // Queries after an answer that was too long are not even looked up.
            let mut answered = Answered {
                version: Sequence(0),
                body: AnswerBody::NoRoom,
            };
            if room > 0 {
                let last = LastChange::of_state_after(applied);
                let bytes = self.service().read(&view.noting(&last), &caller, query)?;
                let fits = bytes.len() <= room;
                room = room.saturating_sub(bytes.len().max(1));
                if fits {
                    answered.version = last.sequence();
                    answered.body = if in_full || bytes.len() <= READ_SHORT_BYTES {
                        AnswerBody::Bytes(bytes)
                    } else {
                        AnswerBody::Digest(answer_digest(&bytes))
                    };
                }
            }
            answers.push(answered);
        }
        Ok(Some(answers))
    }
}
