//! Every decoder reads its seeds, also cut short and with flipped bits, and its corpus.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing
)]

use quorumfs_tests::decoders::{TARGETS, Target};
use std::path::PathBuf;

/// The number of changed inputs for each target, over all of its seeds.
const CHANGED: u64 = 4_000;

/// A pseudo-random sequence that is always the same.
struct CorpusRandom(u64);

impl CorpusRandom {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound.max(1)
    }
}

fn changed(seed: &[u8], random: &mut CorpusRandom) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            break;
        }
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            2 => {
                bytes.remove(at);
            }
            3 => bytes.insert(at, random.below(256) as u8),
            _ => bytes[at] ^= 1 << random.below(8),
        }
    }
    bytes
}

/// Inputs that once failed, or that a fuzzer found interesting.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus"));
    let entries = std::fs::read_dir(folder.join(target.name))
        .into_iter()
        .flatten()
        .flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

fn replay(name: &str) {
    let target = quorumfs_tests::decoders::find(name).unwrap();
    let mut inputs = (target.seeds)();
    assert!(!inputs.is_empty(), "{name} has no seeds");
    inputs.extend(corpus(&target));
    let mut random = CorpusRandom(name.len() as u64);
    (target.run)(&[]);
    for input in &inputs {
        (target.run)(input);
    }
    for _ in 0..CHANGED {
        let seed = &inputs[random.below(inputs.len())];
        (target.run)(&changed(seed, &mut random));
    }
}

macro_rules! replayed {
    ($($name:ident)*) => {
        $(#[test] fn $name() { replay(stringify!($name)); })*

        #[test]
        fn every_target_is_replayed_and_has_a_fuzzer() {
            let names = [$(stringify!($name)),*];
            for target in TARGETS {
                assert!(names.contains(&target.name), "{} is not replayed", target.name);
                let fuzzer = format!("/../fuzz/fuzz_targets/{}.rs", target.name);
                let path = PathBuf::from(env!("CARGO_MANIFEST_DIR").to_owned() + &fuzzer);
                assert!(path.exists(), "{} is not fuzzed", target.name);
            }
        }
    };
}

replayed!(
    frame replica journal client state metadata link store recording keys
    mount_journal segment object attribute http people capsule
);
