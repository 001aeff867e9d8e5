//! The changes of the volume's clouds that this machine knows: `volume.clouds`.
//!
//! With the file a command knows the clouds before it has asked a server. It holds nothing that has
//! to be trusted: each change is signed, and each secret in it is wrapped. A file that does not fit
//! is ignored, since the servers show everything again.

use crate::commands::successor::bytes;
use crate::directory::{self, StateDirectory};
use quorumfs_gateway::volume::{LearnedChange, Volume};
use quorumfs_metadata::fleet::SignedCloudChange;
use quorumfs_metadata::row::Row;
use std::fs;

/// The file in the state directory.
const FILE: &str = "volume.clouds";
/// The first line; each of the others is a change and a wrapped secret, in hexadecimal digits.
const TITLE: &str = "quorumfs clouds 1";

/// Lets the volume learn what an earlier process has stored.
pub(super) fn recall(state: &StateDirectory, volume: &Volume) {
    let Ok(text) = fs::read_to_string(state.join(FILE)) else {
        return;
    };
    let learned = parse(&text).map(|changes| volume.remember_clouds(&changes));
    match learned {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(%error, "{FILE} does not fit, and is not used"),
        None => tracing::warn!("{FILE} is damaged, and is not used"),
    }
}

/// Stores what the volume knows, if that is more than before.
pub(super) fn keep(state: &StateDirectory, volume: &Volume) {
    let text = text(&volume.cloud_changes());
    let path = state.join(FILE);
    let before = fs::read_to_string(&path).unwrap_or_else(|_| format!("{TITLE}\n"));
    if before != text
        && let Err(failure) = directory::replace(&path, text.as_bytes())
    {
        tracing::warn!(%failure, "the volume's clouds are not stored here");
    }
}

fn text(changes: &[LearnedChange]) -> String {
    let digits = |bytes: &[u8]| -> String { bytes.iter().map(|it| format!("{it:02x}")).collect() };
    let lines = changes.iter().map(|it| {
        let (change, secret) = (digits(&it.signed.to_bytes()), digits(&it.wrapped));
        format!("{change} {secret}\n")
    });
    format!("{TITLE}\n{}", lines.collect::<String>())
}

fn parse(text: &str) -> Option<Vec<LearnedChange>> {
    let mut lines = text.lines();
    if lines.next()? != TITLE {
        return None;
    }
    lines
        .map(|line| {
            let (change, secret) = line.split_once(' ')?;
            Some(LearnedChange {
                signed: SignedCloudChange::from_bytes(&bytes(change)?).ok()?,
                wrapped: bytes(secret)?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::identity::{PublicKey, Signature};
    use quorumfs_metadata::row::SignedBy;

    #[test]
    fn changes_survive_their_file_and_what_is_none_is_refused() {
        let change = |wrapped: &[u8]| LearnedChange {
            signed: SignedCloudChange {
                change: vec![1, 2, 250],
                signed: SignedBy {
                    signer: PublicKey([3; 32]),
                    signature: Signature([7; 64]),
                },
            },
            wrapped: wrapped.to_vec(),
        };
        let all = vec![change(&[1, 2]), change(&[])];
        assert_eq!(parse(&text(&all)), Some(all.clone()));
        assert_eq!(parse(&text(&[])), Some(Vec::new()));
        for wrong in ["", "quorumfs clouds 2\n", "quorumfs clouds 1\n00 \n"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }
}
