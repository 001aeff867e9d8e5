//! Searches everything that was stored for bytes that must not be readable in it.
//!
//! Names of files and directories count as stored bytes, and so do targets of links. A needle is
//! searched for as it is and in the forms that common tools show: in hexadecimal digits, also in
//! groups of four, and in base64.

use aho_corasick::AhoCorasick;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A planted byte string and its kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Needle {
    /// Its kind.
    pub kind: &'static str,
    /// The planted bytes.
    pub bytes: Vec<u8>,
}

/// A needle that was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NeedleHit {
    /// The kind of the needle.
    pub kind: &'static str,
    /// The form in which it was found.
    pub form: &'static str,
    /// The file that holds it.
    pub path: PathBuf,
}

/// Every needle that occurs below any of these directories, in any form.
///
/// # Panics
/// If something there cannot be read, or there is nothing at all.
#[must_use]
pub fn search(directories: &[PathBuf], needles: &[Needle]) -> BTreeSet<NeedleHit> {
    let (mut patterns, mut meanings) = (Vec::new(), Vec::new());
    for needle in needles {
        for (form, pattern) in forms(&needle.bytes) {
            patterns.push(pattern);
            meanings.push((needle.kind, form));
        }
    }
    let automaton = AhoCorasick::new(&patterns).unwrap();
    let (mut found, mut bytes) = (BTreeSet::new(), 0);
    let mut search_in = |path: &Path, haystack: &[u8]| {
        bytes += haystack.len();
        for hit in automaton.find_overlapping_iter(haystack) {
            let (kind, form) = meanings[hit.pattern().as_usize()];
            let path = path.to_path_buf();
            found.insert(NeedleHit { kind, form, path });
        }
    };
    for directory in directories {
        walk(directory, &mut search_in);
    }
    assert!(bytes > 0, "nothing was searched: {directories:?}");
    found
}

fn walk(directory: &Path, search_in: &mut impl FnMut(&Path, &[u8])) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        search_in(&path, path.file_name().unwrap().as_bytes());
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_symlink() {
            search_in(&path, fs::read_link(&path).unwrap().as_os_str().as_bytes());
        } else if kind.is_dir() {
            walk(&path, search_in);
        } else if kind.is_file() {
            search_in(&path, &fs::read(&path).unwrap());
        }
    }
}

/// The forms in which the bytes may be written.
fn forms(bytes: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let digits = |bytes: &[u8]| -> String {
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        digits.collect()
    };
    let hex = digits(bytes);
    let groups: Vec<_> = bytes.chunks(2).map(digits).collect();
    let mut forms = vec![
        ("in groups of digits", groups.join(" ").into_bytes()),
        ("as it is", bytes.to_vec()),
        ("in capital digits", hex.to_uppercase().into_bytes()),
        ("in digits", hex.into_bytes()),
    ];
    // The position within a group of three bytes is unknown. For each one, the digits that do not
    // depend on the neighbouring bytes are searched for.
    for skipped in 0..3 {
        let whole = bytes.get(skipped..).unwrap_or_default();
        let whole = &whole[..whole.len() / 3 * 3];
        for (name, last) in [("in base64", b"+/"), ("in base64 for addresses", b"-_")] {
            forms.push((name, base64(whole, *last)));
        }
    }
    forms.retain(|(_, pattern)| !pattern.is_empty());
    forms.sort();
    forms.dedup_by(|left, right| left.1 == right.1);
    forms
}

/// Base64 of whole groups of three bytes, with these last two digits of the alphabet.
fn base64(bytes: &[u8], last: [u8; 2]) -> Vec<u8> {
    let digit = |value: u32| match value & 63 {
        value @ 0..=25 => b'A' + value as u8,
        value @ 26..=51 => b'a' + (value - 26) as u8,
        value @ 52..=61 => b'0' + (value - 52) as u8,
        62 => last[0],
        _ => last[1],
    };
    let group = |group: &[u8]| {
        let value = group
            .iter()
            .fold(0, |value, byte| value << 8 | u32::from(*byte));
        [18, 12, 6, 0].map(|shift| digit(value >> shift))
    };
    bytes.chunks_exact(3).flat_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_needle_is_found_in_contents_names_links_and_in_every_form() {
        let directory = tempfile::tempdir().unwrap();
        let needles = [Needle {
            kind: "needle",
            bytes: b"a needle, quite sharp".to_vec(),
        }];
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("deep")).unwrap();
        fs::write(at("deep/plain"), b"hay a needle, quite sharp hay").unwrap();
        fs::write(at("hex"), b"hay 61206e6565646c652c207175697465207368617270").unwrap();
        // "x", "xy" and "xyz" before it: every alignment.
        for (name, text) in [
            ("one", "eGEgbmVlZGxlLCBxdWl0ZSBzaGFycA=="),
            ("two", "eHlhIG5lZWRsZSwgcXVpdGUgc2hhcnA="),
            ("three", "eHl6YSBuZWVkbGUsIHF1aXRlIHNoYXJw"),
        ] {
            fs::write(at(name), text).unwrap();
        }
        fs::write(at("hay"), b"a needle, quite blunt").unwrap();
        std::os::unix::fs::symlink("to/a needle, quite sharp", at("link")).unwrap();
        fs::write(at("file of a needle, quite sharp"), b"").unwrap();
        let found = search(&[directory.path().to_path_buf()], &needles);
        let names: BTreeSet<_> = found
            .iter()
            .map(|found| found.path.file_name().unwrap().to_str().unwrap())
            .collect();
        let expected = ["plain", "hex", "one", "two", "three", "link"];
        let expected: BTreeSet<_> = expected
            .into_iter()
            .chain(["file of a needle, quite sharp"])
            .collect();
        assert_eq!(names, expected);
    }
}
