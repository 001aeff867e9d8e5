//! Reporting the state of a service to systemd: `READY=1`, `STATUS=…`, `STOPPING=1`, and that a
//! start takes longer (sd_notify(3)).
//!
//! A report is one datagram to the socket that `$NOTIFY_SOCKET` names, a path or, after an `@`, a
//! name in the abstract namespace. Without that variable nothing is sent. Nothing depends on it, so
//! a failure is only logged.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

const VARIABLE: &str = "NOTIFY_SOCKET";

/// It serves.
pub(crate) fn ready(status: &str) {
    report(&format!("READY=1\n{}", line(status)));
}

/// It is still starting, and may take so much longer.
pub(crate) fn starting(status: &str, longer: Duration) {
    let micros = longer.as_micros();
    report(&format!("EXTEND_TIMEOUT_USEC={micros}\n{}", line(status)));
}

/// It has begun to end.
pub(crate) fn stopping(status: &str) {
    report(&format!("STOPPING=1\n{}", line(status)));
}

/// A status is one line.
fn line(status: &str) -> String {
    format!("STATUS={}", status.replace('\n', " "))
}

fn report(text: &str) {
    let Some(name) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) else {
        return;
    };
    if let Err(error) = send(&name, text) {
        tracing::warn!(%error, socket = %name.display(), "the state is not reported to systemd");
    }
}

fn send(name: &OsStr, text: &str) -> std::io::Result<()> {
    let address = match name.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.send_to_addr(text.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_by_a_path_and_by_an_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let abstracted = format!("quorumfs-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&abstracted).unwrap();
        let mut buffer = [0; 100];
        for (socket, name) in [
            (
                UnixDatagram::bind(&path).unwrap(),
                path.clone().into_os_string(),
            ),
            (
                UnixDatagram::bind_addr(&address).unwrap(),
                format!("@{abstracted}").into(),
            ),
        ] {
            send(&name, "READY=1").unwrap();
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1");
        }
        assert!(send(OsStr::new("/nothing/of/this/name"), "READY=1").is_err());
        assert_eq!(line("a\nb"), "STATUS=a b");
    }
}
