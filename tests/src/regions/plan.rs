//! Places, endpoints and links, as people write them.
//!
//! ```json
//! { "places": ["frankfurt", "dublin"],
//!   "round_trips_ms": [[0.5, 25], [25, 0.5]],
//!   "endpoints": [{ "name": "r0", "place": "frankfurt" }] }
//! ```
//!
//! Round trips are what people measure and providers publish; each is divided evenly.

use super::links::PlaceLink;
use quorumfs_bft_simulator::ways::REGIONS;
use serde::{Deserialize, Serialize};

/// More than any test needs; each endpoint has the last byte of an address.
const ENDPOINTS_MAX: usize = 64;

/// A network, as it begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionsPlan {
    /// The names of the places.
    pub places: Vec<String>,
    /// The round trip from each place to each, its own included.
    pub round_trips_ms: Vec<Vec<f64>>,
    /// What all links have beyond their delays.
    #[serde(default)]
    pub jitter_ms: f64,
    /// Likewise.
    #[serde(default)]
    pub loss_percent: f64,
    /// Likewise.
    #[serde(default)]
    pub rate_mbit: Option<f64>,
    /// Who takes part.
    pub endpoints: Vec<Endpoint>,
    /// Decides which packets are lost.
    #[serde(default)]
    pub seed: u64,
}

/// One that takes part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Its name.
    pub name: String,
    /// The name of its place.
    pub place: String,
}

impl RegionsPlan {
    /// All of [`REGIONS`], as the simulator has them, with these endpoints, each with its place.
    #[must_use]
    pub fn of_regions(endpoints: &[(&str, &str)]) -> Self {
        let endpoints = endpoints.iter().map(|(name, place)| Endpoint {
            name: (*name).into(),
            place: (*place).into(),
        });
        Self {
            places: REGIONS.map(|(name, _)| name.into()).to_vec(),
            round_trips_ms: REGIONS.map(|(_, row)| row.to_vec()).to_vec(),
            jitter_ms: 0.2,
            loss_percent: 0.0,
            rate_mbit: None,
            endpoints: endpoints.collect(),
            seed: 1,
        }
    }

    /// The round trips as a table, as `quorumfs cluster plan` takes it.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = self.places.join(" ");
        for (place, row) in self.places.iter().zip(&self.round_trips_ms) {
            let row: Vec<_> = row.iter().map(f64::to_string).collect();
            table.push_str(&format!("\n{place} {}", row.join(" ")));
        }
        table
    }

    /// What is wrong with it, if anything is.
    ///
    /// # Errors
    /// In a sentence that names the part.
    pub fn check(&self) -> Result<(), String> {
        let places = self.places.len();
        if places == 0 || self.places.iter().any(String::is_empty) {
            return Err("a place has no name, or there is none".into());
        }
        let is_square = self.round_trips_ms.len() == places
            && self.round_trips_ms.iter().all(|row| row.len() == places);
        if !is_square {
            return Err(format!(
                "`round_trips_ms` is no matrix of {places} rows with {places} numbers each"
            ));
        }
        for (from, row) in self.places.iter().zip(&self.round_trips_ms) {
            for (to, round_trip) in self.places.iter().zip(row) {
                let link = self.link(*round_trip);
                link.check()
                    .map_err(|error| format!("from {from} to {to}: {error}"))?;
            }
        }
        let names = self.endpoints.iter().map(|it| it.name.as_str());
        let mut names: Vec<_> = names
            .chain(self.places.iter().map(String::as_str))
            .collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        if names.len() != count {
            return Err("two places or endpoints have the same name".into());
        }
        if self.endpoints.is_empty() || self.endpoints.len() > ENDPOINTS_MAX {
            return Err(format!("there are not 1 to {ENDPOINTS_MAX} endpoints"));
        }
        let stray = self
            .endpoints
            .iter()
            .find(|it| self.place(&it.place).is_none());
        match stray {
            None => Ok(()),
            Some(stray) => Err(format!(
                "endpoint {} is in {}, which is no place",
                stray.name, stray.place
            )),
        }
    }

    fn link(&self, round_trip: f64) -> PlaceLink {
        PlaceLink {
            jitter_ms: self.jitter_ms,
            loss_percent: self.loss_percent,
            rate_mbit: self.rate_mbit,
            ..PlaceLink::of(round_trip / 2.0)
        }
    }

    /// Every link, with its places by number.
    pub fn links(&self) -> impl Iterator<Item = ((usize, usize), PlaceLink)> {
        let rows = self.round_trips_ms.iter().enumerate();
        rows.flat_map(move |(from, row)| {
            let row = row.iter().enumerate();
            row.map(move |(to, round_trip)| ((from, to), self.link(*round_trip)))
        })
    }

    /// The number of a place, or of an endpoint's.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<usize> {
        let endpoint = self.endpoints.iter().find(|it| it.name == name);
        let place = endpoint.map_or(name, |it| it.place.as_str());
        self.places.iter().position(|it| it == place)
    }

    /// The number of an endpoint.
    #[must_use]
    pub fn endpoint(&self, name: &str) -> Option<usize> {
        self.endpoints.iter().position(|it| it.name == name)
    }

    /// The round trip between two places or endpoints, in ms.
    #[must_use]
    pub fn round_trip(&self, from: &str, to: &str) -> Option<f64> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        self.round_trips_ms.get(from)?.get(to).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> RegionsPlan {
        RegionsPlan::of_regions(&[("r0", "frankfurt"), ("m", "tokyo")])
    }

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let text = serde_json::to_string(&plan()).unwrap();
        assert_eq!(serde_json::from_str::<RegionsPlan>(&text).unwrap(), plan());
        assert!(serde_json::from_str::<RegionsPlan>(&text.replace("seed", "sead")).is_err());
        plan().check().unwrap();
        assert_eq!(plan().round_trip("r0", "m"), Some(230.0));
        assert_eq!(plan().round_trip("m", "nowhere"), None);
        let links: Vec<_> = plan().links().collect();
        assert_eq!(links.len(), 36);
        assert_eq!(links[1].0, (0, 1));
        assert!((links[1].1.delay_ms - 12.5).abs() < 1e-9);
    }

    #[test]
    fn the_regions_are_as_far_from_each_other_in_both_directions() {
        for (from, row) in REGIONS.iter().enumerate() {
            for (to, other) in REGIONS.iter().enumerate() {
                assert_eq!(row.1[to].to_bits(), other.1[from].to_bits());
            }
        }
    }

    #[test]
    fn what_is_no_plan_is_refused_with_the_part() {
        type LinkChange = fn(&mut RegionsPlan);
        let wrong: [(LinkChange, &str); 9] = [
            (|it| it.places.clear(), "no name"),
            (|it| it.places[1].clear(), "no name"),
            (|it| it.round_trips_ms.truncate(5), "no matrix of 6 rows"),
            (|it| it.round_trips_ms[2].truncate(5), "no matrix of 6 rows"),
            (
                |it| it.round_trips_ms[2][3] = -1.0,
                "from virginia to oregon",
            ),
            (|it| it.loss_percent = 101.0, "percent"),
            (|it| it.endpoints[1].name = "r0".into(), "same name"),
            (
                |it| it.endpoints[1].place = "atlantis".into(),
                "is no place",
            ),
            (|it| it.endpoints.clear(), "endpoints"),
        ];
        for (change, part) in wrong {
            let mut plan = plan();
            change(&mut plan);
            let error = plan.check().unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
