//! Ports of this machine for servers that are started later: by the demo, and by tests.
//!
//! The kernel takes the ports of outgoing connections from a range that begins at 32,768 (Linux,
//! `ip_local_port_range`). A port from there may be taken between the moment when it was found free
//! and the one when its server listens; so these are below it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 12_000;
const COUNT: u16 = 20_000;

/// An address of loopback that is free now.
///
/// # Errors
/// If there is none.
pub fn free_address() -> io::Result<SocketAddr> {
    let none = || io::Error::other("no port is free");
    free_addresses(1)?.pop().ok_or_else(none)
}

/// So many addresses of loopback that are free now, all different. Two calls give different
/// ones, until all ports were given once; two processes begin at different places.
///
/// # Errors
/// If there are not so many.
pub fn free_addresses(count: usize) -> io::Result<Vec<SocketAddr>> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = (std::process::id() % u32::from(COUNT)) as u16;
    let mut held = Vec::new();
    for _ in 0..COUNT {
        if held.len() == count {
            break;
        }
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + start.wrapping_mul(61).wrapping_add(step) % COUNT;
        held.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
    }
    if held.len() < count {
        return Err(io::Error::other(format!("{count} ports are not free")));
    }
    held.iter().map(TcpListener::local_addr).collect()
}
