//! A proxy before a provider's server on loopback. It passes connections on, or answers them itself
//! as a provider in trouble does.

use quorumfs_tests::harness::noise;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What a provider does instead of its work.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    /// It answers each request with this status, and no more.
    Status(u16),
    /// It resets the connection.
    Reset,
    /// It answers with bytes that are not HTTP.
    Garbage,
    /// It answers nothing.
    Silence,
}

/// What becomes of the next connection.
#[derive(Clone, Copy, Debug)]
enum Conduct {
    PassOn,
    Fail(Trouble),
    /// The proxy itself ends.
    End,
}

/// The proxy; it accepts nothing more once it is dropped.
#[derive(Debug)]
pub(super) struct CloudProxy {
    address: SocketAddr,
    conduct: Arc<Mutex<Conduct>>,
}

impl CloudProxy {
    /// Starts one that passes everything on.
    pub(super) fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let conduct = Arc::new(Mutex::new(Conduct::PassOn));
        let current = Arc::clone(&conduct);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, conduct) = (client.unwrap(), *current.lock().unwrap());
                // Clients hang up when they like, so the results do not matter.
                match conduct {
                    Conduct::PassOn => drop(thread::spawn(move || pass_on(&client, server))),
                    Conduct::Fail(it) => drop(thread::spawn(move || fail(&client, it))),
                    Conduct::End => return,
                }
            }
        });
        Self { address, conduct }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on, new connections are failed.
    pub(super) fn get_into(&self, trouble: Trouble) {
        *self.conduct.lock().unwrap() = Conduct::Fail(trouble);
    }

    /// From now on, new connections are passed on.
    pub(super) fn recover(&self) {
        *self.conduct.lock().unwrap() = Conduct::PassOn;
    }
}

impl Drop for CloudProxy {
    fn drop(&mut self) {
        *self.conduct.lock().unwrap() = Conduct::End;
        // It wakes the listening thread.
        let _ = TcpStream::connect(self.address);
    }
}

fn pass_on(client: &TcpStream, server: SocketAddr) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    let (requests, to) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || copy_all(&requests, &to));
    copy_all(&server, client)
}

fn copy_all(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    io::copy(&mut from, &mut to)?;
    to.shutdown(Shutdown::Write)
}

fn fail(mut client: &TcpStream, trouble: Trouble) -> io::Result<()> {
    match trouble {
        // With unread bytes in its buffer, the kernel resets a connection that is closed.
        Trouble::Reset => client.peek(&mut [0]).map(drop),
        Trouble::Silence => io::copy(&mut client, &mut io::sink()).map(drop),
        Trouble::Garbage => {
            read_request(client)?;
            client.write_all(&noise(1, 4096))
        }
        Trouble::Status(status) => {
            read_request(client)?;
            let head = "Content-Length: 0\r\nConnection: close";
            let answer = format!("HTTP/1.1 {status} Trouble\r\n{head}\r\n\r\n");
            client.write_all(answer.as_bytes())
        }
    }
}

/// Reads a request to its end: unread bytes would become a reset.
fn read_request(mut client: &TcpStream) -> io::Result<()> {
    let mut request = BufReader::new(client);
    let mut length = 0;
    loop {
        let mut line = String::new();
        request.read_line(&mut line)?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        } else if line == "expect: 100-continue" {
            client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
    }
    io::copy(&mut request.take(length), &mut io::sink()).map(drop)
}
