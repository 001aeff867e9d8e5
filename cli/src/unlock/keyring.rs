//! A passphrase in the kernel's memory: in the keyring of this user, under the volume's id, until
//! its time has run out, the machine restarts, or it is locked.
//!
//! Who may read it is who may read a file of mode 0600: processes of this user, and root. A key
//! usually shows itself only to whom it is linked to by way of a session; units of systemd and `su`
//! have sessions apart from a login's, so that the user is given the right itself.

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
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

/// Whether one is there.
pub(super) fn is_kept(volume: ClusterId) -> bool {
    find(volume).is_ok()
}

/// The passphrase, if it is there and may be read.
pub(super) fn recall(volume: ClusterId) -> Option<Passphrase> {
    let mut bytes = Zeroizing::new(vec![0; PASSPHRASE_BYTES_MAX]);
    let length = find(volume).ok()?.read(&mut *bytes).ok()?;
    if length > bytes.len() {
        return None;
    }
    bytes.truncate(length);
    Passphrase::from_bytes(bytes).ok()
}

/// Keeps it for so long.
pub(crate) fn keep(volume: ClusterId, passphrase: &Passphrase, time: Duration) -> Outcome<()> {
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
        let message = format!("the kernel's keyring does not take the passphrase: {error}");
        Failure::new(Exit::Error, message).hint(
            "it may be out of bounds in a container; `passphrase_file` or `passphrase_command` \
             under [keys] in quorumfs.toml does without",
        )
    })
}

/// Forgets it; says whether there was anything.
pub(crate) fn forget(volume: ClusterId) -> Outcome<bool> {
    let Ok(key) = find(volume) else {
        return Ok(false);
    };
    let forgotten = key.invalidate().or_else(|_| key.revoke());
    forgotten.map(|()| true).map_err(|error| {
        let message = format!("the kernel's keyring keeps the passphrase: {error}");
        Failure::new(Exit::Error, message).hint("run this as the user who unlocked it")
    })
}
