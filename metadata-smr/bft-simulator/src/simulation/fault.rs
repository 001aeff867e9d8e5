//! Troubles: what begins and what ends.

use super::aim::Aim;
use super::{Happening, Simulation};
use crate::agenda::MILLISECOND;
use crate::customer::Customer;
use crate::disk::Crash;
use crate::plan::{Liar, Trouble};
use crate::workload::Workload;
use quorumfs_bft::identity::Monotonic;

impl<W: Workload> Simulation<'_, W> {
    pub(super) fn begin_fault(&mut self, index: usize) {
        let Some(trouble) = self.plan.faults.get(index).map(|f| f.trouble.clone()) else {
            return;
        };
        self.note(|_| format!("fault {index} begins: {trouble:?}"));
        match trouble {
            Trouble::Crash { node, disk } => {
                if self.crash(node, disk, index) {
                    self.effective.insert(index);
                    self.counters.count("crashes");
                }
            }
            Trouble::PowerFailure => {
                self.counters.count("power_failures");
                self.crash_all(Crash::Honest, index);
            }
            Trouble::Blackout => self.blackout = Some(index),
            Trouble::Partition {
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
            Trouble::LeftBehind { side } => {
                self.counters.count("left_behind");
                let nodes = self.nodes.len();
                for (to, marked) in side.iter().enumerate() {
                    for from in (0..nodes).filter(|from| *marked && *from != to) {
                        self.network.cut(from, to, index);
                    }
                }
            }
            Trouble::Storm(conditions) => {
                self.counters.count("storms");
                self.network.begin_storm(conditions, index);
            }
            Trouble::SlowDisk { node, factor } => {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.disk_factor = factor;
                    self.effective.insert(index);
                    self.counters.count("slow_disks");
                }
            }
            Trouble::ClockJump { node, nanos } => self.clock_jump(node, nanos, index),
            Trouble::ClientRestart { client } => self.restart_client(client, index),
            Trouble::Ambush { alone, hears } => self.begin_ambush(index, alone, hears),
            Trouble::Stagger { slice, seed } => self.take_aim(Aim::Stagger {
                fault: index,
                slice,
                seed,
            }),
            Trouble::Sever { hears } => self.take_aim(Aim::Sever {
                fault: index,
                hears,
                at: None,
            }),
        }
    }

    pub(super) fn end_fault(&mut self, index: usize) {
        let Some(trouble) = self.plan.faults.get(index).map(|f| f.trouble.clone()) else {
            return;
        };
        self.note(|_| format!("fault {index} is over: {trouble:?}"));
        match trouble {
            Trouble::Crash { .. } | Trouble::PowerFailure | Trouble::Blackout => {
                self.blackout = self.blackout.filter(|waiting| *waiting != index);
                for node in 0..self.nodes.len() {
                    if self.down.get(node) == Some(&Some(index)) {
                        self.start(node);
                    }
                }
            }
            Trouble::Partition { .. } | Trouble::LeftBehind { .. } => self.network.mend(index),
            Trouble::Storm(_) => self.network.end_storm(index),
            Trouble::SlowDisk { node, .. } => {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.disk_factor = 1;
                }
            }
            Trouble::ClockJump { node, nanos } => {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.clock.jump(-nanos);
                }
            }
            Trouble::ClientRestart { .. } => {}
            Trouble::Ambush { .. } => self.end_ambush(index),
            Trouble::Stagger { .. } | Trouble::Sever { .. } => self.lower_aim(index),
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

    /// The moment that a blackout has waited for.
    pub(super) fn black_out(&mut self, index: usize) {
        self.note(|_| format!("fault {index}: the lights go out"));
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

    /// Stops a node. False if it was down already.
    fn crash(&mut self, index: usize, how: Crash, by: usize) -> bool {
        let Some(node) = self.nodes.get_mut(index) else {
            return false;
        };
        if !node.running() {
            return false;
        }
        let doubts = node.doubts_itself();
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
        if doubts {
            self.doubted(index);
        }
        self.disconnect_node(index);
        true
    }

    /// Starts a node on what its disk has.
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
        for client in 0..=self.customers.len() {
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
        if let Some(customer) = self.customers.get_mut(client) {
            let wishes = customer.open_session(now);
            let generation = customer.generation;
            self.grant(client, generation, wishes);
        }
    }

    /// A client's process ends, what it waited for stays unknown, and another one begins.
    fn restart_client(&mut self, client: usize, index: usize) {
        let Some(principal) = self.principals.get(client).cloned() else {
            return;
        };
        let Some(old) = self.customers.get(client) else {
            return;
        };
        let generation = old.generation + 1;
        self.counters.add("retries", old.retries());
        self.counters.add("busy_replies", old.busy());
        self.counters.count("client_restarts");
        self.effective.insert(index);
        self.disconnect_client(client);
        let random = &mut self.client_random;
        let (plan, keyring) = (&self.plan, &self.keyring);
        let (known, settings) = ((self.cluster, &self.genesis), (plan, self.options.sabotage));
        let fresh = Customer::new(known, settings, principal, keyring, generation, random);
        if let Some(customer) = self.customers.get_mut(client) {
            *customer = fresh;
        }
        self.start_client(client);
    }
}
