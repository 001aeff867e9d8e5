//! The simulator's only source of random numbers.
//!
//! xoshiro256\*\* seeded by SplitMix64: small, quick, and the same on every machine and in every
//! release, so that a seed that failed once stays a regression test. Each concern forks a stream of
//! its own, so that one more draw in one (say the network) does not change another one (say the
//! workload).
//!
//! Source: Blackman and Vigna, "Scrambled linear pseudorandom number generators" (2018).

/// A deterministic pseudo-random number generator. Not for keys outside a simulation.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

const fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Random {
    /// Creates the generator of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        let mut mixer = seed;
        let state = [
            split_mix(&mut mixer),
            split_mix(&mut mixer),
            split_mix(&mut mixer),
            split_mix(&mut mixer),
        ];
        Self { state }
    }

    /// An independent stream for one concern.
    #[must_use]
    pub fn fork(&mut self, concern: u64) -> Self {
        Self::new(self.next() ^ concern.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    /// 64 random bits.
    #[expect(
        clippy::should_implement_trait,
        reason = "it never ends, so it is not an iterator"
    )]
    pub fn next(&mut self) -> u64 {
        let [s0, s1, s2, s3] = self.state;
        let result = s1.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (mut a, mut b, mut c, mut d) = (s0, s1, s2 ^ s0, s3 ^ s1);
        b ^= c;
        a ^= d;
        c ^= s1 << 17;
        d = d.rotate_left(45);
        self.state = [a, b, c, d];
        result
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Multiply-shift; the bias is below 2⁻³² for every bound in use.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `low..=high`; `low` if the range is empty.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low.saturating_add(self.below(high.saturating_sub(low).saturating_add(1)))
    }

    /// True in `numerator` of `denominator` cases.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// An index below `length`; 0 if that is 0.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// One of `choices`, or nothing if there are none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        choices.get(self.index(choices.len()))
    }

    /// Shuffles `list`.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.index(last + 1));
        }
    }

    /// 32 random bytes.
    pub fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_a_seed_never_changes() {
        let mut random = Random::new(1);
        let drawn: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(
            drawn,
            [
                12_966_619_160_104_079_557,
                9_600_361_134_598_540_522,
                10_590_380_919_521_690_900
            ]
        );
    }

    #[test]
    fn bounds_hold_and_are_reached() {
        let mut random = Random::new(7);
        let drawn: std::collections::BTreeSet<u64> =
            (0..1000).map(|_| random.between(3, 6)).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn a_shuffle_keeps_every_element() {
        let mut list: Vec<u32> = (0..50).collect();
        Random::new(3).shuffle(&mut list);
        assert_ne!(list, (0..50).collect::<Vec<_>>());
        list.sort_unstable();
        assert_eq!(list, (0..50).collect::<Vec<_>>());
    }
}
