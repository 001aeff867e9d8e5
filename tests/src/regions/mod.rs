//! A network to test in: places that are far apart, on one machine.
//!
//! Each *endpoint* (a replica, a mount, a command) has a network namespace of its own, in which
//! everything that it sends to others leaves by one device. This process has the other ends of
//! these devices and carries packets between them, as the *links* between their *places* say: with
//! a delay, jitter, loss and a rate, or not at all. Programs in it are the real ones, and so are
//! the kernel's TCP, its retransmissions and its timeouts.
//!
//! ```text
//!  namespace of r0 (frankfurt)                                  namespace of r2 (virginia)
//!   program ─ wan0 10.80.0.1 ──► link frankfurt → virginia ──► 10.80.0.3 wan0 ─ program
//!                               45 ms, 0.2 ms jitter, 1 % lost, 20 Mbit/s
//! ```
//!
//! | Module | Content |
//! |---|---|
//! | `plan` | places, endpoints and links, as people write them |
//! | `links` | what happens to a packet: pure, driven by a seed |
//! | `router` | namespaces, devices, and the threads that carry packets |
//! | `volume` | replicas and mounts at endpoints of a network |
//! | `measure` | what each operation takes from each place |
//! | `endure` | what a volume endures: losses, regions that are cut off, a replica that returns |
//!
//! Traffic stays in these namespaces, which have no other device. It needs root, `ip`, `unshare`
//! and `/dev/net/tun`. Everything ends with this process, however it ends: the namespaces are those
//! of children that wait for the end of their input.

#![allow(
    clippy::panic,
    reason = "a network or a command that does not work ends the measurement or the test"
)]

pub mod endure;
pub mod links;
pub mod measure;
pub mod plan;
mod router;
pub mod volume;

pub use router::Regions;
