//! A passphrase in the kernel's memory: in the keyring of this user, under the volume's id, until
//! its time has run out, the machine restarts, or it is locked.
//!
//! It is readable by the same processes as a file of mode 0600: those of this user, and root. By
//! default a key is visible only through the session that it is linked to; units of systemd and
//! `su` have sessions apart from a login's, so the user itself is given the right.

use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use linux_keyutils::{
    Key, KeyError, KeyPermissionsBuilder, KeyRing, KeyRingIdentifier, Permission,
};
use quorumfs_bft::identity::ClusterId;
use quorumfs_gateway::keys::{PASSPHRASE_BYTES_MAX, Passphrase};
use std::time::Duration;
use zeroize::Zeroizing;

fn description(volume: ClusterId) -> String {
    format!("quorumfs:{volume}")
}

fn ring() -> Result<KeyRing, KeyError> {
    KeyRing::from_special_id(KeyRingIdentifier::User, true)
}

fn find(volume: ClusterId) -> Result<Key, KeyError> {
    ring()?.search(&description(volume))
}

/// Whether one is stored.
pub(super) fn is_kept(volume: ClusterId) -> bool {
    find(volume).is_ok()
}

/// The passphrase, if it is stored and may be read.
pub(super) fn recall(volume: ClusterId) -> Option<Passphrase> {
    let mut bytes = Zeroizing::new(vec![0; PASSPHRASE_BYTES_MAX]);
    let length = find(volume).ok()?.read(&mut *bytes).ok()?;
    if length > bytes.len() {
        return None;
    }
    bytes.truncate(length);
    Passphrase::from_bytes(bytes).ok()
}

/// Stores it for so long.
pub(crate) fn keep(
    volume: ClusterId,
    passphrase: &Passphrase,
    time: Duration,
) -> CommandResult<()> {
    let seconds = usize::try_from(time.as_secs()).unwrap_or(usize::MAX);
    let rights = KeyPermissionsBuilder::builder()
        .posessor(Permission::ALL)
        .user(Permission::ALL)
        .build();
    let kept = ring()
        .and_then(|ring| ring.add_key(&description(volume), passphrase.expose()))
        .and_then(|key| {
            key.set_timeout(seconds)
                .and_then(|()| key.set_perms(rights))
        });
    kept.map_err(|error| {
        let message = format!("the kernel's keyring does not accept the passphrase: {error}");
        Failure::new(Exit::Error, message).hint(
            "containers may forbid it; use `passphrase_file` or `passphrase_command` under [keys] \
             in quorumfs.toml instead",
        )
    })
}

/// Removes it; returns whether it was stored.
pub(crate) fn forget(volume: ClusterId) -> CommandResult<bool> {
    let Ok(key) = find(volume) else {
        return Ok(false);
    };
    let forgotten = key.invalidate().or_else(|_| key.revoke());
    forgotten.map(|()| true).map_err(|error| {
        let message = format!("the passphrase stays in the kernel's keyring: {error}");
        Failure::new(Exit::Error, message).hint("run this as the user who unlocked it")
    })
}
