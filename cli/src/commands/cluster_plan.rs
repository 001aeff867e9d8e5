//! `cluster plan`: where replicas belong, before any is built.
//!
//! From round trips between places it predicts what operations take from each place, for the places
//! of replicas that are given, or for those that are best. It says too what the loss of each place
//! costs. *Best* is the least mean time of a change over the places from which the volume is used;
//! the others lead after the first in the order of what that would cost.

pub(super) mod matrix;
pub(super) mod predict;

use crate::arguments::ClusterPlanArguments;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use matrix::Matrix;
use predict::{Costs, Placement};
use quorumfs_bft::fault_model::FaultModel;
use serde::Serialize;

/// Choices of places that are looked at.
const CHOICES_MAX: usize = 50_000;

/// What operations take from a place, in milliseconds.
#[derive(Serialize)]
struct From {
    place: String,
    change_ms: Option<f64>,
    open_ms: Option<f64>,
    near_read_ms: Option<f64>,
}

/// What is left without a place.
#[derive(Serialize)]
struct Loss {
    place: String,
    /// How many replicas are lost with it.
    replicas: usize,
    /// The place that leads then; none: nothing can be changed until enough replicas are back.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<String>,
    from: Vec<From>,
}

/// A choice of places.
#[derive(Serialize)]
struct PlannedPlaces {
    rank: usize,
    /// In the order in which they lead.
    replicas: Vec<String>,
    mean_change_ms: f64,
    from: Vec<From>,
    losses: Vec<Loss>,
}

fn shown(ms: Option<f64>) -> String {
    ms.map_or_else(|| "never".to_owned(), |ms| format!("{ms:.0} ms"))
}

impl PlannedPlaces {
    fn text(&self) -> String {
        let mut others = self.replicas.iter();
        let first = others.next().map_or("", String::as_str);
        let others: Vec<_> = others.map(String::as_str).collect();
        let then = match others.is_empty() {
            true => String::new(),
            false => format!("; then {}", others.join(", ")),
        };
        let mut text = format!(
            "{}. {first} leads{then}. A change takes {:.0} ms in the mean.\n   \
             {:<16}{:>10}{:>10}{:>12}",
            self.rank, self.mean_change_ms, "from", "change", "open", "near read"
        );
        for from in &self.from {
            text.push_str(&format!(
                "\n   {:<16}{:>10}{:>10}{:>12}",
                from.place,
                shown(from.change_ms),
                shown(from.open_ms),
                shown(from.near_read_ms)
            ));
        }
        for loss in &self.losses {
            text.push_str(&format!("\n   without {}: {}", loss.place, loss.text()));
        }
        text
    }
}

impl Loss {
    fn text(&self) -> String {
        let Some(leader) = &self.leader else {
            return format!(
                "{}, more than may fail: nothing can be changed or opened until it is back",
                match self.replicas {
                    1 => "a replica is lost".to_owned(),
                    lost => format!("{lost} replicas are lost"),
                }
            );
        };
        let changes = self.from.iter().filter_map(|it| it.change_ms);
        let (least, most) = changes.fold((f64::MAX, 0.0_f64), |(least, most), it| {
            (least.min(it), most.max(it))
        });
        format!("{leader} leads, and a change takes {least:.0} to {most:.0} ms")
    }
}

/// Runs the command.
pub(super) fn run(arguments: &ClusterPlanArguments, output: Output) -> CommandResult {
    let matrix = Matrix::read(&arguments.round_trips)?;
    let names = |names: &[String]| {
        let places = names.iter().map(|name| matrix.place(name));
        places.collect::<CommandResult<Vec<_>>>()
    };
    let given = names(&arguments.replicas)?;
    let count = match arguments.replicas.len() {
        0 => usize::from(arguments.failures) * 2 + usize::from(arguments.liars) + 1,
        given => given,
    };
    let replicas = u16::try_from(count).unwrap_or(u16::MAX);
    let model = FaultModel::new(arguments.failures, arguments.liars, replicas)
        .map_err(|error| Failure::new(Exit::Usage, error.to_string()))
        .map_err(|it| it.hint("name more places, or set --failures and --liars lower"))?;
    let mut clients = names(&arguments.from)?;
    if clients.is_empty() {
        clients = (0..matrix.places.len()).collect();
    }
    let placements = match given.is_empty() {
        false => vec![Placement {
            replicas: given,
            model,
        }],
        true => best(&matrix, &clients, model, arguments.show.max(1))?,
    };
    for (rank, placement) in (1..).zip(placements) {
        let choice = choice(&matrix, &clients, &placement, rank);
        output.record("placement", &choice, PlannedPlaces::text)?;
    }
    output.print_text(
        "A change is a new name, a rename, or new content of a file; open, a file that others may \
         write.\nA near read shows a name, attributes or a listing that the mount does not know: \
         the nearest replicas answer it.\nProcessors, disks and the clouds come on top.",
    )?;
    Ok(Exit::Success)
}

fn from(matrix: &Matrix, clients: &[usize], placement: &Placement, up: &[usize]) -> Vec<From> {
    let each = clients.iter().map(|client| {
        let Costs { change, look, near } = placement.costs(matrix, *client, up);
        From {
            place: matrix.places.get(*client).cloned().unwrap_or_default(),
            change_ms: change,
            open_ms: look,
            near_read_ms: near,
        }
    });
    each.collect()
}

fn choice(matrix: &Matrix, clients: &[usize], placement: &Placement, rank: usize) -> PlannedPlaces {
    let name = |place: &usize| matrix.places.get(*place).cloned().unwrap_or_default();
    let mut lost: Vec<usize> = placement.replicas.clone();
    lost.sort_unstable();
    lost.dedup();
    let losses = lost.iter().map(|place| {
        let up = placement.without(*place);
        let replicas = placement.replicas.len().saturating_sub(up.len());
        let lives = replicas <= usize::from(placement.model.up());
        Loss {
            place: name(place),
            replicas,
            leader: up.first().filter(|_| lives).map(name),
            from: from(matrix, clients, placement, &up),
        }
    });
    PlannedPlaces {
        rank,
        replicas: placement.replicas.iter().map(name).collect(),
        mean_change_ms: mean(matrix, clients, placement),
        from: from(matrix, clients, placement, &placement.replicas),
        losses: losses.collect(),
    }
}

/// The mean time of a change.
fn mean(matrix: &Matrix, clients: &[usize], placement: &Placement) -> f64 {
    let each = clients.iter().map(|client| {
        let costs = placement.costs(matrix, *client, &placement.replicas);
        costs.change.unwrap_or(f64::INFINITY)
    });
    each.sum::<f64>() / clients.len().max(1) as f64
}

/// The best choices, the best one first: replicas in different places.
fn best(
    matrix: &Matrix,
    clients: &[usize],
    model: FaultModel,
    show: usize,
) -> CommandResult<Vec<Placement>> {
    let (places, wanted) = (matrix.places.len(), usize::from(model.replicas()));
    if places < wanted {
        let message = format!("{wanted} replicas need as many places, and there are {places}");
        return Err(Failure::new(Exit::Usage, message)
            .hint("name the places with --replicas: one may have several replicas"));
    }
    if choices(places, wanted) > CHOICES_MAX {
        let message = format!("there are more than {CHOICES_MAX} choices of {wanted} places");
        return Err(
            Failure::new(Exit::Usage, message).hint("leave out places that cannot be meant")
        );
    }
    let mut found: Vec<(f64, Placement)> = Vec::new();
    let mut chosen: Vec<usize> = (0..wanted).collect();
    loop {
        let placement = led_best(matrix, clients, &chosen, model);
        found.push((mean(matrix, clients, &placement), placement));
        found.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        found.truncate(show);
        if !next_choice(&mut chosen, places) {
            return Ok(found.into_iter().map(|(_, placement)| placement).collect());
        }
    }
}

/// How many sets of so many places there are.
fn choices(places: usize, wanted: usize) -> usize {
    let wanted = wanted.min(places.saturating_sub(wanted));
    (0..wanted).fold(1, |count, step| {
        // Each product is divisible: it is a number of sets.
        count.saturating_mul(places.saturating_sub(step)) / (step + 1)
    })
}

/// The same places in the best order of leaders.
fn led_best(matrix: &Matrix, clients: &[usize], places: &[usize], model: FaultModel) -> Placement {
    let led_by = |leader: usize| {
        let others = places.iter().copied().filter(|it| *it != leader);
        let replicas = std::iter::once(leader).chain(others).collect();
        Placement { replicas, model }
    };
    let mut replicas = places.to_vec();
    let cost = |leader: &usize| mean(matrix, clients, &led_by(*leader));
    replicas.sort_by(|one, other| cost(one).total_cmp(&cost(other)));
    Placement { replicas, model }
}

/// The next set of numbers below `places`, in ascending order; false if it was the last one.
fn next_choice(chosen: &mut [usize], places: usize) -> bool {
    let count = chosen.len();
    for index in (0..count).rev() {
        let most = places.saturating_sub(count.saturating_sub(index));
        let Some(value) = chosen.get(index).copied().filter(|value| *value < most) else {
            continue;
        };
        for (place, next) in chosen.iter_mut().skip(index).zip(value.saturating_add(1)..) {
            *place = next;
        }
        return true;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_counted_before_they_are_looked_at() {
        let counted = [(4, 4), (5, 4), (6, 3), (64, 1), (64, 4)];
        let counted = counted.map(|(places, wanted)| choices(places, wanted));
        assert_eq!(counted, [1, 5, 20, 64, 635_376]);
        assert!(choices(64, 32) > CHOICES_MAX);
    }

    #[test]
    fn all_choices_are_looked_at_once() {
        let (mut chosen, mut all) = (vec![0, 1, 2], vec![vec![0, 1, 2]]);
        while next_choice(&mut chosen, 5) {
            all.push(chosen.clone());
        }
        assert_eq!(all.len(), 10);
        assert_eq!(all.last().unwrap(), &[2, 3, 4]);
        all.dedup();
        assert_eq!(all.len(), 10);
    }

    #[test]
    fn the_best_places_are_those_near_the_users_and_the_middle_one_leads() {
        // On a line, 10 ms from one to the next, and one far away.
        let places = ["a", "b", "c", "d", "e", "far"];
        let at = |place: usize| {
            if place == 5 {
                500_i32
            } else {
                place as i32 * 10
            }
        };
        let mut text = places.join(" ");
        for (from, name) in places.iter().enumerate() {
            let row = (0..6).map(|to| (at(from) - at(to)).abs().to_string());
            text.push_str(&format!("\n{name} {}", row.collect::<Vec<_>>().join(" ")));
        }
        let matrix = Matrix::parse(&text).unwrap();
        let model = FaultModel::new(1, 1, 4).unwrap();
        let found = best(&matrix, &[0, 1, 2], model, 2).unwrap();
        let first = &found[0];
        assert!(!first.replicas.contains(&5) && first.replicas.contains(&1));
        assert!(
            first.replicas[0] == 1 || first.replicas[0] == 2,
            "{first:?}"
        );
        let better = mean(&matrix, &[0, 1, 2], first);
        assert!(better <= mean(&matrix, &[0, 1, 2], &found[1]));
        // A place with two replicas is missed more than one may be.
        let crowded = Placement {
            replicas: vec![0, 0, 1, 2],
            model,
        };
        let choice = choice(&matrix, &[0], &crowded, 1);
        let lost: Vec<_> = choice.losses.iter().map(|it| it.leader.is_some()).collect();
        assert_eq!(lost, [false, true, true]);
        assert!(
            choice.text().contains("more than may fail"),
            "{}",
            choice.text()
        );
        let few = Matrix::parse("a b\na 0 1\nb 1 0\n").unwrap();
        assert!(best(&few, &[0], model, 1).is_err());
    }
}
