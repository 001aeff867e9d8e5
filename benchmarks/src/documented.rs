//! The documentation against the program: each run of it that a page shows is one that the command
//! line takes.
//!
//! Tables have it in short: in backticks, `bench` stands for `quorumfs-bench`.

use crate::arguments::BenchArguments;
use clap::CommandFactory;
use clap::error::ErrorKind;
use std::fs;
use std::path::Path;

/// The texts of all pages that show this program as it is now.
fn pages() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut pages = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    for folder in ["docs", "docs/architecture"] {
        let entries = fs::read_dir(root.join(folder)).unwrap();
        pages.extend(entries.map(|entry| entry.unwrap().path()));
    }
    pages.retain(|path| path.extension().is_some_and(|it| it == "md"));
    pages
        .into_iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect()
}

/// What is typed after the program's name, in a quotation or in a line of a block.
fn typed(text: &str) -> Option<Vec<String>> {
    let short = text.strip_prefix("bench ").map(|rest| ("", rest));
    let (before, rest) = short.or_else(|| text.split_once("quorumfs-bench "))?;
    let end = rest.find(['|', ';', '>', '<', '&', '#', '…']);
    let rest = &rest[..end.unwrap_or(rest.len())];
    // A package is run by `cargo run -p quorumfs-bench -- seal`, and else it is only named.
    let rest = match before.ends_with("-p ") {
        true => rest.strip_prefix("-- ")?,
        false => rest,
    };
    let words: Vec<_> = rest.split_whitespace().map(str::to_owned).collect();
    (!words.is_empty()).then_some(words)
}

/// Every run in a page.
fn runs(page: &str) -> Vec<Vec<String>> {
    let mut runs = Vec::new();
    for (number, part) in page.split("```").enumerate() {
        match number % 2 {
            0 => runs.extend(part.split('`').skip(1).step_by(2).filter_map(typed)),
            _ => runs.extend(part.lines().filter_map(typed)),
        }
    }
    runs
}

#[test]
fn the_command_line_of_the_benchmarks_is_consistent() {
    BenchArguments::command().debug_assert();
}

#[test]
fn every_measurement_of_the_documentation_is_one_that_the_program_takes() {
    let (mut seen, mut wrong) = (0, Vec::new());
    for run in pages().iter().flat_map(|page| runs(page)) {
        seen += 1;
        let words = std::iter::once("quorumfs-bench").chain(run.iter().map(String::as_str));
        let help = ErrorKind::DisplayHelp;
        match BenchArguments::command().try_get_matches_from(words) {
            Err(error) if error.kind() != help => wrong.push(format!("{run:?}\n{error}")),
            _ => {}
        }
    }
    assert!(seen > 30, "only {seen} runs were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_measurement_that_does_not_exist_is_noticed() {
    let page = "Run `bench no\n  --such` or `cargo run -p quorumfs-bench -- seal`, not `cargo test \
                -p quorumfs-bench name`.\n```sh\n$ quorumfs-bench fs | cat\n```\n";
    assert_eq!(runs(page), [vec!["no", "--such"], vec!["seal"], vec!["fs"]]);
    let words = ["quorumfs-bench", "no"];
    assert!(
        BenchArguments::command()
            .try_get_matches_from(words)
            .is_err()
    );
}
