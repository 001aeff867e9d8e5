//! The faults of a run, drawn from its seed before it starts.
//!
//! A plan keeps within the fault model. *Liars* (rewriting proxies, twins, forgetful disks) are at
//! most r and stay liars to the end; replicas that lose their log never vote again, unless they can
//! rejoin, and, together with the liars, are at most u. A replica whose disk is rolled back to an
//! older state is first the one and then the other: it counts against r as well. All other faults
//! are temporary: crashes with an intact disk, partitions, storms, clocks. Any number of replicas
//! may have such a fault, since safety may depend on no bound there and progress is required only
//! after the last one has healed.

mod aimed;
mod changes;
mod disks;
mod disturbances;
mod links;
mod regions;

pub(crate) use aimed::LAG_MAX;

pub use changes::Change;

use crate::agenda::{Instant, MICROSECOND, MILLISECOND, SECOND};
use crate::disk::Crash;
use crate::network::Conditions;
use crate::profile::Profile;
use crate::random::Random;
use crate::ways::Ways;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::fault_model::{FaultModel, FaultModelError};
use quorumfs_bft::identity::Nanos;
use quorumfs_bft::state::LEAF_BYTES_MAX;
use quorumfs_bft::wire::limits::{CHECKPOINT_INTERVAL, REPLY_WHOLE_BYTES, SESSION_IDLE};

/// How a replica lies, from the start to the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liar {
    /// The real core behind a proxy that rewrites and re-signs its messages.
    Proxy,
    /// Two copies of the real core under one identity.
    Twins,
    /// A disk that forgets what it reported durable.
    Forgetful,
}

/// A temporary fault, or one of its kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// A replica's process ends, and starts again when it is over.
    Crash {
        /// Which node.
        node: usize,
        /// The state of its disk afterwards.
        disk: Crash,
    },
    /// Every replica's process ends at once.
    PowerFailure,
    /// The same at the worst moment, which is when a batch has just been executed for the first
    /// time, and with only the durable part left on the disks. All messages that were sent before
    /// their record was durable are then forgotten, which is why they must not be sent.
    Blackout,
    /// No frame crosses between the marked endpoints and the others, in the given directions.
    Partition {
        /// The side of each endpoint.
        side: Vec<bool>,
        /// Whether frames are lost from the marked ones to the others.
        outwards: bool,
        /// Whether frames are lost from the others to the marked ones.
        inwards: bool,
    },
    /// The network leaves two certificates for one sequence behind; see `simulation::ambush`.
    Ambush {
        /// The replica that is prepared alone, and cut off.
        alone: usize,
        /// The replica that alone executes what the others prepare in its place.
        receiver: usize,
    },
    /// The marked replicas receive nothing from the others, and everything from the clients.
    LeftBehind {
        /// The mark of each replica.
        side: Vec<bool>,
    },
    /// The replicas learn decisions one after the other; see `simulation::aim`.
    Stagger {
        /// How long each of them keeps its lag.
        slice: u64,
        /// Decides their lags.
        seed: u64,
    },
    /// One proposal gets no votes while later ones do; see `simulation::aim`.
    Sever {
        /// The replica that alone learns later decisions.
        receiver: usize,
    },
    /// A region is cut off from all others.
    RegionCut {
        /// Which one.
        region: usize,
        /// Whether what it sends is lost, and what it is sent.
        ways: (bool, bool),
        /// Whether it is one of many short cuts.
        flaps: bool,
    },
    /// The ways of a region take longer.
    Stretch {
        /// Which one.
        region: usize,
        /// By how much, out of it and into it.
        factors: (u64, u64),
    },
    /// The network is in a bad state.
    Storm(Conditions),
    /// A node's disk becomes slower by a factor.
    SlowDisk {
        /// Which node.
        node: usize,
        /// The factor.
        factor: u64,
    },
    /// A node's wall clock is off by so many nanoseconds until it is set right again.
    ClockJump {
        /// Which node.
        node: usize,
        /// The jump.
        nanos: i64,
    },
    /// A client's process ends and another one starts in its place, with a new session.
    ClientRestart {
        /// Which client.
        client: usize,
    },
}

/// A disturbance and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// When it begins.
    pub from: Instant,
    /// When it is over.
    pub until: Instant,
    /// Its kind.
    pub disturbance: Disturbance,
}

/// Everything about a run that is decided before it starts.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The fault model, with the number of replicas.
    pub fault_model: FaultModel,
    /// For every machine its way of lying, if it lies: the replicas at genesis, then the spares.
    pub liars: Vec<Option<Liar>>,
    /// Changes of the membership, one after the other.
    pub changes: Vec<Change>,
    /// The machine that loses its disk, if one does.
    pub unreliable: Option<usize>,
    /// The machine of each node: one node per machine, and a second one for each pair of twins, at
    /// the end.
    pub nodes: Vec<usize>,
    /// Honest clients.
    pub clients: usize,
    /// Lanes of each client; it has twice as many operations pending.
    pub lanes: u16,
    /// Requests that each lane keeps in flight.
    pub in_flight: u16,
    /// Whether clients use unordered reads.
    pub unordered_reads: bool,
    /// Whether clients observe replicas and watch keys.
    pub watching: bool,
    /// How many of a hundred calls are queries in any case.
    pub queries: u64,
    /// Whether there is a Byzantine client.
    pub byzantine_client: bool,
    /// The network's usual state.
    pub network: Conditions,
    /// The distance of each endpoint from the centre, in nanoseconds; empty if all are near.
    pub distances: Vec<u64>,
    /// The ways between the regions of the endpoints, if they are in some.
    pub ways: Option<Ways>,
    /// The usual time of a sync, shortest and longest.
    pub disk: (u64, u64),
    /// Skew (ns) and drift (ppm) of every node's clock.
    pub clocks: Vec<(i64, i64)>,
    /// The longest pause of a client between two operations.
    pub pause: u64,
    /// If clients come in bursts, the lengths of a burst and of the pause after it.
    pub bursts: Option<(u64, u64)>,
    /// The faults, by their beginning.
    pub faults: Vec<Fault>,
    /// When the last of them is over.
    pub healed: Instant,
    /// Answered operations that the clients have to reach together.
    pub operations: usize,
    /// Batches from one checkpoint to the next.
    pub checkpoint_interval: u64,
    /// The bound on the rows of one leaf of the state tree.
    pub leaf_bytes_max: u64,
    /// Results with more bytes are sent by one replica, and by the others as a digest.
    pub reply_whole_bytes: usize,
    /// The time after which sessions count as idle.
    pub session_idle: Nanos,
    /// Whether the run ends with a quiet that makes sessions idle.
    pub quiet: bool,
    /// How long a replica that should lead has to be well.
    pub return_after: Option<Nanos>,
    /// By what all ways between regions are stretched in the end.
    pub stretched_after: u64,
    /// Whether the liars, as leaders, delay each proposal.
    pub dawdling: bool,
    /// Whether the liars send forged nodes of a state.
    pub forging: bool,
    /// Whether votes are signed.
    pub authentication: Authentication,
}

/// The fault models in use, with their shares of a hundred runs.
const PRESETS: [(u16, u16, u16, u64); 6] = [
    (1, 1, 4, 70),
    (1, 0, 3, 8),
    (0, 0, 1, 5),
    (2, 1, 6, 6),
    (2, 2, 7, 6),
    (0, 1, 2, 5),
];

/// Without signatures the same faults occur as with them.
fn unsigned_profile(random: &mut Random) -> Profile {
    let all = [
        Profile::Mixed,
        Profile::Mixed,
        Profile::Mixed,
        Profile::Byzantine,
        Profile::Byzantine,
        Profile::Byzantine,
        Profile::Network,
        Profile::Crash,
        Profile::Disk,
        Profile::Twins,
    ];
    *random.pick(&all).unwrap_or(&Profile::Mixed)
}

fn preset(profile: Profile, random: &mut Random) -> (u16, u16, u16) {
    let needs_liars = matches!(
        profile,
        Profile::Byzantine | Profile::Twins | Profile::Reads
    );
    loop {
        let mut drawn = random.below(100);
        for (up, right, replicas, share) in PRESETS {
            if drawn < share {
                if needs_liars && (up == 0 || right == 0) {
                    break;
                }
                return (up, right, replicas);
            }
            drawn -= share;
        }
    }
}

impl Plan {
    /// Draws a plan, for a fault model that is drawn too unless it is given.
    ///
    /// # Errors
    /// Never for the built-in presets; a wrong one would give this error.
    pub fn draw(
        profile: Profile,
        fault_model: Option<FaultModel>,
        random: &mut Random,
    ) -> Result<Self, FaultModelError> {
        let (profile, authentication) = match profile {
            Profile::Mac => (unsigned_profile(random), Authentication::Mac),
            // Drawn from a fork, so that seeds that failed once stay the same.
            Profile::Membership if random.clone().fork(33).chance(1, 4) => {
                (Profile::Membership, Authentication::Mac)
            }
            signed => (signed, Authentication::Sig),
        };
        let (up, right, replicas) = preset(profile, random);
        let fault_model = match fault_model {
            Some(fixed) => fixed,
            None => FaultModel::new(up, right, replicas)?,
        };
        let changes = match profile {
            Profile::Membership => changes::draw(&fault_model, &mut random.clone().fork(11)),
            Profile::Regions => changes::draw_leaders(&fault_model, &mut random.clone().fork(12)),
            _ => Vec::new(),
        };
        let machines = usize::from(fault_model.replicas()) + changes::spares(&changes);
        let mut plan = Self {
            fault_model,
            liars: vec![None; machines],
            changes,
            unreliable: None,
            nodes: (0..machines).collect(),
            clients: random.between(2, 5) as usize,
            lanes: random.between(1, 3) as u16,
            in_flight: random.between(1, 2) as u16,
            unordered_reads: matches!(
                profile,
                Profile::Reads | Profile::Distant | Profile::Regions
            ) || random.clone().fork(9).chance(1, 2),
            watching: random.clone().fork(10).chance(1, 3),
            queries: match profile {
                Profile::Reads | Profile::Distant | Profile::Regions => 50,
                _ => 0,
            },
            byzantine_client: matches!(profile, Profile::Mixed | Profile::Clients)
                && random.chance(1, 3),
            network: links::usual(profile, random),
            distances: Vec::new(),
            ways: None,
            disk: (100 * MICROSECOND, random.between(1, 8) * MILLISECOND),
            clocks: Vec::new(),
            pause: 0,
            bursts: None,
            faults: Vec::new(),
            healed: Instant(0),
            operations: 0,
            checkpoint_interval: CHECKPOINT_INTERVAL,
            leaf_bytes_max: LEAF_BYTES_MAX,
            forging: false,
            dawdling: false,
            reply_whole_bytes: REPLY_WHOLE_BYTES,
            session_idle: SESSION_IDLE,
            quiet: false,
            return_after: None,
            stretched_after: 1,
            authentication,
        };
        plan.operations = 212 + random.index(60);
        // The more lanes there are, the longer each one pauses: about as many operations in total,
        // so that every seed costs about the same.
        let loops = plan.clients as u64 * 2 * u64::from(plan.lanes);
        plan.pause = loops * random.between(15, 25) * MILLISECOND;
        if profile == Profile::Reads {
            // Clients that read much pause less.
            plan.pause /= 4;
            // With one liar silent all others have to answer, and few lanes wait for each of them.
            plan.operations *= if loops < 8 { 2 } else { 3 };
        }
        let unreliable = plan.draw_liars(profile, random);
        plan.unreliable = unreliable;
        if !plan.changes.is_empty() {
            // One client acts for the administrator, and one for each machine that submits
            // commands.
            let speakers = 1 + changes::spares(&plan.changes) + usize::from(unreliable.is_some());
            plan.clients = plan.clients.max(speakers);
        }
        for _ in 0..plan.nodes.len() {
            let drift = random.between(0, 400) as i64 - 200;
            let skew = random.between(0, 40) as i64 * MILLISECOND as i64;
            plan.clocks.push((skew - 20 * MILLISECOND as i64, drift));
        }
        if profile != Profile::Calm {
            plan.draw_faults(profile, unreliable, random);
            plan.draw_blackout(profile, random);
        }
        // Drawn last. A run has a few hundred batches: most have many checkpoints, some none.
        if random.chance(5, 6) {
            plan.checkpoint_interval = random.between(3, 24);
        }
        if random.chance(4, 5) {
            plan.leaf_bytes_max = random.between(60, 600);
        }
        if matches!(
            profile,
            Profile::Mixed
                | Profile::Crash
                | Profile::Byzantine
                | Profile::Membership
                | Profile::Distant
        ) {
            plan.draw_absence(random);
        }
        plan.draw_ambush(profile, random);
        plan.draw_aimed(profile, random);
        plan.draw_distances(profile, &mut random.clone().fork(110));
        plan.draw_regions(profile, &mut random.clone().fork(111));
        Ok(plan)
    }

    /// Chooses the liars, and the replica that will lose its log if one may.
    fn draw_liars(&mut self, profile: Profile, random: &mut Random) -> Option<usize> {
        let mut order: Vec<usize> = (0..self.liars.len()).collect();
        random.shuffle(&mut order);
        let mut order = order.into_iter();
        let budget = self.fault_model.right().min(self.fault_model.up());
        let mut left = self.fault_model.up();
        for _ in 0..budget {
            let liar = match profile {
                Profile::Byzantine | Profile::Reads => Some(Liar::Proxy),
                Profile::Twins => Some(Liar::Twins),
                Profile::Membership if random.chance(1, 2) => Some(Liar::Proxy),
                Profile::Distant | Profile::Regions if random.chance(1, 4) => Some(Liar::Proxy),
                Profile::Disk if random.chance(1, 2) => Some(Liar::Forgetful),
                Profile::Mixed => match random.below(10) {
                    0..4 => Some(Liar::Proxy),
                    4..6 => Some(Liar::Twins),
                    6 => Some(Liar::Forgetful),
                    _ => None,
                },
                _ => None,
            };
            let (Some(liar), Some(replica)) = (liar, order.next()) else {
                continue;
            };
            left -= 1;
            if liar == Liar::Twins {
                self.nodes.push(replica);
            }
            if let Some(slot) = self.liars.get_mut(replica) {
                *slot = Some(liar);
            }
        }
        let loses = match profile {
            Profile::Mixed | Profile::Disk => random.chance(1, 2),
            Profile::Membership => random.chance(3, 4),
            Profile::Distant => true,
            Profile::Regions => random.chance(1, 3),
            _ => false,
        };
        if left > 0 && loses {
            order.next()
        } else {
            None
        }
    }

    fn draw_faults(&mut self, profile: Profile, unreliable: Option<usize>, random: &mut Random) {
        let start = 300 * MILLISECOND;
        let window = random.between(2500, 4500) * MILLISECOND;
        let count = random.between(5, 10);
        for _ in 0..count {
            let from = Instant(start + random.below(window));
            let until = from.plus(random.between(60, 1400) * MILLISECOND);
            let disturbance = self.disturbance(profile, random);
            self.faults.push(Fault {
                from,
                until,
                disturbance,
            });
        }
        if let Some(node) = unreliable {
            let disk = self.failed_disk_state(random);
            let from = Instant(start + random.below(window));
            self.faults.push(Fault {
                from,
                until: from.plus(random.between(60, 1400) * MILLISECOND),
                disturbance: Disturbance::Crash { node, disk },
            });
        }
        let forgetful: Vec<usize> = (0..self.liars.len())
            .filter(|node| self.liars.get(*node) == Some(&Some(Liar::Forgetful)))
            .collect();
        for node in forgetful {
            for _ in 0..random.between(1, 3) {
                let from = Instant(start + random.below(window));
                self.faults.push(Fault {
                    from,
                    until: from.plus(random.between(20, 400) * MILLISECOND),
                    disturbance: Disturbance::Crash {
                        node,
                        disk: Crash::Forgetful,
                    },
                });
            }
        }
        if self.nodes.len() > self.liars.len() {
            self.separate_twins(Instant(start), window, random);
        }
        self.faults.sort_by_key(|fault| fault.from);
        let last = self.faults.iter().map(|fault| fault.until).max();
        self.healed = last.unwrap_or_default();
    }

    /// Twins are separated most of the time, with changing peers, and one of them for good: a
    /// replica that contradicts itself to the same peer is only a noisy liar.
    fn separate_twins(&mut self, start: Instant, window: u64, random: &mut Random) {
        let mut from = Instant(0);
        while from < start.plus(window) {
            let until = from.plus(random.between(150, 1200) * MILLISECOND);
            let mut side: Vec<bool> = self.endpoints().map(|_| random.chance(1, 2)).collect();
            for (node, replica) in self.nodes.iter().enumerate().skip(self.liars.len()) {
                let flag = side.get(*replica).copied().unwrap_or_default();
                if let Some(twin) = side.get_mut(node) {
                    *twin = !flag;
                }
            }
            self.faults.push(Fault {
                from,
                until,
                disturbance: Disturbance::Partition {
                    side,
                    outwards: true,
                    inwards: true,
                },
            });
            from = until.plus(random.between(0, 300) * MILLISECOND);
        }
    }

    fn endpoints(&self) -> std::ops::Range<usize> {
        0..self.nodes.len() + self.clients + 1
    }
}

/// The least number of faults that take effect in a run.
pub const FAULTS_MIN: usize = 3;

/// The longest that a run may take after everything has healed, while clients send requests.
pub const PROGRESS: u64 = 20 * SECOND;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_plan_breaks_its_own_fault_model() {
        for seed in 0..2000 {
            let mut random = Random::new(seed);
            let profile = Profile::ALL[random.index(Profile::ALL.len())];
            let plan = Plan::draw(profile, None, &mut random).unwrap();
            let liars = plan.liars.iter().flatten().count();
            let mut lost: Vec<usize> = plan
                .faults
                .iter()
                .filter_map(|fault| match fault.disturbance {
                    Disturbance::Crash {
                        node,
                        disk: Crash::Damaged | Crash::Wiped | Crash::Bereft | Crash::RolledBack,
                    } => Some(plan.nodes[node]),
                    _ => None,
                })
                .collect();
            lost.dedup();
            if profile == Profile::Membership {
                assert!(!plan.changes.is_empty());
            }
            let back = (0..plan.nodes.len()).filter(|node| plan.rolls_back(*node));
            assert!(liars + back.count() <= usize::from(plan.fault_model.right()));
            assert!(liars + lost.len() <= usize::from(plan.fault_model.up()));
            assert!(lost.iter().all(|replica| plan.liars[*replica].is_none()));
            assert!(plan.faults.iter().all(|fault| fault.until <= plan.healed));
            for fault in &plan.faults {
                if let Disturbance::Crash { node, disk } = fault.disturbance {
                    let forgets = plan.liars[plan.nodes[node]] == Some(Liar::Forgetful);
                    assert_eq!(disk == Crash::Forgetful, forgets);
                }
            }
        }
    }
}
