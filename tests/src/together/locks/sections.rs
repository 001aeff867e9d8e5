//! Critical sections: a counter that is read, incremented and written under a lock.
//!
//! Each process notes, outside of the mounts and by the clock that all processes share, when it
//! asked for the lock, entered, and left, and the value that it read. A value that two processes
//! read is a lost update. Two sections that overlap show that the lock did not exclude. The counter
//! has a copy in a second file, which is opened, written and closed under the same lock: readers
//! with a shared lock have to find both equal.

use super::super::median_and_maximum;
use super::super::mounts::MOUNTS;
use super::super::players::{SceneRun, text};
use super::Holder;
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::fs;

/// What was measured for one kind of lock.
#[derive(Debug, Serialize)]
pub(super) struct SectionReport {
    sections: u64,
    looks: usize,
    handovers: usize,
    median_ms: f64,
    maximum_ms: f64,
}

impl SectionReport {
    pub(super) fn sentence(&self) -> String {
        let Self {
            sections,
            handovers,
            median_ms,
            maximum_ms,
            ..
        } = self;
        format!(
            "{handovers} times to a process on another mount in {sections} sections, in \
             {median_ms} ms, at most {maximum_ms} ms"
        )
    }
}

/// One time that a process had the lock.
#[derive(Clone, Copy, Debug)]
struct Section {
    mount: usize,
    exclusive: bool,
    asked: u64,
    entered: u64,
    leaving: u64,
    value: u64,
    copy: u64,
}

/// Reads the notes of a process.
fn notes(log: &str, mount: usize) -> Result<Vec<Section>> {
    let mut sections = Vec::new();
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [how, numbers @ ..] = &words[..] else {
            bail!("an empty note");
        };
        let numbers: Vec<u64> = numbers
            .iter()
            .map(|it| it.parse())
            .collect::<Result<_, _>>()?;
        let [asked, entered, leaving, value, copy] = numbers[..] else {
            bail!("a note is `{line}`");
        };
        sections.push(Section {
            mount,
            exclusive: *how == "exclusive",
            asked,
            entered,
            leaving,
            value,
            copy,
        });
    }
    Ok(sections)
}

/// Checks that no two exclude each other and overlap, and that the values follow each other;
/// returns how long each handover to another mount took.
fn check(mut sections: Vec<Section>) -> Result<Vec<u64>> {
    sections.sort_by_key(|it| it.entered);
    let mut handovers = Vec::new();
    let (mut next, mut last_exclusive) = (0, None::<Section>);
    // Of those that hold the lock, the one that leaves last.
    let mut last: Option<Section> = None;
    for section in sections {
        let Section {
            mount,
            entered,
            value,
            copy,
            ..
        } = section;
        let overlap = |held: &Section| {
            let until = held.leaving.saturating_sub(entered);
            format!(
                "mount {mount} entered while mount {} was in the section for {until} ns more",
                held.mount
            )
        };
        let before = if section.exclusive {
            &last
        } else {
            &last_exclusive
        };
        if let Some(before) = before {
            ensure!(before.leaving <= entered, "{}", overlap(before));
        }
        ensure!(
            value == copy,
            "on mount {mount} the counter was {value}, and its copy, which is written under the \
             same lock, was {copy}, where {next} sections had counted"
        );
        ensure!(
            value == next,
            "mount {mount} read {value} where {next} sections had counted"
        );
        if let Some(before) = last_exclusive
            && section.exclusive
            && before.mount != mount
            && section.asked < before.leaving
        {
            handovers.push(entered - before.leaving);
        }
        if section.exclusive {
            next += 1;
            last_exclusive = Some(section);
        }
        if last.is_none_or(|it| it.leaving < section.leaving) {
            last = Some(section);
        }
    }
    Ok(handovers)
}

/// Has a process on each mount count, and one on each but the first look.
pub(super) fn play(run: &SceneRun, kind: &str) -> Result<SectionReport> {
    let each = run.plan.sizes.sections;
    let total = each * MOUNTS as u64;
    let mut holders = Vec::new();
    for mount in 0..MOUNTS {
        holders.push((mount, true, Holder::start(run, mount, "the writer")?));
        if mount > 0 {
            holders.push((mount, false, Holder::start(run, mount, "the reader")?));
        }
    }
    let log = |mount: usize, writes: bool| {
        let who = if writes { "writer" } else { "reader" };
        run.outside(&format!("{kind}-{who}-{mount}"))
    };
    for (mount, writes, holder) in &mut holders {
        let log = log(*mount, *writes);
        let (log, seed) = (text(&log), run.plan.seed + *mount as u64);
        holder.0.tell(&match writes {
            true => format!("count('{kind}', {each}, '{log}', {seed})"),
            false => format!("look('{kind}', {total}, '{log}', {seed})"),
        })?;
    }
    let mut sections = Vec::new();
    // Once a writer has failed the readers would wait for its numbers: the writers go first.
    holders.sort_by_key(|(_, writes, _)| !writes);
    let mut values = Vec::new();
    for (mount, writes, holder) in holders {
        if !writes && values.is_empty() {
            values = counted(&sections, total)?;
        }
        // The watchdog ends a holder that takes too long.
        let answer = loop {
            if let Some(answer) = holder.0.hear(super::ANSWER_WITHIN)? {
                break answer;
            }
        };
        ensure!(answer == super::DONE, "{}: {answer}", holder.0.name());
        let notes = notes(&fs::read_to_string(log(mount, writes))?, mount)?;
        sections.extend(notes);
        holder.0.finish()?;
    }
    let looks = sections.len() - values.len();
    let mut handovers = check(sections)?;
    for mount in 0..MOUNTS {
        for name in ["counter", "copy"] {
            let name = format!("{name}-{kind}");
            let value = fs::read_to_string(run.path(mount, &name))?;
            let at = format!("`{name}` on mount {mount} is {value}");
            let value: u64 = value.parse().context(at.clone())?;
            ensure!(value == total, "{at}, after {total} sections");
        }
    }
    let count = handovers.len();
    let (median_ms, maximum_ms) = median_and_maximum(&mut handovers);
    Ok(SectionReport {
        sections: total,
        looks,
        handovers: count,
        median_ms,
        maximum_ms,
    })
}

/// The values that the writers read, each of which has to be there once.
fn counted(sections: &[Section], total: u64) -> Result<Vec<u64>> {
    let mut values: Vec<u64> = sections.iter().map(|it| it.value).collect();
    values.sort_unstable();
    if let Some(pair) = values.windows(2).find(|it| it[0] == it[1]) {
        let value = pair[0];
        let who = sections.iter().filter(|it| it.value == value);
        let who: Vec<_> = who.map(|it| it.mount.to_string()).collect();
        let mounts = who.join(" and ");
        bail!("an update was lost: processes on mounts {mounts} both read {value}");
    }
    ensure!(
        values.iter().copied().eq(0..total),
        "the sections did not read each of 0 to {total}"
    );
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(mount: usize, exclusive: bool, times: [u64; 3], value: u64) -> Section {
        let [asked, entered, leaving] = times;
        Section {
            mount,
            exclusive,
            asked,
            entered,
            leaving,
            value,
            copy: value,
        }
    }

    #[test]
    fn sections_that_overlap_or_count_wrongly_are_noticed() {
        let first = section(0, true, [0, 10, 20], 0);
        let second = section(1, true, [12, 25, 30], 1);
        let shared = [31, 32].map(|entered| section(2, false, [30, entered, 40], 2));
        let fine = [first, second, shared[0], shared[1]];
        assert_eq!(check(fine.to_vec()).unwrap(), [5]);
        let early = section(1, true, [12, 19, 30], 1);
        assert!(check(vec![first, early]).is_err());
        let in_a_look = section(0, true, [12, 35, 50], 2);
        assert!(check(vec![first, second, shared[0], in_a_look]).is_err());
        let look = section(2, false, [12, 15, 18], 0);
        assert!(check(vec![first, look]).is_err());
        let stale = section(1, true, [12, 25, 30], 0);
        assert!(check(vec![first, stale]).is_err());
        assert!(counted(&[first, stale], 2).is_err());
        assert!(counted(&[first, second], 2).is_ok());
    }

    #[test]
    fn a_copy_that_differs_is_noticed() {
        let checked = |log| check(notes(log, 0).unwrap());
        assert!(checked("exclusive 1 2 3 0 0\nshared 5 6 7 1 1\n").is_ok());
        assert!(checked("exclusive 1 2 3 0 0\nshared 5 6 7 1 0\n").is_err());
    }
}
