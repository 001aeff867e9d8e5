//! How a long-running process is told to stop: SIGINT, SIGTERM, SIGHUP, or, if it is supervised,
//! the end of its standard input.
//!
//! The last is how children of the demo notice that their parent is gone, however it went: the
//! kernel closes the pipe. A second signal while stopping is taken as impatience by whoever waits.

use crate::failure::{Failure, Outcome};
use std::io::Read;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Waits for the first wish to stop, and later for the next.
#[derive(Debug)]
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    orphaned: Option<oneshot::Receiver<()>>,
}

impl Stop {
    /// Begins to listen; from here on these signals no longer kill.
    pub(crate) fn listen(supervised: bool) -> Outcome<Self> {
        let on = |kind| {
            signal(kind).map_err(|error| {
                Failure::file("listen for signals of", "the kernel".as_ref(), &error)
            })
        };
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
            orphaned: supervised.then(end_of_input),
        })
    }

    /// Returns when somebody wants this process to stop.
    pub(crate) async fn wanted(&mut self) {
        let orphaned = async {
            match &mut self.orphaned {
                Some(end) => drop(end.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
            () = orphaned => {}
        }
        self.orphaned = None;
    }
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
