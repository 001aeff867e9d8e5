//! Months of the Gregorian calendar in UTC, in which providers charge.

use crate::commands::files::date;
use quorumfs_gateway::cost::PartOfMonth;
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds of a day.
const DAY: u64 = 86_400;

/// A moment in a month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MonthSoFar {
    /// The month, such as `2026-11`.
    pub(super) name: String,
    /// How much of it is over.
    pub(super) over: PartOfMonth,
}

impl MonthSoFar {
    /// By this machine's clock.
    pub(super) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self::at(since.unwrap_or_default().as_secs())
    }

    /// At so many seconds since 1970.
    pub(super) fn at(seconds: u64) -> Self {
        let name = month(seconds);
        let days_before = (1..=31).take_while(|days| {
            let then = seconds.checked_sub(days * DAY);
            then.is_some_and(|then| month(then) == name)
        });
        let today = days_before.count() as u64;
        let days_after = (1..=31).take_while(|days| month(seconds + days * DAY) == name);
        let days = today + 1 + days_after.count() as u64;
        Self {
            name,
            over: PartOfMonth {
                seconds: today * DAY + seconds % DAY,
                of: days * DAY,
            },
        }
    }
}

fn month(seconds: u64) -> String {
    let date = date(i64::try_from(seconds).unwrap_or(i64::MAX / 2));
    date.chars().take(7).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_in_its_month() {
        // 2024-02-29 06:00, 2025-12-31 23:59:59, 2026-01-01 00:00.
        for (seconds, name, over, days) in [
            (1_709_186_400, "2024-02", 28 * DAY + DAY / 4, 29),
            (1_767_225_599, "2025-12", 31 * DAY - 1, 31),
            (1_767_225_600, "2026-01", 0, 31),
            (0, "1970-01", 0, 31),
        ] {
            let found = MonthSoFar::at(seconds);
            assert_eq!(found.name, name);
            assert_eq!((found.over.seconds, found.over.of), (over, days * DAY));
        }
    }
}
