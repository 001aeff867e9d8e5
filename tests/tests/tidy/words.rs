//! The words of the project, and the pages that are made of them: docs/GLOSSARY.md says which.

use super::{files, none_of, rust_files};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// Words that standard English has a plainer one for, or that leave open who is meant.
const NOT_USED: [&str; 6] = [
    "whoever",
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "beside",
];
/// Where one of them has to stand.
const MAY_USE_THEM: [&str; 5] = [
    // They say that it is not used.
    "docs/GLOSSARY.md",
    "tests/tests/tidy/words.rs",
    // Bytes of a format, which golden files hold.
    "gateway/src/keys/principal.rs",
    "metadata-smr/service/src/simulation.rs",
    // A user of the system.
    "scripts/pjdfstest",
];
/// A line of a page fits a terminal.
const PAGE_COLUMNS_MAX: usize = 100;
/// A row of a table cannot be broken, so its cells have to be short.
const ROW_COLUMNS_MAX: usize = 200;
/// A name in a page with so many underscores is that of a test.
const CITED_UNDERSCORES_MIN: usize = 4;
/// In so many modules may types have one name.
const SAME_NAME_MAX: usize = 3;

/// Whether it is text that people read: source, pages, scripts, units.
fn is_read(path: &str) -> bool {
    let kinds = [".rs", ".md", ".toml", ".service", ".yml", ".sh"];
    kinds.iter().any(|kind| path.ends_with(kind)) || path.starts_with("scripts/")
}

/// The words of a line, in lower case; names in code count by their parts.
fn words(line: &str) -> impl Iterator<Item = String> {
    let mut words = Vec::new();
    let mut word = String::new();
    for letter in line.chars() {
        // `NobodyKnows` is two words, as `nobody_knows` is.
        if !letter.is_alphabetic() || letter.is_uppercase() && !word.is_empty() {
            // All of `NOBODY` is one word.
            if letter.is_alphabetic() && word.chars().all(char::is_uppercase) {
                word.push(letter);
                continue;
            }
            words.push(std::mem::take(&mut word).to_lowercase());
        }
        if letter.is_alphabetic() {
            word.push(letter);
        }
    }
    words.push(word.to_lowercase());
    words.into_iter()
}

#[test]
fn words_are_those_of_the_glossary() {
    let mut broken = Vec::new();
    for (path, text) in files() {
        if !is_read(&path) || MAY_USE_THEM.contains(&path.as_str()) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            for word in words(line).filter(|word| NOT_USED.contains(&word.as_str())) {
                broken.push(format!("{path}:{}: {word}", number + 1));
            }
        }
    }
    none_of(&broken, "say who or what is meant (docs/GLOSSARY.md)");
}

#[test]
fn a_word_is_found_however_it_is_written() {
    let found = |line: &str| words(line).any(|word| NOT_USED.contains(&word.as_str()));
    for line in [
        "Whoever reads",
        "fn nobody_waits()",
        "NobodyWaits",
        "NOBODY",
        "x.somebody(1)",
        "beside:",
    ] {
        assert!(found(line), "{line}");
    }
    for line in ["besides", "a body", "no body", "WHO EVER", "everybodys_x"] {
        assert!(!found(line), "{line}");
    }
}

/// Every page, with its path.
fn pages() -> Vec<(String, String)> {
    let pages = files().into_iter();
    pages.filter(|(path, _)| path.ends_with(".md")).collect()
}

#[test]
fn a_line_of_a_page_fits() {
    let mut broken = Vec::new();
    for (path, text) in pages() {
        for (number, line) in text.lines().enumerate() {
            let most = match line.trim_start().starts_with('|') {
                true => ROW_COLUMNS_MAX,
                false => PAGE_COLUMNS_MAX,
            };
            let columns = line.chars().count();
            if columns > most {
                broken.push(format!("{path}:{}: {columns} columns", number + 1));
            }
        }
    }
    let rule = format!(
        "wider than {PAGE_COLUMNS_MAX} columns, or than {ROW_COLUMNS_MAX} in a table: break the \
         line, shorten the cell, or make the table a list"
    );
    none_of(&broken, &rule);
}

/// The anchor that a heading has.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|it| it.is_alphanumeric() || " -_".contains(*it));
    kept.map(|it| if it == ' ' { '-' } else { it }).collect()
}

/// `a/b/../c` as `a/c`, without looking at the disk.
fn normal(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts
}

#[test]
fn links_between_pages_lead_somewhere() {
    let all = files();
    let known: BTreeSet<&str> = all.iter().map(|(path, _)| path.as_str()).collect();
    let is_folder = |path: &str| {
        all.iter()
            .any(|(it, _)| it.starts_with(&format!("{path}/")))
    };
    let anchors: BTreeMap<&str, BTreeSet<String>> = all
        .iter()
        .filter(|(path, _)| path.ends_with(".md"))
        .map(|(path, text)| {
            let headings = text.lines().filter(|line| line.starts_with('#'));
            (path.as_str(), headings.map(anchor).collect())
        })
        .collect();
    let mut broken = Vec::new();
    for (path, text) in pages() {
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            if link.contains("://") || link.contains(' ') {
                continue;
            }
            let (target, fragment) = link.split_once('#').unwrap_or((link, ""));
            let folder = Path::new(&path).parent().unwrap();
            let target = match target {
                "" => path.clone(),
                _ => normal(&folder.join(target)).display().to_string(),
            };
            if !known.contains(target.as_str()) && !is_folder(&target) {
                broken.push(format!("{path}: {link}: there is no {target}"));
            } else if !fragment.is_empty()
                && !anchors
                    .get(target.as_str())
                    .is_some_and(|it| it.contains(fragment))
            {
                broken.push(format!(
                    "{path}: {link}: no heading in {target} has that anchor"
                ));
            }
        }
    }
    none_of(&broken, "a link that leads nowhere");
}

/// Names in backticks that are long enough to be those of tests.
fn cited(page: &str) -> impl Iterator<Item = &str> {
    let quoted = page.split('`').skip(1).step_by(2);
    let names = quoted.map(|name| name.rsplit("::").next().unwrap_or_default());
    names.filter(|name| {
        let snake = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_';
        name.matches('_').count() >= CITED_UNDERSCORES_MIN && name.chars().all(snake)
    })
}

#[test]
fn tests_that_pages_cite_exist() {
    let code = rust_files();
    let named: BTreeSet<&str> = code
        .iter()
        .flat_map(|(_, text)| text.split(|it: char| !it.is_alphanumeric() && it != '_'))
        .collect();
    let mut broken = Vec::new();
    let mut seen = 0;
    for (path, text) in pages() {
        for name in cited(&text) {
            seen += 1;
            if !named.contains(name) {
                broken.push(format!("{path}: {name}"));
            }
        }
    }
    assert!(seen > 300, "only {seen} citations were found");
    none_of(&broken, "a page cites what is not in the code");
}

/// The name of the type that a line at the left margin declares.
fn declared(line: &str) -> Option<&str> {
    let mut words = line.split([' ', '<', '(', ';', ':', '{']);
    let mut word = words.next()?;
    if word == "pub" {
        // `pub(crate)` was split at its bracket.
        let rest = words.by_ref();
        word = rest.next()?;
        if line.starts_with("pub(") {
            word = rest.find(|word| ["struct", "enum", "trait", "type"].contains(word))?;
        }
    }
    ["struct", "enum", "trait", "type"]
        .contains(&word)
        .then(|| words.next())?
}

#[test]
fn a_name_means_one_thing() {
    let mut modules: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in rust_files() {
        for name in text.lines().filter_map(declared) {
            modules.entry(name.into()).or_default().insert(path.clone());
        }
    }
    assert!(
        modules.len() > 500,
        "only {} types were found",
        modules.len()
    );
    let broken: Vec<_> = modules
        .into_iter()
        .filter(|(_, paths)| paths.len() > SAME_NAME_MAX)
        .map(|(name, paths)| {
            let paths: Vec<_> = paths.into_iter().collect();
            format!("{name}: {}", paths.join(", "))
        })
        .collect();
    let rule = format!("types of one name in more than {SAME_NAME_MAX} modules: qualify them");
    none_of(&broken, &rule);
}

#[test]
fn a_type_is_found_however_it_is_declared() {
    for line in [
        "struct Name;",
        "pub struct Name(u8);",
        "pub(crate) enum Name<T> {",
        "pub(in crate::a) trait Name: Send {",
        "type Name = u8;",
    ] {
        assert_eq!(declared(line), Some("Name"), "{line}");
    }
    assert_eq!(declared("    struct Name;"), None);
    assert_eq!(declared("fn name() {}"), None);
}
