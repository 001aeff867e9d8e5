//! What it means that the replicas are farther or slower than their plan says. Nothing is asked
//! here.
//!
//! A time is as planned up to [`FACTOR`] times what is predicted, and [`MORE_MS`] more: processors
//! and disks are not in the predictions. What is faster than planned is fine.

use super::finding::{ComparedTime, Finding, Level};

/// How many times as long as predicted is as planned, …
const FACTOR: f64 = 1.3;
/// … and how many milliseconds more.
const MORE_MS: f64 = 5.0;
/// Another leader is worth a word if it leaves less than this part of the time of a change.
const WORTH: f64 = 0.8;

/// What was found.
#[derive(Clone, Debug)]
pub(super) struct FoundTimes {
    /// The number of the replica that leads.
    pub(super) leader: usize,
    /// How votes are authenticated.
    pub(super) authentication: &'static str,
    /// The round trip to each replica by its number, in milliseconds, or why there is none.
    pub(super) round_trips: Vec<Result<f64, String>>,
    /// What an unordered query to a quorum takes.
    pub(super) read: f64,
    /// What an ordered operation takes.
    pub(super) change: f64,
}

/// What the table says, in milliseconds; `None`: too few replicas answer for that.
#[derive(Clone, Debug)]
pub(super) struct ExpectedTimes {
    /// The place of this machine.
    pub(super) from: String,
    /// The place of each replica, by its number.
    pub(super) places: Vec<String>,
    pub(super) round_trips: Vec<f64>,
    pub(super) read: Option<f64>,
    pub(super) change: Option<f64>,
    /// A change, if the replica of this number led.
    pub(super) changes_led_by: Vec<Option<f64>>,
}

/// Compares them: a finding for each replica, for reads, for changes, and for the leader.
pub(super) fn judge(expected: &ExpectedTimes, found: &FoundTimes) -> Vec<Finding> {
    let mut findings = Vec::new();
    let planned = expected.places.iter().zip(&expected.round_trips);
    for (number, ((place, predicted), trip)) in planned.zip(&found.round_trips).enumerate() {
        findings.push(round_trip(number, place, *predicted, trip));
    }
    let far = findings.iter().any(|it| it.level != Level::Ok);
    let from = &expected.from;
    let far_ones = "see the replicas above that are far or silent";
    if let Some(predicted) = expected.read {
        let what = format!("an unordered read takes {} from {from}", shown(found.read));
        let finding = compared("read", &what, found.read, predicted);
        findings.push(finding.or_remedy(match far {
            true => far_ones,
            false => "the round trips are as planned: see whether the replicas are busy",
        }));
    }
    if let Some(predicted) = expected.change {
        let what = format!("a change takes {} from {from}", shown(found.change));
        let finding = compared("change", &what, found.change, predicted);
        findings.push(finding.or_remedy(match far {
            true => far_ones,
            false => {
                "measure the ways between the replicas again; if they are as in the table, see \
                 whether the replicas or their disks are busy"
            }
        }));
    }
    findings.extend(leader(expected, found));
    findings
}

fn shown(ms: f64) -> String {
    let places = match ms {
        ..1.0 => 2,
        ..10.0 => 1,
        _ => 0,
    };
    format!("{ms:.places$} ms")
}

fn is_as_planned(measured: f64, predicted: f64) -> bool {
    measured <= FACTOR * predicted + MORE_MS
}

/// A finding without what to do: [`Finding::or_remedy`] adds it where it is a warning.
fn compared(check: &'static str, what: &str, measured: f64, predicted: f64) -> Finding {
    let says = shown(predicted);
    let (level, text) = if !is_as_planned(measured, predicted) {
        let more = shown(measured - predicted);
        let text = format!("{what}, {more} more than the table says ({says})");
        (Level::Warning, text)
    } else if !is_as_planned(predicted, measured) {
        let less = shown(predicted - measured);
        let text = format!("{what}, {less} less than the table says ({says})");
        (Level::Ok, text)
    } else {
        (Level::Ok, format!("{what}; the table says {says}"))
    };
    Finding::new(level, "plan", check, text).comparing(ComparedTime {
        replica: None,
        measured_ms: Some(measured),
        predicted_ms: predicted,
    })
}

fn round_trip(number: usize, place: &str, predicted: f64, trip: &Result<f64, String>) -> Finding {
    let which = format!("replica {number} ({place})");
    let finding = match trip {
        Ok(measured) => {
            let what = format!("{which} is {} away", shown(*measured));
            compared("round_trip", &what, *measured, predicted).or_remedy(
                "measure the table again with `ping`; if it is right, the way to this replica is \
                 slow, or the replica is in another place",
            )
        }
        Err(reason) => {
            let text = format!("{which} has no round trip, and counts as lost: {reason}");
            Finding::new(Level::Warning, "plan", "round_trip", text)
                .remedy("start it; `quorumfs status` shows all of them")
        }
    };
    finding.comparing(ComparedTime {
        replica: Some(number),
        measured_ms: trip.as_ref().ok().copied(),
        predicted_ms: predicted,
    })
}

/// Who leads, and whether another one would serve this place better.
fn leader(expected: &ExpectedTimes, found: &FoundTimes) -> Option<Finding> {
    let from = &expected.from;
    let named = |number: usize| {
        let place = expected.places.get(number).map_or("?", String::as_str);
        format!("replica {number} ({place})")
    };
    let now = expected.change?;
    let leads = named(found.leader);
    let others = expected.changes_led_by.iter().copied().enumerate();
    let others = others.filter_map(|(number, change)| Some((number, change?)));
    let best = others.min_by(|(_, one), (_, other)| one.total_cmp(other));
    let better = best.filter(|(_, change)| *change < WORTH * now && now - change > MORE_MS);
    let find = |level, text| Finding::new(level, "plan", "leader", text);
    Some(match better {
        None => {
            let text = format!(
                "{leads} leads (authentication {}); no other one would make changes from {from} \
                 a fifth faster",
                found.authentication
            );
            find(Level::Ok, text)
        }
        Some((number, change)) => {
            let text = format!(
                "{leads} leads (authentication {}): by the table a change from {from} takes {}; \
                 it would take {} if {} led",
                found.authentication,
                shown(now),
                shown(change),
                named(number),
            );
            let remedy = format!(
                "`quorumfs cluster lead {number}`, if most changes come from {from}; others may \
                 wait longer then"
            );
            find(Level::Warning, text).remedy(remedy)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> ExpectedTimes {
        ExpectedTimes {
            from: "virginia".to_owned(),
            places: ["frankfurt", "dublin", "virginia", "oregon"]
                .map(str::to_owned)
                .to_vec(),
            round_trips: vec![90.0, 70.0, 0.5, 65.0],
            read: Some(70.0),
            change: Some(182.0),
            changes_led_by: [182.0, 180.0, 155.0, 170.0].map(Some).to_vec(),
        }
    }

    fn found() -> FoundTimes {
        FoundTimes {
            leader: 0,
            authentication: "mac",
            round_trips: [91.0, 70.4, 0.2, 65.0].map(Ok).to_vec(),
            read: 71.0,
            change: 190.0,
        }
    }

    fn of<'a>(findings: &'a [Finding], check: &str) -> Vec<&'a Finding> {
        findings.iter().filter(|it| it.check == check).collect()
    }

    #[test]
    fn a_cluster_that_is_as_planned_has_only_fine_findings() {
        let findings = judge(&expected(), &found());
        assert_eq!(findings.len(), 7);
        assert!(
            findings
                .iter()
                .all(|it| it.level == Level::Ok && it.remedy.is_none())
        );
        let trip = of(&findings, "round_trip")[1];
        assert_eq!(
            trip.text,
            "replica 1 (dublin) is 70 ms away; the table says 70 ms"
        );
        let time = trip.compared.as_ref().unwrap();
        assert_eq!((time.replica, time.predicted_ms), (Some(1), 70.0));
        assert!(
            of(&findings, "leader")[0]
                .text
                .contains("authentication mac")
        );
    }

    #[test]
    fn the_bound_is_three_tenths_and_five_milliseconds_more() {
        for (measured, predicted, is) in [
            (5.0, 0.0, true),
            (5.1, 0.0, false),
            (135.0, 100.0, true),
            (135.1, 100.0, false),
            (0.0, 100.0, true),
        ] {
            assert_eq!(
                is_as_planned(measured, predicted),
                is,
                "{measured}, {predicted}"
            );
        }
    }

    #[test]
    fn a_replica_that_is_too_far_is_named_with_the_difference_and_what_to_do() {
        let mut found = found();
        found.round_trips[1] = Ok(141.0);
        found.read = 141.0;
        let findings = judge(&expected(), &found);
        let warned: Vec<_> = findings
            .iter()
            .filter(|it| it.level == Level::Warning)
            .collect();
        assert_eq!(warned.len(), 2, "{warned:#?}");
        let said = "replica 1 (dublin) is 141 ms away, 71 ms more than the table says (70 ms)";
        assert_eq!(warned[0].text, said);
        assert!(warned[0].remedy.as_ref().unwrap().contains("ping"));
        assert!(warned[1].remedy.as_ref().unwrap().contains("above"));
    }

    #[test]
    fn operations_that_are_slow_over_short_ways_are_not_blamed_on_the_ways() {
        let mut found = found();
        (found.read, found.change) = (400.0, 900.0);
        let findings = judge(&expected(), &found);
        for check in ["read", "change"] {
            let finding = of(&findings, check)[0];
            assert_eq!(finding.level, Level::Warning);
            assert!(
                finding.remedy.as_ref().unwrap().contains("busy"),
                "{finding:?}"
            );
        }
        assert!(
            of(&findings, "round_trip")
                .iter()
                .all(|it| it.level == Level::Ok)
        );
    }

    #[test]
    fn what_is_faster_than_planned_is_fine_and_said() {
        let mut found = found();
        found.round_trips[0] = Ok(2.0);
        let findings = judge(&expected(), &found);
        let trip = of(&findings, "round_trip")[0];
        assert_eq!(trip.level, Level::Ok);
        assert!(
            trip.text.contains("2.0 ms away, 88 ms less than"),
            "{}",
            trip.text
        );
    }

    #[test]
    fn a_replica_without_an_answer_is_a_warning_and_its_time_is_not_compared() {
        let mut found = found();
        found.round_trips[3] = Err("refused".to_owned());
        let findings = judge(&expected(), &found);
        let silent = of(&findings, "round_trip")[3];
        let time = silent.compared.as_ref().unwrap();
        assert_eq!((silent.level, time.measured_ms), (Level::Warning, None));
        assert!(
            silent.text.contains("replica 3 (oregon)"),
            "{}",
            silent.text
        );
    }

    #[test]
    fn a_leader_that_serves_this_place_a_fifth_faster_is_hinted_at() {
        let mut expected = expected();
        // 20 % of 182 ms are 36.4 ms.
        expected.changes_led_by[2] = Some(145.7);
        let findings = judge(&expected, &found());
        assert_eq!(of(&findings, "leader")[0].level, Level::Ok);
        expected.changes_led_by[2] = Some(145.5);
        let findings = judge(&expected, &found());
        let hint = of(&findings, "leader")[0];
        assert_eq!(hint.level, Level::Warning);
        assert!(
            hint.text.contains("if replica 2 (virginia) led"),
            "{}",
            hint.text
        );
        let remedy = hint.remedy.as_ref().unwrap();
        assert!(remedy.contains("`quorumfs cluster lead 2`"), "{remedy}");
        // Milliseconds are not worth it.
        expected.change = Some(4.0);
        expected.changes_led_by = [4.0, 4.0, 1.0, 4.0].map(Some).to_vec();
        let findings = judge(&expected, &found());
        assert_eq!(of(&findings, "leader")[0].level, Level::Ok);
    }
}
