//! Faults at critical moments.
//!
//! Random faults seldom hit the critical moment: whole classes of defects would show in one of a
//! thousand runs. Each scenario here creates the conditions in which one class shows, drawn by seed
//! like everything else, and after everything else, each from a stream of its own, so that it does
//! not affect the runs without it.
//!
//! * *Blackout*: messages that were sent before they were durable.  * *Absence*: a lagging replica
//!   that misses removed batches.  * *Ambush*: two certificates for one sequence.
//! * *Stagger*: readers, while replicas execute one batch after the other at different times.
//! * *Sever*: batches that are decided although the one before them is not.
//! * *Deaf*: a client that retries when its answer is known from a state only.
//! * *Heist*: a lagging replica that fetches a state, partly from a liar.
//! * *Rolling*: replicas that crash one after another.
//! * *Bursts*: the comparison of leaders' throughput under a varying load.

use super::{Disturbance, Fault, Liar, PROGRESS, Plan};
use crate::agenda::{Instant, MILLISECOND};
use crate::disk::Crash;
use crate::profile::Profile;
use crate::random::Random;
use quorumfs_bft::identity::Nanos;
use quorumfs_bft::wire::limits::REPLY_COMPARED_BYTES;

/// How many times as long a run may take if all endpoints are far apart.
const FAR: u64 = 3;
/// The largest lag between staggered replicas.
pub(crate) const LAG_MAX: u64 = 4;

impl Plan {
    /// Draws all scenarios.
    pub(super) fn draw_aimed(&mut self, profile: Profile, random: &Random) {
        let stream = |concern| random.clone().fork(concern);
        self.draw_stagger(profile, &mut stream(101));
        self.draw_sever(profile, &mut stream(102));
        self.draw_deaf(profile, &mut stream(103));
        self.draw_heist(profile, &mut stream(104));
        self.draw_rolling(profile, &mut stream(105));
        self.draw_bursts(profile, &mut stream(106));
        let quiet = match profile {
            Profile::Mixed => stream(108).chance(1, 30),
            Profile::Clients => stream(108).chance(1, 10),
            _ => false,
        };
        if quiet {
            self.quiet = true;
            self.session_idle = Nanos::from_secs(90);
        }
        if stream(107).chance(1, 2) {
            self.reply_whole_bytes = REPLY_COMPARED_BYTES;
        }
        self.faults.sort_by_key(|fault| fault.from);
    }

    /// Draws a blackout, sometimes with all disks slow before it. It is drawn last, so that it does
    /// not affect the runs without it.
    pub(super) fn draw_blackout(&mut self, profile: Profile, random: &mut Random) {
        let wanted = match profile {
            Profile::Mixed | Profile::Reads | Profile::Membership => random.chance(1, 5),
            Profile::Crash | Profile::Disk => random.chance(1, 2),
            _ => false,
        };
        if !wanted {
            return;
        }
        let from = Instant(random.between(500, 3500) * MILLISECOND);
        let until = from.plus(random.between(100, 1200) * MILLISECOND);
        let disturbance = Disturbance::Blackout;
        self.faults.push(Fault {
            from,
            until,
            disturbance,
        });
        self.healed = self.healed.max(until);
        if random.chance(1, 3) {
            let factor = random.between(5, 40);
            let slow = Instant(from.0.saturating_sub(random.between(50, 400) * MILLISECOND));
            for node in 0..self.nodes.len() {
                self.faults.push(Fault {
                    from: slow,
                    until,
                    disturbance: Disturbance::SlowDisk { node, factor },
                });
            }
        }
        self.faults.sort_by_key(|fault| fault.from);
    }

    /// Draws a node that is away for so long that the batches it misses are removed, and that
    /// sometimes fails again as soon as it is back.
    pub(super) fn draw_absence(&mut self, random: &mut Random) {
        let node = random.index(self.nodes.len());
        let liar = self.nodes.get(node).and_then(|it| self.liars.get(*it));
        if !random.chance(2, 3) || liar != Some(&None) {
            return;
        }
        let from = Instant(random.between(300, 1500) * MILLISECOND);
        let until = from.plus(random.between(1000, 2500) * MILLISECOND);
        let disk = Crash::Honest;
        let disturbance = Disturbance::Crash { node, disk };
        self.faults.push(Fault {
            from,
            until,
            disturbance: disturbance.clone(),
        });
        self.healed = self.healed.max(until);
        if random.chance(2, 3) {
            let from = until.plus(random.between(5, 300) * MILLISECOND);
            let until = from.plus(random.between(20, 600) * MILLISECOND);
            self.faults.push(Fault {
                from,
                until,
                disturbance,
            });
            self.healed = self.healed.max(until);
        }
        self.faults.sort_by_key(|fault| fault.from);
    }

    /// Draws an ambush, after everything else, like a blackout.
    pub(super) fn draw_ambush(&mut self, profile: Profile, random: &mut Random) {
        let wanted = match profile {
            Profile::Mixed => random.chance(1, 4),
            Profile::Network | Profile::Byzantine => random.chance(1, 2),
            _ => false,
        };
        let honest = (0..self.liars.len()).filter(|at| self.liars.get(*at) == Some(&None));
        let mut honest: Vec<usize> = honest.collect();
        random.shuffle(&mut honest);
        let (true, [alone, receiver, ..]) = (wanted, honest.as_slice()) else {
            return;
        };
        let from = self.healed.plus(random.between(10, 600) * MILLISECOND);
        let until = from.plus(random.between(3_000, 6_000) * MILLISECOND);
        let (alone, receiver) = (*alone, *receiver);
        self.faults.push(Fault {
            from,
            until,
            disturbance: Disturbance::Ambush { alone, receiver },
        });
        self.healed = until;
    }

    fn add(&mut self, from: Instant, length: u64, disturbance: Disturbance) -> Instant {
        let until = from.plus(length);
        self.faults.push(Fault {
            from,
            until,
            disturbance,
        });
        self.healed = self.healed.max(until);
        until
    }

    fn honest(&self, random: &mut Random) -> Vec<usize> {
        let honest = (0..self.liars.len()).filter(|at| self.liars.get(*at) == Some(&None));
        let mut honest: Vec<usize> = honest.collect();
        random.shuffle(&mut honest);
        honest
    }

    fn draw_stagger(&mut self, profile: Profile, random: &mut Random) {
        let spells = match profile {
            Profile::Reads => random.between(3, 6),
            Profile::Mixed if self.unordered_reads => random.below(8) / 7,
            _ => 0,
        };
        for _ in 0..spells {
            let from = Instant(random.between(200, 4_000) * MILLISECOND);
            let slice = random.between(15, 120) * MILLISECOND;
            let seed = random.next();
            let length = random.between(500, 2_000) * MILLISECOND;
            self.add(from, length, Disturbance::Stagger { slice, seed });
        }
    }

    fn draw_sever(&mut self, profile: Profile, random: &mut Random) {
        let wanted = match profile {
            Profile::Mixed => random.chance(1, 6),
            Profile::Network | Profile::Byzantine => random.chance(1, 4),
            _ => false,
        };
        let honest = self.honest(random);
        let (true, [receiver, ..]) = (wanted, honest.as_slice()) else {
            return;
        };
        let receiver = *receiver;
        let from = self.healed.plus(random.between(10, 400) * MILLISECOND);
        let length = random.between(2_000, 4_000) * MILLISECOND;
        self.add(from, length, Disturbance::Sever { receiver });
    }

    /// One client receives nothing until its request is below a durable root everywhere, and all
    /// replicas have restarted from that.
    fn draw_deaf(&mut self, profile: Profile, random: &mut Random) {
        let wanted = match profile {
            Profile::Mixed => random.chance(1, 8),
            Profile::Crash | Profile::Clients => random.chance(1, 3),
            _ => false,
        };
        if !wanted || self.clients < 2 {
            return;
        }
        let client = self.nodes.len() + random.index(self.clients);
        let side = self.endpoints().map(|endpoint| endpoint != client);
        let deaf = Disturbance::Partition {
            side: side.collect(),
            outwards: true,
            inwards: false,
        };
        self.checkpoint_interval = self.checkpoint_interval.min(random.between(3, 8));
        let from = self.healed.plus(random.between(10, 300) * MILLISECOND);
        let lasts = random.between(1_200, 2_500) * MILLISECOND;
        let crash = from.plus(lasts - random.between(30, 200) * MILLISECOND);
        self.add(from, lasts, deaf);
        let down = random.between(50, 500) * MILLISECOND;
        self.add(crash, down, Disturbance::PowerFailure);
    }

    fn draw_heist(&mut self, profile: Profile, random: &mut Random) {
        let wanted = match profile {
            Profile::Mixed | Profile::Byzantine => random.chance(1, 3),
            _ => false,
        };
        let honest = self.honest(random);
        let (true, [node, ..]) = (wanted && self.liars.contains(&Some(Liar::Proxy)), &*honest)
        else {
            return;
        };
        let node = *node;
        self.forging = true;
        self.checkpoint_interval = random.between(3, 6);
        self.leaf_bytes_max = random.between(60, 200);
        let from = Instant(random.between(300, 2_000) * MILLISECOND);
        let disk = Crash::Honest;
        let length = random.between(1_200, 2_500) * MILLISECOND;
        self.add(from, length, Disturbance::Crash { node, disk });
    }

    /// Bursts in which leaders are never idle, and nothing in between.
    fn draw_bursts(&mut self, profile: Profile, random: &mut Random) {
        let wanted = match profile {
            Profile::Calm => random.chance(1, 2),
            Profile::Mixed | Profile::Byzantine => random.chance(1, 12),
            _ => false,
        };
        if wanted {
            let on = random.between(600, 1_500) * MILLISECOND;
            self.bursts = Some((on, random.between(300, 1_300) * MILLISECOND));
            let loops = self.clients * 2 * usize::from(self.lanes);
            self.operations += 20 * loops;
            self.dawdling = true;
        }
    }

    /// The longest that the run may take after everything has healed. Between bursts there are no
    /// requests, and so no answers; and over long links everything takes long.
    #[must_use]
    pub fn patience(&self) -> u64 {
        let (on, off) = self.bursts.unwrap_or((PROGRESS, 0));
        let far = if self.distances.is_empty() { 1 } else { FAR };
        let usual = far * (PROGRESS / on.max(1) * (on + off));
        // An operation takes up to three round trips, and the next one of its lane follows it.
        let loops = self.clients as u64 * 2 * u64::from(self.lanes);
        let each = self.operations as u64 / loops.max(1);
        let mut distances = self.distances.clone();
        distances.sort_unstable_by(|one, other| other.cmp(one));
        let farthest: u64 = distances.iter().take(2).sum();
        let placed = self.ways.as_ref().map_or(0, |ways| ways.longest());
        let trips = placed.max(2 * farthest);
        usual.saturating_add(trips.saturating_mul(4 * each))
    }

    fn draw_rolling(&mut self, profile: Profile, random: &mut Random) {
        let wanted = matches!(profile, Profile::Clients | Profile::Crash) && random.chance(1, 3);
        if !wanted {
            return;
        }
        let mut from = Instant(random.between(400, 2_000) * MILLISECOND);
        for node in self.honest(random) {
            let disk = Crash::Honest;
            let length = random.between(100, 700) * MILLISECOND;
            let until = self.add(from, length, Disturbance::Crash { node, disk });
            from = until.plus(random.between(0, 300) * MILLISECOND);
        }
    }
}
