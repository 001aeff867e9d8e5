//! Whether the twins are equal, except for [`differences`](super::differences).

use super::differences::{
    Mapped, compared, explicit, maps, may_change_nothing, pipes, within_a_jiffy, within_a_tick,
};
use super::picture::{Picture, Time};
use super::step::{Operation, Text};
use std::collections::BTreeMap;
use std::fmt::Debug;

/// The values of both twins: the reference, then ours.
pub type Both<T> = (T, T);

/// Equal, or a description of the difference.
pub type CheckResult = Result<(), String>;

fn differ(what: &str, both: Both<impl Debug>) -> CheckResult {
    Err(format!(
        "{what}\n    tmpfs: {:?}\n    ours:  {:?}",
        both.0, both.1
    ))
}

/// Compares the current state at a path.
///
/// # Errors
/// A description of the difference.
pub fn still(
    place: &str,
    both: Both<&Option<Picture>>,
    began: Time,
    mapped: &Mapped,
) -> CheckResult {
    let (reference, ours) = match both {
        (None, None) => return Ok(()),
        (Some(reference), Some(ours)) => (reference, ours),
        _ => return differ(&format!("only one has {place}"), both),
    };
    let (left, right) = (compared(reference), compared(ours));
    if left != right {
        return differ(&format!("{place} differs"), (left, right));
    }
    if reference.is_pipe() || mapped.get(&reference.inode) == Some(&reference.modified) {
        return Ok(());
    }
    let (left, right) = (reference.modified, ours.modified);
    let is_wrong = match explicit(left, began) {
        true => left != right,
        false => explicit(right, began),
    };
    match is_wrong {
        true => differ(
            &format!("{place}: the time of modification differs"),
            (left, right),
        ),
        false => Ok(()),
    }
}

/// Compares how a step changed the times of an inode.
///
/// # Errors
/// A description of the difference.
pub fn moved(
    place: &str,
    before: Both<&Picture>,
    after: Both<&Picture>,
    began: Time,
    operation: &Operation,
) -> CheckResult {
    type OfPicture = fn(&Picture) -> Time;
    let times: [(&str, OfPicture); 2] = [
        ("change", |it| it.changed),
        ("modification", |it| it.modified),
    ];
    for (name, time) in times {
        let reference = (time(before.0), time(after.0));
        let ours = (time(before.1), time(after.1));
        if name == "change" && ours.1 < ours.0 {
            return differ(
                &format!("{place}: the time of {name} went back"),
                (reference, ours),
            );
        }
        let (should, did) = (reference.0 != reference.1, ours.0 != ours.1);
        let nothing = name == "change" && may_change_nothing(operation);
        let excused = match should {
            true => nothing || pipes(after.0, operation) || within_a_tick(ours.0, began),
            false => maps(operation) || within_a_jiffy(reference.0, began),
        };
        if should != did && !excused {
            let what = if did { "moved" } else { "did not move" };
            let what = format!("{place}: the time of {name} {what}, at {began:?}");
            return differ(&what, (reference, ours));
        }
    }
    Ok(())
}

/// Compares the states of the same paths before and after a step.
///
/// # Errors
/// A description of the difference.
pub fn path_states(
    paths: &[Text],
    before: Both<&[Option<Picture>]>,
    after: Both<&[Option<Picture>]>,
    times: (Time, Time),
    operation: &Operation,
    mapped: &Mapped,
) -> CheckResult {
    let (run, step) = times;
    for (path, (reference, ours)) in paths.iter().zip(after.0.iter().zip(after.1)) {
        let place = format!("{path:?}");
        still(&place, (reference, ours), run, mapped)?;
        let (Some(reference), Some(ours)) = (reference, ours) else {
            continue;
        };
        // The path before the step at which this inode was, for renamed ones.
        let was = |picture: &Picture, before: &[Option<Picture>]| {
            let is = |it: &Option<Picture>| it.as_ref().is_some_and(|it| it.inode == picture.inode);
            before.iter().position(is)
        };
        let were = (was(reference, before.0), was(ours, before.1));
        if were.0 != were.1 {
            return differ(&format!("{place} is another inode than before"), were);
        }
        let Some(was) = were.0 else {
            continue;
        };
        if let (Some(old), Some(other)) = (&before.0[was], &before.1[was]) {
            moved(&place, (old, other), (reference, ours), step, operation)?;
        }
    }
    Ok(())
}

/// Compares the whole trees.
///
/// # Errors
/// A description of the difference.
pub fn trees(both: Both<&BTreeMap<Text, Picture>>, began: Time, mapped: &Mapped) -> CheckResult {
    let paths = both.0.keys().chain(both.1.keys());
    for path in paths {
        let (reference, ours) = (both.0.get(path).cloned(), both.1.get(path).cloned());
        still(&format!("{path:?}"), (&reference, &ours), began, mapped)?;
    }
    let names = (groups(both.0), groups(both.1));
    if names.0 != names.1 {
        return differ("names of the same inodes differ", names);
    }
    Ok(())
}

/// The groups of names that lead to the same inode, where there are several.
fn groups(tree: &BTreeMap<Text, Picture>) -> Vec<Vec<&Text>> {
    let mut groups: BTreeMap<u64, Vec<&Text>> = BTreeMap::new();
    for (path, picture) in tree {
        groups.entry(picture.inode).or_default().push(path);
    }
    let mut groups: Vec<_> = groups.into_values().filter(|it| it.len() > 1).collect();
    groups.sort();
    groups
}
