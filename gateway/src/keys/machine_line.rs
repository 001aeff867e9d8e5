//! What two machines of one person hand each other, so that the second one gets a key of its own.
//!
//! ```text
//! first machine                                    second machine
//!   invitation key ── machine line (a paste) ────►   makes its own key
//!        │ card, signed with that key ─► servers ─►  verifies it under the line's root key
//!   asks, states  ◄── answer, signed with that key ─ own public keys, a name
//! ```
//!
//! The line has a secret: the seed of the invitation's key, which is valid for minutes
//! and until it was answered. It reads nothing. The keys of the two machines stay where they were
//! made.
//!
//! Invariants: the second machine takes a card for its person's because the invitation's key signed
//! it, and the first one an answer, likewise: servers, which have neither, can hide them and not
//! change them. The line names the volume's root key, so that no other volume can be shown.
//!
//! Possible failure: *someone else reads the line in time*. Then that one can answer first. The
//! second machine is told that the line was used; the first one shows another fingerprint than the
//! second one, and asks before it states anything.

use super::{KeyError, Principal, PrincipalId, RootKey, Secret, verify};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use quorumfs_bft::authentication::Signer;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{PublicKey, ReplicaId, Signature};
use quorumfs_metadata::people::is_machine_name;
use quorumfs_metadata::row::ReplicaInfo;

/// What a machine line begins with.
const LINE: &str = "qfs-machine-1:";
/// The context of the digits at the end, which find slips.
const CHECK_CONTEXT: &str = "quorumfs 2026 machine line check";
const CHECK_BYTES: usize = 4;
/// The context that an answer is signed under.
const ANSWER_CONTEXT: &[u8] = b"quorumfs 2026 machine answer v1\0";
/// More replicas than a cluster has.
const REPLICAS_MAX: usize = 64;

/// The line that is carried from the first machine to the second.
#[derive(Clone, Debug)]
pub struct MachineLine {
    /// The invitation's key.
    pub invitation: Principal,
    /// Who invites: its statement is the one that the second machine waits for.
    pub by: PublicKey,
    /// The volume's root key.
    pub root: RootKey,
    /// What the volume's cluster bears.
    pub model: FaultModel,
    /// Its replicas.
    pub replicas: Vec<ReplicaInfo>,
}

/// What the second machine answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineAnswer {
    /// Its keys.
    pub keys: PrincipalId,
    /// Its name.
    pub name: String,
}

fn wrong(reason: &str) -> KeyError {
    KeyError::Text {
        what: "machine line",
        line: 1,
        reason: reason.into(),
    }
}

fn check(bytes: &[u8]) -> [u8; CHECK_BYTES] {
    let digest = blake3::derive_key(CHECK_CONTEXT, bytes);
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&digest[..CHECK_BYTES]);
    check
}

/// Takes what it reads from the front of some bytes.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*front)
    }

    fn text(&mut self) -> Option<String> {
        let [length] = self.array()?;
        let (front, rest) = self.0.split_at_checked(usize::from(length))?;
        self.0 = rest;
        let text = std::str::from_utf8(front).ok()?;
        Some(text.to_owned())
    }
}

impl MachineLine {
    /// Makes the line, with a new key of its own.
    ///
    /// # Errors
    /// If there is no randomness, or an address is longer than any is.
    pub fn new(
        (by, root): (PublicKey, RootKey),
        model: FaultModel,
        replicas: Vec<ReplicaInfo>,
    ) -> Result<Self, KeyError> {
        let is_long = |it: &ReplicaInfo| u8::try_from(it.address.len()).is_err();
        if replicas.len() > REPLICAS_MAX || replicas.iter().any(is_long) {
            return Err(wrong("an address of a replica is too long for it"));
        }
        Ok(Self {
            invitation: Principal::random()?,
            by,
            root,
            model,
            replicas,
        })
    }

    /// As text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(self.invitation.seed().expose());
        bytes.extend_from_slice(&self.by.0);
        bytes.extend_from_slice(&self.root.0.0);
        bytes.extend_from_slice(&self.model.up().to_be_bytes());
        bytes.extend_from_slice(&self.model.right().to_be_bytes());
        for replica in &self.replicas {
            bytes.extend_from_slice(&replica.id.0.to_be_bytes());
            bytes.extend_from_slice(&replica.key.0);
            bytes.push(u8::try_from(replica.address.len()).unwrap_or(0));
            bytes.extend_from_slice(replica.address.as_bytes());
        }
        bytes.extend_from_slice(&check(&bytes));
        format!("{LINE}{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    /// From text, in which a terminal or a mail may have broken the line.
    ///
    /// # Errors
    /// If it is none, was cut short or changed.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        let text: String = text.chars().filter(|it| !it.is_whitespace()).collect();
        let digits = text.strip_prefix(LINE).ok_or_else(|| {
            wrong("it should begin with `qfs-machine-1:`, as `quorumfs join --as-me` prints it")
        })?;
        let bytes = URL_SAFE_NO_PAD.decode(digits).unwrap_or_default();
        let incomplete = || wrong("it is incomplete, or was changed: copy all of it again");
        let (bytes, found) = bytes
            .split_last_chunk::<CHECK_BYTES>()
            .ok_or_else(incomplete)?;
        if check(bytes) != *found {
            return Err(incomplete());
        }
        Self::read(&mut Reader(bytes)).ok_or_else(|| wrong("it is not of this version"))
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let seed = Secret::from_bytes(reader.array()?);
        let by = PublicKey(reader.array()?);
        let root = RootKey(PublicKey(reader.array()?));
        let up = u16::from_be_bytes(reader.array()?);
        let right = u16::from_be_bytes(reader.array()?);
        let mut replicas = Vec::new();
        while !reader.0.is_empty() {
            replicas.push(ReplicaInfo {
                id: ReplicaId(u16::from_be_bytes(reader.array()?)),
                key: PublicKey(reader.array()?),
                address: reader.text()?,
            });
        }
        let count = u16::try_from(replicas.len()).ok()?;
        if replicas.len() > REPLICAS_MAX {
            return None;
        }
        Some(Self {
            invitation: Principal::from_seed(seed),
            by,
            root,
            model: FaultModel::new(up, right, count).ok()?,
            replicas,
        })
    }
}

impl MachineAnswer {
    fn message(&self) -> Vec<u8> {
        [
            ANSWER_CONTEXT,
            &self.keys.signing.0,
            &self.keys.wrapping.0,
            self.name.as_bytes(),
        ]
        .concat()
    }

    /// The answer to an invitation, signed by both keys: so the invited machine gives it, and it
    /// has the keys that it names.
    #[must_use]
    pub fn of(machine: &Principal, name: &str, invitation: &Principal) -> Vec<u8> {
        let answer = Self {
            keys: machine.id(),
            name: name.to_owned(),
        };
        let message = answer.message();
        let [Signature(own), Signature(invited)] =
            [machine, invitation].map(|key| key.sign(&message));
        let keys = answer.keys;
        [
            &keys.signing.0[..],
            &keys.wrapping.0,
            &own,
            &invited,
            name.as_bytes(),
        ]
        .concat()
    }

    /// Reads an answer to an invitation with this key.
    ///
    /// # Errors
    /// If it is none, or not signed by both keys.
    pub fn verified(bytes: &[u8], invitation: &PublicKey) -> Result<Self, KeyError> {
        let untrusted = || KeyError::Untrusted {
            what: "the other machine's answer",
            reason: "it is not as that machine signed it: make a new line".into(),
        };
        let mut reader = Reader(bytes);
        let mut read = || {
            let keys = PrincipalId {
                signing: PublicKey(reader.array()?),
                wrapping: super::WrappingKey(reader.array()?),
            };
            let signatures = [Signature(reader.array()?), Signature(reader.array()?)];
            let name = std::str::from_utf8(reader.0).ok()?;
            let name = Some(name).filter(|name| is_machine_name(name))?.to_owned();
            Some((Self { keys, name }, signatures))
        };
        let (answer, [own, invited]) = read().ok_or_else(untrusted)?;
        let message = answer.message();
        let signed =
            verify(&answer.keys.signing, &message, &own) && verify(invitation, &message, &invited);
        signed.then_some(answer).ok_or_else(untrusted)
    }
}

#[cfg(test)]
mod tests {
    use super::super::VolumeRoot;
    use super::*;
    use proptest::prelude::*;

    fn line(addresses: &[&str]) -> MachineLine {
        let replicas = (0..).zip(addresses).map(|(id, address)| ReplicaInfo {
            id: ReplicaId(id),
            key: PublicKey([7; 32]),
            address: (*address).into(),
        });
        let root = VolumeRoot::from_seed(Secret::from_bytes([5; 32])).public();
        let model = FaultModel::new(1, 1, 4).unwrap();
        let by = PublicKey([6; 32]);
        MachineLine::new((by, root), model, replicas.collect()).unwrap()
    }

    fn addresses() -> [&'static str; 4] {
        ["a.example:1", "10.0.0.1:2", "[::1]:3", "d:4"]
    }

    #[test]
    fn a_line_is_read_as_it_was_written_and_any_slip_is_found() {
        let line = line(&addresses());
        let text = line.to_text();
        let broken = format!(" {}\n  {}\n", &text[..50], &text[50..]);
        let read = MachineLine::from_text(&broken).unwrap();
        assert_eq!(read.invitation.id(), line.invitation.id());
        assert_eq!(
            (read.by, read.root, read.model, read.replicas),
            (line.by, line.root, line.model, line.replicas)
        );
        for at in (LINE.len()..text.len() - 1).step_by(5) {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(MachineLine::from_text(&changed).is_err(), "{at}");
            assert!(MachineLine::from_text(&text[..at]).is_err(), "{at}");
        }
        let join = MachineLine::from_text("qfs-join-1:AAAA").unwrap_err();
        assert!(join.to_string().contains("--as-me"), "{join}");
    }

    #[test]
    fn an_address_that_no_replica_has_is_refused() {
        let root = VolumeRoot::from_seed(Secret::from_bytes([5; 32])).public();
        let replica = ReplicaInfo {
            id: ReplicaId(0),
            key: PublicKey([7; 32]),
            address: "a".repeat(256),
        };
        let model = FaultModel::new(0, 0, 1).unwrap();
        let by = PublicKey([6; 32]);
        assert!(MachineLine::new((by, root), model, vec![replica]).is_err());
    }

    #[test]
    fn an_answer_counts_with_both_signatures_alone() {
        let [machine, invitation, other] = [(); 3].map(|()| Principal::random().unwrap());
        let key = invitation.id().signing;
        let answer = MachineAnswer::of(&machine, "laptop", &invitation);
        let read = MachineAnswer::verified(&answer, &key).unwrap();
        assert_eq!((read.keys, read.name.as_str()), (machine.id(), "laptop"));
        for at in 0..answer.len() {
            let mut changed = answer.clone();
            changed[at] ^= 1;
            assert!(MachineAnswer::verified(&changed, &key).is_err(), "{at}");
            assert!(MachineAnswer::verified(&answer[..at], &key).is_err());
        }
        for forged in [
            MachineAnswer::of(&machine, "laptop", &other),
            MachineAnswer::of(&machine, "lap top", &invitation),
            MachineAnswer::of(&machine, "", &invitation),
        ] {
            assert!(MachineAnswer::verified(&forged, &key).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_text_and_no_answer_panics(
            text in ".{0,200}", bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let _ = MachineLine::from_text(&format!("{LINE}{text}"));
            let mut checked = bytes.clone();
            checked.extend_from_slice(&check(&bytes));
            let checked = format!("{LINE}{}", URL_SAFE_NO_PAD.encode(checked));
            let _ = MachineLine::from_text(&checked);
            let _ = MachineAnswer::verified(&bytes, &PublicKey([1; 32]));
        }
    }
}
