//! Round trips between places, as people measure them: a table in a file.
//!
//! ```text
//! # milliseconds
//!            frankfurt  dublin  virginia
//! frankfurt        0.5      25        90
//! dublin            25     0.5        70
//! virginia          90      70       0.5
//! ```

use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use std::path::Path;

/// More than anyone has.
const PLACES_MAX: usize = 64;
/// A longer round trip is a slip: milliseconds are asked for.
const ROUND_TRIP_MAX_MS: f64 = 10_000.0;
/// How many times as long one direction's measurement may be as the other's.
const ASYMMETRY_MAX: f64 = 2.0;

/// Places, and the time from each to each.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Matrix {
    pub(crate) places: Vec<String>,
    /// One way, in milliseconds.
    one_way: Vec<Vec<f64>>,
}

impl Matrix {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> CommandResult<Self> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| Failure::file("read the round trips", path, &error))?;
        Self::parse(&text).map_err(|reason| {
            Failure::new(Exit::Usage, format!("{}: {reason}", path.display())).hint(
                "the first line names the places; each other line begins with a place, and has \
                 the round trip in milliseconds to each place in that order",
            )
        })
    }

    /// Reads a table; the error says what is wrong where.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().zip(1..);
        let lines =
            lines.map(|(line, number)| (line.split('#').next().unwrap_or_default(), number));
        let mut lines = lines.filter(|(line, _)| !line.trim().is_empty());
        let words = |line: &str| -> Vec<String> {
            let words = line.split(|it: char| it.is_whitespace() || it == ',' || it == ';');
            let words = words.filter(|it| !it.is_empty());
            words.map(str::to_owned).collect()
        };
        let (first, _) = lines.next().ok_or("there is no table in it")?;
        let places = words(first);
        if places.len() > PLACES_MAX {
            return Err(format!("it has more than {PLACES_MAX} places"));
        }
        if let Some(number) = places.iter().find(|it| it.parse::<f64>().is_ok()) {
            return Err(format!(
                "the first line has `{number}` where a place is expected"
            ));
        }
        let twice = |name: &&String| places.iter().filter(|it| it == name).count() > 1;
        if let Some(name) = places.iter().find(twice) {
            return Err(format!("it names {name} twice"));
        }
        let mut round_trips = vec![None; places.len()];
        for (line, number) in lines {
            let mut words = words(line).into_iter();
            let name = words.next().unwrap_or_default();
            let place = places.iter().position(|it| *it == name);
            let row = place.and_then(|place| round_trips.get_mut(place));
            let row: &mut Option<Vec<f64>> =
                row.ok_or_else(|| format!("line {number}: `{name}` is not in the first line"))?;
            if row.is_some() {
                return Err(format!("line {number}: {name} has a line already"));
            }
            *row = Some(numbers(words, number, places.len())?);
        }
        let lacking = places
            .iter()
            .zip(&round_trips)
            .find(|(_, row)| row.is_none());
        if let Some((name, _)) = lacking {
            return Err(format!("{name} has no line"));
        }
        let rows: Vec<Vec<f64>> = round_trips.into_iter().flatten().collect();
        let one_way = halved(&places, &rows)?;
        Ok(Self { places, one_way })
    }

    /// The number of a place.
    pub(crate) fn place(&self, name: &str) -> CommandResult<usize> {
        let place = self.places.iter().position(|it| it == name);
        place.ok_or_else(|| {
            Failure::new(
                Exit::Usage,
                format!("the round trips have no place `{name}`"),
            )
            .hint(format!("they have {}", self.places.join(", ")))
        })
    }

    /// The time from a place to a place, in milliseconds.
    pub(crate) fn one_way(&self, from: usize, to: usize) -> f64 {
        let row = self.one_way.get(from);
        row.and_then(|row| row.get(to)).copied().unwrap_or_default()
    }
}

/// The numbers of a line.
fn numbers(
    words: impl Iterator<Item = String>,
    line: usize,
    places: usize,
) -> Result<Vec<f64>, String> {
    let number = |word: String| {
        let parsed = word.parse::<f64>().ok();
        let sound = parsed.filter(|it| (0.0..=ROUND_TRIP_MAX_MS).contains(it));
        sound.ok_or_else(|| {
            format!("line {line}: `{word}` is no round trip of 0 to {ROUND_TRIP_MAX_MS} ms")
        })
    };
    let row: Vec<f64> = words.map(number).collect::<Result<_, _>>()?;
    match row.len() == places {
        true => Ok(row),
        false => Err(format!(
            "line {line} has {} numbers, and there are {places} places",
            row.len()
        )),
    }
}

/// One way: half of the mean of both measurements.
fn halved(places: &[String], rows: &[Vec<f64>]) -> Result<Vec<Vec<f64>>, String> {
    let at = |from: usize, to: usize| {
        let row = rows.get(from);
        row.and_then(|row| row.get(to)).copied().unwrap_or_default()
    };
    let mut halved = Vec::new();
    for (from, here) in places.iter().enumerate() {
        let mut row = Vec::new();
        for (to, there) in places.iter().enumerate() {
            let (out, back) = (at(from, to), at(to, from));
            if out > back * ASYMMETRY_MAX + 1.0 {
                return Err(format!(
                    "the round trip is {out} ms from {here} to {there}, and {back} ms from {there} \
                     to {here}"
                ));
            }
            row.push((out + back) / 4.0);
        }
        halved.push(row);
    }
    Ok(halved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_in_any_order_and_halved() {
        let text = "# ms\n a, b c\n\nb 10 0.5 30  # near\na 0.5, 10, 20\nc 22 30 1\n";
        let matrix = Matrix::parse(text).unwrap();
        assert_eq!(matrix.places, ["a", "b", "c"]);
        assert_eq!(matrix.one_way(0, 1).to_bits(), 5.0_f64.to_bits());
        assert_eq!(matrix.one_way(2, 0).to_bits(), 10.5_f64.to_bits());
        assert_eq!(matrix.place("c").unwrap(), 2);
        let unknown = matrix.place("d").unwrap_err();
        assert!(unknown.hint.unwrap().contains("a, b, c"));
    }

    #[test]
    fn what_is_no_table_is_refused_with_the_line_and_the_reason() {
        for (text, reason) in [
            ("", "no table"),
            ("# only\n", "no table"),
            ("1 2\n", "where a place is expected"),
            ("a b a\n", "a twice"),
            ("a b\na 1 2\n", "b has no line"),
            ("a b\na 1 2\nc 1 2\n", "line 3: `c`"),
            ("a b\na 1 2\na 1 2\n", "line 3: a has a line already"),
            ("a b\na 1\nb 1 2\n", "line 2 has 1 numbers"),
            ("a b\na 1 x\nb 1 2\n", "line 2: `x`"),
            ("a b\na 1 -2\nb 1 2\n", "line 2: `-2`"),
            ("a b\na 1 NaN\nb 1 2\n", "line 2: `NaN`"),
            ("a b\na 1 90000\nb 1 2\n", "line 2: `90000`"),
            (
                "a b\na 1 90\nb 10 2\n",
                "90 ms from a to b, and 10 ms from b to a",
            ),
        ] {
            let error = Matrix::parse(text).unwrap_err();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
        let wide: Vec<String> = (0..=PLACES_MAX).map(|it| format!("p{it}")).collect();
        let error = Matrix::parse(&wide.join(" ")).unwrap_err();
        assert!(error.contains("more than"), "{error}");
    }
}
