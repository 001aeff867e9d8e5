//! Lints the repository itself: rules that no compiler checks and no review should have to.
//!
//! Each test names one rule, says where it is broken and what to do. An exception to a rule stands
//! here, with its reason, and nowhere else.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "tidy/wings.rs"]
mod wings;
#[path = "tidy/words.rs"]
mod words;

/// A longer file probably has two subjects.
const LINES_MAX: usize = 600;
/// Two files of this width fit next to each other on a laptop.
const COLUMNS_MAX: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_path_buf()
}

/// The source of another project, under its own rules. The page that says why it is here is ours.
const VENDORED: &str = "fuse/fuser/";

/// Every text file of the repository that is ours, as (path from the root, text).
fn files() -> Vec<(String, String)> {
    fn walk(directory: &Path, root: &Path, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_symlink() || name == "target" || name == ".git" {
                continue;
            }
            if path.is_dir() {
                walk(&path, root, found);
            } else if let Ok(text) = fs::read_to_string(&path) {
                let relative = path.strip_prefix(root).unwrap().to_string_lossy();
                if !relative.starts_with(VENDORED) || relative.ends_with(".md") {
                    found.push((relative.into_owned(), text));
                }
            }
        }
    }
    let (root, mut found) = (root(), Vec::new());
    walk(&root, &root, &mut found);
    found.sort();
    assert!(
        found.len() > 20,
        "the repository was not found at {}",
        root.display()
    );
    found
}

fn rust_files() -> Vec<(String, String)> {
    files()
        .into_iter()
        .filter(|(path, _)| path.ends_with(".rs"))
        .collect()
}

#[track_caller]
fn none_of(broken: &[String], rule: &str) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

/// Lines of Rust files that hold any of `words`, outside this file.
fn lines_with(words: &[&str]) -> Vec<String> {
    let mut hits = Vec::new();
    for (path, text) in rust_files() {
        if path == "tests/tests/tidy.rs" {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word)) {
                hits.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    hits
}

#[test]
fn a_source_file_is_one_thing() {
    let broken: Vec<_> = rust_files()
        .into_iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect();
    none_of(
        &broken,
        &format!("longer than {LINES_MAX} lines; split by concept"),
    );
}

#[test]
fn a_line_fits() {
    let mut broken = Vec::new();
    for (path, text) in files() {
        let checked = path.ends_with(".rs") || executable(&path);
        for (number, line) in text.lines().enumerate().filter(|_| checked) {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                broken.push(format!("{path}:{}: {columns} columns", number + 1));
            }
            if line.ends_with(' ') || (line.contains('\t') && path.ends_with(".rs")) {
                broken.push(format!("{path}:{}: trailing space or tab", number + 1));
            }
        }
    }
    none_of(
        &broken,
        &format!("wider than {COLUMNS_MAX} columns, or with stray white space"),
    );
}

#[test]
fn every_module_opens_by_saying_what_it_is_for() {
    let broken: Vec<_> = rust_files()
        .into_iter()
        .filter(|(_, text)| !text.starts_with("//!"))
        .map(|(path, _)| path)
        .collect();
    none_of(&broken, "does not open with an essay (`//! …`)");
}

#[test]
fn nothing_is_left_undone() {
    let words = [
        "todo!(",
        "unimplemented!(",
        "dbg!(",
        "TODO",
        "FIXME",
        "XXX",
        "#[ignore",
    ];
    none_of(
        &lines_with(&words),
        "left undone: finish it, or leave it out whole",
    );
}

/// A machine's own paths, assembled so that this file does not break its own rule. A path starts a
/// word: the row `G/home/` is none.
#[test]
fn no_machine_shows_through() {
    let words = [
        "/work/".to_string(),
        format!("/{}/", "root"),
        format!("/{}/", "home"),
    ];
    let mut broken = Vec::new();
    for (path, text) in files() {
        if path == "tests/tests/tidy.rs" {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let starts = |(at, _): (usize, &str)| !line[..at].ends_with(char::is_alphanumeric);
            if words
                .iter()
                .any(|word| line.match_indices(word.as_str()).any(starts))
            {
                broken.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    none_of(&broken, "a path of one particular machine");
}

/// The simulator alone may break the protocol on purpose.
#[test]
fn sabotage_stays_in_the_simulator() {
    let allowed = [
        "metadata-smr/bft/",
        "metadata-smr/bft-simulator/",
        "gateway/src/blocks/",
        "tests/src/bin/simulate",
        "tests/src/simulate",
        "tests/tests/simulated/",
    ];
    let broken: Vec<_> = lines_with(&["Sabotage", "sabotage"])
        .into_iter()
        .filter(|hit| !allowed.iter().any(|prefix| hit.starts_with(prefix)))
        .collect();
    none_of(
        &broken,
        "names Sabotage outside of bft, bft-simulator, blocks and simulate",
    );
}

/// Unsealed storage exists only for the needles' control run.
#[test]
fn sealing_is_switched_off_by_tests_alone() {
    let allowed = [
        "gateway/",
        "tests/tests/end_to_end/needles",
        "tests/src/harness/gateway",
    ];
    let broken: Vec<_> = lines_with(&["with_sealing", "Sealing::Off"])
        .into_iter()
        .filter(|hit| !allowed.iter().any(|prefix| hit.starts_with(prefix)))
        .collect();
    none_of(
        &broken,
        "switches sealing off outside of the gateway and its tests",
    );
}

/// The crates of ours that each may name in its `[dependencies]`; the picture in ARCHITECTURE.
fn arrows() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    const BFT: &str = "quorumfs-bft";
    const RUNTIME: &str = "quorumfs-bft-runtime";
    const SIMULATOR: &str = "quorumfs-bft-simulator";
    const METADATA: &str = "quorumfs-metadata";
    const BACKENDS: &str = "quorumfs-backends";
    const GATEWAY: &str = "quorumfs-gateway";
    const FUSE: &str = "quorumfs-fuse";
    const HTTP: &str = "quorumfs-http";
    let all_but_cli = [
        BFT, RUNTIME, SIMULATOR, METADATA, BACKENDS, GATEWAY, FUSE, HTTP,
    ];
    BTreeMap::from([
        (BFT, BTreeSet::new()),
        (RUNTIME, BTreeSet::from([BFT])),
        (SIMULATOR, BTreeSet::from([BFT])),
        (METADATA, BTreeSet::from([BFT])),
        (BACKENDS, BTreeSet::new()),
        (GATEWAY, BTreeSet::from([BFT, RUNTIME, METADATA, BACKENDS])),
        (FUSE, BTreeSet::from([GATEWAY])),
        (HTTP, BTreeSet::new()),
        (
            "quorumfs",
            BTreeSet::from([BFT, RUNTIME, METADATA, BACKENDS, GATEWAY, FUSE, HTTP]),
        ),
        (
            "quorumfs-bench",
            BTreeSet::from([BFT, RUNTIME, METADATA, BACKENDS, GATEWAY, FUSE]),
        ),
        ("quorumfs-tests", BTreeSet::from(all_but_cli)),
        ("quorumfs-fuzz", BTreeSet::from(["quorumfs-tests"])),
        ("replicated-counter", BTreeSet::from([BFT, RUNTIME])),
    ])
}

#[test]
fn arrows_between_crates_run_one_way() {
    let (arrows, mut broken, mut seen) = (arrows(), Vec::new(), BTreeSet::new());
    for (path, text) in files() {
        if !path.ends_with("/Cargo.toml") {
            continue;
        }
        let manifest: toml::Table = text.parse().unwrap();
        let name = manifest["package"]["name"].as_str().unwrap().to_string();
        let Some(allowed) = arrows.get(name.as_str()) else {
            broken.push(format!("{path}: {name} is not on the map; put it there"));
            continue;
        };
        let ours = |table: &str| -> Vec<String> {
            let keys = manifest.get(table).and_then(toml::Value::as_table);
            let keys = keys.into_iter().flat_map(toml::Table::keys);
            keys.filter(|key| key.starts_with("quorumfs"))
                .cloned()
                .collect()
        };
        for dependency in ours("dependencies") {
            if !allowed.contains(dependency.as_str()) {
                broken.push(format!("{path}: {name} → {dependency}"));
            }
        }
        for dependency in ours("dev-dependencies") {
            if dependency == "quorumfs" {
                broken.push(format!("{path}: tests of {name} → {dependency}"));
            }
        }
        seen.insert(name);
    }
    for name in arrows.keys() {
        if !seen.contains(*name) {
            broken.push(format!("{name} is on the map but not in the repository"));
        }
    }
    none_of(&broken, "an arrow that docs/ARCHITECTURE.md forbids");
}

/// The output of `cargo tree`.
#[track_caller]
fn tree_of(arguments: &[&str]) -> String {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline"])
        .args(arguments)
        .current_dir(root())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&tree.stderr);
    assert!(tree.status.success(), "{errors}");
    String::from_utf8(tree.stdout).unwrap()
}

/// Features that only tests need of our crates and of tokio are not in the program that people
/// install, nor in the one that measures.
#[test]
fn the_installed_program_holds_nothing_that_only_tests_need() {
    let features = |package: &str| {
        let edges = ["--edges", "normal,features", "--prefix", "none"];
        tree_of(&[&["--package", package][..], &edges].concat())
    };
    let wanted = [
        r#"tokio feature "test-util""#,
        r#"quorumfs-backends feature "emulators""#,
        r#"quorumfs-bft feature "sabotage""#,
        r#"quorumfs-gateway feature "decoders""#,
        r#"quorumfs-gateway feature "sabotage""#,
        r#"quorumfs-http feature "decoders""#,
    ];
    let programs = ["quorumfs", "quorumfs-bench"].map(|name| (name, features(name)));
    let tests = features("quorumfs-tests");
    let (mut broken, mut unknown) = (Vec::new(), Vec::new());
    for feature in wanted {
        let has = |tree: &str| tree.lines().any(|line| line.starts_with(feature));
        let with = programs.iter().filter(|(_, tree)| has(tree));
        broken.extend(with.map(|(name, _)| format!("{name}: {feature}")));
        if !has(&tests) {
            unknown.push(feature.to_string());
        }
    }
    none_of(&broken, "a program is built with what only tests need");
    none_of(
        &unknown,
        "the tests are built without what they need, or it has another name",
    );
}

/// The lock file lists `ring` because of weak dependencies; no build may contain it.
#[test]
fn one_cryptographic_library_is_compiled() {
    let lock: toml::Table = fs::read_to_string(root().join("Cargo.lock"))
        .unwrap()
        .parse()
        .unwrap();
    let weakly = ["rustls-webpki", "quinn-proto"];
    let mut broken = Vec::new();
    for package in lock["package"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let names = package.get("dependencies").and_then(toml::Value::as_array);
        let named = names.into_iter().flatten().filter_map(toml::Value::as_str);
        for dependency in named {
            if dependency.split(' ').next() == Some("ring") && !weakly.contains(&name) {
                broken.push(format!("Cargo.lock: {name} names ring"));
            }
        }
    }
    let tree = tree_of(&["--workspace", "--edges", "all", "--prefix", "none"]);
    assert!(
        tree.lines().any(|line| line.starts_with("aws-lc-rs ")),
        "cargo tree shows nothing"
    );
    broken.extend(
        tree.lines()
            .filter(|line| line.starts_with("ring "))
            .map(str::to_string),
    );
    none_of(
        &broken,
        "ring is compiled or named; turn the feature off that brings it",
    );
}

#[test]
fn links_in_the_documentation_lead_somewhere() {
    let mut broken = Vec::new();
    for (path, text) in files()
        .into_iter()
        .filter(|(path, _)| path.ends_with(".md"))
    {
        let directory = root().join(&path).parent().unwrap().to_path_buf();
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let target = link.split('#').next().unwrap();
            let outside = target.contains("://") || target.is_empty();
            if !outside && !directory.join(target).exists() {
                broken.push(format!("{path}: {link}"));
            }
        }
    }
    none_of(&broken, "a link to nothing");
}

#[test]
fn licences_and_the_first_pages_are_here() {
    let wanted = [
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "README.md",
        "CHANGELOG.md",
        "docs/ARCHITECTURE.md",
        "docs/FORMAT.md",
        "docs/TESTING.md",
        "docs/TROUBLESHOOTING.md",
        "docs/THREAT_MODEL.md",
        "docs/PERFORMANCE.md",
    ];
    let missing: Vec<_> = wanted
        .into_iter()
        .filter(|path| !root().join(path).is_file())
        .map(str::to_string)
        .collect();
    none_of(&missing, "missing");
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let first_screen: String = readme.lines().take(30).collect::<Vec<_>>().join("\n");
    for command in ["scripts/demo", "scripts/test"] {
        assert!(
            first_screen.contains(command),
            "README's first screen does not name {command}"
        );
    }
}

fn executable(path: &str) -> bool {
    path.starts_with("scripts/") || path == ".ci/run"
}

#[test]
fn scripts_can_be_run() {
    let scripts: Vec<_> = files()
        .into_iter()
        .filter(|(path, _)| executable(path))
        .collect();
    assert!(scripts.len() >= 4, "scripts are missing");
    let mut broken = Vec::new();
    for (path, text) in scripts {
        let mode = fs::metadata(root().join(&path))
            .unwrap()
            .permissions()
            .mode();
        if mode & 0o111 == 0 || !text.starts_with("#!/usr/bin/env bash\n") {
            broken.push(path);
        }
    }
    none_of(&broken, "not an executable bash script");
    let ci = fs::read_to_string(root().join(".ci/run")).unwrap();
    assert!(
        ci.contains("scripts/test"),
        ".ci/run does not call scripts/test"
    );
}

/// A per-crate `clippy.toml` replaces the root one: it has to repeat the permissions of tests.
#[test]
fn pure_crates_keep_clocks_threads_and_io_out() {
    let general = fs::read_to_string(root().join("clippy.toml")).unwrap();
    for name in ["bft", "bft-simulator", "service"] {
        let path = root().join("metadata-smr").join(name).join("clippy.toml");
        let own = fs::read_to_string(&path).unwrap();
        for line in general.lines().filter(|line| line.starts_with("allow-")) {
            assert!(own.contains(line), "{}: lacks `{line}`", path.display());
        }
        for banned in [
            "HashMap",
            "Instant",
            "SystemTime",
            "std::fs",
            "std::net",
            "std::thread",
        ] {
            assert!(
                own.contains(banned),
                "{}: does not ban {banned}",
                path.display()
            );
        }
    }
}

/// The fuzzers are a workspace of their own and one line each.
#[test]
fn every_crate_is_under_the_lints_of_the_workspace() {
    let broken: Vec<_> = files()
        .into_iter()
        .filter(|(path, _)| path.ends_with("/Cargo.toml") && !path.starts_with("fuzz/"))
        .filter(|(_, text)| !text.contains("[lints]\nworkspace = true"))
        .map(|(path, _)| path)
        .collect();
    none_of(&broken, "lacks `[lints] workspace = true`");
}
