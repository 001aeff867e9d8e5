//! Troubles that aim.
//!
//! What goes wrong at random seldom goes wrong at the right moment: whole classes of mistakes would
//! show in one of a thousand runs. Each scenario here puts the run where one class shows, drawn by
//! seed like everything else, and after everything else, each from a stream of its own, so that a
//! run without it is what it would be if there were no such thing.
//!
//! * *Blackout*: what was said before it was durable.  * *Absence*: a laggard that batches are not
//!   kept for.  * *Ambush*: two certificates for one sequence.
//! * *Stagger*: readers, while replicas execute one batch after the other at different times.
//! * *Sever*: batches that are decided although the one before them is not.
//! * *Deaf*: a client that asks again when its answer is known from a state only.
//! * *Heist*: a laggard that takes a state over, partly from a liar.
//! * *Rolling*: replicas that crash one after another.
//! * *Bursts*: whoever compares how much leaders achieve, whatever there is to do.

use super::{Fault, Liar, PROGRESS, Plan, Trouble};
use crate::agenda::{Instant, MILLISECOND};
use crate::disk::Crash;
use crate::profile::Profile;
use crate::random::Random;
use quorumfs_bft::identity::Nanos;
use quorumfs_bft::wire::limits::REPLY_COMPARED_BYTES;

/// How many times as long a run may take where everybody is far from everybody else.
const FAR: u64 = 3;
/// How far replicas are apart at the most while they are staggered.
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

    /// A blackout, with all disks slow before it now and then. It is drawn last, so that a run
    /// without one is what it would be if there were no such thing.
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
        let trouble = Trouble::Blackout;
        self.faults.push(Fault {
            from,
            until,
            trouble,
        });
        self.healed = self.healed.max(until);
        if random.chance(1, 3) {
            let factor = random.between(5, 40);
            let slow = Instant(from.0.saturating_sub(random.between(50, 400) * MILLISECOND));
            for node in 0..self.nodes.len() {
                self.faults.push(Fault {
                    from: slow,
                    until,
                    trouble: Trouble::SlowDisk { node, factor },
                });
            }
        }
        self.faults.sort_by_key(|fault| fault.from);
    }

    /// A node that is away for so long that it cannot be served batches any more, and now and then
    /// goes down again as soon as it is back.
    pub(super) fn draw_absence(&mut self, random: &mut Random) {
        let node = random.index(self.nodes.len());
        let liar = self.nodes.get(node).and_then(|it| self.liars.get(*it));
        if !random.chance(2, 3) || liar != Some(&None) {
            return;
        }
        let from = Instant(random.between(300, 1500) * MILLISECOND);
        let until = from.plus(random.between(1000, 2500) * MILLISECOND);
        let disk = Crash::Honest;
        let trouble = Trouble::Crash { node, disk };
        self.faults.push(Fault {
            from,
            until,
            trouble: trouble.clone(),
        });
        self.healed = self.healed.max(until);
        if random.chance(2, 3) {
            let from = until.plus(random.between(5, 300) * MILLISECOND);
            let until = from.plus(random.between(20, 600) * MILLISECOND);
            self.faults.push(Fault {
                from,
                until,
                trouble,
            });
            self.healed = self.healed.max(until);
        }
        self.faults.sort_by_key(|fault| fault.from);
    }

    /// An ambush, after everything else. It is drawn last, as a blackout is.
    pub(super) fn draw_ambush(&mut self, profile: Profile, random: &mut Random) {
        let wanted = match profile {
            Profile::Mixed => random.chance(1, 4),
            Profile::Network | Profile::Byzantine => random.chance(1, 2),
            _ => false,
        };
        let honest = (0..self.liars.len()).filter(|at| self.liars.get(*at) == Some(&None));
        let mut honest: Vec<usize> = honest.collect();
        random.shuffle(&mut honest);
        let (true, [alone, hears, ..]) = (wanted, honest.as_slice()) else {
            return;
        };
        let from = self.healed.plus(random.between(10, 600) * MILLISECOND);
        let until = from.plus(random.between(3_000, 6_000) * MILLISECOND);
        let (alone, hears) = (*alone, *hears);
        self.faults.push(Fault {
            from,
            until,
            trouble: Trouble::Ambush { alone, hears },
        });
        self.healed = until;
    }

    fn add(&mut self, from: Instant, length: u64, trouble: Trouble) -> Instant {
        let until = from.plus(length);
        self.faults.push(Fault {
            from,
            until,
            trouble,
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
            self.add(from, length, Trouble::Stagger { slice, seed });
        }
    }

    fn draw_sever(&mut self, profile: Profile, random: &mut Random) {
        let wanted = match profile {
            Profile::Mixed => random.chance(1, 6),
            Profile::Network | Profile::Byzantine => random.chance(1, 4),
            _ => false,
        };
        let honest = self.honest(random);
        let (true, [hears, ..]) = (wanted, honest.as_slice()) else {
            return;
        };
        let hears = *hears;
        let from = self.healed.plus(random.between(10, 400) * MILLISECOND);
        let length = random.between(2_000, 4_000) * MILLISECOND;
        self.add(from, length, Trouble::Sever { hears });
    }

    /// One client hears nothing until what it asked for lies below a durable root everywhere, and
    /// all replicas have started anew on that.
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
        let deaf = Trouble::Partition {
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
        self.add(crash, down, Trouble::PowerFailure);
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
        self.add(from, length, Trouble::Crash { node, disk });
    }

    /// Bursts that leave nobody a moment, and nothing in between.
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

    /// The longest that the run may take after everything has healed. Between bursts nobody asks,
    /// and so nothing is answered; and over long links everything takes long.
    #[must_use]
    pub fn patience(&self) -> u64 {
        let (on, off) = self.bursts.unwrap_or((PROGRESS, 0));
        let far = if self.distances.is_empty() { 1 } else { FAR };
        far * (PROGRESS / on.max(1) * (on + off))
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
            let until = self.add(from, length, Trouble::Crash { node, disk });
            from = until.plus(random.between(0, 300) * MILLISECOND);
        }
    }
}
