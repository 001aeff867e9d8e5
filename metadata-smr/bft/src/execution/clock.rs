//! The agreed clock, and the clock that leases run on.
//!
//! A batch carries its time. The lease clock advances by min(Δ time, 1 s) with each batch, so that
//! hours without a batch (an outage) move it by a second at the most: no lease expires that its
//! holder could not renew.

use super::rows::{CLOCK_KEY, ClockRow, decode, encode};
use crate::identity::{Nanos, Sequence, SessionId, Time};
use crate::service::Context;
use crate::state::{StateError, Txn, View};
use crate::wire::limits::LEASE_STEP_MAX;

/// The position of execution; at genesis all zero.
///
/// # Errors
/// If the store fails.
pub fn read(view: &View<'_>) -> Result<ClockRow, StateError> {
    match view.get(CLOCK_KEY)? {
        Some(bytes) => decode(CLOCK_KEY, &bytes),
        None => Ok(ClockRow::default()),
    }
}

/// Writes the beginning, with sessions whose ids come after `last_session`.
pub(super) fn begin(txn: &mut Txn<'_>, last_session: SessionId) -> Result<(), StateError> {
    let clock = ClockRow {
        last_session,
        ..ClockRow::default()
    };
    write(txn, &clock)
}

pub(super) fn write(txn: &mut Txn<'_>, row: &ClockRow) -> Result<(), StateError> {
    txn.put(CLOCK_KEY, encode(row)?)
}

/// The clock after a batch of `time` at `sequence`, and the context that the service gets.
#[must_use]
pub fn advance(
    before: &ClockRow,
    sequence: Sequence,
    time: Time,
    behaviour_version: u32,
) -> (ClockRow, Context) {
    let step = if before.sequence == Sequence(0) {
        Nanos(0)
    } else {
        time.since(before.time).min(LEASE_STEP_MAX)
    };
    let lease_clock = before.lease_clock.plus(step);
    let after = ClockRow {
        sequence,
        time,
        lease_clock,
        ..*before
    };
    (
        after,
        Context {
            sequence,
            time,
            lease_clock,
            behaviour_version,
            short_of_space: false,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_moves_the_lease_clock_by_a_second_at_most() {
        let start = ClockRow {
            sequence: Sequence(7),
            time: Time(1_000),
            lease_clock: Time(50),
            ..ClockRow::default()
        };
        let short = Nanos::from_millis(300);
        let (next, context) = advance(&start, Sequence(8), Time(1_000).plus(short), 1);
        assert_eq!(next.lease_clock, Time(50).plus(short));
        assert_eq!(context.lease_clock, next.lease_clock);
        let (late, _) = advance(
            &next,
            Sequence(9),
            next.time.plus(Nanos::from_secs(86_400)),
            1,
        );
        assert_eq!(late.lease_clock, next.lease_clock.plus(Nanos::from_secs(1)));
    }

    #[test]
    fn the_first_batch_does_not_count_the_time_before_the_cluster_was_born() {
        let (first, _) = advance(&ClockRow::default(), Sequence(1), Time(u64::MAX / 2), 1);
        assert_eq!(first.lease_clock, Time(0));
    }
}
