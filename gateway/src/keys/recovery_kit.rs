//! The recovery kit: one page to print and keep, from which the volume can be recovered.
//!
//! It holds the volume root's secret, the principal `recovery` (a member of every realm that may
//! administer), the genesis, which names the replicas and carries the wrapped keys, and the places
//! of the clouds. It holds no credentials of clouds: the providers issue new ones. With it, a
//! quorum of the replicas and n − f clouds, `volume recover` makes an owner's state directory. It
//! does not hold the replicas' data, names and the places of content: without the replicas they
//! come from the backup on the clouds.
//!
//! The backup is found with the clouds' secrets. A kit has those of the clouds that the volume had
//! when the kit was made: the first from the genesis, later ones in its own lines. So a kit is
//! *renewed* after clouds are replaced; one that is older than the replacement of more than f
//! clouds finds no backup.

use super::lines::{Lines, TextWriter};
use super::{CloudSecret, KeyError, Principal, Secret, VolumeRoot};
use quorumfs_metadata::fleet::Fleet;
use quorumfs_metadata::row::{Cloud, Row};
use zeroize::Zeroizing;

const TITLE: &str = "quorumfs recovery kit";
const FORMAT: u32 = 3;

/// The content of the kit.
#[derive(Clone, Debug)]
pub struct RecoveryKit {
    /// The volume root.
    pub root: VolumeRoot,
    /// The principal `recovery`.
    pub recovery: Principal,
    /// The signed genesis.
    pub genesis: Vec<u8>,
    /// The clouds, by their numbers: name and location.
    pub clouds: Vec<(String, String)>,
    /// How the clouds have changed since the volume's creation, if they have.
    pub changed: Option<ChangedClouds>,
}

/// The clouds of a volume some time after its creation.
#[derive(Clone, Debug)]
pub struct ChangedClouds {
    /// Which clouds take new shards.
    pub fleet: Fleet,
    /// The clouds that were added, with their secrets, in the order of their numbers.
    pub added: Vec<(Cloud, CloudSecret)>,
}

impl ChangedClouds {
    fn added_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut bytes = Zeroizing::new(Vec::new());
        for (cloud, secret) in &self.added {
            let row = cloud.to_bytes();
            let length = u16::try_from(row.len()).unwrap_or(u16::MAX);
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(&row);
            bytes.extend_from_slice(secret.expose());
        }
        bytes
    }

    /// From both values; `None` if they are not what they should be.
    fn parse(fleet: &[u8], mut added: &[u8]) -> Option<Self> {
        let mut clouds = Vec::new();
        while !added.is_empty() {
            let (length, rest) = added.split_first_chunk::<2>()?;
            let (row, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
            let (secret, rest) = rest.split_first_chunk::<32>()?;
            let secret = CloudSecret::from_secret(Secret::from_bytes(*secret));
            clouds.push((Cloud::from_bytes(row).ok()?, secret));
            added = rest;
        }
        Some(Self {
            fleet: Fleet::from_bytes(fleet).ok()?,
            added: clouds,
        })
    }
}

impl RecoveryKit {
    /// As text to print.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut writer = TextWriter::new(TITLE, FORMAT);
        writer.remark("Print this page, keep it offline, and delete the file.");
        writer.remark("It lets its holder read, change and take over the whole volume; without");
        writer
            .remark("it, and without any other member's key, the volume can never be read again.");
        writer.remark(
            "Its data lies on the clouds, and perhaps shares of its keys (lock 2): then it",
        );
        writer.remark("takes this page and f + 1 of the clouds to open even the newest key.");
        writer.remark("Each line ends with a checksum, so that it can be typed in again.");
        writer
            .remark("`quorumfs volume recover --kit FILE` makes an owner's state directory of it.");
        writer.remark("The clouds, whose credentials are not here:");
        for (name, location) in &self.clouds {
            writer.remark(&format!("  {name} = {location}"));
        }
        writer.value("volume", &self.root.volume().0);
        writer.value("root", self.root.seed().expose());
        writer.value("recovery", self.recovery.seed().expose());
        writer.value("genesis", &self.genesis);
        let clouds = self.clouds.iter();
        let clouds: Vec<_> = clouds.map(|(name, at)| format!("{name}={at}")).collect();
        writer.value("clouds", clouds.join("\n").as_bytes());
        if let Some(changed) = &self.changed {
            writer.value("fleet", &changed.fleet.to_bytes());
            writer.value("added", &changed.added_bytes());
        }
        writer.finish()
    }

    fn clouds(value: &[u8]) -> Result<Vec<(String, String)>, KeyError> {
        let wrong = || KeyError::Untrusted {
            what: "the recovery kit",
            reason: "its list of clouds is not one; compare it with the print".into(),
        };
        let text = std::str::from_utf8(value).map_err(|_| wrong())?;
        let clouds = text.lines().map(|line| {
            let (name, location) = line.split_once('=')?;
            Some((name.to_owned(), location.to_owned()))
        });
        clouds.collect::<Option<_>>().ok_or_else(wrong)
    }

    /// From text.
    ///
    /// # Errors
    /// If it is no recovery kit, was copied wrongly, or contradicts itself.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        let lines = Lines::parse(TITLE, FORMAT, text)?;
        let root = VolumeRoot::from_seed(Secret::from_bytes(lines.array("root")?));
        if root.volume().0 != lines.array::<16>("volume")? {
            return Err(KeyError::Untrusted {
                what: "the recovery kit",
                reason: "its volume id does not belong to its root; compare it with the print"
                    .into(),
            });
        }
        let recovery = Principal::from_seed(Secret::from_bytes(lines.array("recovery")?));
        let changed = lines.value("fleet").ok().map(|fleet| {
            let added = lines.value("added").unwrap_or_default();
            ChangedClouds::parse(fleet, added).ok_or_else(|| KeyError::Untrusted {
                what: "the recovery kit",
                reason: "its later clouds are damaged; compare `fleet` and `added` with the print"
                    .into(),
            })
        });
        Ok(Self {
            root,
            recovery,
            genesis: lines.value("genesis")?.to_vec(),
            clouds: Self::clouds(lines.value("clouds").unwrap_or_default())?,
            changed: changed.transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_metadata::identity::CloudIndex;

    #[test]
    fn a_printed_kit_gives_everything_back() {
        let kit = RecoveryKit {
            root: VolumeRoot::random().unwrap(),
            recovery: Principal::random().unwrap(),
            genesis: (0..=255).collect(),
            clouds: vec![
                ("one".into(), "/mnt/a = b".into()),
                ("two".into(), "s3://bucket/below?region=x".into()),
            ],
            changed: None,
        };
        let text = kit.to_text();
        let again = RecoveryKit::from_text(&text.to_uppercase()).err();
        assert!(again.is_some(), "the title is not for shouting");
        let again = RecoveryKit::from_text(&text).unwrap();
        assert_eq!(again.root.public(), kit.root.public());
        assert_eq!(again.recovery.id(), kit.recovery.id());
        assert_eq!((again.genesis, again.clouds), (kit.genesis, kit.clouds));
        assert!(again.changed.is_none());
    }

    #[test]
    fn a_renewed_kit_gives_the_later_clouds_back_and_refuses_damaged_ones() {
        let added = |index: u8| {
            let cloud = Cloud {
                index: CloudIndex(index),
                kind: "local".into(),
                failure_domain: format!("domain {index}"),
                name: format!("cloud {index}"),
            };
            (cloud, CloudSecret::random().unwrap())
        };
        let fleet = Fleet {
            active: [4, 1, 2, 5].map(CloudIndex).to_vec(),
            former: [0, 3].map(CloudIndex).to_vec(),
            retired: vec![CloudIndex(0)],
            changes: 4,
            ..Fleet::default()
        };
        let mut kit = RecoveryKit {
            root: VolumeRoot::random().unwrap(),
            recovery: Principal::random().unwrap(),
            genesis: vec![7],
            clouds: Vec::new(),
            changed: Some(ChangedClouds {
                fleet: fleet.clone(),
                added: vec![added(4), added(5)],
            }),
        };
        let again = RecoveryKit::from_text(&kit.to_text()).unwrap();
        let (before, after) = (kit.changed.take().unwrap(), again.changed.unwrap());
        assert_eq!(after.fleet, fleet);
        for (before, after) in before.added.iter().zip(&after.added) {
            assert_eq!(after.0, before.0);
            assert_eq!(after.1.expose(), before.1.expose());
        }
        assert_eq!(after.added.len(), 2);
        let bytes = before.added_bytes();
        for length in 1..bytes.len() / 2 {
            let cut = ChangedClouds::parse(&fleet.to_bytes(), &bytes[..length]);
            assert!(cut.is_none(), "{length} bytes");
        }
        assert!(ChangedClouds::parse(&[1, 2, 3], &bytes).is_none());
    }
}
