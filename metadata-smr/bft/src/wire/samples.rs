//! Messages with arbitrary content, for tests.

use super::message::{CloseSession, Message};
use super::{Envelope, Header, Unsigned};
use crate::identity::{SessionId, Signature};
use std::sync::Arc;

/// A request; the number distinguishes it from others.
pub(crate) fn body(number: u64) -> Arc<Envelope> {
    let session = SessionId(number);
    let message = Message::CloseSession(CloseSession { session });
    let unsigned = Unsigned::new(Header::default(), message);
    Arc::clone(unsigned.with_signature(Signature::default()).envelope())
}
