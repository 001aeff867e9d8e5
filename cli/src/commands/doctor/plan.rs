//! Whether the replicas answer as fast from here as their places let expect.
//!
//! ```text
//!   table, places ──► predictions of `quorumfs cluster plan` ─┐
//!                       ▲ which replica leads, which answer   ├─► [`compare`]: findings
//!   a session ──► round trips, unordered and ordered queries ─┘
//! ```
//!
//! * What is measured changes nothing in the volume.
//! * Replicas that do not answer do not count in the predictions either, as in what is measured.
//! * A table that cannot be used ends the command before anything is asked.

use super::compare::{self, ExpectedTimes, FoundTimes};
use super::finding::{Finding, Level};
use crate::arguments::DoctorArguments;
use crate::commands::cluster_plan::matrix::Matrix;
use crate::commands::cluster_plan::predict::Placement;
use crate::commands::members;
use crate::commands::opened::Configured;
use crate::exit::Exit;
use crate::explain::client_failure;
use crate::failure::{CommandResult, Failure};
use bytes::Bytes;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft_runtime::client::{Client, ClientError};
use quorumfs_metadata::query::{Query, Question};
use std::time::Instant;

/// Round trips to each replica; the shortest counts.
const ROUND_TRIPS: u32 = 7;
/// Unordered queries; the median counts. The first ones find out which replicas are near.
const READS: usize = 15;
/// Ordered queries; the median counts.
const ORDERED: usize = 7;

/// Where the replicas and this machine are, in a table of round trips.
pub(super) struct PlannedPlacement {
    matrix: Matrix,
    /// The place of each replica, by its number.
    places: Vec<usize>,
    from: usize,
}

impl PlannedPlacement {
    /// Reads the table, if one is given, and looks the places up in it.
    pub(super) fn read(arguments: &DoctorArguments) -> CommandResult<Option<Self>> {
        let (Some(table), Some(from)) = (&arguments.plan, &arguments.from) else {
            return Ok(None);
        };
        let matrix = Matrix::read(table)?;
        let places = arguments.replicas.iter().map(|name| matrix.place(name));
        let places = places.collect::<CommandResult<Vec<_>>>()?;
        let from = matrix.place(from)?;
        Ok(Some(Self {
            matrix,
            places,
            from,
        }))
    }

    /// Measures, and compares; an error if the places are not those of the replicas.
    pub(super) async fn compare(&self, configured: &Configured) -> CommandResult<Vec<Finding>> {
        let standing = configured.standing().await?;
        let membership = standing.membership.clone();
        self.fits(membership.voters.len())?;
        let leader = members::leader(&members::of(configured, standing), &membership);
        let found = match leader.and_then(|leader| usize::try_from(leader).ok()) {
            Some(leader) => measure(configured, leader).await,
            None => Err(Failure::new(
                Exit::QuorumUnreachable,
                "too few replicas answer to know which one leads",
            )),
        };
        Ok(match found {
            Ok(found) => compare::judge(&self.expect(&found, membership.model), &found),
            Err(failure) => vec![not_measured(failure)],
        })
    }

    /// Whether there is a place for each of so many voting replicas.
    fn fits(&self, voters: usize) -> CommandResult<()> {
        let given = self.places.len();
        if given == voters {
            return Ok(());
        }
        let message = format!("{voters} replicas vote, and --replicas names {given} places");
        Err(Failure::new(Exit::Usage, message).hint(
            "name the place of each replica, in the order of their numbers: `quorumfs status` \
             shows them",
        ))
    }

    /// What the table says of the replicas that answered, led as they are.
    fn expect(&self, found: &FoundTimes, model: FaultModel) -> ExpectedTimes {
        let name = |place: usize| self.matrix.places.get(place).cloned().unwrap_or_default();
        let count = self.places.len();
        let placement = Placement {
            replicas: self.places.clone(),
            model,
        };
        let answers = |number: usize| matches!(found.round_trips.get(number), Some(Ok(_)));
        let led_by = |leader: usize| {
            // A leader leads, whether or not it can be reached from here.
            let numbers = (leader..count).chain(0..leader.min(count));
            let up = numbers.filter(|it| *it == leader || answers(*it));
            let up: Vec<usize> = up.filter_map(|it| self.places.get(it).copied()).collect();
            placement.costs(&self.matrix, self.from, &up)
        };
        let led_now = led_by(found.leader);
        let round_trips = self.places.iter();
        let round_trips = round_trips.map(|place| 2.0 * self.matrix.one_way(self.from, *place));
        let changes = (0..count).map(|number| match answers(number) {
            true => led_by(number).change,
            false => None,
        });
        ExpectedTimes {
            from: name(self.from),
            places: self.places.iter().map(|place| name(*place)).collect(),
            round_trips: round_trips.collect(),
            read: led_now.look,
            change: led_now.change,
            changes_led_by: changes.collect(),
        }
    }
}

fn not_measured(failure: Failure) -> Finding {
    let text = format!("nothing could be measured: {}", failure.message);
    let finding = Finding::new(Level::Problem, "plan", "measured", text).exit(failure.exit);
    match failure.hint {
        Some(hint) => finding.remedy(hint),
        None => finding.remedy("`quorumfs status` shows which replicas answer"),
    }
}

async fn measure(configured: &Configured, leader: usize) -> CommandResult<FoundTimes> {
    let client = configured.connect().await?;
    let found = measure_over(&client, configured, leader).await;
    // A failure to end the session says nothing new; it ends by itself later.
    let _ = client.close().await;
    found
}

async fn measure_over(
    client: &Client,
    configured: &Configured,
    leader: usize,
) -> CommandResult<FoundTimes> {
    let volume = configured.volume();
    // Any principal may ask it, and no change of other sessions changes the answer.
    let query = Query {
        credentials: volume.own_credentials(),
        question: Question::Volume,
    };
    let query = Bytes::from(query.to_bytes());
    let unknown = Err("its address is not known here".to_owned());
    let mut round_trips = vec![unknown; client.membership().voters.len()];
    for (replica, trip) in client.round_trips(ROUND_TRIPS).await {
        if let Some(found) = round_trips.get_mut(usize::from(replica.0)) {
            let trip = trip.map(|trip| trip.as_secs_f64() * 1e3);
            *found = trip.map_err(|error| error.to_string());
        }
    }
    Ok(FoundTimes {
        leader,
        authentication: volume.genesis().authentication().name(),
        round_trips,
        read: median_ms(READS, || client.read(query.clone())).await?,
        change: median_ms(ORDERED, || client.query(query.clone())).await?,
    })
}

/// The median time of so many queries, one after the other.
async fn median_ms<F>(count: usize, ask: impl Fn() -> F) -> CommandResult<f64>
where
    F: Future<Output = Result<Bytes, ClientError>>,
{
    let mut took = Vec::new();
    for _ in 0..count {
        let asked = Instant::now();
        ask().await.map_err(|error| client_failure(&error))?;
        took.push(asked.elapsed().as_secs_f64() * 1e3);
    }
    took.sort_by(f64::total_cmp);
    Ok(took.get(count / 2).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned() -> PlannedPlacement {
        let table = "a b c d\na 0 10 10 300\nb 10 0 10 300\nc 10 10 0 300\nd 300 300 300 0\n";
        PlannedPlacement {
            matrix: Matrix::parse(table).unwrap(),
            places: vec![0, 1, 2, 3],
            from: 0,
        }
    }

    fn found(leader: usize, round_trips: [Option<f64>; 4]) -> FoundTimes {
        let trip = |it: Option<f64>| it.ok_or_else(|| "refused".to_owned());
        FoundTimes {
            leader,
            authentication: "sig",
            round_trips: round_trips.map(trip).to_vec(),
            read: 10.0,
            change: 20.0,
        }
    }

    #[test]
    fn what_is_expected_is_what_the_plan_predicts_for_the_leader_and_those_that_answer() {
        let (planned, model) = (planned(), FaultModel::new(1, 1, 4).unwrap());
        let all = [0.0, 10.0, 10.0, 300.0].map(Some);
        let expected = planned.expect(&found(0, all), model);
        assert_eq!(expected.places, ["a", "b", "c", "d"]);
        assert_eq!(expected.from, "a");
        assert_eq!(expected.round_trips, [0.0, 10.0, 10.0, 300.0]);
        assert_eq!((expected.read, expected.change), (Some(10.0), Some(20.0)));
        assert_eq!(expected.changes_led_by.first(), Some(&expected.change));
        let far = planned.expect(&found(3, all), model);
        assert!(far.change.unwrap() >= 300.0, "{far:?}");
        assert_eq!(far.read, Some(10.0));
        assert_eq!(far.changes_led_by, expected.changes_led_by);

        // Without b, d is needed; and b cannot be made the leader.
        let without = [Some(0.0), None, Some(10.0), Some(300.0)];
        let expected = planned.expect(&found(0, without), model);
        assert_eq!(expected.read, Some(300.0));
        assert!(expected.change.unwrap() >= 300.0, "{expected:?}");
        assert_eq!(expected.changes_led_by[1], None);
        // Two cannot order anything.
        let two = [Some(0.0), None, None, Some(300.0)];
        assert_eq!(planned.expect(&found(0, two), model).change, None);
    }

    #[test]
    fn places_that_are_not_one_for_each_replica_are_refused() {
        assert!(planned().fits(4).is_ok());
        let failure = planned().fits(6).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.message.contains("6 replicas vote"), "{failure}");
        assert!(failure.hint.unwrap().contains("quorumfs status"));
    }
}
