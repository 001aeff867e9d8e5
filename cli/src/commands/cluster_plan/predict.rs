//! How long an operation takes from a place, by where the replicas are and which of them leads.
//!
//! ```text
//! client ─► leader ─► all: proposal ─► all: PREPARE ─► all: COMMIT ─► client: q replies
//!     request      q-th smallest at each      q-th smallest at each
//! ```
//!
//! q is the medium quorum. Each arrow takes the time of its way, and each replica goes on when it
//! has heard from q, itself included. Processors, disks and rates are not in it: over long ways
//! they matter little, and a machine that is too small shows in other figures.

use super::matrix::Matrix;
use quorumfs_bft::fault_model::FaultModel;

/// A cluster: the places of the replicas, in the order in which they lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) replicas: Vec<usize>,
    pub(crate) model: FaultModel,
}

/// What operations take from a place, in milliseconds; `None`: they wait until more replicas are
/// back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Costs {
    /// An ordered operation: a new name, a rename, new content of a file.
    pub(crate) change: Option<f64>,
    /// A question whose answer has to be current: opening a file that others may write.
    pub(crate) look: Option<f64>,
    /// A question to the r + 1 nearest: mounts ask it while a quorum tells them what others change.
    pub(crate) near: Option<f64>,
}

/// The `count`-th smallest of some times.
fn nth(mut times: Vec<f64>, count: usize) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(count.checked_sub(1)?).copied()
}

impl Placement {
    /// What operations take from a place while these replicas are up. The first of them leads.
    pub(crate) fn costs(&self, matrix: &Matrix, client: usize, up: &[usize]) -> Costs {
        let medium = usize::from(self.model.medium());
        let round_trips = || {
            let trips = up.iter().map(|it| 2.0 * matrix.one_way(client, *it));
            trips.collect::<Vec<_>>()
        };
        Costs {
            change: ordered(matrix, client, up, medium),
            look: nth(round_trips(), medium),
            near: nth(round_trips(), usize::from(self.model.small()))
                .filter(|_| up.len() >= medium),
        }
    }

    /// The same with a place lost.
    pub(crate) fn without(&self, lost: usize) -> Vec<usize> {
        let all = self.replicas.iter().copied();
        all.filter(|it| *it != lost).collect()
    }
}

fn ordered(matrix: &Matrix, client: usize, up: &[usize], quorum: usize) -> Option<f64> {
    let leader = *up.first()?;
    let begins = matrix.one_way(client, leader);
    let way = |from: usize, to: usize| match from == to {
        // Several replicas may be in one place, and a replica is with itself.
        true => matrix.one_way(from, to).min(1.0),
        false => matrix.one_way(from, to),
    };
    let count = up.len();
    let place = |replica: usize| up.get(replica).copied().unwrap_or(leader);
    let between = |from: usize, to: usize| match from == to {
        true => 0.0,
        false => way(place(from), place(to)),
    };
    // The proposal is the leader's word, and comes with it; the others' follow it.
    let proposed: Vec<f64> = (0..count).map(|it| begins + between(0, it)).collect();
    let hears = |sent: &[f64], at: usize, floor: f64| {
        let arrivals = sent.iter().enumerate();
        let arrivals = arrivals.map(|(from, sent)| sent + between(from, at));
        nth(arrivals.collect(), quorum).map(|time| time.max(floor))
    };
    let heard = |sent: &[f64], after: &[f64]| -> Option<Vec<f64>> {
        let each = (0..count).map(|at| hears(sent, at, after.get(at).copied().unwrap_or(0.0)));
        each.collect()
    };
    let mut prepares = proposed.clone();
    if let Some(leads) = prepares.first_mut() {
        *leads = begins;
    }
    let prepared = heard(&prepares, &proposed)?;
    let decided = heard(&prepared, &prepared)?;
    let replies = decided.iter().enumerate();
    let replies = replies.map(|(from, at)| at + matrix.one_way(place(from), client));
    nth(replies.collect(), quorum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn four() -> FaultModel {
        FaultModel::new(1, 1, 4).unwrap()
    }

    fn equal(way: f64) -> Matrix {
        let far = 2.0 * way;
        let text = format!(
            "a b c d e\na 0 {far} {far} {far} {far}\nb {far} 0 {far} {far} {far}\n\
             c {far} {far} 0 {far} {far}\nd {far} {far} {far} 0 {far}\n\
             e {far} {far} {far} {far} 0\n"
        );
        Matrix::parse(&text).unwrap()
    }

    fn placed(replicas: &[usize]) -> Placement {
        Placement {
            replicas: replicas.to_vec(),
            model: four(),
        }
    }

    #[test]
    fn over_equal_ways_a_change_takes_two_and_a_half_round_trips() {
        let (matrix, cluster) = (equal(50.0), placed(&[0, 1, 2, 3]));
        let costs = cluster.costs(&matrix, 4, &cluster.replicas);
        assert_eq!(costs.change, Some(250.0));
        assert_eq!((costs.look, costs.near), (Some(100.0), Some(100.0)));
        // With the leader, the request and one of the replies are no way.
        let costs = cluster.costs(&matrix, 0, &cluster.replicas);
        assert_eq!(costs.change, Some(200.0));
    }

    #[test]
    fn the_far_replica_of_four_costs_nothing_and_is_missed_when_another_is_lost() {
        let text = "a b c d\na 0 10 10 300\nb 10 0 10 300\nc 10 10 0 300\nd 300 300 300 0\n";
        let matrix = Matrix::parse(text).unwrap();
        let cluster = placed(&[0, 1, 2, 3]);
        let costs = |client, up: &[usize]| cluster.costs(&matrix, client, up);
        assert_eq!(costs(0, &cluster.replicas).change, Some(20.0));
        assert_eq!(costs(0, &cluster.replicas).look, Some(10.0));
        assert_eq!(costs(0, &cluster.replicas).near, Some(10.0));
        // Without b, d is needed.
        let left = cluster.without(1);
        assert!(costs(0, &left).change.unwrap() >= 300.0);
        assert_eq!(costs(0, &left).look, Some(300.0));
        // Without two, nothing is ordered, and no mount knows what others have changed.
        assert_eq!(costs(0, &[0, 2]), Costs::default());
        assert_eq!(costs(0, &[]), Costs::default());
    }

    #[test]
    fn longer_ways_make_nothing_faster() {
        let table = |ways: &[f64]| {
            let row = |from: usize| {
                let cells = (0..5).map(|to| match from == to {
                    true => "0".to_owned(),
                    false => ways[from.min(to) * 5 + from.max(to)].to_string(),
                });
                format!("p{from} {}", cells.collect::<Vec<_>>().join(" "))
            };
            let rows: Vec<_> = (0..5).map(row).collect();
            Matrix::parse(&format!("p0 p1 p2 p3 p4\n{}\n", rows.join("\n"))).unwrap()
        };
        let cluster = placed(&[0, 1, 2, 3]);
        for seed in 1..400_usize {
            let drawn = |index: usize| ((seed * 7919 + index * 104_729) % 299) as f64 + 1.0;
            let ways: Vec<f64> = (0..25).map(drawn).collect();
            let client = seed % 5;
            let before = cluster.costs(&table(&ways), client, &cluster.replicas);
            let mut more = ways.clone();
            more[seed % 25] += 50.0;
            let after = cluster.costs(&table(&more), client, &cluster.replicas);
            for (before, after) in [
                (before.change, after.change),
                (before.look, after.look),
                (before.near, after.near),
            ] {
                assert!(before.unwrap() <= after.unwrap() + 1e-9, "{seed}");
            }
        }
    }
}
