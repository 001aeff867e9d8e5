//! Lines that say who wrote them and which they are, and that show if a byte of them is missing.

use anyhow::{Context, Result, ensure};

/// The longest line, with its end.
pub(super) const LINE_BYTES_MAX: usize = 3000;
const CHECKSUM_DIGITS: usize = 16;

fn checksum(text: &str) -> String {
    let digits = blake3::hash(text.as_bytes()).to_hex();
    digits.chars().take(CHECKSUM_DIGITS).collect()
}

/// The line of a writer with this number, with so many bytes of filling.
pub(super) fn line(writer: u64, number: u64, filling: usize) -> String {
    let letter = |place: usize| {
        let place = u8::try_from((number as usize + place * 7) % 26).unwrap_or(0);
        char::from(b'a' + place)
    };
    let filling: String = (0..filling).map(letter).collect();
    let text = format!("{writer} {number} {filling} ");
    format!("{text}{}\n", checksum(&text))
}

/// The writer and the number of a line, if no byte of it is missing or another.
pub(super) fn parse(line: &[u8]) -> Option<(u64, u64)> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let text = line.get(..line.len().checked_sub(CHECKSUM_DIGITS)?)?;
    let mut words = text.split(' ');
    let named = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    (line.get(text.len()..)? == checksum(text)).then_some(named)
}

/// Checks that a file has these writers' lines, each writer's in its order and up to its number,
/// and nothing else. Returns how often the writer changed from one line to the next.
pub(super) fn check(content: &[u8], writers: &[u64]) -> Result<u64> {
    let (mut next, mut place) = (vec![1; writers.len()], 0);
    let (mut changes, mut before) = (0, None);
    for (count, bytes) in content.split_inclusive(|it| *it == b'\n').enumerate() {
        let start = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        let at = format!(
            "line {count}, at byte {place}, {} bytes: {start:?}",
            bytes.len()
        );
        let (writer, number) = parse(bytes).with_context(|| format!("torn: {at}"))?;
        let expected = next.get_mut(usize::try_from(writer)?);
        let expected = expected.with_context(|| format!("of no writer: {at}"))?;
        ensure!(
            number == *expected,
            "writer {writer}: line {number} where {expected} should follow: {at}"
        );
        *expected += 1;
        place += bytes.len();
        changes += u64::from(before.is_some_and(|it| it != writer));
        before = Some(writer);
    }
    for ((next, written), writer) in next.iter().zip(writers).zip(0..) {
        let there = next - 1;
        ensure!(
            there == *written,
            "writer {writer}: {there} lines are there, and {written} were written"
        );
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_who_wrote_it_and_shows_that_a_byte_is_missing() {
        for filling in [0, 1, 26, 2900] {
            let line = line(3, 17, filling);
            assert!(line.len() <= LINE_BYTES_MAX);
            assert_eq!(parse(line.as_bytes()), Some((3, 17)));
            assert_eq!(parse(&line.as_bytes()[..line.len() - 1]), None);
            assert_eq!(parse(&line.as_bytes()[1..]), None);
            let changed = line.replacen("17", "18", 1);
            assert_eq!(parse(changed.as_bytes()), None);
        }
    }

    #[test]
    fn lost_torn_and_disordered_lines_are_noticed() {
        let lines = [line(0, 1, 9), line(1, 1, 90), line(0, 2, 0), line(1, 2, 5)];
        let of = |chosen: &[usize]| -> String { chosen.iter().map(|it| &*lines[*it]).collect() };
        assert_eq!(check(of(&[0, 1, 2, 3]).as_bytes(), &[2, 2]).unwrap(), 3);
        assert_eq!(check(of(&[1, 0, 2, 3]).as_bytes(), &[2, 2]).unwrap(), 2);
        for wrong in [&[0, 1, 2][..], &[1, 2, 3], &[2, 1, 0, 3], &[0, 1, 1, 2, 3]] {
            assert!(check(of(wrong).as_bytes(), &[2, 2]).is_err(), "{wrong:?}");
        }
        let torn = of(&[0, 1, 2, 3])
            .replacen("abc", "ab", 1)
            .replacen('j', "", 1);
        assert!(check(torn.as_bytes(), &[2, 2]).is_err());
        assert!(check(of(&[0]).as_bytes(), &[1, 1]).is_err());
    }
}
