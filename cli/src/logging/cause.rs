//! Which events have one cause.
//!
//! Two lines have one cause if they come from the same place in the program and have the same text,
//! apart from the names of the object, file or moment: a failing reader meets one fault at
//! thousands of objects. So numeric fields do not count, and in text every word with a digit in it
//! equals any other, except a single digit, which is the number of a cloud or a replica.

use std::fmt::{self, Debug, Write as _};
use std::hash::{Hash, Hasher};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata};

/// The longest text that is compared and repeated, in bytes.
const TEXT_BYTES_MAX: usize = 300;

/// The place in the program that an event comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site(pub(super) &'static Metadata<'static>);

impl PartialEq for Site {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Site {}

impl Hash for Site {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.0, state);
    }
}

/// The text of an event, without the parts that differ between events of one cause.
pub(super) fn of(event: &Event<'_>) -> String {
    let mut text = EventText::default();
    event.record(&mut text);
    let (message, fields) = (text.message, text.fields);
    shape(&format!("{message}{fields}"))
}

#[derive(Default)]
struct EventText {
    message: Short,
    fields: Short,
}

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Text beyond the limit is not compared.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }

    fn record_u64(&mut self, _: &Field, _: u64) {}
    fn record_i64(&mut self, _: &Field, _: i64) {}
    fn record_u128(&mut self, _: &Field, _: u128) {}
    fn record_i128(&mut self, _: &Field, _: i128) {}
    fn record_f64(&mut self, _: &Field, _: f64) {}
}

/// A text that is truncated when it gets long.
#[derive(Default)]
struct Short(String);

impl fmt::Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if self.0.len() + c.len_utf8() > TEXT_BYTES_MAX {
                return Err(fmt::Error);
            }
            self.0.push(c);
        }
        Ok(())
    }
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text with `#` in place of each word that has a digit in it, except single digits.
fn shape(text: &str) -> String {
    let mut shape = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| !c.is_alphanumeric());
        let word = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
        let taken = match word {
            "" => {
                shape.push(first);
                first.len_utf8()
            }
            word if word.len() > 1 && word.contains(|c: char| c.is_ascii_digit()) => {
                shape.push('#');
                word.len()
            }
            word => {
                shape.push_str(word);
                word.len()
            }
        };
        rest = rest.get(taken..).unwrap_or_default();
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_one_object_does_not_make_a_cause() {
        let text = "cloud 1 (s3://b/v at http://h:9000): get 9f3a/07c1: HTTP 403, Ünicode 17";
        let wanted = "cloud 1 (#://b/v at http://h:#): get #/#: HTTP #, Ünicode #";
        assert_eq!(shape(text), wanted);
        assert_eq!(shape("get ab12"), shape("get 99f0"));
        assert_ne!(shape("cloud 1 fails"), shape("cloud 2 fails"));
        assert_eq!(shape(""), "");
    }

    #[test]
    fn a_long_text_is_cut_off_at_a_border_of_characters() {
        let mut short = Short::default();
        assert!(write!(short, "{}", "é".repeat(200)).is_err());
        assert_eq!(short.0.len(), TEXT_BYTES_MAX);
    }
}
