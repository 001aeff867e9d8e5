//! Opening a volume whose servers or clouds do not answer yet.
//!
//! At boot a mount often begins before the network, or before the replicas on other machines. With
//! `--wait SECONDS` it tries again until they answer. It notifies systemd, whose timeout would end
//! the start otherwise. An error that will not pass by itself (a wrong key, a volume that is
//! mounted already) ends the mount at once, with `--wait` too.

use super::opened::{Access, Configured, Opened};
use crate::failure::CommandResult;
use crate::notify;
use std::time::{Duration, Instant};

/// The pause between two tries.
const PAUSE: Duration = Duration::from_secs(1);
/// How much longer systemd has to wait, counted from each try: more than one try takes.
const NEXT_WITHIN: Duration = Duration::from_secs(120);

/// Opens the volume, waiting up to so long until its servers and clouds answer.
pub(super) async fn open(
    configured: &Configured,
    access: Access,
    patience: Duration,
) -> CommandResult<Opened> {
    let began = Instant::now();
    loop {
        let failure = match Opened::open(configured, access).await {
            Ok(opened) => return Ok(opened),
            Err(failure) => failure,
        };
        if !failure.passes || began.elapsed() + PAUSE >= patience {
            return Err(failure);
        }
        tracing::info!(reason = failure.message, "waiting for the volume");
        notify::starting(&format!("Waiting: {}", failure.message), NEXT_WITHIN);
        tokio::time::sleep(PAUSE).await;
    }
}
