//! A C project that is built on two mounts at the same time, over one tree of sources.
//!
//! Each mount has a build directory of its own in that tree: objects, a static library and a
//! program. Then a header is changed on one mount; once the other shows the change, `make` there
//! has to compile exactly what includes it. The same is checked on the mount that changed it.

use super::SceneFigures;
use super::players::{Player, SceneRun, text};
use crate::twins::several::BOUND;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Instant;

/// A header serves so many sources, in addition to one that all include.
const SOURCES_OF_A_HEADER: usize = 5;
const TREE: &str = "tree";

/// What compiles prints `CC` and its name.
const MAKEFILE: &str = "\
SOURCES := $(sort $(wildcard src/part*.c))
OBJECTS := $(SOURCES:src/%.c=$(BUILD)/%.o)

$(BUILD)/program: $(BUILD)/main.o $(BUILD)/libparts.a
\t@echo LD $(notdir $@)
\t@$(CC) -o $@ $^

$(BUILD)/libparts.a: $(OBJECTS)
\t@echo AR $(notdir $@)
\t@rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/%.o: src/%.c | $(BUILD)
\t@echo CC $(notdir $@)
\t@$(CC) -O1 -Iinclude -MMD -c -o $@ $<

$(BUILD):
\t@mkdir -p $@

-include $(BUILD)/*.d
";

fn header_of(source: usize) -> usize {
    source / SOURCES_OF_A_HEADER
}

fn header(number: usize, value: u64) -> String {
    format!("#define VALUE_{number} {value}\n")
}

/// Writes the project; returns what its program prints.
fn write_project(run: &SceneRun, sources: usize) -> Result<u64> {
    let path = |name: &str| run.path(0, &format!("{TREE}/{name}"));
    for directory in ["", "src", "include"] {
        fs::create_dir(path(directory))?;
    }
    fs::write(path("Makefile"), MAKEFILE)?;
    fs::write(path("include/all.h"), "#define BASE 1000\n")?;
    let (mut declared, mut called, mut sum) = (String::new(), String::new(), 0);
    for number in 0..sources {
        let included = header_of(number);
        let text = format!(
            "#include \"all.h\"\n#include \"group{included}.h\"\n\
             long part{number}(void) {{ return BASE + VALUE_{included} + {number}; }}\n"
        );
        fs::write(path(&format!("src/part{number}.c")), text)?;
        let name = format!("include/group{included}.h");
        fs::write(path(&name), header(included, included as u64))?;
        declared += &format!("long part{number}(void);\n");
        called += &format!(" + part{number}()");
        sum += 1000 + included as u64 + number as u64;
    }
    let main = format!(
        "#include <stdio.h>\n{declared}\
         int main(void) {{ printf(\"%ld\\n\", 0L{called}); return 0; }}\n"
    );
    fs::write(path("src/main.c"), main)?;
    Ok(sum)
}

fn make(run: &SceneRun, mount: usize) -> Result<Player> {
    let mut command = Command::new("make");
    let build = format!("BUILD=build-{mount}");
    command.args(["-j2", "-C", text(&run.path(mount, TREE)), &build]);
    let started = run.start(format!("make on mount {mount}"), command);
    started.context("this scene needs make and cc")
}

/// The objects that a build compiled.
fn compiled(lines: &[String]) -> BTreeSet<String> {
    let named = lines.iter().filter_map(|line| line.strip_prefix("CC "));
    named.map(str::to_owned).collect()
}

fn objects(sources: impl Iterator<Item = usize>) -> BTreeSet<String> {
    sources.map(|number| format!("part{number}.o")).collect()
}

/// Builds on one mount; exactly these have to be compiled.
fn builds(run: &SceneRun, mount: usize, expected: &BTreeSet<String>) -> Result<()> {
    let lines = make(run, mount)?.finish()?;
    compares(&lines, mount, expected)
}

fn compares(lines: &[String], mount: usize, expected: &BTreeSet<String>) -> Result<()> {
    let compiled = compiled(lines);
    let missing: Vec<_> = expected.difference(&compiled).collect();
    let needless: Vec<_> = compiled.difference(expected).collect();
    ensure!(
        missing.is_empty() && needless.is_empty(),
        "make on mount {mount} did not compile {missing:?}, and compiled {needless:?} needlessly"
    );
    Ok(())
}

/// Runs the program that a mount built, on that mount and on the other one.
fn prints(run: &SceneRun, expected: u64) -> Result<()> {
    for (built, mount) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
        let program = run.path(mount, &format!("{TREE}/build-{built}/program"));
        let name = format!("the program of mount {built} on mount {mount}");
        let printed = run.start(name.clone(), Command::new(program))?.finish()?;
        let expected = [expected.to_string()];
        ensure!(
            printed == expected,
            "{name} printed {printed:?} and not {expected:?}"
        );
    }
    Ok(())
}

/// Plays the scene.
pub(super) fn play(run: &SceneRun) -> Result<SceneFigures> {
    let sources = run.plan.sizes.sources;
    let cc = Command::new("cc").arg("--version").output();
    ensure!(
        cc.is_ok_and(|it| it.status.success()),
        "this scene needs make and cc: there is no cc"
    );
    let mut sum = write_project(run, sources)?;
    let began = Instant::now();
    let mut all = objects(0..sources);
    all.insert("main.o".into());
    let both = [make(run, 0)?, make(run, 1)?];
    for (mount, make) in both.into_iter().enumerate() {
        compares(&make.finish()?, mount, &all)?;
    }
    let built = began.elapsed();
    prints(run, sum)?;
    for mount in [0, 1] {
        builds(run, mount, &BTreeSet::new()).context("nothing has changed")?;
    }

    let (mut rebuilt, mut seen_ms) = (0, 0_f64);
    let headers = header_of(sources - 1) + 1;
    for (round, changes, other) in [(1, 0, 1), (2, 1, 0), (3, 2, 1)] {
        let included = round * 7 % headers;
        let dependent = objects((0..sources).filter(|it| header_of(*it) == included));
        let name = format!("{TREE}/include/group{included}.h");
        let value = 1000 * round as u64;
        let before = fs::read_to_string(run.path(changes, &name))?;
        let before: u64 = before
            .rsplit(' ')
            .next()
            .unwrap_or_default()
            .trim()
            .parse()?;
        fs::write(run.path(changes, &name), header(included, value))?;
        sum += (value - before) * dependent.len() as u64;
        let changed = fs::metadata(run.path(changes, &name))?;
        let (wrote, times) = (Instant::now(), |it: &fs::Metadata| {
            (it.mtime(), it.mtime_nsec())
        });
        run.until(BOUND, || {
            for mount in [0, other] {
                let shown = fs::metadata(run.path(mount, &name))?;
                ensure!(
                    times(&shown) == times(&changed) && shown.len() == changed.len(),
                    "mount {mount} shows {name} as before mount {changes} changed it"
                );
            }
            Ok(())
        })?;
        seen_ms = seen_ms.max((wrote.elapsed().as_secs_f64() * 1e4).round() / 10.0);
        for mount in [other, 1 - other] {
            builds(run, mount, &dependent)
                .with_context(|| format!("mount {changes} changed {name}"))?;
            builds(run, mount, &BTreeSet::new()).context("nothing has changed since")?;
        }
        rebuilt += dependent.len();
        prints(run, sum)?;
    }
    let seconds = (built.as_secs_f64() * 10.0).round() / 10.0;
    let figures = json!({
        "sources": sources, "build_seconds": seconds, "rebuilt": rebuilt,
        "longest_until_a_change_showed_ms": seen_ms,
    });
    let sentence = format!(
        "{sources} sources were built on two mounts at the same time in {seconds} s; after changes \
         of three headers each mount compiled exactly the {rebuilt} objects that depend on them; a \
         change showed after {seen_ms} ms at most."
    );
    Ok(SceneFigures::new(figures, sentence))
}
