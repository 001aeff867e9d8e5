//! The changes of the volume's clouds that this machine knows: `volume.clouds`.
//!
//! With the file a command knows the clouds before it has asked a server. It holds nothing that has
//! to be trusted: each change is signed, and each secret in it is wrapped. A file that does not fit
//! is ignored, since the servers show everything again.

use crate::commands::signed_lines::{bytes, digits};
use crate::directory::{self, StateDirectory};
use quorumfs_gateway::volume::{LearnedChange, Volume};
use quorumfs_metadata::fleet::SignedCloudChange;
use quorumfs_metadata::identity::CloudIndex;
use quorumfs_metadata::row::Row;
use std::fs;

/// The file in the state directory.
const FILE: &str = "volume.clouds";
/// The first line; each of the others is a change and a wrapped secret, in hexadecimal digits, or
/// the number of a retired cloud.
const TITLE: &str = "quorumfs clouds 1";
/// The first word of the line of a retired cloud.
const RETIRED: &str = "retired";

/// Lets the volume learn what an earlier process has stored.
pub(super) fn recall(state: &StateDirectory, volume: &Volume) {
    let Ok(text) = fs::read_to_string(state.join(FILE)) else {
        return;
    };
    let Some((changes, retired)) = parse(&text) else {
        tracing::warn!("{FILE} is damaged, and is not used");
        return;
    };
    match volume.remember_clouds(&changes) {
        Ok(()) => volume.remember_retired(&retired),
        Err(error) => tracing::debug!(%error, "{FILE} does not fit, and is not used"),
    }
}

/// Stores what the volume knows, if that is more than before.
pub(super) fn keep(state: &StateDirectory, volume: &Volume) {
    let text = text(&volume.cloud_changes(), &volume.fleet().retired);
    let path = state.join(FILE);
    let before = fs::read_to_string(&path).ok();
    let is_new = before.is_some() || !volume.cloud_changes().is_empty();
    if is_new
        && before.as_ref() != Some(&text)
        && let Err(failure) = directory::replace(&path, text.as_bytes())
    {
        tracing::warn!(%failure, "the volume's clouds are not stored here");
    }
}

fn text(changes: &[LearnedChange], retired: &[CloudIndex]) -> String {
    let lines = changes.iter().map(|it| {
        let (change, secret) = (digits(&it.signed.to_bytes()), digits(&it.wrapped));
        format!("{change} {secret}\n")
    });
    let retired = retired
        .iter()
        .map(|cloud| format!("{RETIRED} {}\n", cloud.0));
    format!(
        "{TITLE}\n{}{}",
        lines.collect::<String>(),
        retired.collect::<String>()
    )
}

fn parse(text: &str) -> Option<(Vec<LearnedChange>, Vec<CloudIndex>)> {
    let mut lines = text.lines();
    if lines.next()? != TITLE {
        return None;
    }
    let (mut changes, mut retired) = (Vec::new(), Vec::new());
    for line in lines {
        let (first, second) = line.split_once(' ')?;
        if first == RETIRED {
            retired.push(CloudIndex(second.parse().ok()?));
            continue;
        }
        changes.push(LearnedChange {
            signed: SignedCloudChange::from_bytes(&bytes(first)?).ok()?,
            wrapped: bytes(second)?,
        });
    }
    Some((changes, retired))
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
        let retired = vec![CloudIndex(0), CloudIndex(31)];
        let written = text(&all, &retired);
        assert_eq!(parse(&written), Some((all.clone(), retired)));
        assert_eq!(parse(&text(&[], &[])), Some((Vec::new(), Vec::new())));
        for wrong in [
            "quorumfs clouds 1\nretired x\n",
            "",
            "quorumfs clouds 2\n",
            "quorumfs clouds 1\n00 \n",
        ] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }
}
