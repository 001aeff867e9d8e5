//! A network of its own for a mount, with a cable that can be cut in one direction or in both.
//!
//! ```text
//!    namespace of the mount │ the machine's
//!   mount ──► 127.0.0.1:P ──┼──► carried while the cable is whole ──► 127.0.0.1:P  replica
//! ```
//!
//! The namespace has a loopback of its own. This process listens there at the addresses of the
//! replicas, and carries each connection to the same address of the machine. A cut holds bytes back
//! and loses none, as TCP does: what was sent arrives when the cable is whole, unless a side has
//! given the connection up. Commands that run outside of the namespace are not concerned.

use super::command::Quorumfs;
use super::running::Reaped;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

/// What the cable carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cable {
    /// Everything.
    Whole,
    /// Nothing.
    Cut,
    /// Only what the mount receives.
    OnlyIn,
    /// Only what the mount sends.
    OnlyOut,
}

impl Cable {
    fn lets_out(self) -> bool {
        matches!(self, Self::Whole | Self::OnlyOut)
    }

    fn lets_in(self) -> bool {
        matches!(self, Self::Whole | Self::OnlyIn)
    }
}

/// A network namespace from which some addresses are reached.
#[derive(Debug)]
pub struct OwnNetwork {
    // The namespace lasts as long as this process.
    holder: Reaped,
    cable: watch::Sender<Cable>,
    _carriers: Runtime,
}

impl OwnNetwork {
    /// Makes one with a whole cable. It needs the right to do so, as root has it.
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    #[track_caller]
    pub fn reaching(addresses: &[SocketAddr]) -> Self {
        // It ends when its input does: in any case with this process.
        let script = "ip link set lo up && echo up && exec cat";
        let mut hold = Command::new("unshare");
        hold.args(["--net", "--", "/bin/sh", "-c", script]);
        hold.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = Reaped(hold.spawn().unwrap());
        let mut line = String::new();
        let mut stdout = BufReader::new(holder.0.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "up\n", "no network namespace can be made");

        let (cable, watched) = watch::channel(Cable::Whole);
        let mut builder = Builder::new_multi_thread();
        let carriers = builder.worker_threads(1).enable_io().build().unwrap();
        for (listener, address) in listen(holder.0.id(), addresses) {
            let watched = watched.clone();
            let _entered = carriers.enter();
            let listener = TcpListener::from_std(listener).unwrap();
            carriers.spawn(carry_connections(listener, address, watched));
        }
        Self {
            holder,
            cable,
            _carriers: carriers,
        }
    }

    /// The same run in this network.
    #[must_use]
    pub fn holds(&self, run: Quorumfs) -> Quorumfs {
        run.in_network_of(self.holder.0.id())
    }

    /// Cuts the cable, or makes it whole.
    pub fn set(&self, cable: Cable) {
        self.cable.send_replace(cable);
    }
}

/// Sockets that listen in the network of a process.
fn listen(holder: u32, addresses: &[SocketAddr]) -> Vec<(std::net::TcpListener, SocketAddr)> {
    let namespace = File::open(format!("/proc/{holder}/ns/net")).unwrap();
    let addresses = addresses.to_owned();
    // A thread of its own enters the namespace, and ends there. Its sockets stay there.
    let entered = std::thread::spawn(move || {
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), kind).unwrap();
        let listeners = addresses.into_iter().map(|address| {
            let listener = std::net::TcpListener::bind(address).unwrap();
            listener.set_nonblocking(true).unwrap();
            (listener, address)
        });
        listeners.collect()
    });
    entered.join().unwrap()
}

async fn carry_connections(listener: TcpListener, to: SocketAddr, cable: watch::Receiver<Cable>) {
    while let Ok((near, _)) = listener.accept().await {
        tokio::spawn(carry_connection(near, to, cable.clone()));
    }
}

async fn carry_connection(near: TcpStream, to: SocketAddr, mut cable: watch::Receiver<Cable>) {
    let is_whole = |cable: &Cable| *cable == Cable::Whole;
    if cable.wait_for(is_whole).await.is_err() {
        return;
    }
    // Refused there, it is closed here.
    let Ok(far) = TcpStream::connect(to).await else {
        return;
    };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    tokio::join!(
        carry(near_in, far_out, cable.clone(), Cable::lets_out),
        carry(far_in, near_out, cable, Cable::lets_in),
    );
}

/// Carries one direction of a connection to its end.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut cable: watch::Receiver<Cable>,
    lets: fn(Cable) -> bool,
) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut bytes = vec![0; 1 << 16];
    while let Ok(length) = from.read(&mut bytes).await {
        let passes = cable.wait_for(|cable| lets(*cable)).await.is_ok();
        if !passes || length == 0 || to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    /// Connects from within the network.
    fn connect(network: &OwnNetwork, address: SocketAddr) -> TcpStream {
        let namespace = File::open(format!("/proc/{}/ns/net", network.holder.0.id())).unwrap();
        let entered = std::thread::spawn(move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind).unwrap();
            TcpStream::connect(address).unwrap()
        });
        entered.join().unwrap()
    }

    #[test]
    fn bytes_pass_in_the_directions_that_the_cable_has() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let network = OwnNetwork::reaching(&[address]);
        let mut near = connect(&network, address);
        let (mut far, _) = server.accept().unwrap();
        let mut number = 0;
        let mut pass = |out: bool| {
            let (from, to) = match out {
                true => (&mut near, &mut far),
                false => (&mut far, &mut near),
            };
            number += 1;
            from.write_all(&[number]).unwrap();
            let patience = Some(Duration::from_millis(300));
            to.set_read_timeout(patience).unwrap();
            // What was held back comes before it.
            let mut byte = [0];
            while to.read_exact(&mut byte).is_ok() {
                if byte == [number] {
                    return true;
                }
            }
            false
        };
        assert!(pass(true) && pass(false));
        network.set(Cable::OnlyOut);
        assert!(pass(true) && !pass(false));
        network.set(Cable::OnlyIn);
        assert!(pass(false) && !pass(true));
        network.set(Cable::Cut);
        assert!(!pass(false) && !pass(true));
        network.set(Cable::Whole);
        assert!(pass(true) && pass(false));
    }
}
