//! Reports of replicas, and what a quorum of them proves.
//!
//! A report is a replica's statement about itself, complete every time: an observer that missed one
//! has lost only the changes in between. It is numbered from the start of the replica's process, so
//! a gap shows. Two reports are similar if they name the same epoch, view, leader and activity;
//! numbers that only rise are never compared for equality, because no two replicas report at the
//! same instant.
//!
//! Replicas are numbered anew in each epoch, and another number of them may fail. An observer that
//! enters a later epoch drops all reports ([`Tally::enter`]): a report kept under an old number
//! would count in addition to the same replica's next one, and a liar would count twice.

use crate::fault_model::FaultModel;
use crate::identity::{Epoch, Monotonic, ReplicaId, Sequence, View};
use crate::metrics::Voting;
use crate::wire::limits::OBSERVED_SILENT;
use borsh::{BorshDeserialize, BorshSerialize};
use std::collections::BTreeMap;

/// A replica's report about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Report {
    /// Its membership epoch.
    pub epoch: Epoch,
    /// Its view.
    pub view: View,
    /// That view's leader.
    pub leader: ReplicaId,
    /// Whether it knows the batches that the view begins with; otherwise it waits between two
    /// views.
    pub active: bool,
    /// The last sequence that it has executed, give or take a moment.
    pub executed: Sequence,
    /// The newest stable checkpoint that it knows.
    pub stable: Sequence,
    /// The checkpoint whose state it is taking over from its peers, if any.
    pub transfer: Option<Sequence>,
    /// Whether it votes.
    pub voting: Voting,
}

impl Report {
    /// Whether more has changed than the number of executed batches.
    #[must_use]
    pub fn differs_beyond_progress(&self, earlier: &Self) -> bool {
        let caught_up = Self {
            executed: earlier.executed,
            ..*self
        };
        caught_up != *earlier
    }
}

/// A report with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberedReport {
    /// Counted since the start of the replica's process; the same for all observers. A repetition
    /// keeps its number.
    pub number: u64,
    /// The report.
    pub report: Report,
}

/// A value that only rises. A correct replica has reached it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fact {
    /// An epoch began.
    Epoch(Epoch),
    /// A view was entered, or waited for. Views are counted anew in each epoch; it is one of the
    /// epoch that the observer knows.
    View(View),
    /// Batches were executed up to here.
    Executed(Sequence),
    /// The newest stable checkpoint.
    Stable(Sequence),
}

/// The view of the cluster, on which the reports of n − u replicas agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Its epoch.
    pub epoch: Epoch,
    /// The view.
    pub view: View,
    /// Its leader.
    pub leader: ReplicaId,
    /// Whether it has begun: otherwise the replicas are changing to it.
    pub active: bool,
}

/// A notification for an observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// One replica's report, which may be a lie.
    Single {
        /// The replica.
        replica: ReplicaId,
        /// The number of its reports before this one that did not arrive.
        missed: u64,
        /// The report.
        report: Report,
    },
    /// A replica has no current report: it is not connected, refuses, or has been silent for too
    /// long.
    Silent {
        /// The replica.
        replica: ReplicaId,
    },
    /// True of a correct replica.
    Fact(Fact),
    /// True of n − u replicas, of which at most r lie.
    Activity(Activity),
}

#[derive(Clone, Copy, Debug)]
struct StoredReport {
    number: u64,
    report: Report,
    received: Monotonic,
}

/// The reports of replicas, and the facts derived from them. One report a replica is kept.
#[derive(Clone, Debug)]
pub struct Tally {
    small: usize,
    alike: usize,
    reports: BTreeMap<ReplicaId, StoredReport>,
    epoch: Epoch,
    view: View,
    executed: Sequence,
    stable: Sequence,
    activity: Option<Activity>,
}

impl Tally {
    /// A tally for a cluster with this fault model. Nothing is known yet.
    #[must_use]
    pub fn new(model: &FaultModel) -> Self {
        Self {
            small: model.small().into(),
            alike: usize::from(model.replicas().saturating_sub(model.up())),
            reports: BTreeMap::new(),
            epoch: Epoch(0),
            view: View(0),
            executed: Sequence(0),
            stable: Sequence(0),
            activity: None,
        }
    }

    /// Enters a later epoch: reports under old numbers do not count any more. Returns the replicas
    /// that they were from.
    pub fn enter(&mut self, model: &FaultModel) -> Vec<Observation> {
        let Self {
            small,
            alike,
            reports,
            view,
            ..
        } = self;
        let fresh = Self::new(model);
        (*small, *alike, *view) = (fresh.small, fresh.alike, fresh.view);
        let gone = std::mem::take(reports).into_keys();
        gone.map(|replica| Observation::Silent { replica })
            .collect()
    }

    /// Handles a replica's report. Returns the notifications that result, the report itself first.
    pub fn reported(
        &mut self,
        replica: ReplicaId,
        numbered: &NumberedReport,
        now: Monotonic,
    ) -> Vec<Observation> {
        let NumberedReport { number, report } = *numbered;
        let before = self.reports.get(&replica);
        // A restarted replica counts from the start again; then no report is known to be missing.
        let expected = before.map_or(number, |stored| stored.number.saturating_add(1));
        let repeated =
            before.is_some_and(|stored| stored.number == number && stored.report == report);
        let received = now;
        let stored = StoredReport {
            number,
            report,
            received,
        };
        self.reports.insert(replica, stored);
        if repeated {
            return Vec::new();
        }
        let missed = number.saturating_sub(expected);
        let mut news = vec![Observation::Single {
            replica,
            missed,
            report,
        }];
        self.facts(&mut news);
        news.extend(self.alike().map(Observation::Activity));
        news
    }

    /// Drops a replica's report. Returns a notification if there was one.
    pub fn lost(&mut self, replica: ReplicaId) -> Option<Observation> {
        let had = self.reports.remove(&replica).is_some();
        had.then_some(Observation::Silent { replica })
    }

    /// Drops the reports of replicas that have been silent for too long.
    pub fn expire(&mut self, now: Monotonic) -> Vec<Observation> {
        let silent = |stored: &StoredReport| now.since(stored.received) >= OBSERVED_SILENT;
        let gone = self.reports.iter().filter(|(_, stored)| silent(stored));
        let gone: Vec<ReplicaId> = gone.map(|(replica, _)| *replica).collect();
        gone.into_iter().filter_map(|it| self.lost(it)).collect()
    }

    /// When the next report becomes too old.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Monotonic> {
        let last = self.reports.values().map(|stored| stored.received).min();
        last.map(|received| received.plus(OBSERVED_SILENT))
    }

    /// The last report of each replica.
    pub fn reports(&self) -> impl Iterator<Item = (ReplicaId, &Report)> {
        self.reports
            .iter()
            .map(|(id, stored)| (*id, &stored.report))
    }

    /// The view that a quorum last agreed on, if it did recently.
    #[must_use]
    pub const fn activity(&self) -> Option<Activity> {
        self.activity
    }

    /// The highest value that r + 1 replicas have reached.
    fn reached<T: Ord + Copy>(&self, of: impl Fn(&Report) -> T) -> Option<T> {
        let mut all: Vec<T> = self
            .reports
            .values()
            .map(|stored| of(&stored.report))
            .collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.get(self.small.checked_sub(1)?).copied()
    }

    fn facts(&mut self, news: &mut Vec<Observation>) {
        fn rise<T: Ord + Copy>(known: &mut T, reached: Option<T>) -> Option<T> {
            let higher = reached.filter(|it| *it > *known)?;
            *known = higher;
            Some(higher)
        }
        let epoch = self.reached(|report| report.epoch);
        let view = self.reached(|report| report.view);
        let executed = self.reached(|report| report.executed);
        let stable = self.reached(|report| report.stable);
        let facts = [
            rise(&mut self.epoch, epoch).map(Fact::Epoch),
            rise(&mut self.view, view).map(Fact::View),
            rise(&mut self.executed, executed).map(Fact::Executed),
            rise(&mut self.stable, stable).map(Fact::Stable),
        ];
        news.extend(facts.into_iter().flatten().map(Observation::Fact));
    }

    /// The activity on which n − u reports agree, if it is new.
    fn alike(&mut self) -> Option<Activity> {
        let activity = |stored: &StoredReport| Activity {
            epoch: stored.report.epoch,
            view: stored.report.view,
            leader: stored.report.leader,
            active: stored.report.active,
        };
        let all: Vec<Activity> = self.reports.values().map(activity).collect();
        let agreed = all
            .iter()
            .find(|one| all.iter().filter(|other| other == one).count() >= self.alike);
        let agreed = agreed.copied().filter(|it| self.activity != Some(*it))?;
        self.activity = Some(agreed);
        Some(agreed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(view: u64, executed: u64) -> Report {
        Report {
            epoch: Epoch(0),
            view: View(view),
            leader: ReplicaId((view % 4) as u16),
            active: true,
            executed: Sequence(executed),
            stable: Sequence(0),
            transfer: None,
            voting: Voting::Voting,
        }
    }

    struct Watcher(Tally, u64);

    impl Watcher {
        fn new() -> Self {
            Self(Tally::new(&FaultModel::new(1, 1, 4).unwrap()), 0)
        }

        /// The notifications apart from the single report.
        fn hear(&mut self, replica: u16, report: Report) -> Vec<Observation> {
            self.1 += 1;
            let number = self.1;
            let numbered = NumberedReport { number, report };
            let mut news = self.0.reported(ReplicaId(replica), &numbered, Monotonic(0));
            assert!(matches!(news.remove(0), Observation::Single { .. }));
            news
        }
    }

    #[test]
    fn a_liar_moves_no_fact_beyond_a_correct_replica() {
        let mut watcher = Watcher::new();
        assert_eq!(watcher.hear(3, report(9, 1_000_000)), []);
        let notified = watcher.hear(0, report(1, 10));
        let expected = [Fact::View(View(1)), Fact::Executed(Sequence(10))];
        assert_eq!(notified, expected.map(Observation::Fact));
        assert_eq!(watcher.hear(1, report(0, 7)), [], "a known fact stays");
        let notified = watcher.hear(1, report(1, 12));
        assert_eq!(notified, [Observation::Fact(Fact::Executed(Sequence(12)))]);
    }

    #[test]
    fn a_report_under_an_old_number_does_not_count_in_addition_to_the_next() {
        let mut watcher = Watcher::new();
        assert_eq!(watcher.hear(3, report(9, 1_000_000)), []);
        let next = FaultModel::new(2, 2, 7).unwrap();
        let replica = ReplicaId(3);
        assert_eq!(watcher.0.enter(&next), [Observation::Silent { replica }]);
        for (replica, executed) in [(2, 1_000_000), (0, 900_000)] {
            assert_eq!(watcher.hear(replica, report(9, executed)), []);
        }
        let notified = watcher.hear(1, report(0, 12));
        let fact = Fact::Executed(Sequence(12));
        assert_eq!(
            notified,
            [Observation::Fact(fact)],
            "two of seven replicas may lie"
        );
    }

    #[test]
    fn views_are_counted_anew_in_each_epoch() {
        let mut watcher = Watcher::new();
        watcher.hear(0, report(7, 0));
        watcher.hear(1, report(7, 0));
        watcher.0.enter(&FaultModel::new(1, 1, 4).unwrap());
        watcher.hear(0, report(1, 0));
        let notified = watcher.hear(1, report(1, 0));
        assert_eq!(notified, [Observation::Fact(Fact::View(View(1)))]);
    }

    #[test]
    fn a_view_counts_when_all_but_u_say_the_same() {
        let mut watcher = Watcher::new();
        watcher.hear(0, report(0, 0));
        watcher.hear(1, report(0, 0));
        let mut between = report(0, 0);
        between.active = false;
        assert_eq!(watcher.hear(2, between), [], "two are not enough");
        let notified = watcher.hear(3, report(0, 0));
        let (epoch, leader) = (Epoch(0), ReplicaId(0));
        let activity = Activity {
            epoch,
            view: View(0),
            leader,
            active: true,
        };
        assert_eq!(notified, [Observation::Activity(activity)]);
        assert_eq!(watcher.hear(3, report(0, 4)), [], "it is reported once");
    }

    #[test]
    fn a_gap_in_the_numbers_shows_and_a_restart_is_none() {
        let mut tally = Tally::new(&FaultModel::new(1, 1, 4).unwrap());
        let mut missed = |number, executed| {
            let report = report(0, executed);
            let numbered = NumberedReport { number, report };
            let news = tally.reported(ReplicaId(1), &numbered, Monotonic(0));
            news.into_iter().find_map(|it| match it {
                Observation::Single { missed, .. } => Some(missed),
                _ => None,
            })
        };
        assert_eq!(
            missed(7, 1),
            Some(0),
            "an observer that comes later missed nothing"
        );
        assert_eq!(missed(8, 2), Some(0));
        assert_eq!(missed(8, 2), None, "a repetition is no news");
        assert_eq!(missed(12, 3), Some(3));
        assert_eq!(missed(1, 1), Some(0), "it was restarted");
    }

    #[test]
    fn silence_is_reported_once_and_ends_with_a_report() {
        let mut watcher = Watcher::new();
        watcher.hear(2, report(0, 1));
        let replica = ReplicaId(2);
        let late = Monotonic(0).plus(OBSERVED_SILENT);
        assert_eq!(watcher.0.next_deadline(), Some(late));
        assert_eq!(watcher.0.expire(Monotonic(late.0 - 1)), []);
        let silent = Observation::Silent { replica };
        assert_eq!(watcher.0.expire(late), [silent]);
        assert_eq!(watcher.0.lost(replica), None);
        assert_eq!(watcher.0.reports().count(), 0);
    }
}
