//! The operations of one request, and the space for their results.
//!
//! Their results are independent; an operation whose result does not fit has no effect.

use super::delivery::Run;
use super::rows::SessionRow;
use super::{members, session};
use crate::checkpoint::CheckpointAnswer;
use crate::service::{Caller, Service};
use crate::state::{Area, StateError, Store};
use crate::wire::limits::RESULTS_BYTES_MAX;
use crate::wire::message::{OperationResult, Request, RequestOperation};
use bytes::Bytes;

/// The least space for results in which a watch, or the wish for a checkpoint, is still answered;
/// its answer takes less.
const WATCH_ANSWER_ROOM: usize = 64;

impl<S: Service, D: Store> Run<'_, S, D> {
    pub(super) fn run_operations(
        &mut self,
        request: &Request,
        row: &SessionRow,
    ) -> Result<Vec<OperationResult>, StateError> {
        let caller = session::caller(request.session, row);
        let mut room = RESULTS_BYTES_MAX;
        let mut results = Vec::with_capacity(request.operations.len());
        for operation in &request.operations {
            let result = match operation {
                RequestOperation::Execute(bytes) => self.execute_one(&caller, bytes, room)?,
                RequestOperation::Administer(bytes) => {
                    let rows = self.space.view(Area::Service);
                    let decided = self.service.administers(&rows, &row.principal)?;
                    let mut txn = self.space.begin(Area::Library, self.context.sequence);
                    let (who, sequence) = ((&row.principal, decided), self.context.sequence);
                    let done = members::administer(&mut txn, bytes, who, sequence)?;
                    let (answer, ends) = done;
                    txn.commit();
                    self.done.ends_epoch |= ends;
                    (answer.len() <= room).then_some(answer)
                }
                RequestOperation::Query(bytes) => {
                    let view = self.space.view(Area::Service);
                    let answer =
                        self.service
                            .read_in_order(&view, &self.context, &caller, bytes)?;
                    (answer.len() <= room).then_some(answer)
                }
                RequestOperation::Watch(_) | RequestOperation::Unwatch(_)
                    if room < WATCH_ANSWER_ROOM =>
                {
                    None
                }
                RequestOperation::Watch(what) => {
                    let who = (&caller, self.context.sequence);
                    let state = (&mut *self.space, &mut self.clock);
                    let answer = self.watches.watch(self.service, state, who, what)?;
                    Some(answer.encode())
                }
                RequestOperation::Checkpoint if room < WATCH_ANSWER_ROOM => None,
                RequestOperation::Checkpoint => {
                    let rows = self.space.view(Area::Service);
                    let may = self.service.may_copy(&rows, &row.principal)?;
                    self.done.checkpoint |= may;
                    let answer = match may {
                        true => CheckpointAnswer::At(self.context.sequence),
                        false => CheckpointAnswer::Refused,
                    };
                    Some(answer.encode())
                }
                RequestOperation::Unwatch(watch) => {
                    let mut txn = self.space.begin(Area::Library, self.context.sequence);
                    let clock = &mut self.clock;
                    let session = caller.session;
                    let answer = self.watches.unwatch(&mut txn, clock, session, *watch)?;
                    txn.commit();
                    Some(answer.encode())
                }
            };
            room -= result.as_ref().map_or(0, |bytes| bytes.len());
            results.push(result);
        }
        Ok(results)
    }

    /// `None`, without any write, if the answer does not fit into `room`.
    fn execute_one(
        &mut self,
        caller: &Caller,
        operation: &Bytes,
        room: usize,
    ) -> Result<Option<Bytes>, StateError> {
        let mut txn = self.space.begin(Area::Service, self.context.sequence);
        let answer = self
            .service
            .execute(&mut txn, &self.context, caller, operation)?;
        if answer.len() > room {
            return Ok(None);
        }
        txn.commit();
        Ok(Some(answer))
    }
}
