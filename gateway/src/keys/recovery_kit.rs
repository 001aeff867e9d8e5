//! The recovery kit: one page to print and keep, from which the volume can be recovered.
//!
//! It holds the volume root's secret, the principal `recovery` (a member of every realm that may
//! administer), the genesis, which names the replicas and carries the wrapped keys, and the places
//! of the clouds. It holds no credentials of clouds: the providers issue new ones. With it, a
//! quorum of the replicas and n − f clouds, `volume recover` makes an owner's state directory. It
//! does not hold the replicas' data, names and the places of content: without the replicas nothing
//! can be read.

use super::lines::{Lines, TextWriter};
use super::{KeyError, Principal, Secret, VolumeRoot};
use zeroize::Zeroizing;

const TITLE: &str = "quorumfs recovery kit";
const FORMAT: u32 = 2;

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
        Ok(Self {
            root,
            recovery,
            genesis: lines.value("genesis")?.to_vec(),
            clouds: Self::clouds(lines.value("clouds").unwrap_or_default())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        };
        let text = kit.to_text();
        let again = RecoveryKit::from_text(&text.to_uppercase()).err();
        assert!(again.is_some(), "the title is not for shouting");
        let again = RecoveryKit::from_text(&text).unwrap();
        assert_eq!(again.root.public(), kit.root.public());
        assert_eq!(again.recovery.id(), kit.recovery.id());
        assert_eq!((again.genesis, again.clouds), (kit.genesis, kit.clouds));
    }
}
