//! A chain of events, with scripted replicas.

use super::*;

const NOW: Monotonic = Monotonic(0);

struct Watcher(Chain);

impl Watcher {
    /// Watches from sequence 10 on; three replicas report.
    fn new() -> Self {
        let mut chain = Chain::new(&FaultModel::new(1, 1, 4).unwrap());
        let answer = WatchAnswer::Watching {
            watch: WatchId(1),
            first: true,
            last: Sequence(9),
        };
        chain.answered(&answer, NOW);
        let mut watcher = Self(chain);
        for replica in 0..3 {
            watcher.standing(replica, 0);
        }
        assert_eq!(watcher.notifications(), [revalidate(9)]);
        watcher
    }

    fn standing(&mut self, replica: u16, last: u64) {
        let observed = Observed::Accepted {
            applied: Sequence(last),
            last: Some(Sequence(last)),
        };
        self.0.standing(ReplicaId(replica), &observed, NOW);
    }

    fn receives(&mut self, replica: u16, sequence: u64, previous: u64) {
        let event = WatchEvent {
            session: SessionId(5),
            sequence: Sequence(sequence),
            previous: Sequence(previous),
            watches: vec![WatchId(1)],
        };
        self.0.event(ReplicaId(replica), event, NOW);
    }

    fn notifications(&mut self) -> Vec<Watched> {
        self.0.take()
    }

    fn waits(&mut self) -> Vec<Watched> {
        assert_eq!(self.notifications(), []);
        self.0.expire(NOW.plus(WATCH_GRACE));
        self.notifications()
    }
}

fn changed(sequence: u64) -> Watched {
    Watched::Changed {
        sequence: Sequence(sequence),
        watches: vec![WatchId(1)],
    }
}

fn revalidate(up_to: u64) -> Watched {
    let up_to = Sequence(up_to);
    Watched::Revalidate { up_to }
}

#[test]
fn an_event_counts_with_two_equal_copies_and_once() {
    let mut watcher = Watcher::new();
    watcher.receives(0, 12, 9);
    watcher.receives(0, 12, 9);
    assert_eq!(watcher.notifications(), [], "one replica twice is one");
    watcher.receives(1, 12, 8);
    assert_eq!(
        watcher.notifications(),
        [],
        "and another chain another event"
    );
    watcher.receives(2, 12, 9);
    assert_eq!(watcher.notifications(), [changed(12)]);
    watcher.receives(1, 12, 9);
    watcher.receives(3, 12, 9);
    assert_eq!(watcher.notifications(), []);
}

#[test]
fn events_wait_for_their_predecessors() {
    let mut watcher = Watcher::new();
    watcher.receives(0, 12, 9);
    for replica in [1, 3] {
        watcher.receives(replica, 15, 12);
    }
    assert_eq!(
        watcher.notifications(),
        [],
        "one replica that withholds does not make a gap"
    );
    watcher.receives(2, 12, 9);
    assert_eq!(watcher.notifications(), [changed(12), changed(15)]);
    assert_eq!(watcher.0.next_deadline(), None);
}

#[test]
fn a_predecessor_that_does_not_come_is_covered() {
    let mut watcher = Watcher::new();
    for replica in [1, 2] {
        watcher.receives(replica, 15, 12);
    }
    assert_eq!(watcher.waits(), [revalidate(12), changed(15)]);
    assert_eq!(watcher.waits(), []);
    watcher.receives(0, 12, 9);
    watcher.receives(3, 12, 9);
    assert_eq!(
        watcher.notifications(),
        [],
        "a covered event is not passed on again"
    );
}

#[test]
fn a_last_event_that_does_not_come_is_covered_too() {
    let mut watcher = Watcher::new();
    watcher.standing(3, u64::MAX);
    assert_eq!(watcher.waits(), [], "a single liar has no effect");
    watcher.standing(0, 20);
    assert_eq!(watcher.waits(), [revalidate(20)]);
    for replica in [1, 2] {
        watcher.receives(replica, 22, 20);
    }
    assert_eq!(watcher.notifications(), [changed(22)]);
}

#[test]
fn too_few_reporting_replicas_make_a_watcher_blind_until_it_revalidates() {
    let mut watcher = Watcher::new();
    watcher.0.lost(ReplicaId(0));
    watcher.0.lost(ReplicaId(0));
    assert_eq!(watcher.notifications(), [Watched::Blind]);
    for replica in [1, 2] {
        watcher.receives(replica, 12, 9);
    }
    assert_eq!(
        watcher.notifications(),
        [changed(12)],
        "two copies are enough"
    );
    watcher.standing(1, 12);
    watcher.standing(2, 12);
    watcher.standing(0, 17);
    assert_eq!(watcher.notifications(), [revalidate(12)]);
}

#[test]
fn a_copy_under_an_old_number_does_not_count_in_the_next_epoch() {
    let mut watcher = Watcher::new();
    watcher.receives(3, 12, 9);
    watcher.0.enter(&FaultModel::new(1, 1, 4).unwrap());
    watcher.receives(2, 12, 9);
    assert_eq!(
        watcher.notifications(),
        [Watched::Blind],
        "it may be the same one"
    );
    for replica in 0..3 {
        watcher.standing(replica, 9);
    }
    assert_eq!(watcher.notifications(), [revalidate(9)]);
    watcher.receives(0, 12, 9);
    assert_eq!(watcher.notifications(), [changed(12)]);
}

#[test]
fn invented_events_count_against_the_bound_of_the_liar() {
    let mut watcher = Watcher::new();
    watcher.receives(0, 12, 9);
    for sequence in 100..100 + 10 * WATCH_EVENTS_KEPT as u64 {
        watcher.receives(3, sequence, sequence - 1);
    }
    let kept = watcher.0.single.values().map(BTreeMap::len);
    assert!(kept.max() <= Some(WATCH_EVENTS_KEPT));
    watcher.receives(1, 12, 9);
    assert_eq!(watcher.notifications(), [changed(12)]);
}

#[test]
fn a_chain_ends_with_its_last_watch_and_begins_anew() {
    let mut watcher = Watcher::new();
    watcher.0.ended(WatchId(1));
    watcher.standing(0, 12);
    watcher.standing(1, 12);
    assert_eq!(watcher.waits(), []);
    let answer = WatchAnswer::Watching {
        watch: WatchId(2),
        first: true,
        last: Sequence(29),
    };
    watcher.0.answered(&answer, NOW);
    assert_eq!(
        watcher.notifications(),
        [],
        "it may read now, and is notified from now on"
    );
    watcher.receives(0, 31, 29);
    watcher.receives(1, 31, 29);
    assert_eq!(watcher.notifications(), [changed(31)]);
}
