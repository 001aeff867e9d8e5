//! How a process is stopped: by SIGINT, SIGTERM, for a command also SIGHUP; or, if it is
//! supervised, by the end of its standard input.
//!
//! A daemon (a replica, a mount) does not stop because a terminal was closed; a command and the
//! demo do. A signal that was ignored when the process began stays ignored, as `nohup` and shells
//! that start background jobs expect.
//!
//! Children of the demo notice by the end of standard input that their parent is gone, however it
//! ended: the kernel closes the pipe. A second signal ends a stopping process at once.

use crate::failure::{CommandResult, Failure};
use std::future::poll_fn;
use std::io::Read;
use std::task::Poll;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Waits for the first request to stop, and later for the next.
#[derive(Debug)]
pub(crate) struct Stop {
    signals: Vec<Signal>,
    /// Caught, so that it does not kill, and ignored.
    _unheeded: Option<Signal>,
    orphaned: Option<oneshot::Receiver<()>>,
}

impl Stop {
    /// Begins to listen; from here on these signals no longer kill.
    pub(crate) fn of_a_command() -> CommandResult<Self> {
        let kinds = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
        ];
        Ok(Self {
            signals: signals(&kinds)?,
            _unheeded: None,
            orphaned: None,
        })
    }

    /// Begins to listen; from here on these signals no longer kill, and a hangup does nothing.
    pub(crate) fn of_a_daemon(supervised: bool) -> CommandResult<Self> {
        Ok(Self {
            signals: signals(&[SignalKind::interrupt(), SignalKind::terminate()])?,
            _unheeded: signals(&[SignalKind::hangup()])?.pop(),
            orphaned: supervised.then(end_of_input),
        })
    }

    /// Returns when this process is to stop.
    pub(crate) async fn wanted(&mut self) {
        let orphaned = async {
            match &mut self.orphaned {
                Some(end) => drop(end.await),
                None => std::future::pending().await,
            }
        };
        let signals = &mut self.signals;
        let received = poll_fn(|context| {
            let is_ready = |signal: &mut Signal| signal.poll_recv(context).is_ready();
            match signals.iter_mut().any(is_ready) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        tokio::select! {
            () = received => {}
            () = orphaned => {}
        }
        self.orphaned = None;
    }
}

/// The signals that were not ignored when the process began.
fn signals(kinds: &[SignalKind]) -> CommandResult<Vec<Signal>> {
    let ignored = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored_in(&ignored);
    let heeded = kinds.iter().filter(|kind| !is_in(ignored, **kind));
    heeded
        .map(|kind| {
            signal(*kind).map_err(|error| {
                Failure::file("listen for signals of", "the kernel".as_ref(), &error)
            })
        })
        .collect()
}

/// The ignored signals by `/proc/self/status`, a bit each.
fn ignored_in(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

fn is_in(mask: u64, kind: SignalKind) -> bool {
    let bit = u32::try_from(kind.as_raw_value() - 1).ok();
    bit.and_then(|bit| mask.checked_shr(bit))
        .is_some_and(|mask| mask & 1 == 1)
}

/// Resolves at the end of standard input. A thread of its own, because a read that blocks would
/// otherwise keep the runtime from shutting down.
fn end_of_input() -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let mut buffer = [0_u8; 256];
        let mut stdin = std::io::stdin().lock();
        while matches!(stdin.read(&mut buffer), Ok(count) if count > 0) {}
        let _ = sender.send(());
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read_from_the_kernel() {
        let status = "Name:\tsh\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000000001\n";
        let mask = ignored_in(status);
        assert!(is_in(mask, SignalKind::hangup()));
        assert!(!is_in(mask, SignalKind::interrupt()));
        assert_eq!(ignored_in("nothing"), 0);
    }
}
