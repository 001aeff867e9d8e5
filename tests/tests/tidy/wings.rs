//! The wings of the block store and of the file system: each imports only from those below it.
//!
//! The page on each draws the arrows, one on a line of its own: `object <- clouds` says that
//! `clouds` imports from `object`.

use super::{none_of, root, rust_files};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// A module with wings.
struct House {
    /// The page that draws the arrows.
    page: &'static str,
    /// The folder of the wings.
    folder: &'static str,
    /// How a path begins that names the module from outside.
    absolute: &'static str,
    /// The modules in the folder that stand above all wings.
    above: &'static [&'static str],
}

const HOUSES: [House; 2] = [
    House {
        page: "docs/architecture/blocks.md",
        folder: "gateway/src/blocks/",
        absolute: "crate::blocks::",
        above: &["config", "store", "tests"],
    },
    House {
        page: "docs/architecture/gateway.md",
        folder: "gateway/src/vfs/",
        absolute: "crate::vfs::",
        above: &[
            "assemble",
            "background",
            "data",
            "kernel_cache",
            "linking",
            "locking",
            "rescue",
            "sharing",
        ],
    },
];

/// The wings that each wing may import from: along its own arrows, and along theirs.
fn arrows(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let page = fs::read_to_string(root().join(page)).unwrap();
    let mut below: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let is_name = |name: &str| name.chars().all(|it| it.is_ascii_lowercase() || it == '_');
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

/// A file without its comments. What a line has behind `//` in a string is kept.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let is_quoted = |at: &usize| line[..*at].matches('"').count() % 2 == 1;
        let mut comments = line.match_indices("//").map(|(at, _)| at);
        let comment = comments.find(|at| !is_quoted(at));
        &line[..comment.unwrap_or(line.len())]
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The names that the code of a folder's `mod.rs` exports again, each with its module.
fn exported(code: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for line in code.split("use ").skip(1) {
        let statement = line.split(';').next().unwrap();
        let Some((module, rest)) = statement.trim_start().split_once("::") else {
            continue;
        };
        if module
            .chars()
            .all(|it| it.is_ascii_lowercase() || it == '_')
        {
            let name = |it: &str| it.split(" as ").last().unwrap().trim().to_string();
            let group = rest.trim().trim_start_matches('{').trim_end_matches('}');
            let exports = group.split(',').map(name).filter(|it| !it.is_empty());
            names.extend(exports.map(|it| (it, module.to_string())));
        }
    }
    names
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
fn referred(
    code: &str,
    depth: usize,
    house: &House,
    wings: &BTreeSet<&str>,
    exports: &BTreeMap<String, String>,
) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let is_module = |name: &&str| house.above.contains(name) || wings.contains(name);
    // A name that the folder exports again stands for its module.
    let module = |name: &str| exports.get(name).map_or(name, String::as_str).to_string();
    for (at, absolute) in code.match_indices(house.absolute) {
        let found = heads(&code[at + absolute.len()..]);
        names.extend(found.into_iter().map(module));
    }
    // The module by itself, or in a group of the crate's: every path has to be written out.
    let own = house
        .absolute
        .trim_start_matches("crate::")
        .trim_end_matches("::");
    for (at, step) in code.match_indices("crate::{") {
        let group = heads(&code[at + step.len() - 1..]);
        names.extend(
            group
                .iter()
                .filter(|head| **head == own)
                .map(|it| (*it).to_string()),
        );
    }
    let alone = ["crate::", "super::"].map(|before| format!("{before}{own};"));
    if alone.iter().any(|path| code.contains(path)) {
        names.insert(own.to_string());
    }
    for (at, step) in code.match_indices("super::") {
        if code[..at].ends_with("super::") {
            continue;
        }
        let rest = code[at..].trim_start_matches(step);
        let steps = (code[at..].len() - rest.len()) / step.len();
        if steps < depth {
            continue;
        }
        for head in heads(rest) {
            let named = module(head);
            // Everything at once, a module, or what the folder exports of one. From the outermost
            // module of a file `depth` steps lead into the folder, and more lead out of it.
            if head.is_empty() || head == own || is_module(&named.as_str()) {
                names.insert(if head.is_empty() {
                    "*".to_string()
                } else {
                    named
                });
            }
        }
    }
    names
}

#[test]
fn no_module_of_a_wing_imports_against_the_arrows() {
    for house in HOUSES {
        check(&house);
    }
}

#[track_caller]
fn check(house: &House) {
    let House {
        page,
        folder,
        above,
        ..
    } = house;
    let arrows = arrows(page);
    for (wing, below) in &arrows {
        assert!(
            !below.contains(wing),
            "{page}: the arrows of {wing} run in a circle"
        );
    }
    let wings: BTreeSet<&str> = arrows.keys().map(String::as_str).collect();
    let (mut broken, mut seen) = (Vec::new(), BTreeSet::new());
    let surface = fs::read_to_string(root().join(folder).join("mod.rs")).unwrap();
    let exports = exported(&code(&surface));
    for (path, text) in rust_files() {
        let Some(inside) = path.strip_prefix(folder) else {
            continue;
        };
        // A wing is a folder, or a single file.
        let whole = || Some((inside.strip_suffix(".rs")?, "mod.rs"));
        let Some((wing, file)) = inside.split_once('/').or_else(whole) else {
            continue;
        };
        if wing == "mod" || above.contains(&wing) {
            continue;
        }
        let Some((wing, below)) = arrows.get_key_value(wing) else {
            broken.push(format!("{path}: the page has no arrow of {wing}"));
            continue;
        };
        seen.insert(wing.as_str());
        let folders = file.matches('/').count() + 1;
        let depth = folders + usize::from(!file.ends_with("mod.rs"));
        for name in referred(&code(&text), depth, house, &wings, &exports) {
            if name != *wing && !below.contains(&name) {
                broken.push(format!("{path}: {wing} imports from {name}"));
            }
        }
    }
    assert_eq!(seen, wings, "wings of {folder}, and those of {page}");
    let rule = format!(
        "imports against the arrows of {page}, or by another name than its wing's: move the thing \
         down, or hand it in from above"
    );
    none_of(&broken, &rule);
}

/// What the file system stands on knows nothing of it.
#[test]
fn nothing_below_the_file_system_imports_it() {
    // The modules that stand above it: its seeds for fuzzing, the division of memory, which names
    // the options of all that has a part of it, and what makes capsules of its files.
    let above = ["lib.rs", "decoders.rs", "memory.rs", "capsule/make.rs"];
    let mut broken = Vec::new();
    for (path, text) in rust_files() {
        let Some(inside) = path.strip_prefix("gateway/src/") else {
            continue;
        };
        if !inside.starts_with("vfs/") && !above.contains(&inside) && names_vfs(&code(&text)) {
            broken.push(path);
        }
    }
    none_of(&broken, "imports the file system from below it");
}

/// Whether a path in the code has the segment `vfs`.
fn names_vfs(code: &str) -> bool {
    code.match_indices("vfs").any(|(at, name)| {
        let before = code[..at].chars().next_back().unwrap_or(' ');
        let after = code[at + name.len()..].trim_start();
        let ends = ["::", ";", ",", "}"].iter().any(|it| after.starts_with(it));
        ends && !before.is_alphanumeric() && before != '_' && before != '"'
    })
}

#[test]
fn a_path_into_the_file_system_is_found_however_it_is_written() {
    for code in [
        "use crate::vfs::Tier;",
        "use super::super::vfs::Tier;",
        "use crate::{error::VfsError, vfs::writeback::Writeback};",
        "use crate::vfs;",
        "use crate::{\n    keys,\n    vfs,\n};",
    ] {
        assert!(names_vfs(code), "{code}");
    }
    assert!(!names_vfs("self.vfs_status()") && !names_vfs("let vfs = 1"));
}

#[test]
fn a_reference_to_a_wing_is_found_however_it_is_written() {
    let wings = BTreeSet::from(["object", "clouds", "read", "write"]);
    let exports = exported("mod read;\npub use read::{Reads, Late as Later};\nuse store::Store;");
    let found = |code: &str, depth: usize| {
        let names = referred(code, depth, &HOUSES[0], &wings, &exports).into_iter();
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(found("use super::super::{Later, Store};", 2), "read store");
    assert_eq!(found("use super::super::*;", 2), "*");
    assert_eq!(
        found("use crate::{error::E, blocks::read::R};", 2),
        "blocks"
    );
    assert_eq!(found("use crate::blocks;", 2), "blocks");
    assert_eq!(
        found("use super::super::super::blocks::read::R;", 2),
        "blocks"
    );
    assert_eq!(
        found(
            &code("let a = \"http://x\"; use crate::blocks::read::R;"),
            2
        ),
        "read"
    );
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
