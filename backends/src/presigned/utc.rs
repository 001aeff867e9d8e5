//! The date of a moment, for signatures.
//!
//! Google writes `20190201T090000Z` and Azure `2019-02-01T09:00:00Z`; neither provider's SDK gives
//! the form that the other needs. The calendar is counted in years that begin in March, so that the
//! leap day is the last of its year, and in eras of 400 years, which all have as many days.

use std::fmt;

const DAY_SECONDS: u64 = 24 * 60 * 60;
/// From the first of March of the year 0 to the first of January 1970.
const DAYS_TO_1970: u64 = 719_468;
const ERA_DAYS: u64 = 146_097;

/// A moment of the years 1970 to 9999 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Utc {
    year: u64,
    month: u64,
    day: u64,
    second_of_day: u64,
}

impl Utc {
    /// The moment so many seconds after the beginning of 1970.
    pub(crate) fn from_unix(seconds: u64) -> Self {
        let days = seconds / DAY_SECONDS + DAYS_TO_1970;
        let (era, day_of_era) = (days / ERA_DAYS, days % ERA_DAYS);
        let leap_days = day_of_era / 1_460 + day_of_era / 146_096;
        let year_of_era = (day_of_era + day_of_era / 36_524 - leap_days) / 365;
        let begin_of_year = year_of_era * 365 + year_of_era / 4 - year_of_era / 100;
        let day_of_year = day_of_era - begin_of_year;
        // Five months from March have 153 days, as have the five after them.
        let month = (day_of_year * 5 + 2) / 153;
        let (later_year, calendar_month) = match month {
            0..=9 => (0, month + 3),
            _ => (1, month - 9),
        };
        Self {
            year: era * 400 + year_of_era + later_year,
            month: calendar_month,
            day: day_of_year - (month * 153 + 2) / 5 + 1,
            second_of_day: seconds % DAY_SECONDS,
        }
    }

    fn time(self) -> (u64, u64, u64) {
        let seconds = self.second_of_day;
        (seconds / 3_600, seconds / 60 % 60, seconds % 60)
    }

    /// As `20190201`.
    #[cfg(feature = "google")]
    pub(crate) fn date(self) -> String {
        format!("{:04}{:02}{:02}", self.year, self.month, self.day)
    }

    /// As `20190201T090000Z`.
    #[cfg(feature = "google")]
    pub(crate) fn compact(self) -> String {
        let (hour, minute, second) = self.time();
        format!("{}T{hour:02}{minute:02}{second:02}Z", self.date())
    }
}

/// As `2019-02-01T09:00:00Z`.
impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hour, minute, second) = self.time();
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)?;
        write!(f, "T{hour:02}:{minute:02}:{second:02}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_their_dates() {
        for (seconds, shown) in [
            (0, "1970-01-01T00:00:00Z"),
            (784_111_777, "1994-11-06T08:49:37Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(Utc::from_unix(seconds).to_string(), shown);
        }
    }

    #[test]
    fn each_day_follows_the_one_before() {
        let mut before = Utc::from_unix(0);
        for day in 1..200_000 {
            let this = Utc::from_unix(day * DAY_SECONDS);
            let next_day = this.month == before.month && this.day == before.day + 1;
            let next_month = this.month == before.month + 1 && this.day == 1;
            let next_year = this.year == before.year + 1 && (this.month, this.day) == (1, 1);
            assert!(next_day || next_month || next_year, "{before} {this}");
            before = this;
        }
    }

    #[cfg(feature = "google")]
    #[test]
    fn the_compact_form_has_no_separators() {
        let moment = Utc::from_unix(1_549_011_600);
        assert_eq!(
            (moment.date(), moment.compact()),
            ("20190201".into(), "20190201T090000Z".into())
        );
    }
}
