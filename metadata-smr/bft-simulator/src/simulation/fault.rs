//! The beginning and the end of faults.

use super::aim::Aim;
use super::{Happening, Simulation};
use crate::agenda::MILLISECOND;
use crate::disk::Crash;
use crate::honest_client::HonestClient;
use crate::plan::{Disturbance, Liar};
use crate::workload::Workload;
use quorumfs_bft::identity::Monotonic;

impl<W: Workload> Simulation<'_, W> {
    pub(super) fn begin_fault(&mut self, index: usize) {
        let Some(disturbance) = self.plan.faults.get(index).map(|f| f.disturbance.clone()) else {
            return;
        };
        self.note(|_| format!("fault {index} begins: {disturbance:?}"));
        match disturbance {
            Disturbance::Crash { node, disk } => {
                if self.crash(node, disk, index) {
                    self.effective.insert(index);
                    self.counters.count("crashes");
                }
            }
            Disturbance::PowerFailure => {
                self.counters.count("power_failures");
                self.crash_all(Crash::Honest, index);
            }
            Disturbance::Blackout => self.blackout = Some(index),
            Disturbance::Partition {
                side,
                outwards,
                inwards,
            } => {
                self.counters.count("partitions");
                for (from, marked) in side.iter().enumerate() {
                    for (to, other) in side.iter().enumerate() {
                        let cut =
                            (*marked && !*other && outwards) || (!*marked && *other && inwards);
                        if cut {
                            self.network.cut(from, to, index);
                        }
                    }
                }
            }
            Disturbance::RegionCut {
                region,
                ways,
                flaps,
            } => {
                let counter = match flaps {
                    true => "region_flaps",
                    false => "region_cuts",
                };
                self.counters.count(counter);
                self.cut_region(region, ways, index);
            }
            Disturbance::Stretch { region, factors } => {
                self.counters.count("stretches");
                if let Some(ways) = self.network.ways_mut() {
                    ways.stretch(region, factors, index);
                }
            }
            Disturbance::LeftBehind { side } => {
                self.counters.count("left_behind");
                let nodes = self.nodes.len();
                for (to, marked) in side.iter().enumerate() {
                    for from in (0..nodes).filter(|from| *marked && *from != to) {
                        self.network.cut(from, to, index);
                    }
                }
            }
            Disturbance::Storm(conditions) => {
                self.counters.count("storms");
                self.network.begin_storm(conditions, index);
            }
            Disturbance::SlowDisk { node, factor } => {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.disk_factor = factor;
                    self.effective.insert(index);
                    self.counters.count("slow_disks");
                }
            }
            Disturbance::ClockJump { node, nanos } => self.clock_jump(node, nanos, index),
            Disturbance::ClientRestart { client } => self.restart_client(client, index),
            Disturbance::Ambush { alone, receiver } => self.begin_ambush(index, alone, receiver),
            Disturbance::Stagger { slice, seed } => self.add_aim(Aim::Stagger {
                fault: index,
                slice,
                seed,
            }),
            Disturbance::Sever { receiver } => self.add_aim(Aim::Sever {
                fault: index,
                receiver,
                at: None,
            }),
        }
    }

    pub(super) fn end_fault(&mut self, index: usize) {
        let Some(disturbance) = self.plan.faults.get(index).map(|f| f.disturbance.clone()) else {
            return;
        };
        self.note(|_| format!("fault {index} is over: {disturbance:?}"));
        match disturbance {
            Disturbance::Crash { .. } | Disturbance::PowerFailure | Disturbance::Blackout => {
                self.blackout = self.blackout.filter(|waiting| *waiting != index);
                for node in 0..self.nodes.len() {
                    if self.down.get(node) == Some(&Some(index)) {
                        self.start(node);
                    }
                }
            }
            Disturbance::Partition { .. }
            | Disturbance::LeftBehind { .. }
            | Disturbance::RegionCut { .. } => self.network.mend(index),
            Disturbance::Stretch { .. } => {
                if let Some(ways) = self.network.ways_mut() {
                    ways.relax(index);
                }
            }
            Disturbance::Storm(_) => self.network.end_storm(index),
            Disturbance::SlowDisk { node, .. } => {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.disk_factor = 1;
                }
            }
            Disturbance::ClockJump { node, nanos } => {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.clock.jump(-nanos);
                }
            }
            Disturbance::ClientRestart { .. } => {}
            Disturbance::Ambush { .. } => self.end_ambush(index),
            Disturbance::Stagger { .. } | Disturbance::Sever { .. } => self.remove_aim(index),
        }
    }

    /// Cuts what a region sends to others, and what it is sent.
    fn cut_region(&mut self, region: usize, (out, back): (bool, bool), index: usize) {
        let regions = self.plan.ways.as_ref();
        let regions = regions.map_or_else(Vec::new, |ways| ways.regions.clone());
        for (from, here) in regions.iter().enumerate() {
            for (to, there) in regions.iter().enumerate() {
                let leaves = *here == region && *there != region && out;
                let enters = *here != region && *there == region && back;
                if leaves || enters {
                    self.network.cut(from, to, index);
                }
            }
        }
    }

    fn crash_all(&mut self, how: Crash, index: usize) {
        for node in 0..self.nodes.len() {
            let liar = self.plan.nodes.get(node);
            let liar = liar.and_then(|replica| self.plan.liars.get(*replica));
            let disk = match liar {
                Some(Some(Liar::Forgetful)) => Crash::Forgetful,
                _ => how,
            };
            if self.crash(node, disk, index) {
                self.effective.insert(index);
            }
        }
    }

    /// The moment of a blackout has come.
    pub(super) fn black_out(&mut self, index: usize) {
        self.note(|_| format!("fault {index}: the blackout begins"));
        self.counters.count("blackouts");
        self.crash_all(Crash::Bare, index);
    }

    fn clock_jump(&mut self, node: usize, nanos: i64, index: usize) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.clock.jump(nanos);
            self.effective.insert(index);
            self.counters.count("clock_jumps");
        }
    }

    /// Stops a node. Returns false if it was stopped already.
    fn crash(&mut self, index: usize, how: Crash, by: usize) -> bool {
        let Some(node) = self.nodes.get_mut(index) else {
            return false;
        };
        if !node.running() {
            return false;
        }
        let suspects = node.suspects_own_disk();
        node.crash(how, &mut self.disk_random, &mut self.counters);
        if let Some(down) = self.down.get_mut(index) {
            *down = Some(by);
        }
        match how {
            Crash::Honest | Crash::Bare => {}
            Crash::Forgetful => self.counters.count("forgetful_crashes"),
            Crash::Damaged => self.counters.count("logs_damaged"),
            Crash::Wiped => self.counters.count("logs_lost"),
            Crash::Bereft => self.counters.count("states_lost"),
            Crash::RolledBack => self.counters.count("disks_rolled_back"),
        }
        if suspects {
            self.suspected_disk(index);
        }
        self.disconnect_node(index);
        true
    }

    /// Starts a node from its disk.
    pub(super) fn start(&mut self, index: usize) {
        let at = self.agenda.now();
        if let Some(down) = self.down.get_mut(index) {
            *down = None;
        }
        let service = Box::new(self.workload.service());
        let Some(node) = self.nodes.get_mut(index) else {
            return;
        };
        let now = node.clock.now(at);
        let acts = node.start(now, service, &mut self.counters);
        self.note(|simulation| {
            let node = simulation.nodes.get(index);
            let habits = node.map(crate::node::Node::habits).unwrap_or_default();
            let status = node.and_then(crate::node::Node::status);
            format!("node {index} starts {habits} as {status:?}")
        });
        self.carry_out(index, acts);
        for client in 0..=self.honest_clients.len() {
            let delay = self.client_random.between(1, 30) * MILLISECOND;
            self.agenda.after(
                delay,
                Happening::Connect {
                    client,
                    node: index,
                },
            );
        }
    }

    /// A client's process begins.
    pub(super) fn start_client(&mut self, client: usize) {
        let now = Monotonic(self.agenda.now().0);
        for node in 0..self.nodes.len() {
            let delay = self.client_random.between(1, 30) * MILLISECOND;
            self.agenda
                .after(delay, Happening::Connect { client, node });
        }
        if let Some(honest_client) = self.honest_clients.get_mut(client) {
            let actions = honest_client.open_session(now);
            let generation = honest_client.generation;
            self.carry_out_client(client, generation, actions);
        }
    }

    /// A client's process ends, its pending calls stay unknown, and another process begins.
    fn restart_client(&mut self, client: usize, index: usize) {
        let Some(principal) = self.principals.get(client).cloned() else {
            return;
        };
        let Some(old) = self.honest_clients.get(client) else {
            return;
        };
        let generation = old.generation + 1;
        self.counters.add("retries", old.retries());
        self.counters.add("busy_replies", old.busy());
        self.counters.count("client_restarts");
        self.effective.insert(index);
        self.forget_administration();
        self.disconnect_client(client);
        let random = &mut self.client_random;
        let (plan, keyring) = (&self.plan, &self.keyring);
        let (known, settings) = ((self.cluster, &self.genesis), (plan, self.options.sabotage));
        let fresh = HonestClient::new(known, settings, principal, keyring, generation, random);
        if let Some(honest_client) = self.honest_clients.get_mut(client) {
            *honest_client = fresh;
        }
        self.start_client(client);
    }
}
