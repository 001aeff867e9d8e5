//! What a guest and an administrator hand each other so that the guest becomes a principal.
//!
//! ```text
//! guest                                    administrator
//!   join key (seed, 0600) ── join line ──►   admits the two public keys
//!   key file            ◄── volume card ──   genesis, changes, places of replicas and clouds
//! ```
//!
//! Nothing of that is secret but the join key, which stays where it was made. The card is signed by
//! an administrator, since it says where credentials of the clouds will be sent. The join line is
//! signed with its signing key, so that both of its keys are of one holder. Whether that holder is
//! the one who is meant, and whether the card is of the volume that is meant, only people can say:
//! they compare fingerprints.

use super::lines::{Lines, TextWriter};
use super::principal::{read_private, write_new};
use super::{KeyError, Principal, PrincipalId, RootKey, Secret, WrappingKey, verify};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use quorumfs_bft::authentication::Signer;
use quorumfs_bft::identity::{PublicKey, Signature};
use std::path::Path;
use zeroize::Zeroizing;

const JOIN_KEY: &str = "quorumfs join key";
const CARD: &str = "quorumfs volume";
const FORMAT: u32 = 1;
/// What a join line begins with.
const LINE: &str = "qfs-join-1:";
/// The context that a join line is signed under.
const LINE_CONTEXT: &[u8] = b"quorumfs 2026 join line v1\0";
/// The context that a card is signed under.
const CARD_CONTEXT: &[u8] = b"quorumfs 2026 volume card v1";
/// Bytes of a fingerprint: more than anyone can search through, few enough to be read aloud.
const FINGERPRINT_BYTES: usize = 10;
const GROUP: usize = 4;

/// The secret of a guest until it knows its volume.
#[derive(Clone, Debug)]
pub struct JoinKey {
    /// The principal that it will be.
    pub principal: Principal,
}

impl JoinKey {
    /// A new one.
    ///
    /// # Errors
    /// If there is no randomness.
    pub fn random() -> Result<Self, KeyError> {
        let principal = Principal::random()?;
        Ok(Self { principal })
    }

    fn to_text(&self) -> Zeroizing<String> {
        let mut writer = TextWriter::new(JOIN_KEY, FORMAT);
        writer.remark("Keep it to yourself. `quorumfs join FILE` makes the volume's key of it.");
        writer.value("principal", self.principal.seed().expose());
        writer.finish()
    }

    /// Writes a new file with mode 0600, durably. An existing file is never overwritten.
    ///
    /// # Errors
    /// If the file exists or cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), KeyError> {
        write_new(path, self.to_text().as_bytes())
    }

    /// Reads a file, if only its owner can.
    ///
    /// # Errors
    /// If it cannot be read, other users could read it, or it is no join key.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let lines = Lines::parse(JOIN_KEY, FORMAT, &read_private(path)?)?;
        let principal = Principal::from_seed(Secret::from_bytes(lines.array("principal")?));
        Ok(Self { principal })
    }

    /// The line for an administrator.
    #[must_use]
    pub fn line(&self) -> String {
        let keys = self.principal.id();
        let Signature(signature) = self.principal.sign(&line_message(&keys));
        let bytes = [&keys.signing.0[..], &keys.wrapping.0, &signature].concat();
        format!("{LINE}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

fn line_message(keys: &PrincipalId) -> Vec<u8> {
    [LINE_CONTEXT, &keys.signing.0, &keys.wrapping.0].concat()
}

impl PrincipalId {
    /// The keys in a join line.
    ///
    /// # Errors
    /// If it is none, was cut short or changed.
    pub fn from_join_line(line: &str) -> Result<Self, KeyError> {
        let wrong = |reason: &str| KeyError::Text {
            what: "join line",
            line: 1,
            reason: reason.into(),
        };
        // A terminal or a mail may have broken it.
        let line: String = line.chars().filter(|it| !it.is_whitespace()).collect();
        let digits = line.strip_prefix(LINE).ok_or_else(|| {
            wrong("it should begin with `qfs-join-1:`, as `quorumfs join` prints it")
        })?;
        let bytes = URL_SAFE_NO_PAD.decode(digits);
        let bytes: Option<[u8; 128]> = bytes.ok().and_then(|bytes| bytes.try_into().ok());
        let bytes = bytes.ok_or_else(|| wrong("it is incomplete: copy all of it"))?;
        let part = |from: usize| {
            let mut part = [0; 32];
            part.copy_from_slice(bytes.get(from..from + 32).unwrap_or(&[0; 32]));
            part
        };
        let keys = Self {
            signing: PublicKey(part(0)),
            wrapping: WrappingKey(part(32)),
        };
        let mut signature = [0; 64];
        signature.copy_from_slice(bytes.get(64..).unwrap_or(&[0; 64]));
        match verify(&keys.signing, &line_message(&keys), &Signature(signature)) {
            true => Ok(keys),
            false => Err(wrong("it was changed: copy it again")),
        }
    }

    /// A few digits by which people recognise the keys.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let bytes = [self.signing.0, self.wrapping.0].concat();
        fingerprint("quorumfs 2026 principal fingerprint", &bytes)
    }
}

impl RootKey {
    /// A few digits by which people recognise the volume.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        fingerprint("quorumfs 2026 volume fingerprint", &self.0.0)
    }
}

fn fingerprint(context: &str, bytes: &[u8]) -> String {
    let digest = blake3::derive_key(context, bytes);
    let digits = digest.iter().take(FINGERPRINT_BYTES);
    let digits: String = digits.map(|byte| format!("{byte:02x}")).collect();
    let groups = digits.as_bytes().chunks(GROUP);
    let groups: Vec<_> = groups.map(String::from_utf8_lossy).collect();
    groups.join(" ")
}

/// What a guest needs to find a volume and to verify it. Nothing in it is secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeCard {
    /// The volume's root key.
    pub root: RootKey,
    /// The signed genesis.
    pub genesis: Vec<u8>,
    /// The successions, encoded, in order.
    pub successions: Vec<Vec<u8>>,
    /// The changes of principals, encoded, in order.
    pub people: Vec<Vec<u8>>,
    /// The replicas, `KEY@ADDRESS` each.
    pub replicas: Vec<String>,
    /// The clouds: name and place.
    pub clouds: Vec<(String, String)>,
}

/// A card as an administrator hands it over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedCard {
    /// The card.
    pub card: VolumeCard,
    /// Who signed all of it: whether that is an administrator, the card itself has to show.
    pub signer: PublicKey,
    /// Its signature.
    pub signature: Signature,
}

impl SignedCard {
    /// A card with this principal's signature.
    #[must_use]
    pub fn of(card: VolumeCard, signer: &Principal) -> Self {
        let signature = signer.sign(&card.message());
        Self {
            card,
            signer: signer.id().signing,
            signature,
        }
    }

    /// As text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut writer = self.card.write();
        writer.value("signer", &self.signer.0);
        writer.value("signature", &self.signature.0);
        writer.finish().to_string()
    }

    /// From text.
    ///
    /// # Errors
    /// If it is no volume card, was damaged, or is not as its signer signed it.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        let lines = Lines::parse_card(CARD, FORMAT, text)?;
        let signed = Self {
            card: VolumeCard::read(&lines)?,
            signer: PublicKey(lines.array("signer")?),
            signature: Signature(lines.array("signature")?),
        };
        let message = signed.card.message();
        match verify(&signed.signer, &message, &signed.signature) {
            true => Ok(signed),
            false => Err(KeyError::Untrusted {
                what: "the volume's file",
                reason: "it was changed after it was made: ask for it again".into(),
            }),
        }
    }
}

impl VolumeCard {
    fn message(&self) -> Vec<u8> {
        let clouds = self.clouds.iter();
        let clouds = clouds.map(|(name, at)| list(&[name.clone().into(), at.clone().into()]));
        let replicas = self.replicas.iter().map(|it| it.clone().into_bytes());
        let parts = [
            CARD_CONTEXT.to_vec(),
            self.root.0.0.to_vec(),
            self.genesis.clone(),
            list(&self.successions),
            list(&self.people),
            list(&replicas.collect::<Vec<_>>()),
            list(&clouds.collect::<Vec<_>>()),
        ];
        list(&parts)
    }

    fn write(&self) -> TextWriter {
        let mut writer = TextWriter::new(CARD, FORMAT);
        writer.remark("For a principal that was admitted: `quorumfs join FILE`. Not secret.");
        writer.remark(&format!("volume {}", self.root.fingerprint()));
        writer.value("volume", &self.root.volume().0);
        writer.value("root-key", &self.root.0.0);
        writer.value("genesis", &self.genesis);
        writer.value("successions", &list(&self.successions));
        writer.value("people", &list(&self.people));
        writer.value("replicas", self.replicas.join("\n").as_bytes());
        let clouds = self.clouds.iter();
        let clouds: Vec<_> = clouds.map(|(name, at)| format!("{name}={at}")).collect();
        writer.value("clouds", clouds.join("\n").as_bytes());
        writer
    }

    fn read(lines: &Lines) -> Result<Self, KeyError> {
        let damaged = |label: &str| KeyError::Text {
            what: CARD,
            line: 0,
            reason: format!("`{label}` is not what it should be: ask for the file again"),
        };
        let root = super::principal::root_in(lines)?;
        let part = |label: &'static str| {
            let value = lines.value(label).unwrap_or_default();
            parts(value).ok_or_else(|| damaged(label))
        };
        let text = |label: &'static str| {
            let value = std::str::from_utf8(lines.value(label).unwrap_or_default());
            let value = value.map_err(|_| damaged(label))?;
            Ok::<_, KeyError>(value.lines().filter(|line| !line.is_empty()))
        };
        let clouds = text("clouds")?.map(|line| {
            let (name, place) = line.split_once('=')?;
            Some((name.to_owned(), place.to_owned()))
        });
        Ok(Self {
            root,
            genesis: lines.value("genesis")?.to_vec(),
            successions: part("successions")?,
            people: part("people")?,
            replicas: text("replicas")?.map(str::to_owned).collect(),
            clouds: clouds
                .collect::<Option<_>>()
                .ok_or_else(|| damaged("clouds"))?,
        })
    }
}

/// Byte strings in one, each with its length before it.
fn list(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

fn parts(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (part, rest) = rest.split_at_checked(length)?;
        all.push(part.to_vec());
        bytes = rest;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::super::VolumeRoot;
    use super::*;
    use proptest::prelude::*;

    fn key() -> JoinKey {
        let principal = Principal::from_seed(Secret::from_bytes([3; 32]));
        JoinKey { principal }
    }

    #[test]
    fn a_join_line_has_both_keys_and_any_change_of_it_is_refused() {
        let line = key().line();
        let keys = PrincipalId::from_join_line(&line).unwrap();
        assert_eq!(keys, key().principal.id());
        let broken = format!("  {}\n {}\n", &line[..40], &line[40..]);
        assert_eq!(PrincipalId::from_join_line(&broken).unwrap(), keys);
        for at in (LINE.len()..line.len() - 1).step_by(7) {
            let mut changed = line.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(PrincipalId::from_join_line(&changed).is_err(), "{at}");
            assert!(PrincipalId::from_join_line(&line[..at]).is_err(), "{at}");
        }
        assert!(PrincipalId::from_join_line("").is_err());
    }

    #[test]
    fn a_join_key_is_private_and_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("join.key");
        key().save(&path).unwrap();
        assert_eq!(JoinKey::load(&path).unwrap().line(), key().line());
        assert!(key().save(&path).is_err());
    }

    #[test]
    fn fingerprints_are_short_and_differ() {
        let (one, other) = (key(), JoinKey::random().unwrap());
        let (one, other) = (
            one.principal.id().fingerprint(),
            other.principal.id().fingerprint(),
        );
        assert_eq!(one.len(), 24);
        assert_ne!(one, other);
    }

    proptest! {
        #[test]
        fn a_card_is_read_as_it_was_written(
            genesis in proptest::collection::vec(any::<u8>(), 1..300),
            one in proptest::collection::vec(any::<u8>(), 0..90),
            count in 0_usize..4,
        ) {
            let card = VolumeCard {
                root: VolumeRoot::from_seed(Secret::from_bytes([5; 32])).public(),
                genesis,
                successions: Vec::new(),
                people: vec![one; count],
                replicas: vec!["abc@127.0.0.1:1".into(), "def@host:2".into()],
                clouds: vec![("a".into(), "/clouds/a".into())],
            };
            let signed = SignedCard::of(card, &key().principal);
            prop_assert_eq!(SignedCard::from_text(&signed.to_text()).unwrap(), signed.clone());
            let mut moved = signed;
            moved.card.clouds[0].1 = "/elsewhere".into();
            prop_assert!(SignedCard::from_text(&moved.to_text()).is_err());
        }
    }
}
