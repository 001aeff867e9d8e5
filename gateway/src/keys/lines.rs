//! Secrets as text for people: labelled lines of grouped hexadecimal digits, each with a checksum
//! of its own, so that a typing slip is found in its line.
//!
//! ```text
//! quorumfs recovery kit, format 1
//! root            3f1c 09aa … 77e0 · 5d21
//! ```

use super::KeyError;
use std::fmt::Write as _;
use zeroize::Zeroizing;

/// Digits in a group.
const GROUP: usize = 4;
/// Bytes in one line of a longer value.
const LINE_BYTES: usize = 32;
/// The most lines of a text; longer texts are refused unread.
const LINES_MAX: usize = 4096;
/// The same of a volume card, which has all changes of people.
const CARD_LINES_MAX: usize = 4 << 20;

/// Writes a text.
pub(super) struct TextWriter {
    text: Zeroizing<String>,
}

impl TextWriter {
    pub(super) fn new(title: &str, format: u32) -> Self {
        Self {
            text: Zeroizing::new(format!("{title}, format {format}\n")),
        }
    }

    /// A line for people, which readers skip.
    pub(super) fn remark(&mut self, remark: &str) {
        let _ = writeln!(self.text, "# {remark}");
    }

    /// A labelled value, over as many lines as it takes.
    pub(super) fn value(&mut self, label: &str, value: &[u8]) {
        for chunk in value.chunks(LINE_BYTES) {
            let digits = Zeroizing::new(hex(chunk));
            let _ = write!(self.text, "{label:<14}");
            for (at, digit) in digits.chars().enumerate() {
                if at % GROUP == 0 {
                    self.text.push(' ');
                }
                self.text.push(digit);
            }
            let _ = writeln!(self.text, " : {}", check(label, chunk));
        }
    }

    pub(super) fn finish(self) -> Zeroizing<String> {
        self.text
    }
}

/// A parsed text: labels with their values, in order.
#[derive(Debug)]
pub(super) struct Lines {
    what: &'static str,
    format: u32,
    values: Vec<(String, Zeroizing<Vec<u8>>)>,
}

impl Lines {
    /// Reads a text that begins with `title`.
    pub(super) fn parse(what: &'static str, known: u32, text: &str) -> Result<Self, KeyError> {
        Self::parse_up_to(LINES_MAX, what, known, text)
    }

    /// The same of a volume card.
    pub(super) fn parse_card(what: &'static str, known: u32, text: &str) -> Result<Self, KeyError> {
        Self::parse_up_to(CARD_LINES_MAX, what, known, text)
    }

    fn parse_up_to(
        lines_max: usize,
        what: &'static str,
        known: u32,
        text: &str,
    ) -> Result<Self, KeyError> {
        let fail = |line: usize, reason: &str| KeyError::Text {
            what,
            line,
            reason: reason.into(),
        };
        let mut lines = text.lines().enumerate();
        let first = lines
            .next()
            .map(|(_, line)| line.trim())
            .unwrap_or_default();
        let format = first
            .strip_prefix(what)
            .and_then(|rest| rest.strip_prefix(", format "))
            .and_then(|number| number.parse::<u32>().ok())
            .ok_or_else(|| fail(1, &format!("it should begin with `{what}, format 1`")))?;
        if format > known {
            return Err(KeyError::Newer {
                what,
                found: format,
                known,
            });
        }
        let mut values: Vec<(String, Zeroizing<Vec<u8>>)> = Vec::new();
        for (index, line) in lines {
            let number = index.saturating_add(1);
            let line = line.trim();
            if index > lines_max {
                return Err(fail(number, "too many lines"));
            }
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (label, rest) = line
                .split_once(char::is_whitespace)
                .ok_or_else(|| fail(number, "a label and digits are expected"))?;
            let (digits, sum) = rest
                .rsplit_once(':')
                .ok_or_else(|| fail(number, "the checksum is missing"))?;
            let bytes = unhex(digits)
                .ok_or_else(|| fail(number, "pairs of hexadecimal digits are expected"))?;
            if check(label, &bytes) != sum.trim().to_ascii_lowercase() {
                return Err(fail(
                    number,
                    "the checksum does not match: look for a typing slip",
                ));
            }
            match values.last_mut() {
                Some((last, value)) if last == label => value.extend_from_slice(&bytes),
                _ => values.push((label.to_owned(), bytes)),
            }
        }
        Ok(Self {
            what,
            format,
            values,
        })
    }

    /// The format in its title, at most the newest known one.
    pub(super) fn format(&self) -> u32 {
        self.format
    }

    /// The value under `label`.
    pub(super) fn value(&self, label: &str) -> Result<&[u8], KeyError> {
        self.values
            .iter()
            .find(|(found, _)| found == label)
            .map(|(_, value)| value.as_slice())
            .ok_or_else(|| KeyError::Text {
                what: self.what,
                line: 0,
                reason: format!("the line `{label}` is missing"),
            })
    }

    /// The value under `label`, if it has the right length.
    pub(super) fn array<const N: usize>(&self, label: &str) -> Result<[u8; N], KeyError> {
        self.value(label)?.try_into().map_err(|_| KeyError::Text {
            what: self.what,
            line: 0,
            reason: format!("`{label}` should be {N} bytes long"),
        })
    }
}

fn check(label: &str, bytes: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("quorumfs 2026 line checksum");
    hasher.update(label.as_bytes());
    hasher.update(&[0]);
    hasher.update(bytes);
    let mut sum = [0; 2];
    hasher.finalize_xof().fill(&mut sum);
    hex(&sum)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().saturating_mul(2));
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The bytes of pairs of digits. All memory is allocated first: a growing vector leaves copies of
/// secrets behind that are never wiped.
fn unhex(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() / 2));
    let mut high = None;
    for digit in text.chars().filter(|c| !c.is_whitespace()) {
        let digit = u8::try_from(digit.to_digit(16)?).ok()?;
        match high.take() {
            None => high = Some(digit << 4),
            Some(high) => bytes.push(high | digit),
        }
    }
    high.is_none().then_some(bytes)
}

/// Compares with `gateway/fixtures/keys.txt`; `QUORUMFS_BLESS=1` prints the expected line.
#[cfg(test)]
pub(crate) fn assert_golden(label: &str, bytes: &[u8]) {
    let golden = include_str!("../../fixtures/keys.txt");
    let found = format!("{label} {}", hex(bytes));
    let expected = golden
        .lines()
        .find(|line| line.split(' ').next() == Some(label));
    if std::env::var_os("QUORUMFS_BLESS").is_some() {
        println!("{found}");
        return;
    }
    assert_eq!(expected, Some(found.as_str()), "the format changed");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        let mut writer = TextWriter::new("a test", 1);
        writer.remark("for people");
        writer.value("short", &[1, 2, 3]);
        writer.value("long", &[9; 70]);
        writer.finish().to_string()
    }

    #[test]
    fn what_is_written_is_read() {
        let lines = Lines::parse("a test", 1, &text()).unwrap();
        assert_eq!(lines.array::<3>("short").unwrap(), [1, 2, 3]);
        assert_eq!(lines.value("long").unwrap(), [9; 70]);
        assert!(lines.array::<4>("short").is_err());
        assert!(lines.value("other").is_err());
    }

    #[test]
    fn a_slip_is_found_in_its_line() {
        let slipped = text().replace("0102 03", "0102 04");
        let error = Lines::parse("a test", 1, &slipped).unwrap_err().to_string();
        assert!(
            error.contains("line 3") && error.contains("typing slip"),
            "{error}"
        );
    }

    #[test]
    fn a_newer_format_is_refused_clearly() {
        let error = Lines::parse("a test", 1, "a test, format 2\n")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("format 2") && error.contains("update"),
            "{error}"
        );
    }
}
