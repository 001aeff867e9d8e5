//! Which answer the conditions of a request ask for: RFC 9110, sections 13 and 14.
//!
//! * Conditions are looked at in the order of section 13.2.2, for `GET` and `HEAD`.
//! * Of ranges one is served. Several, other units and nonsense are ignored, as section 14.2
//!   allows, and give the whole: a client that asked for two ranges gets bytes that it can use.
//! * `If-Range` with a date is never fulfilled: a file can change twice within its second.
//! * Values are bytes of the client's; each is either understood or ignored, never an error.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The conditions of a request, as they came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conditions<'a> {
    /// `If-Match`
    pub if_match: Option<&'a [u8]>,
    /// `If-None-Match`
    pub if_none_match: Option<&'a [u8]>,
    /// `If-Modified-Since`
    pub if_modified_since: Option<&'a [u8]>,
    /// `If-Unmodified-Since`
    pub if_unmodified_since: Option<&'a [u8]>,
    /// `If-Range`
    pub if_range: Option<&'a [u8]>,
    /// `Range`; not for `HEAD`.
    pub range: Option<&'a [u8]>,
}

/// What there is.
#[derive(Clone, Debug)]
pub struct Representation {
    /// Its entity tag, with quotes: strong.
    pub tag: String,
    /// When it was changed last, in seconds since 1970.
    pub modified: i64,
    /// Its length in bytes.
    pub length: u64,
}

/// Which answer is right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RightAnswer {
    /// All of it: 200.
    Whole,
    /// These bytes, at least one, all of them inside: 206.
    Part(Range<u64>),
    /// The client has it: 304.
    NotModified,
    /// A condition is not fulfilled: 412.
    Failed,
    /// No byte of the range exists: 416.
    OutOfRange,
}

/// Seconds since 1970 as a time; before that is 1970.
#[must_use]
pub fn time(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0).min(LAST_SECOND))
}

/// The end of the year 9999, the last that a date in a header can say.
const LAST_SECOND: u64 = 253_402_300_799;

/// The time that a header has.
fn date(value: &[u8]) -> Option<SystemTime> {
    httpdate::parse_http_date(std::str::from_utf8(value).ok()?.trim()).ok()
}

/// Whether a list of entity tags has this one. `weakly`: a tag that is marked as weak counts.
fn has_tag(list: &[u8], tag: &str, weakly: bool) -> bool {
    let Ok(list) = std::str::from_utf8(list) else {
        return false;
    };
    list.trim() == "*"
        || list.split(',').map(str::trim).any(|one| {
            let strong = one.strip_prefix("W/").filter(|_| weakly).unwrap_or(one);
            strong == tag
        })
}

/// The answer to a request.
#[must_use]
pub fn right_answer(asked: &Conditions<'_>, there: &Representation) -> RightAnswer {
    let modified = time(there.modified);
    let since = |value: Option<&[u8]>| value.and_then(date);
    if let Some(tags) = asked.if_match {
        if !has_tag(tags, &there.tag, false) {
            return RightAnswer::Failed;
        }
    } else if since(asked.if_unmodified_since).is_some_and(|at| modified > at) {
        return RightAnswer::Failed;
    }
    if let Some(tags) = asked.if_none_match {
        if has_tag(tags, &there.tag, true) {
            return RightAnswer::NotModified;
        }
    } else if since(asked.if_modified_since).is_some_and(|at| modified <= at) {
        return RightAnswer::NotModified;
    }
    let Some(range) = asked.range else {
        return RightAnswer::Whole;
    };
    let same = asked
        .if_range
        .is_none_or(|tag| tag.trim_ascii() == there.tag.as_bytes());
    if !same {
        return RightAnswer::Whole;
    }
    match parse(range) {
        None => RightAnswer::Whole,
        Some(wanted) => match wanted.within(there.length) {
            Some(part) => RightAnswer::Part(part),
            None => RightAnswer::OutOfRange,
        },
    }
}

/// One range as it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WrittenRange {
    /// From here to the end.
    From(u64),
    /// From the first to the last one, which is included.
    Between(u64, u64),
    /// The last so many.
    Last(u64),
}

impl WrittenRange {
    fn within(self, length: u64) -> Option<Range<u64>> {
        let range = match self {
            Self::From(first) => first..length,
            Self::Between(first, last) => first..last.saturating_add(1).min(length),
            Self::Last(count) => length.saturating_sub(count)..length,
        };
        (!range.is_empty()).then_some(range)
    }
}

/// The one range of a header; `None` for anything else.
fn parse(value: &[u8]) -> Option<WrittenRange> {
    let value = std::str::from_utf8(value).ok()?.trim();
    let (unit, set) = value.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = set.trim().split_once('-')?;
    let range = match (number(first)?, number(last)?) {
        (Some(first), None) => WrittenRange::From(first),
        (Some(first), Some(last)) if first <= last => WrittenRange::Between(first, last),
        (None, Some(count)) => WrittenRange::Last(count),
        _ => return None,
    };
    Some(range)
}

/// Digits as a number, nothing as no number; `None` for anything else. A number that does not fit
/// is behind every end.
fn number(text: &str) -> Option<Option<u64>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(None);
    }
    let digits = text.bytes().all(|it| it.is_ascii_digit());
    digits.then(|| Some(text.parse().unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn there(length: u64) -> Representation {
        Representation {
            tag: "\"a1\"".to_owned(),
            modified: 784_111_777,
            length,
        }
    }

    /// The example of RFC 9110, section 5.6.7.
    const THEN: &[u8] = b"Sun, 06 Nov 1994 08:49:37 GMT";
    const EARLIER: &[u8] = b"Sun, 06 Nov 1994 08:49:36 GMT";

    fn ranged(range: &str, length: u64) -> RightAnswer {
        let asked = Conditions {
            range: Some(range.as_bytes()),
            ..Conditions::default()
        };
        right_answer(&asked, &there(length))
    }

    #[test]
    fn one_range_is_served() {
        use RightAnswer::{OutOfRange, Part, Whole};
        for (range, expected) in [
            ("bytes=0-0", Part(0..1)),
            ("bytes=0-499", Part(0..500)),
            ("bytes=500-", Part(500..1000)),
            ("bytes=-1", Part(999..1000)),
            ("bytes=-2000", Part(0..1000)),
            ("bytes=999-5000", Part(999..1000)),
            ("BYTES = 1 - 2 ", Part(1..3)),
            ("bytes=0-99999999999999999999999999", Part(0..1000)),
            ("bytes=1000-", OutOfRange),
            ("bytes=-0", OutOfRange),
            ("bytes=99999999999999999999999999-", OutOfRange),
            (
                "bytes=18446744073709551615-18446744073709551615",
                OutOfRange,
            ),
            ("bytes=0-1,5-6", Whole),
            ("bytes=5-1", Whole),
            ("bytes=-", Whole),
            ("bytes=", Whole),
            ("bytes=a-b", Whole),
            ("bytes=+1-2", Whole),
            ("bytes=--1", Whole),
            ("lines=1-2", Whole),
            ("", Whole),
        ] {
            assert_eq!(ranged(range, 1000), expected, "{range}");
        }
        assert_eq!(ranged("bytes=0-", 0), OutOfRange);
        assert_eq!(ranged("bytes=-5", 0), OutOfRange);
    }

    #[test]
    fn conditions_come_before_ranges_and_tags_before_dates() {
        let range = Some(&b"bytes=0-1"[..]);
        let none = Conditions::default();
        let answer = |asked| right_answer(&asked, &there(10));
        let tag = |tag: &'static str| Some(tag.as_bytes());
        for (tags, expected) in [
            ("\"a1\"", RightAnswer::NotModified),
            ("W/\"a1\"", RightAnswer::NotModified),
            ("\"x\", \"a1\"", RightAnswer::NotModified),
            ("*", RightAnswer::NotModified),
            ("\"x\"", RightAnswer::Part(0..2)),
            ("a1", RightAnswer::Part(0..2)),
        ] {
            let asked = Conditions {
                if_none_match: tag(tags),
                range,
                ..none
            };
            assert_eq!(answer(asked), expected, "{tags}");
        }
        let stale = Conditions {
            if_none_match: tag("\"x\""),
            if_modified_since: Some(THEN),
            ..none
        };
        assert_eq!(answer(stale), RightAnswer::Whole);
        for (since, expected) in [
            (THEN, RightAnswer::NotModified),
            (EARLIER, RightAnswer::Whole),
            (b"yesterday", RightAnswer::Whole),
        ] {
            let asked = Conditions {
                if_modified_since: Some(since),
                ..none
            };
            assert_eq!(answer(asked), expected);
        }
        for (tags, expected) in [
            ("\"a1\"", RightAnswer::Whole),
            ("*", RightAnswer::Whole),
            ("W/\"a1\"", RightAnswer::Failed),
            ("\"x\"", RightAnswer::Failed),
        ] {
            let asked = Conditions {
                if_match: tag(tags),
                ..none
            };
            assert_eq!(answer(asked), expected, "{tags}");
        }
        let asked = Conditions {
            if_unmodified_since: Some(EARLIER),
            ..none
        };
        assert_eq!(answer(asked), RightAnswer::Failed);
    }

    #[test]
    fn a_part_of_another_version_is_never_served() {
        for (if_range, expected) in [
            (&b"\"a1\""[..], RightAnswer::Part(0..2)),
            (b"\"x\"", RightAnswer::Whole),
            (b"W/\"a1\"", RightAnswer::Whole),
            (THEN, RightAnswer::Whole),
        ] {
            let asked = Conditions {
                if_range: Some(if_range),
                range: Some(b"bytes=0-1"),
                ..Conditions::default()
            };
            assert_eq!(right_answer(&asked, &there(10)), expected);
        }
    }

    proptest! {
        #[test]
        fn a_part_lies_inside(first: u64, last: u64, length: u64, form in 0..3) {
            let range = match form {
                0 => format!("bytes={first}-{last}"),
                1 => format!("bytes={first}-"),
                _ => format!("bytes=-{last}"),
            };
            match ranged(&range, length) {
                RightAnswer::Part(part) => {
                    prop_assert!(part.start < part.end && part.end <= length);
                    if form < 2 {
                        prop_assert_eq!(part.start, first);
                    }
                }
                RightAnswer::OutOfRange => {
                    prop_assert!(first >= length || (form == 2 && (last == 0 || length == 0)));
                }
                RightAnswer::Whole => prop_assert!(form == 0 && first > last),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
