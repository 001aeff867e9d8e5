//! Constructing replies.

use super::rows::SessionRow;
use crate::identity::{Digest, Lane, RequestNumber, Sequence, SessionId};
use crate::wire::message::{Outcome, Reply, Request};

/// The answer to a request of a session.
pub(super) fn answer(
    request: &Request,
    digest: Digest,
    version: Sequence,
    outcome: Outcome,
) -> Reply {
    Reply {
        session: request.session,
        lane: request.lane,
        number: request.number,
        request: digest,
        version,
        outcome,
    }
}

/// The answer to an opening or a closing.
pub(super) fn session_answer(
    session: SessionId,
    digest: Digest,
    version: Sequence,
    outcome: Outcome,
) -> Reply {
    Reply {
        session,
        lane: Lane(0),
        number: RequestNumber(0),
        request: digest,
        version,
        outcome,
    }
}

/// The answer to an opening of a session that is open.
pub(super) fn answer_open(digest: Digest, id: SessionId, row: &SessionRow) -> Reply {
    let outcome = Outcome::SessionOpened {
        session: id,
        credit: row.credit,
    };
    session_answer(SessionId(0), digest, row.opened, outcome)
}
