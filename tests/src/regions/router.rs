//! Namespaces with devices, and the threads that carry packets between them.
//!
//! One thread waits for packets of all devices and gives them to the [`Links`]; another one sleeps
//! until the next packet arrives somewhere, and writes it to that device. Both share one lock,
//! which is held for as long as it takes to move a packet in memory.

use super::links::{Carried, Links, PlaceLink, SECOND};
use super::plan::RegionsPlan;
use crate::harness::{Quorumfs, Reaped};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio_tun::Tun;

/// What one packet may have: more than Ethernet's, so that fewer have to be carried.
const MTU: i32 = 8900;
/// The device of each namespace.
const DEVICE: &str = "wan0";
const NETMASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);

/// A packet and the endpoint that it is for.
type Addressed = (usize, Box<[u8]>);

#[derive(Debug)]
struct Carrier {
    links: Mutex<Links<Addressed>>,
    changed: Condvar,
    /// The place of each endpoint.
    places: Vec<usize>,
    began: Instant,
    ended: Mutex<bool>,
}

impl Carrier {
    fn links(&self) -> MutexGuard<'_, Links<Addressed>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn has_ended(&self) -> bool {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a packet that an endpoint has sent.
    fn take(&self, from: usize, packet: &[u8]) {
        let Some(to) = destination(packet).filter(|to| *to < self.places.len()) else {
            return;
        };
        let place = |endpoint: usize| self.places.get(endpoint).copied().unwrap_or(0);
        let (places, now) = ((place(from), place(to)), self.now());
        let mut links = self.links();
        let first = links.next();
        links.send(now, places, packet.len(), (to, packet.into()));
        if links.next() != first {
            self.changed.notify_one();
        }
    }
}

/// The endpoint that an IPv4 packet is for; `None` for any other packet.
fn destination(packet: &[u8]) -> Option<usize> {
    let is_four = packet.first().is_some_and(|first| first >> 4 == 4);
    let last = packet.get(19).filter(|_| is_four)?;
    usize::from(*last).checked_sub(1)
}

fn address(endpoint: usize) -> Ipv4Addr {
    let last = u8::try_from(endpoint.saturating_add(1)).unwrap_or(u8::MAX);
    Ipv4Addr::new(10, 80, 0, last)
}

/// A network of endpoints that are far apart, while this exists.
#[derive(Debug)]
pub struct Regions {
    plan: RegionsPlan,
    holders: Vec<Reaped>,
    shared: Arc<Carrier>,
    delivery: Option<JoinHandle<()>>,
    _readers: Runtime,
}

impl Regions {
    /// Makes it. It needs root.
    ///
    /// # Errors
    /// If the plan is none, or a namespace or a device cannot be made.
    pub fn start(plan: RegionsPlan) -> io::Result<Self> {
        plan.check().map_err(io::Error::other)?;
        let mut links = Links::new(plan.places.len(), PlaceLink::of(0.0), plan.seed);
        for (places, link) in plan.links() {
            let changed = links.change(places, |it| *it = link);
            changed.map_err(io::Error::other)?;
        }
        let places = plan.endpoints.iter();
        let places = places.map(|it| plan.place(&it.name).unwrap_or(0));
        let shared = Arc::new(Carrier {
            links: Mutex::new(links),
            changed: Condvar::new(),
            places: places.collect(),
            began: Instant::now(),
            ended: Mutex::new(false),
        });
        let readers = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_io()
            .build()?;
        let (mut holders, mut devices) = (Vec::new(), Vec::new());
        for number in 0..plan.endpoints.len() {
            let holder = hold_namespace()?;
            let device = Arc::new(device_in(holder.0.id(), address(number), &readers)?);
            let (reading, shared) = (device.clone(), shared.clone());
            readers.spawn(async move {
                let mut packet = vec![0; 1 << 16];
                while let Ok(length) = reading.recv(&mut packet).await {
                    shared.take(number, packet.get(..length).unwrap_or_default());
                }
            });
            holders.push(holder);
            devices.push(device);
        }
        let delivering = shared.clone();
        let delivery = std::thread::spawn(move || deliver(&delivering, &devices));
        Ok(Self {
            plan,
            holders,
            shared,
            delivery: Some(delivery),
            _readers: readers,
        })
    }

    /// The plan that it began with.
    #[must_use]
    pub fn plan(&self) -> &RegionsPlan {
        &self.plan
    }

    /// The address of an endpoint.
    ///
    /// # Panics
    /// If there is none of this name.
    #[must_use]
    #[track_caller]
    pub fn address(&self, name: &str) -> IpAddr {
        IpAddr::V4(address(self.number(name)))
    }

    #[track_caller]
    fn number(&self, name: &str) -> usize {
        let number = self.plan.endpoint(name);
        number.unwrap_or_else(|| panic!("there is no endpoint {name}"))
    }

    /// The process whose network namespace is an endpoint's.
    ///
    /// # Panics
    /// If there is none of this name.
    #[must_use]
    #[track_caller]
    pub fn process(&self, name: &str) -> u32 {
        let number = self.number(name);
        let holder = self.holders.get(number);
        holder.map_or(0, |holder| holder.0.id())
    }

    /// The same run at an endpoint.
    ///
    /// # Panics
    /// If there is none of this name.
    #[must_use]
    #[track_caller]
    pub fn holds(&self, name: &str, run: Quorumfs) -> Quorumfs {
        run.in_network_of(self.process(name))
    }

    /// Does some work in a thread at an endpoint: what it connects and listens to is in that
    /// network, and stays there.
    ///
    /// # Panics
    /// If there is none of this name, or the thread cannot enter its namespace.
    #[must_use]
    #[track_caller]
    pub fn run_in<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let process = self.process(name);
        std::thread::spawn(move || match enter(process) {
            Ok(()) => work(),
            Err(error) => panic!("the namespace of process {process}: {error}"),
        })
    }

    /// Changes what happens from one place, or an endpoint's, to another, to packets that are sent
    /// from now on.
    ///
    /// # Errors
    /// If there is no such place, or a link cannot be so.
    pub fn change(
        &self,
        from: &str,
        to: &str,
        change: impl FnOnce(&mut PlaceLink),
    ) -> Result<(), String> {
        let place = |name: &str| {
            let place = self.plan.place(name);
            place.ok_or_else(|| format!("there is no place {name}"))
        };
        let places = (place(from)?, place(to)?);
        self.shared.links().change(places, change)
    }

    /// The same in both directions between a place and all others.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub fn change_all(&self, of: &str, change: impl Fn(&mut PlaceLink)) -> Result<(), String> {
        let here = self.plan.place(of);
        let here = here.and_then(|here| self.plan.places.get(here).cloned());
        for other in self
            .plan
            .places
            .iter()
            .filter(|it| Some(*it) != here.as_ref())
        {
            self.change(of, other, &change)?;
            self.change(other, of, &change)?;
        }
        Ok(())
    }

    /// The same for all links.
    pub fn change_every(&self, change: impl Fn(&mut PlaceLink)) {
        let mut links = self.shared.links();
        for (places, _) in self.plan.links() {
            // All of them exist, and one that cannot be so stays as it is.
            let _ = links.change(places, &change);
        }
    }

    /// What was carried from one place, or an endpoint's, to another.
    #[must_use]
    pub fn carried(&self, from: &str, to: &str) -> Carried {
        match (self.plan.place(from), self.plan.place(to)) {
            (Some(from), Some(to)) => self.shared.links().carried(from, to),
            _ => Carried::default(),
        }
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        *self
            .shared
            .ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.changed.notify_all();
        if let Some(delivery) = self.delivery.take() {
            let _ = delivery.join();
        }
    }
}

/// A process that holds a network namespace until its input ends: in any case with this process.
fn hold_namespace() -> io::Result<Reaped> {
    let script = "ip link set lo up && echo up && exec cat";
    let mut hold = Command::new("unshare");
    hold.args(["--net", "--", "/bin/sh", "-c", script]);
    hold.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = Reaped(hold.spawn()?);
    let stdout = holder.0.stdout.take();
    let mut line = String::new();
    if let Some(stdout) = stdout {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    match line.as_str() {
        "up\n" => Ok(holder),
        _ => Err(io::Error::other(
            "no network namespace can be made; root and the programs `unshare` and `ip` are needed",
        )),
    }
}

/// Moves this thread to the network namespace of a process, for the rest of its life.
fn enter(process: u32) -> io::Result<()> {
    let namespace = File::open(format!("/proc/{process}/ns/net"))?;
    let kind = Some(LinkNameSpaceType::Network);
    Ok(move_into_link_name_space(namespace.as_fd(), kind)?)
}

/// The device in the namespace of a process, as this process reads and writes it.
fn device_in(holder: u32, address: Ipv4Addr, readers: &Runtime) -> io::Result<Tun> {
    let handle = readers.handle().clone();
    // A thread of its own enters the namespace, and ends there.
    let made = std::thread::spawn(move || {
        enter(holder)?;
        let _entered = handle.enter();
        let builder = Tun::builder().name(DEVICE).address(address);
        let built = builder.netmask(NETMASK).mtu(MTU).up().build();
        let mut devices = built.map_err(io::Error::other)?;
        let device = devices.pop();
        device.ok_or_else(|| io::Error::other("no device was made"))
    });
    let made = made.join();
    made.map_err(|_| io::Error::other("the thread that makes a device has panicked"))?
}

/// Writes each packet when it arrives, until the network ends.
fn deliver(shared: &Carrier, devices: &[Arc<Tun>]) {
    let mut links = shared.links();
    while !shared.has_ended() {
        let now = shared.now();
        if let Some((to, packet)) = links.arrived(now) {
            drop(links);
            if let Some(device) = devices.get(to) {
                // What the kernel does not take is lost, as on a link.
                let _ = device.try_send(&packet);
            }
            links = shared.links();
            continue;
        }
        let sleep = links
            .next()
            .map_or(u64::MAX, |next| next.saturating_sub(now));
        let sleep = Duration::from_nanos(sleep.min(SECOND));
        let (woken, _) = shared
            .changed
            .wait_timeout(links, sleep)
            .unwrap_or_else(PoisonError::into_inner);
        links = woken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_for_the_endpoint_of_its_address() {
        let mut packet = vec![0; 40];
        packet[0] = 0x45;
        packet[16..20].copy_from_slice(&address(6).octets());
        assert_eq!(destination(&packet), Some(6));
        packet[19] = 0;
        assert_eq!(destination(&packet), None);
        packet[0] = 0x60;
        packet[19] = 3;
        assert_eq!(destination(&packet), None);
        assert_eq!(destination(&packet[..10]), None);
        assert_eq!(destination(&[]), None);
    }
}
