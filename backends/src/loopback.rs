//! Ports of this machine for servers that are started later, by the demo and by tests.
//!
//! The kernel takes the ports of outgoing connections from a range that begins at 32,768 (Linux,
//! `ip_local_port_range`). Such a port may be taken after it was found free and before its server
//! listens, so the ports here are below that range.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 12_000;
const COUNT: u16 = 20_000;

/// A loopback address that is free now.
///
/// # Errors
/// If there is none.
pub fn free_address() -> io::Result<SocketAddr> {
    let none = || io::Error::other("no port is free");
    free_addresses(1)?.pop().ok_or_else(none)
}

/// `count` loopback addresses that are free now, all different. Two calls return different
/// addresses until all ports were used once; two processes begin at different ports.
///
/// # Errors
/// If there are not enough.
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
