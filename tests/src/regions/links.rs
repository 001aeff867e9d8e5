//! What links do to packets: they delay, lose, hold up by their rate, or carry nothing.
//!
//! Pure: times come in as nanoseconds from any beginning, and chance from a seed. A link has one
//! direction. It keeps the order of its packets, as a route in the Internet does as a rule: jitter
//! is a queue somewhere, and a queue does not overtake itself.
//!
//! Invariants: no packet arrives before the delay of its link; packets of one link arrive in the
//! order in which they were sent; what waits is bounded, by a quarter of a second of a link's rate
//! and by a number of packets in all, and what exceeds that is lost, as in a router.

use quorumfs_bft_simulator::random::Random;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Packets that wait in all links together.
const WAITING_MAX: usize = 1 << 16;
/// How much of a link's rate may wait, in nanoseconds.
const BUFFER_NANOS: u64 = 250_000_000;
/// Packets that may wait in any case: a slow link holds some large ones.
const BUFFER_BYTES_MIN: u64 = 64 << 10;
/// One second, in the time of links.
pub const SECOND: u64 = 1_000_000_000;

/// What one link does, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlaceLink {
    /// One way, without jitter.
    pub delay_ms: f64,
    /// The most that is added to the delay, drawn evenly.
    #[serde(default)]
    pub jitter_ms: f64,
    /// How many of a hundred packets are lost.
    #[serde(default)]
    pub loss_percent: f64,
    /// Megabits each second; none: as fast as this machine is.
    #[serde(default)]
    pub rate_mbit: Option<f64>,
    /// Whether it carries nothing.
    #[serde(default)]
    pub cut: bool,
}

impl PlaceLink {
    /// One that only delays.
    #[must_use]
    pub const fn of(delay_ms: f64) -> Self {
        Self {
            delay_ms,
            jitter_ms: 0.0,
            loss_percent: 0.0,
            rate_mbit: None,
            cut: false,
        }
    }

    /// What is wrong with it, if anything is.
    ///
    /// # Errors
    /// If a number is no time, part or rate.
    pub fn check(&self) -> Result<(), String> {
        let time = |it: f64| (0.0..=60_000.0).contains(&it);
        if !time(self.delay_ms) || !time(self.jitter_ms) {
            return Err("a delay or jitter is not between 0 and 60,000 ms".into());
        }
        if !(0.0..=100.0).contains(&self.loss_percent) {
            return Err("a loss is not between 0 and 100 percent".into());
        }
        if !self
            .rate_mbit
            .is_none_or(|it| it >= 0.001 && it.is_finite())
        {
            return Err("a rate is less than 0.001 Mbit/s".into());
        }
        Ok(())
    }
}

/// What has happened to packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Carried {
    /// Packets that were delivered or are on their way.
    pub sent: u64,
    /// Packets that were lost by chance.
    pub lost: u64,
    /// Packets for which there was no room.
    pub overflowed: u64,
    /// Packets that met a cut.
    pub cut: u64,
    /// Bytes of the first.
    pub bytes: u64,
}

#[derive(Debug)]
struct LinkState {
    link: PlaceLink,
    /// When the last packet has left the sender's side.
    free_at: u64,
    /// When the last packet arrives.
    last: u64,
    carried: Carried,
}

/// All links between so many places, and the packets on their way.
#[derive(Debug)]
pub struct Links<P> {
    places: usize,
    states: Vec<LinkState>,
    random: Random,
    /// By arrival, and then by the order in which they were sent.
    waiting: BTreeMap<(u64, u64), P>,
    sent: u64,
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked: times are at most a minute"
)]
fn nanos(ms: f64) -> u64 {
    (ms * 1e6) as u64
}

impl<P> Links<P> {
    /// Links between places that are all connected by the same one, and do to packets what this
    /// seed says.
    #[must_use]
    pub fn new(places: usize, usual: PlaceLink, seed: u64) -> Self {
        let state = || LinkState {
            link: usual,
            free_at: 0,
            last: 0,
            carried: Carried::default(),
        };
        Self {
            places,
            states: (0..places * places).map(|_| state()).collect(),
            random: Random::new(seed),
            waiting: BTreeMap::new(),
            sent: 0,
        }
    }

    fn state(&mut self, from: usize, to: usize) -> Option<&mut LinkState> {
        let known = from < self.places && to < self.places;
        let index = from * self.places + to;
        self.states.get_mut(index).filter(|_| known)
    }

    /// Changes what a link does to packets that are sent from now on.
    ///
    /// # Errors
    /// If there is no such link, or it cannot be so; nothing has changed then.
    pub fn change(
        &mut self,
        (from, to): (usize, usize),
        change: impl FnOnce(&mut PlaceLink),
    ) -> Result<(), String> {
        let state = self.state(from, to).ok_or("there is no such link")?;
        let mut link = state.link;
        change(&mut link);
        link.check()?;
        state.link = link;
        Ok(())
    }

    /// What a link has carried.
    #[must_use]
    pub fn carried(&self, from: usize, to: usize) -> Carried {
        let state = self.states.get(from * self.places + to);
        state.map_or_else(Carried::default, |state| state.carried)
    }

    /// Sends a packet of so many bytes; it is lost if the link says so.
    pub fn send(&mut self, now: u64, (from, to): (usize, usize), bytes: usize, packet: P) {
        let is_full = self.waiting.len() >= WAITING_MAX;
        let (draw, jitter) = (self.random.below(1_000_000), self.random.below(1_000_001));
        let Some(state) = self.state(from, to) else {
            return;
        };
        let link = state.link;
        if link.cut {
            state.carried.cut += 1;
            return;
        }
        let bytes = bytes as u64;
        let busy = state.free_at.saturating_sub(now);
        let left = match link.rate_mbit {
            None => now,
            Some(rate) => {
                let each = 8e-6 * 1e9 / rate;
                let buffered = BUFFER_BYTES_MIN as f64 * each;
                if busy as f64 > buffered.max(BUFFER_NANOS as f64) {
                    state.carried.overflowed += 1;
                    return;
                }
                now.max(state.free_at) + nanos(bytes as f64 * each / 1e6)
            }
        };
        state.free_at = left;
        // It has taken its time on the link, wherever it is lost behind that.
        if (draw as f64) < link.loss_percent * 1e4 {
            state.carried.lost += 1;
            return;
        }
        if is_full {
            state.carried.overflowed += 1;
            return;
        }
        let jitter = nanos(link.jitter_ms * jitter as f64 / 1e6);
        let arrives = (left + nanos(link.delay_ms) + jitter).max(state.last);
        state.last = arrives;
        state.carried.sent += 1;
        state.carried.bytes += bytes;
        self.sent += 1;
        self.waiting.insert((arrives, self.sent), packet);
    }

    /// The next packet that has arrived by now.
    pub fn arrived(&mut self, now: u64) -> Option<P> {
        let first = self.waiting.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// When the next packet arrives.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        self.waiting.first_key_value().map(|((at, _), _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// All packets and when they arrive.
    fn drain<P>(links: &mut Links<P>) -> Vec<(u64, P)> {
        let mut all = Vec::new();
        while let Some(at) = links.next() {
            assert!(links.arrived(at - 1).is_none(), "early");
            all.extend(links.arrived(at).map(|packet| (at, packet)));
        }
        all
    }

    #[test]
    fn a_packet_takes_the_delay_of_its_direction() {
        let mut links = Links::new(2, PlaceLink::of(40.0), 1);
        links.change((1, 0), |it| it.delay_ms = 5.5).unwrap();
        links.send(0, (0, 1), 100, 'a');
        links.send(0, (1, 0), 100, 'b');
        links.send(10 * MS, (0, 1), 100, 'c');
        let arrived = drain(&mut links);
        assert_eq!(arrived, [(5_500_000, 'b'), (40 * MS, 'a'), (50 * MS, 'c')]);
    }

    #[test]
    fn a_rate_holds_packets_up_and_what_exceeds_the_buffer_is_lost() {
        let mut links = Links::new(2, PlaceLink::of(0.0), 1);
        links.change((0, 1), |it| it.rate_mbit = Some(8.0)).unwrap();
        // A megabyte each second: a quarter of that may wait.
        for number in 0..1000 {
            links.send(0, (0, 1), 1000, number);
        }
        let arrived = drain(&mut links);
        assert_eq!(arrived[0], (MS, 0));
        assert_eq!(arrived.len(), 251);
        assert_eq!(links.carried(0, 1).overflowed, 749);
        // Later there is room again.
        links.send(SECOND, (0, 1), 1000, 7);
        assert_eq!(drain(&mut links), [(1001 * MS, 7)]);
    }

    #[test]
    fn about_as_many_are_lost_as_it_says() {
        let mut links = Links::new(2, PlaceLink::of(1.0), 7);
        links.change((0, 1), |it| it.loss_percent = 1.0).unwrap();
        for number in 0..100_000_u32 {
            links.send(0, (0, 1), 10, number);
            links.arrived(u64::MAX);
        }
        let lost = links.carried(0, 1).lost;
        assert!((800..1200).contains(&lost), "{lost}");
    }

    #[test]
    fn a_cut_has_one_direction_and_a_link_that_is_none_changes_nothing() {
        let mut links = Links::new(2, PlaceLink::of(1.0), 7);
        links.change((0, 1), |it| it.cut = true).unwrap();
        links.send(0, (0, 1), 10, 'a');
        links.send(0, (1, 0), 10, 'b');
        assert_eq!(drain(&mut links), [(MS, 'b')]);
        assert_eq!(links.carried(0, 1).cut, 1);
        for wrong in [-1.0, f64::NAN, 1e9] {
            assert!(links.change((1, 0), |it| it.delay_ms = wrong).is_err());
            assert!(links.change((1, 0), |it| it.loss_percent = wrong).is_err());
        }
        assert!(links.change((1, 0), |it| it.rate_mbit = Some(0.0)).is_err());
        assert!(links.change((0, 2), |_| ()).is_err());
        assert!(links.change((2, 0), |_| ()).is_err());
        links.send(0, (0, 2), 10, 'c');
        links.send(0, (1, 0), 10, 'd');
        assert_eq!(drain(&mut links), [(MS, 'd')]);
    }

    proptest! {
        #[test]
        fn packets_of_a_link_are_in_order_and_never_early(
            sends in proptest::collection::vec((0_u64..50, 0_usize..2, 1_usize..9000), 1..200),
            jitter_ms in 0.0..30.0_f64, rate in proptest::option::of(0.1..100.0_f64), seed: u64,
        ) {
            let usual = PlaceLink { jitter_ms, rate_mbit: rate, ..PlaceLink::of(20.0) };
            let mut links = Links::new(2, usual, seed);
            let mut now = 0;
            for (number, (pause, from, bytes)) in sends.iter().enumerate() {
                now += pause * MS;
                links.send(now, (*from, 1 - from), *bytes, (*from, number, now));
            }
            let arrived = drain(&mut links);
            for direction in [0, 1] {
                let mut of = arrived.iter().filter(|(_, (from, ..))| *from == direction);
                prop_assert!(of.all(|(at, (.., sent))| *at >= sent + 20 * MS));
                let numbers: Vec<_> = arrived.iter()
                    .filter(|(_, (from, ..))| *from == direction).map(|(_, it)| it.1).collect();
                prop_assert!(numbers.is_sorted());
            }
        }
    }
}
