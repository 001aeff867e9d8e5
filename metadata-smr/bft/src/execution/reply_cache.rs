//! The last two replies of each lane.
//!
//! A lane may have two pending requests, so a client that lost its connection can ask again for two
//! at the most. Their replies are in two slots, a request's by the parity of its number, so that
//! storing one never rewrites the other.

use super::rows::ROW_VERSION;
use crate::identity::{Digest, RequestNumber, Sequence};
use crate::wire::limits::LANE_AHEAD_MAX;
use crate::wire::message::{OperationResult, Outcome};
use bytes::Bytes;

/// How a request with a given number is handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NumberStatus {
    /// It is the next one: run it.
    Next,
    /// It skips a number: it is passed over, and its client will send it again.
    Ahead,
    /// It skips more numbers than an honest client can be ahead of this replica.
    FarAhead,
    /// It was executed at this sequence, with this outcome.
    Answered(Sequence, Outcome),
    /// Another request with this number was executed.
    Conflict,
    /// It was executed too long ago to be answered.
    Superseded,
}

/// The standing of a request whose number is above that of the last one that ran.
pub(super) fn ahead(number: RequestNumber, last: RequestNumber) -> Option<NumberStatus> {
    match number.0.checked_sub(last.0)? {
        0 => None,
        1 => Some(NumberStatus::Next),
        2..=LANE_AHEAD_MAX => Some(NumberStatus::Ahead),
        _ => Some(NumberStatus::FarAhead),
    }
}

/// The row of a reply. It is written for every request, so it is encoded directly instead of
/// through a [`super::rows::ReplyRow`], as which it is read back.
pub(super) fn row(
    number: RequestNumber,
    request: &Digest,
    version: Sequence,
    results: &[OperationResult],
) -> Bytes {
    let length = |result: &OperationResult| 1 + result.as_ref().map_or(0, |it| 4 + it.len());
    let bytes = 1 + 8 + 32 + 8 + 4 + results.iter().map(length).sum::<usize>();
    let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    let mut row = Vec::with_capacity(bytes);
    row.push(ROW_VERSION);
    row.extend_from_slice(&number.0.to_le_bytes());
    row.extend_from_slice(&request.0);
    row.extend_from_slice(&version.0.to_le_bytes());
    row.extend_from_slice(&count(results.len()));
    for result in results {
        row.push(u8::from(result.is_some()));
        if let Some(result) = result {
            row.extend_from_slice(&count(result.len()));
            row.extend_from_slice(result);
        }
    }
    row.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execution::rows::{ReplyRow, encode};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_row_is_laid_out_as_it_is_read_back(
            (number, request, version) in any::<(u64, [u8; 32], u64)>(),
            results in any::<Vec<Option<Vec<u8>>>>(),
        ) {
            let (number, version) = (RequestNumber(number), Sequence(version));
            let request = Digest(request);
            let given = results.iter().map(|it| it.clone().map(Bytes::from));
            let given: Vec<OperationResult> = given.collect();
            let expected = ReplyRow { number, request, version, results };
            let row = row(number, &request, version, &given);
            prop_assert_eq!(row, encode(&expected).expect("it fits"));
        }
    }
}
