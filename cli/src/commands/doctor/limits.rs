//! What each role may and may not do, and what a deviation means. Nothing is asked here.

use super::finding::{Finding, Level};
use crate::clouds::Role;
use crate::exit::Exit;
use quorumfs_backends::StoreErrorKind;
use quorumfs_backends::remote::Attempt;

/// The names of an attempt in messages.
fn doing(attempt: Attempt) -> (&'static str, &'static str) {
    match attempt {
        Attempt::Create => ("create objects", "creates"),
        Attempt::Overwrite => ("overwrite objects", "overwrites"),
        Attempt::Get => ("get objects", "gets"),
        Attempt::List => ("list objects", "lists"),
        Attempt::Delete => ("delete objects", "deletes"),
    }
}

/// Whether a role may do it; `None` if it does not matter.
pub(super) fn may(role: Role, attempt: Attempt, no_list: bool) -> Option<bool> {
    match (role, attempt) {
        (Role::Reader | Role::Writer, Attempt::List) => no_list.then_some(false),
        (Role::Reader | Role::Writer, Attempt::Get) => Some(true),
        (Role::Writer, Attempt::Create) => Some(true),
        (Role::Collector, Attempt::List | Attempt::Delete) => Some(true),
        _ => Some(false),
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It succeeded.
    Done,
    /// It failed, for this reason.
    Refused(StoreErrorKind, String),
}

/// Whether a refusal is about permissions, and not a passing failure.
fn is_no(kind: StoreErrorKind) -> bool {
    use StoreErrorKind as Kind;
    matches!(
        kind,
        Kind::Denied | Kind::AlreadyExists | Kind::ReadOnly | Kind::Other
    )
}

/// Which right to take away, and where to find the policies.
fn take_away(attempt: Attempt) -> String {
    let what = match attempt {
        Attempt::Create => "the right to put",
        Attempt::Overwrite => {
            "the right to put without If-None-Match, or have the bucket keep its objects for a \
             while (object lock, retention)"
        }
        Attempt::Get => "the right to get",
        Attempt::List => "the right to list",
        Attempt::Delete => "the right to delete",
    };
    format!("take away {what}: docs/CLOUDS.md, \"Roles\", has the policies")
}

/// The meaning of an attempt's result; `retained` is whether the bucket destroys nothing for a
/// while.
pub(super) fn judge(
    cloud: &str,
    role: Role,
    attempt: Attempt,
    no_list: bool,
    retained: bool,
    ended: &Ended,
) -> Option<Finding> {
    let (doing, check) = doing(attempt);
    let find = |level, text: String| Finding::new(level, cloud, check, text).of(role);
    let may = may(role, attempt, no_list)?;
    Some(match (may, ended) {
        (true, Ended::Done) => find(Level::Ok, format!("may {doing}")),
        (true, Ended::Refused(kind, _))
            if attempt == Attempt::Delete && retained && is_no(*kind) =>
        {
            let text = "was refused to delete objects that are younger than the retention";
            find(Level::Ok, text.to_owned())
        }
        (true, Ended::Refused(_, detail)) => {
            find(Level::Problem, format!("cannot {doing}: {detail}")).exit(Exit::CloudsUnreachable)
        }
        (false, Ended::Refused(kind, _)) if is_no(*kind) => {
            find(Level::Ok, format!("was refused to {doing}"))
        }
        (false, Ended::Refused(_, detail)) => {
            let text = format!("whether it may {doing} could not be determined: {detail}");
            find(Level::Problem, text).exit(Exit::CloudsUnreachable)
        }
        (false, Ended::Done) if attempt == Attempt::Overwrite && retained => {
            let text = "may put new versions over objects; the bucket keeps the old ones during \
                        its retention";
            find(Level::Warning, text.to_owned()).remedy(
                "nothing is destroyed; reads use other clouds until the new versions are \
                 deleted. If the provider can require If-None-Match, let it",
            )
        }
        (false, Ended::Done) => {
            find(Level::TooMuch, format!("may {doing}")).remedy(take_away(attempt))
        }
    })
}

/// From this many seconds on a clock's deviation is a warning, and from that many on a problem,
/// since providers refuse signatures then.
const AHEAD_WARN: u64 = 60;
const AHEAD_MAX: u64 = 15 * 60;

/// The meaning of the difference of two clocks.
pub(super) fn judge_clock(cloud: &str, ahead: i64) -> Finding {
    let (off, way) = (
        ahead.unsigned_abs(),
        if ahead < 0 { "behind" } else { "ahead of" },
    );
    let text = format!("this machine's clock is {off} s {way} the cloud's");
    let find = |level| Finding::new(level, cloud, "clock", text.clone());
    let remedy = "set this machine's clock: synchronise it with a time server";
    match off {
        0..=2 => Finding::new(Level::Ok, cloud, "clock", "the clocks agree".to_owned()),
        3..=AHEAD_WARN => find(Level::Ok),
        off if off <= AHEAD_MAX => find(Level::Warning).remedy(remedy),
        _ => find(Level::Problem)
            .remedy(remedy)
            .exit(Exit::CloudsUnreachable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Attempt; 5] = [
        Attempt::Create,
        Attempt::Overwrite,
        Attempt::Get,
        Attempt::List,
        Attempt::Delete,
    ];

    fn level(role: Role, attempt: Attempt, retained: bool, ended: &Ended) -> Option<Level> {
        judge("c", role, attempt, false, retained, ended).map(|it| it.level)
    }

    #[test]
    fn credentials_that_allow_everything_are_too_wide_in_each_role() {
        let all = |role| ALL.map(|attempt| level(role, attempt, false, &Ended::Done));
        let (ok, too_much) = (Some(Level::Ok), Some(Level::TooMuch));
        assert_eq!(all(Role::Reader), [too_much, too_much, ok, None, too_much]);
        assert_eq!(all(Role::Writer), [ok, too_much, ok, None, too_much]);
        assert_eq!(all(Role::Collector), [too_much, too_much, too_much, ok, ok]);
    }

    #[test]
    fn retention_excuses_new_versions_and_nothing_else() {
        let done = |attempt| level(Role::Writer, attempt, true, &Ended::Done);
        assert_eq!(done(Attempt::Overwrite), Some(Level::Warning));
        assert_eq!(done(Attempt::Delete), Some(Level::TooMuch));
    }

    #[test]
    fn a_limit_is_proved_by_a_refusal_and_not_by_silence() {
        let refused = |kind| Ended::Refused(kind, "so".to_owned());
        let denied = refused(StoreErrorKind::Denied);
        let silent = refused(StoreErrorKind::Timeout);
        for attempt in [Attempt::Overwrite, Attempt::Delete] {
            assert_eq!(
                level(Role::Writer, attempt, false, &denied),
                Some(Level::Ok)
            );
            let unknown = level(Role::Writer, attempt, false, &silent);
            assert_eq!(unknown, Some(Level::Problem));
        }
        // An object that no role may delete yet is no fault of the collector's.
        let collects = |retained| level(Role::Collector, Attempt::Delete, retained, &denied);
        assert_eq!(
            [true, false].map(collects),
            [Level::Ok, Level::Problem].map(Some)
        );
        let needed = level(Role::Writer, Attempt::Create, false, &denied);
        assert_eq!(needed, Some(Level::Problem));
    }

    #[test]
    fn listing_matters_only_if_it_is_asked_for() {
        let listed = |no_list| {
            judge(
                "c",
                Role::Writer,
                Attempt::List,
                no_list,
                true,
                &Ended::Done,
            )
        };
        assert_eq!(listed(false), None);
        assert_eq!(listed(true).map(|it| it.level), Some(Level::TooMuch));
    }

    #[test]
    fn a_clock_is_off_by_minutes_before_it_matters() {
        let level = |ahead| judge_clock("c", ahead).level;
        assert_eq!([0, -30, 60].map(level), [Level::Ok; 3]);
        assert_eq!([-61, 900].map(level), [Level::Warning; 2]);
        assert_eq!([-901, 86_400, i64::MIN].map(level), [Level::Problem; 3]);
        let finding = judge_clock("c", -1000);
        assert!(finding.text.contains("1000 s behind"), "{finding:?}");
        assert!(finding.remedy.is_some_and(|it| it.contains("time server")));
    }
}
