//! Times operations alternately in a large directory and in a smaller one.

use serde::Serialize;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

/// Medians of one kind of operation.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// The kind of operation.
    pub operation: &'static str,
    /// In the large directory, in microseconds.
    pub large_us: u64,
    /// In the smaller one.
    pub smaller_us: u64,
}

/// Times operations on names of their own, which are removed afterwards.
pub(super) fn compare(large: &Path, smaller: &Path, timed: u32) -> Vec<Compared> {
    let named = |directory: &Path, number: u32| directory.join(format!("timed-{number}"));
    let moved = |directory: &Path, number: u32| directory.join(format!("moved-{number}"));
    type Work<'a> = &'a dyn Fn(&Path, u32);
    let operations: [(&'static str, Work<'_>); 5] = [
        ("look up a missing name", &|directory, number| {
            assert!(!named(directory, number).exists());
        }),
        ("create", &|directory, number| {
            drop(File::create_new(named(directory, number)).unwrap());
        }),
        ("look up", &|directory, number| {
            assert!(named(directory, number).exists());
        }),
        ("rename", &|directory, number| {
            fs::rename(named(directory, number), moved(directory, number)).unwrap();
        }),
        ("remove", &|directory, number| {
            fs::remove_file(moved(directory, number)).unwrap();
        }),
    ];
    let compared = operations.map(|(operation, work)| {
        // Cached names expire, so that the servers are asked.
        std::thread::sleep(Duration::from_millis(1200));
        let mut took = [Vec::new(), Vec::new()];
        for number in 0..timed {
            for (place, directory) in [large, smaller].into_iter().enumerate() {
                let began = Instant::now();
                work(directory, number);
                took[place].push(began.elapsed());
            }
        }
        let [large_us, smaller_us] = took.map(median_us);
        Compared {
            operation,
            large_us,
            smaller_us,
        }
    });
    compared.to_vec()
}

fn median_us(mut took: Vec<Duration>) -> u64 {
    took.sort_unstable();
    u64::try_from(took[took.len() / 2].as_micros()).unwrap()
}
