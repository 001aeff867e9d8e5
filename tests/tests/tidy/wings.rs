//! The wings of the block store: each imports only from those below it.
//!
//! The page on blocks draws the arrows, one on a line of its own: `object <- clouds` says that
//! `clouds` imports from `object`.

use super::{none_of, root, rust_files};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// The page that draws the arrows.
const PAGE: &str = "docs/architecture/blocks.md";
/// The folder of the wings.
const FOLDER: &str = "gateway/src/blocks/";
/// The modules in it that stand above all wings.
const ABOVE: [&str; 3] = ["config", "store", "tests"];

/// The wings that each wing may import from: along its own arrows, and along theirs.
fn arrows() -> BTreeMap<String, BTreeSet<String>> {
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    let mut below: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let is_name = |name: &str| name.chars().all(|it| it.is_ascii_lowercase());
    for (lower, upper) in page.lines().filter_map(|line| line.split_once(" <- ")) {
        if !is_name(lower) || !is_name(upper) {
            continue;
        }
        let (lower, upper) = (lower.to_string(), upper.to_string());
        below.entry(lower.clone()).or_default();
        below.entry(upper).or_default().insert(lower);
    }
    for _ in 0..below.len() {
        let known = below.clone();
        for wings in below.values_mut() {
            let further = wings.iter().flat_map(|wing| known[wing].clone());
            *wings = further
                .collect::<BTreeSet<_>>()
                .union(wings)
                .cloned()
                .collect();
        }
    }
    below
}

/// A file without its comments.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

/// The first name of a path, or those of a group of paths: `a` and `b` of `{a::X, b::{Y, Z}}`.
fn heads(path: &str) -> Vec<&str> {
    let name = |path: &str| {
        let letter = |it: char| it.is_alphanumeric() || it == '_';
        path.find(|it| !letter(it)).unwrap_or(path.len())
    };
    let Some(group) = path.strip_prefix('{') else {
        return vec![&path[..name(path)]];
    };
    let (mut heads, mut depth, mut begins) = (Vec::new(), 0, true);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' => begins |= depth == 0,
            _ if begins && !letter.is_whitespace() => {
                heads.push(&group[at..at + name(&group[at..])]);
                begins = false;
            }
            _ => {}
        }
    }
    heads
}

/// The names in the folder of the wings that the code of a module refers to. The module lies so
/// many `super::` below the folder; a module in its file lies deeper, so more of them count too.
fn referred(code: &str, depth: usize, wings: &BTreeSet<&str>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let is_module = |name: &&str| ABOVE.contains(name) || wings.contains(name);
    for (at, absolute) in code.match_indices("crate::blocks::") {
        let found = heads(&code[at + absolute.len()..]);
        names.extend(found.into_iter().map(str::to_string));
    }
    for (at, step) in code.match_indices("super::") {
        if code[..at].ends_with("super::") {
            continue;
        }
        let rest = code[at..].trim_start_matches(step);
        let steps = (code[at..].len() - rest.len()) / step.len();
        if steps >= depth {
            let found = heads(rest).into_iter().filter(is_module);
            names.extend(found.map(str::to_string));
        }
    }
    names
}

#[test]
fn no_module_of_a_wing_imports_against_the_arrows() {
    let arrows = arrows();
    for (wing, below) in &arrows {
        assert!(
            !below.contains(wing),
            "{PAGE}: the arrows of {wing} run in a circle"
        );
    }
    let wings: BTreeSet<&str> = arrows.keys().map(String::as_str).collect();
    let (mut broken, mut seen) = (Vec::new(), BTreeSet::new());
    for (path, text) in rust_files() {
        let Some((wing, file)) = path.strip_prefix(FOLDER).and_then(|it| it.split_once('/')) else {
            continue;
        };
        if ABOVE.contains(&wing) {
            continue;
        }
        let Some((wing, below)) = arrows.get_key_value(wing) else {
            broken.push(format!("{path}: the page has no arrow of {wing}"));
            continue;
        };
        seen.insert(wing.as_str());
        let folders = file.matches('/').count() + 1;
        let depth = folders + usize::from(!file.ends_with("mod.rs"));
        for name in referred(&code(&text), depth, &wings) {
            if name != *wing && !below.contains(&name) {
                broken.push(format!("{path}: {wing} imports from {name}"));
            }
        }
    }
    assert_eq!(seen, wings, "wings of the folder, and those of {PAGE}");
    let rule = format!(
        "imports against the arrows of {PAGE}, or by another name than its wing's: move the thing \
         down, or hand it in from above"
    );
    none_of(&broken, &rule);
}

#[test]
fn a_reference_to_a_wing_is_found_however_it_is_written() {
    let found = |code: &str, depth: usize| {
        let wings = BTreeSet::from(["object", "clouds", "read", "write"]);
        let names = referred(code, depth, &wings).into_iter();
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(found("use crate::blocks::read::Reads;", 2), "read");
    assert_eq!(
        found(
            "use crate::blocks::{\n    read::Reads, write::{A, B},\n};",
            2
        ),
        "read write"
    );
    assert_eq!(found("crate::blocks::BlockStore::open()", 2), "BlockStore");
    assert_eq!(found("use super::super::read::Reads;", 2), "read");
    assert_eq!(found("use super::{read::Reads, clouds};", 1), "clouds read");
    assert_eq!(found("super::super::super::store::BlockStore", 2), "store");
    assert_eq!(found("use super::store::ShareStore;", 2), "");
    assert_eq!(found("use super::super::segment::Part;", 2), "");
    assert_eq!(found(&code("// use crate::blocks::read::Reads;"), 2), "");
}
