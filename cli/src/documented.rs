//! The documentation against the program: each command that a page shows is one that the command
//! line takes, and each key that a page shows is one that a configuration file takes, and none is
//! missing.

use crate::arguments::Arguments;
use crate::configuration::{self, ReplicaConfiguration, VolumeConfiguration};
use clap::CommandFactory;
use clap::error::ErrorKind;
use std::fs;
use std::path::{Path, PathBuf};

/// Every page: its path from the root of the repository, and its text.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut folders = vec![root.join("docs")];
    let mut paths: Vec<PathBuf> = vec![root.join("README.md")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "md") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    let page = |path: PathBuf| {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        (name, fs::read_to_string(&path).unwrap())
    };
    let pages: Vec<_> = paths.into_iter().map(page).collect();
    assert!(pages.len() > 8, "the pages were not found");
    pages
}

/// Whether a line begins with a prompt, such as that of `laptop$ quorumfs ls`.
fn is_typed(line: &str) -> bool {
    let machine = line.split_once("$ ").map(|(machine, _)| machine);
    machine.is_some_and(|it| it.chars().all(char::is_alphanumeric)) || line.starts_with("# ")
}

/// The lines of a page's fenced blocks that hold commands; a backslash at the end joins two. Of a
/// block of text these are the lines that begin with a prompt.
fn commands(page: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut fenced = None;
    for line in page.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            fenced = fenced.is_none().then(|| kind.to_string());
            continue;
        }
        let begun = commands.last_mut().filter(|begun| begun.ends_with('\\'));
        let holds_some = match fenced.as_deref() {
            Some("console" | "sh" | "") => true,
            Some("text") => begun.is_some() || is_typed(line),
            _ => false,
        };
        if !holds_some {
            continue;
        }
        match begun {
            Some(begun) => {
                begun.pop();
                begun.push_str(line);
            }
            None => commands.push(line.into()),
        }
    }
    commands
}

/// The words of each run of the program in a line of the shell. What the shell puts in the place
/// of a variable is not known, so the name of the variable stands for it.
fn runs(line: &str) -> Vec<Vec<String>> {
    let mut runs = Vec::new();
    let mut rest = line;
    while let Some(at) = rest.find("quorumfs ") {
        let (before, from) = rest.split_at(at);
        rest = &from["quorumfs ".len()..];
        let begins = before.is_empty() || before.ends_with(' ') || before.ends_with('(');
        let quoted = before.matches('\'').count() % 2 == 1;
        // The name of a user, a package or a service is not a run; nor is a line of a systemd unit.
        let name = ["-p ", "-o ", "-g ", "-u ", "--system ", "install ", "LABEL"];
        if !begins || quoted || name.iter().any(|it| before.ends_with(it)) {
            continue;
        }
        let end = rest.find(['|', ';', '>', '<', '&', ')', '#', '\'', '"']);
        let words = rest[..end.unwrap_or(rest.len())].split_whitespace();
        let words: Vec<_> = words.map(|word| word.replace(['[', ']'], "")).collect();
        // A line of output, such as that of `--version`.
        if words.first().is_some_and(|word| word != "…") {
            runs.push(words);
        }
    }
    runs
}

/// Whether the program takes these words. A variable may stand for several options; what they are
/// is not known.
fn parse(mut words: Vec<String>) -> Result<(), clap::Error> {
    let fine = [
        ErrorKind::ValueValidation,
        ErrorKind::DisplayVersion,
        ErrorKind::DisplayHelp,
    ];
    loop {
        let typed = std::iter::once("quorumfs".to_string()).chain(words.iter().cloned());
        match Arguments::command().try_get_matches_from(typed) {
            Err(error) if error.kind() == ErrorKind::UnknownArgument => {
                let variable = words.iter().rposition(|word| word.starts_with('$'));
                words.remove(variable.ok_or(error)?);
            }
            Err(error) if !fine.contains(&error.kind()) => return Err(error),
            _ => return Ok(()),
        }
    }
}

#[test]
fn every_command_of_the_documentation_is_one_that_the_program_takes() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        for command in commands(&text) {
            for run in runs(&command) {
                seen += 1;
                if let Err(error) = parse(run) {
                    wrong.push(format!("{page}: {command}\n{error}"));
                }
            }
        }
    }
    assert!(seen > 30, "only {seen} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_command_that_does_not_exist_is_noticed() {
    let text = "```console\na$ x && quorumfs volume \\\n  frobnicate | quorumfs ls /\n```\n\
                quorumfs no\n```text\nb$ quorumfs rm \\\n  /a\nquorumfs says no\n```\n";
    let found: Vec<_> = commands(text).iter().flat_map(|line| runs(line)).collect();
    let expected = [
        vec!["volume", "frobnicate"],
        vec!["ls", "/"],
        vec!["rm", "/a"],
    ];
    assert_eq!(found, expected);
    let words = ["quorumfs", "volume", "frobnicate"];
    assert!(Arguments::command().try_get_matches_from(words).is_err());
}

/// The examples of the page on configuration, one for each of the two files.
fn examples() -> Vec<String> {
    let pages = pages();
    let page = pages
        .iter()
        .find(|(path, _)| path == "docs/CONFIGURATION.md");
    let blocks = page.unwrap().1.split("```toml\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap().to_string());
    blocks.collect()
}

/// The keys that a table takes, from what is said when it has one that does not exist.
fn known(example: &str, table: &str, parse: impl Fn(&str) -> String) -> Vec<String> {
    let text = match table {
        "" => format!("frobnicate = 1\n{example}"),
        _ => example.replacen(table, &format!("{table}\nfrobnicate = 1"), 1),
    };
    let hint = parse(&text);
    let (_, known) = hint.rsplit_once("nown here: ").expect(&hint);
    known.split(", ").map(ToString::to_string).collect()
}

#[test]
fn the_page_on_configuration_has_every_key_and_no_other() {
    let [volume, replica] = &examples()[..] else {
        panic!("one example for each file");
    };
    let path = Path::new("example.toml");
    let failed = |parsed: crate::failure::CommandResult<()>| parsed.unwrap_err().hint.unwrap();
    let of_volume = |text: &str| {
        let parsed = configuration::parse::<VolumeConfiguration>(text, path);
        failed(parsed.map(drop))
    };
    let of_replica = |text: &str| {
        let parsed = configuration::parse::<ReplicaConfiguration>(text, path);
        failed(parsed.map(drop))
    };
    configuration::parse::<VolumeConfiguration>(volume, path).unwrap();
    configuration::parse::<ReplicaConfiguration>(replica, path).unwrap();

    let mut tables = vec![""];
    tables.extend(volume.lines().filter(|line| line.starts_with('[')));
    for table in tables {
        let section = match table {
            "" => volume.as_str(),
            _ => volume.split_once(table).unwrap().1,
        };
        let section = section.split("\n[").next().unwrap();
        for key in known(volume, table, of_volume) {
            let written = section.contains(&format!("{key} = "));
            let is_table =
                volume.contains(&format!("[{key}]")) || volume.contains(&format!(".{key}]"));
            assert!(written || is_table, "{table} lacks `{key}`");
        }
    }
    for key in known(replica, "", of_replica) {
        assert!(replica.contains(&key), "replica.toml lacks `{key}`");
    }
}
