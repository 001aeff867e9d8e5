//! For how long a URL may be valid.
//!
//! Providers refuse a URL with a longer validity than they allow, but only when it is used, so it
//! is refused here when it is made. Times are whole seconds, as in all signatures.

use crate::error::StoreErrorKind;
use crate::remote::Refusal;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The maximum of S3's and Google's signatures, and of Azure's keys for signing.
pub(crate) const SEVEN_DAYS: u64 = 7 * 24 * 60 * 60;
/// The end of the year 9999: later times have no date in a signature.
const LAST_SECOND: u64 = 253_402_300_799;

/// A provider's maximum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maximum {
    /// The longest validity.
    pub(crate) seconds: u64,
    /// Which provider or credentials have it, for messages.
    pub(crate) of: &'static str,
}

/// The seconds from 1970 to a time; a time before 1970 counts as 1970.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// A length in the largest unit that gives a whole number.
fn words(seconds: u64) -> String {
    let units = [(24 * 60 * 60, "days"), (60 * 60, "hours"), (60, "minutes")];
    let whole = units
        .into_iter()
        .find(|(unit, _)| seconds >= *unit && seconds.is_multiple_of(*unit));
    let (unit, name) = whole.unwrap_or((1, "seconds"));
    match seconds / unit {
        1 => format!("1 {}", name.trim_end_matches('s')),
        count => format!("{count} {name}"),
    }
}

/// The whole seconds of a validity that begins at `now`.
///
/// # Errors
/// `Unsupported` if it is less than a second or more than the maximum.
pub(crate) fn valid_seconds(
    valid_for: Duration,
    now: u64,
    maximum: Option<Maximum>,
) -> Result<u64, Refusal> {
    let unsupported = |detail| Err(Refusal::new(StoreErrorKind::Unsupported, detail));
    let seconds = valid_for.as_secs();
    if seconds == 0 {
        let detail = "a link has to be valid for a second at least: ask for more";
        return unsupported(detail.to_owned());
    }
    if let Some(Maximum { seconds: most, of }) = maximum.filter(|it| seconds > it.seconds) {
        let (asked, most) = (words(seconds), words(most));
        return unsupported(format!(
            "a link cannot be valid for {asked}: {of} allows {most} at most; ask for {most} or \
             less, or use `quorumfs serve`, whose links may be valid for longer"
        ));
    }
    match now.checked_add(seconds) {
        Some(end) if end <= LAST_SECOND => Ok(seconds),
        _ => unsupported("a link cannot be valid beyond the year 9999: ask for less".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_validity_is_kept_or_refused_and_never_shortened() {
        let maximum = Maximum {
            seconds: SEVEN_DAYS,
            of: "the provider",
        };
        let valid = |seconds, maximum| valid_seconds(Duration::from_secs(seconds), 1_000, maximum);
        assert_eq!(valid(1, Some(maximum)), Ok(1));
        assert_eq!(valid(SEVEN_DAYS, Some(maximum)), Ok(SEVEN_DAYS));
        assert_eq!(valid(LAST_SECOND - 1_000, None), Ok(LAST_SECOND - 1_000));
        for (seconds, maximum, says) in [
            (0, None, "a second at least"),
            (SEVEN_DAYS + 1, Some(maximum), "604801 seconds"),
            (
                30 * 24 * 3600,
                Some(maximum),
                "valid for 30 days: the provider allows 7 days",
            ),
            (LAST_SECOND, None, "9999"),
            (u64::MAX, None, "9999"),
        ] {
            let refusal = valid(seconds, maximum).unwrap_err();
            assert_eq!(refusal.kind, StoreErrorKind::Unsupported);
            assert!(refusal.detail.contains(says), "{refusal}");
        }
        let moment = Duration::from_millis(999);
        assert!(valid_seconds(moment, 0, None).is_err());
    }

    #[test]
    fn lengths_are_shown_in_the_largest_whole_unit() {
        for (seconds, shown) in [
            (1, "1 second"),
            (90, "90 seconds"),
            (60, "1 minute"),
            (7_200, "2 hours"),
            (86_400, "1 day"),
            (604_500, "10075 minutes"),
        ] {
            assert_eq!(words(seconds), shown);
        }
    }
}
