//! What each operation takes from each place: a cluster with a replica in each of some places, and
//! a mount in each of some others, all of them real processes.
//!
//! The clouds are directories of this machine, so that what is seen is what the metadata costs. All
//! mounts share the volume. Each operation is one that the mount cannot answer from what it has
//! cached: files are prepared by another mount, and looked at once.

use super::plan::RegionsPlan;
use super::volume::{FarVolume, mount_name, replica_name};
use crate::harness::Quorumfs;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of the large file.
const LARGE: usize = 1 << 20;
/// An operation may take so many times what is predicted.
const PREDICTED_TIMES: f64 = 1.3;
/// What the nearest replicas answer may take so many milliseconds more than their round trip.
const NEAR_BEYOND_MS: f64 = 5.0;
/// How long the kernel may show what it has looked at before: longer than that.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3);

/// What is measured, and where.
#[derive(Clone, Debug)]
pub struct Measuring {
    /// The places of the replicas, by number: the first one leads at the beginning.
    pub replicas: Vec<String>,
    /// The places of the mounts.
    pub mounts: Vec<String>,
    /// How often each operation is done.
    pub repeats: usize,
    /// How votes are authenticated: `sig` or `mac`.
    pub authentication: String,
}

/// The operations that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    /// A new directory.
    Mkdir,
    /// A new file, closed.
    Create,
    /// The attributes of a file in a directory that was never looked at.
    Stat,
    /// Opening an empty file that was never looked at.
    Open,
    /// Listing a directory of ten that was never looked at.
    List,
    /// Writing a MiB to a new file, and `fsync`.
    Write,
}

impl Measured {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Mkdir,
        Self::Create,
        Self::Stat,
        Self::Open,
        Self::List,
        Self::Write,
    ];
}

/// What an operation took from a mount.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The mount's place.
    pub mount: String,
    /// The operation.
    pub operation: Measured,
    /// The median, in milliseconds.
    pub median_ms: f64,
    /// The longest.
    pub longest_ms: f64,
    /// The shortest.
    pub shortest_ms: f64,
    /// What `quorumfs cluster plan` predicts, for operations that it knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_ms: Option<f64>,
}

impl Measuring {
    /// The network that it needs, in the project's regions.
    #[must_use]
    pub fn plan(&self) -> RegionsPlan {
        let replicas = self.replicas.iter().enumerate();
        let mut endpoints: Vec<(String, &str)> = replicas
            .map(|(number, place)| (replica_name(number), place.as_str()))
            .collect();
        let mounts = self.mounts.iter();
        endpoints.extend(mounts.map(|place| (mount_name(place), place.as_str())));
        let named: Vec<_> = endpoints
            .iter()
            .map(|(name, place)| (name.as_str(), *place))
            .collect();
        RegionsPlan::of_regions(&named)
    }
}

impl FarVolume {
    /// Measures every operation from every mount.
    ///
    /// # Errors
    /// If an operation fails.
    pub fn measure(&self, repeats: usize) -> io::Result<Vec<Figure>> {
        let mut figures = Vec::new();
        let mounts: Vec<_> = self.mounts().collect();
        for (index, (place, point)) in mounts.iter().enumerate() {
            // What is looked at another mount has made, so that this one knows nothing of it.
            let other = mounts.iter().cycle().nth(index.saturating_add(1));
            let made_by = other.map_or(point, |(_, other)| other);
            let name = format!("of-{place}");
            prepare(&made_by.join(&name), repeats)?;
            std::thread::sleep(FORGOTTEN_AFTER);
            let below = point.join(&name);
            // The directory itself is known, as to a program that works in it: a new name there is
            // a change alone. Otherwise the first ones also look whether the name is taken.
            fs::read_dir(&below)?.count();
            for operation in Measured::ALL {
                let mut took = Vec::new();
                for number in 0..repeats {
                    took.push(time(operation, &below, number)?);
                }
                figures.push(figure(place, operation, took));
            }
        }
        Ok(figures)
    }
}

/// Makes what is looked at later.
fn prepare(below: &Path, repeats: usize) -> io::Result<()> {
    fs::create_dir(below)?;
    for number in 0..repeats {
        File::create(below.join(format!("open-{number}")))?;
        let looked_at = below.join(format!("stat-{number}"));
        fs::create_dir(&looked_at)?;
        File::create(looked_at.join("file"))?;
        let listed = below.join(format!("list-{number}"));
        fs::create_dir(&listed)?;
        for entry in 0..10 {
            File::create(listed.join(format!("entry-{entry}")))?;
        }
    }
    Ok(())
}

/// How long an operation takes, in milliseconds.
fn time(operation: Measured, below: &Path, number: usize) -> io::Result<f64> {
    let path = |kind: &str| below.join(format!("{kind}-{number}"));
    let large = match operation {
        Measured::Write => vec![u8::try_from(number % 251).unwrap_or(0); LARGE],
        _ => Vec::new(),
    };
    let began = Instant::now();
    match operation {
        Measured::Mkdir => fs::create_dir(path("mkdir"))?,
        Measured::Create => drop(File::create(path("create"))?),
        Measured::Stat => {
            fs::metadata(path("stat").join("file"))?;
        }
        Measured::Open => drop(File::open(path("open"))?),
        Measured::List => drop(fs::read_dir(path("list"))?.collect::<io::Result<Vec<_>>>()?),
        Measured::Write => {
            let mut file = File::create(path("write"))?;
            file.write_all(&large)?;
            file.sync_all()?;
        }
    }
    Ok(began.elapsed().as_secs_f64() * 1e3)
}

fn figure(mount: &str, operation: Measured, mut took: Vec<f64>) -> Figure {
    took.sort_by(f64::total_cmp);
    let at = |index: usize| took.get(index).copied().unwrap_or_default();
    Figure {
        mount: mount.to_owned(),
        operation,
        median_ms: at(took.len() / 2),
        longest_ms: at(took.len().saturating_sub(1)),
        shortest_ms: at(0),
        predicted_ms: None,
    }
}

/// The operations that took longer than they may, in words.
#[must_use]
pub fn too_slow(figures: &[Figure]) -> Vec<String> {
    let slow = figures.iter().filter_map(|figure| {
        let predicted = figure.predicted_ms?;
        let most = match figure.operation {
            Measured::Stat | Measured::List => predicted + NEAR_BEYOND_MS,
            _ => predicted * PREDICTED_TIMES,
        };
        (figure.median_ms > most).then(|| {
            format!(
                "{:?} from {} took {:.1} ms, and may take {most:.1} ms",
                figure.operation, figure.mount, figure.median_ms
            )
        })
    });
    slow.collect()
}

/// Adds what `quorumfs cluster plan` predicts. A write with `fsync` is two changes: the new name,
/// and the content.
///
/// # Errors
/// If the table cannot be written.
///
/// # Panics
/// If the command fails.
pub fn predict(measuring: &Measuring, figures: &mut [Figure]) -> io::Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("round-trips");
    fs::write(&file, measuring.plan().table())?;
    let run = Quorumfs::on(directory.path()).args(["cluster", "plan"]);
    let run = run
        .args([&file])
        .args(["--replicas", &measuring.replicas.join(",")]);
    let run = run.args(["--from", &measuring.mounts.join(",")]).run().ok();
    let placement = run.records("placement").remove(0);
    let from = placement.get("from").and_then(|it| it.as_array());
    for costs in from.into_iter().flatten() {
        let ms = |key: &str| costs.get(key).and_then(serde_json::Value::as_f64);
        let mount = costs.get("place").and_then(|it| it.as_str());
        let here = figures
            .iter_mut()
            .filter(|it| Some(it.mount.as_str()) == mount);
        for figure in here {
            figure.predicted_ms = match figure.operation {
                Measured::Mkdir | Measured::Create => ms("change_ms"),
                Measured::Write => ms("change_ms").map(|it| 2.0 * it),
                Measured::Open => ms("open_ms"),
                Measured::List | Measured::Stat => ms("near_read_ms"),
            };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_longer_than_it_may_is_told() {
        let told = |operation, predicted, took| {
            let mut figure = figure("here", operation, vec![took]);
            figure.predicted_ms = predicted;
            too_slow(&[figure])
        };
        assert!(told(Measured::Mkdir, Some(100.0), 129.0).is_empty());
        assert!(told(Measured::Mkdir, None, 129.0).is_empty());
        assert!(told(Measured::Stat, Some(25.0), 29.0).is_empty());
        let slow = told(Measured::Stat, Some(100.0), 106.0);
        assert_eq!(
            slow,
            ["Stat from here took 106.0 ms, and may take 105.0 ms"]
        );
        assert_eq!(told(Measured::Open, Some(100.0), 131.0).len(), 1);
    }
}
