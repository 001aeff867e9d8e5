//! Configuration files: TOML, in which an unknown key is an error.
//!
//! Relative paths in a file are relative to its directory. A file has a format version; there are
//! no secrets in it, only paths of key files. There are two kinds: every process that opens a
//! volume reads [`VolumeConfiguration`], a metadata replica reads [`ReplicaConfiguration`].

#[cfg(test)]
mod changed;
mod cloud;
mod cost;
pub(crate) mod files;
mod host;
mod keys;
mod share;

pub(crate) use cloud::{CloudSection, LimitsSection};
pub(crate) use cost::{BudgetSection, CloudBudget, CostSection, PastHard};
pub(crate) use host::{CacheSection, JournalSection, TierSetting};
pub(crate) use keys::KeysSection;
pub(crate) use share::ShareSection;

use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use clap::ValueEnum;
use quorumfs_bft::durability::Durability;
use quorumfs_bft_runtime::address::Address;
use quorumfs_gateway::blocks::{Compression, Preference};
use quorumfs_gateway::memory::{self, MEMORY_BYTES_MIN, MemoryBudget};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The version of these files that this program reads and writes.
pub(crate) const VERSION: u32 = 1;
/// A longer file is not a configuration.
const BYTES_MAX: u64 = 1 << 20;

/// The configuration for opening a volume: `quorumfs.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VolumeConfiguration {
    /// The version of this file's format.
    pub(crate) version: u32,
    /// The volume, and the principal.
    pub(crate) volume: VolumeSection,
    /// How its key is unlocked.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) keys: KeysSection,
    /// How a mount behaves.
    #[serde(default)]
    pub(crate) mount: MountSection,
    /// Limits of requests to all clouds together.
    #[serde(default, skip_serializing_if = "LimitsSection::is_empty")]
    pub(crate) limits: LimitsSection,
    /// How content is stored.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) data: DataSection,
    /// The disk cache of a mount.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) cache: CacheSection,
    /// The journal, in which uncommitted data survives a crash.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) journal: JournalSection,
    /// Where the prices are.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) cost: CostSection,
    /// What a month may cost.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) budget: BudgetSection,
    /// How links begin.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) share: ShareSection,
    /// The metadata replicas, in the order of their numbers.
    pub(crate) replica: Vec<ReplicaSection>,
    /// The clouds, in the order of their numbers.
    pub(crate) cloud: Vec<CloudSection>,
}

impl VolumeConfiguration {
    /// With defaults for everything except the replicas and clouds.
    pub(crate) fn usual(
        volume: VolumeSection,
        replica: Vec<ReplicaSection>,
        cloud: Vec<CloudSection>,
    ) -> Self {
        Self {
            version: VERSION,
            volume,
            keys: KeysSection::default(),
            mount: MountSection::default(),
            limits: LimitsSection::default(),
            data: DataSection::default(),
            cache: CacheSection::default(),
            journal: JournalSection::default(),
            cost: CostSection::default(),
            budget: BudgetSection::default(),
            share: ShareSection::default(),
            replica,
            cloud,
        }
    }
}

/// The volume, and the principal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VolumeSection {
    /// The volume's public description, the same bytes that every replica was started with.
    pub(crate) genesis: PathBuf,
    /// The key of the principal that opens it.
    pub(crate) key: PathBuf,
}

/// How a mount behaves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MountSection {
    /// The default mount point of `quorumfs mount`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) point: Option<PathBuf>,
    /// Whether other users of this machine may use the mount; their rights are still checked.
    /// Root's mounts allow it unless the mount options say otherwise, so it is not written for
    /// root.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) allow_other: bool,
    /// What close and fsync wait for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) tier: TierSetting,
}

/// How content is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DataSection {
    /// Which clouds to prefer where there is a choice: `fast` or `cheap`.
    pub(crate) prefer: Prefer,
    /// The memory budget of a mount or a command in MiB, if not the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory_mib: Option<u32>,
    /// Whether new content is compressed, which makes lengths reveal more.
    pub(crate) compression: CompressionSetting,
}

/// Whether content is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CompressionSetting {
    /// It is not.
    #[default]
    Off,
    /// With Zstandard, where that gains something.
    Zstd,
}

impl From<CompressionSetting> for Compression {
    fn from(setting: CompressionSetting) -> Self {
        match setting {
            CompressionSetting::Off => Self::Off,
            CompressionSetting::Zstd => Self::Zstd,
        }
    }
}

/// Which clouds to prefer where there is a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Prefer {
    /// All clouds share the work.
    #[default]
    Fast,
    /// Read as little as possible from clouds that charge for it.
    Cheap,
}

impl From<Prefer> for Preference {
    fn from(prefer: Prefer) -> Self {
        match prefer {
            Prefer::Fast => Self::Fast,
            Prefer::Cheap => Self::Cheap,
        }
    }
}

impl DataSection {
    /// The memory budget.
    ///
    /// # Errors
    /// If the configured one is too small.
    pub(crate) fn memory(&self) -> CommandResult<MemoryBudget> {
        let Some(mib) = self.memory_mib else {
            return Ok(MemoryBudget::usual(memory::usable()));
        };
        let bytes = u64::from(mib) << 20;
        if bytes < MEMORY_BYTES_MIN {
            let least = MEMORY_BYTES_MIN >> 20;
            let message =
                format!("`memory_mib` of `[data]` is {mib}, and a mount needs {least} or more");
            return Err(Failure::new(Exit::Usage, message).hint("raise it, or leave it out"));
        }
        Ok(MemoryBudget::configured(bytes))
    }
}

/// One metadata replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplicaSection {
    /// The address at which it is reached: HOST:PORT.
    #[serde(with = "address_text")]
    pub(crate) address: Address,
    /// Its public key, in hexadecimal digits.
    pub(crate) key: String,
}

/// An address in a configuration.
mod address_text {
    use super::Address;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(address: &Address, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(address.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Address, D::Error> {
        let text = String::deserialize(from)?;
        let address: Address = text.parse().map_err(D::Error::custom)?;
        match address.is_unspecified() {
            true => Err(D::Error::custom(format!(
                "{address} is only for listening: a replica cannot be reached there"
            ))),
            false => Ok(address),
        }
    }
}

/// The configuration of a metadata replica: `replica.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplicaConfiguration {
    /// The version of this file's format.
    pub(crate) version: u32,
    /// The address at which this replica listens.
    pub(crate) listen: SocketAddr,
    /// The file with this replica's key.
    pub(crate) key: PathBuf,
    /// How much to leave free on the disk of this replica's state, in MiB.
    #[serde(default = "replica_floor", skip_serializing_if = "is_replica_floor")]
    pub(crate) free_space_floor_mib: u32,
    /// When what it promises to the others counts as written.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) durability: DurabilitySetting,
    /// Addresses of other replicas, if they differ from those of the volume or the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) replica: Vec<ReplicaSection>,
}

/// When what a replica promises to the others counts as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DurabilitySetting {
    /// Once it is on the disk.
    #[default]
    Strict,
    /// Once the operating system has it: a loss of power may lose it.
    Os,
}

/// Whether a section or a key is not written, because it has its default.
fn is_default<T: Default + PartialEq>(setting: &T) -> bool {
    *setting == T::default()
}

impl From<DurabilitySetting> for Durability {
    fn from(setting: DurabilitySetting) -> Self {
        match setting {
            DurabilitySetting::Strict => Self::Strict,
            DurabilitySetting::Os => Self::Os,
        }
    }
}

impl ReplicaConfiguration {
    /// The same in bytes.
    pub(crate) fn free_space_floor(&self) -> u64 {
        u64::from(self.free_space_floor_mib) << 20
    }
}

/// How much stays free by default: an operator then has hours to react.
pub(crate) const fn replica_floor() -> u32 {
    512
}

// serde requires a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
const fn is_replica_floor(floor: &u32) -> bool {
    *floor == replica_floor()
}

/// Reads a file.
pub(crate) fn read<T: DeserializeOwned>(path: &Path, kind: &str) -> CommandResult<T> {
    let length = fs::metadata(path)
        .map_err(|error| absent(path, kind, &error))?
        .len();
    if length > BYTES_MAX {
        let message = format!("{} is too long for a configuration", path.display());
        return Err(Failure::new(Exit::Usage, message).hint("check the path"));
    }
    let text = text(path).map_err(|error| Failure::file("read", path, &error))?;
    parse(&text, path)
}

/// The text of a file of this kind; a longer one is an error.
pub(crate) fn text(path: &Path) -> std::io::Result<String> {
    if fs::metadata(path)?.len() > BYTES_MAX {
        return Err(std::io::ErrorKind::FileTooLarge.into());
    }
    fs::read_to_string(path)
}

fn absent(path: &Path, kind: &str, error: &std::io::Error) -> Failure {
    if error.kind() != std::io::ErrorKind::NotFound {
        return Failure::file("read", path, error);
    }
    let message = format!(
        "there is no {kind} at {}",
        path.parent().unwrap_or(path).display()
    );
    let failure = Failure::new(Exit::NoVolume, message);
    match kind {
        "replica" => failure.hint("make one with `quorumfs replica init`, or name it with --state"),
        _ => failure.hint("make one with `quorumfs volume create`, or name it with --state"),
    }
}

/// Only the version, so that a newer file is not reported as full of unknown keys.
#[derive(Deserialize)]
struct Versioned {
    version: Option<u32>,
}

pub(crate) fn parse<T: DeserializeOwned>(text: &str, path: &Path) -> CommandResult<T> {
    if let Ok(Versioned {
        version: Some(version),
    }) = toml::from_str(text)
        && version > VERSION
    {
        let message = format!(
            "{} is of version {version}; this quorumfs reads up to {VERSION}",
            path.display()
        );
        return Err(Failure::new(Exit::NewerFormat, message).hint("use a newer quorumfs"));
    }
    toml::from_str(text).map_err(|error| explain(&error, text, path))
}

fn explain(error: &toml::de::Error, text: &str, path: &Path) -> Failure {
    let start = error.span().map_or(0, |span| span.start);
    let line = text
        .get(..start)
        .map_or(1, |before| before.matches('\n').count() + 1);
    let message = error.message().lines().collect::<Vec<_>>().join("; ");
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let place = format!("{}, line {line}", path.display());
    if let (true, Some((unknown, known))) =
        (message.starts_with("unknown field"), quoted.split_first())
    {
        let failure = Failure::new(Exit::Usage, format!("{place}: unknown key `{unknown}`"));
        let all = known.join(", ");
        return match nearest(unknown, known) {
            Some(near) => failure.hint(format!("did you mean `{near}`? Known here: {all}")),
            None => failure.hint(format!("remove it. Known here: {all}")),
        };
    }
    Failure::new(Exit::Usage, format!("{place}: {message}"))
}

/// The known word that `word` probably stands for.
fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let scored = known
        .iter()
        .map(|candidate| (distance(word, candidate), *candidate));
    let (distance, best) = scored.min()?;
    (distance <= 1 + word.chars().count() / 3).then_some(best)
}

/// Levenshtein's distance.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, a) in left.chars().enumerate() {
        let mut diagonal = index;
        let mut before = index + 1;
        let mut next = vec![before];
        for (b, above) in right.iter().zip(row.iter().skip(1)) {
            let substituted = diagonal + usize::from(a != *b);
            before = substituted.min(before + 1).min(above + 1);
            diagonal = *above;
            next.push(before);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

/// Writes a file, whole or not at all.
pub(crate) fn write<T: Serialize>(path: &Path, value: &T, heading: &str) -> CommandResult<()> {
    let body = toml::to_string(value)
        .map_err(|error| Failure::new(Exit::Error, format!("cannot encode TOML: {error}")))?;
    let text: String = heading.lines().map(|line| format!("# {line}\n")).collect();
    crate::directory::replace(path, format!("{text}\n{body}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
version = 1
[volume]
genesis = "volume.genesis"
key = "principal.key"
[[replica]]
address = "127.0.0.1:7000"
key = "00"
[[cloud]]
name = "a"
location = "clouds/a"
"#;

    fn failure(text: &str) -> Failure {
        parse::<VolumeConfiguration>(text, Path::new("x/quorumfs.toml")).unwrap_err()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let value: VolumeConfiguration = parse(GOOD, Path::new("x")).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("quorumfs.toml");
        write(&path, &value, "A heading\nof two lines").unwrap();
        assert_eq!(read::<VolumeConfiguration>(&path, "volume").unwrap(), value);
    }

    #[test]
    fn compression_is_off_unless_it_is_asked_for_by_its_name() {
        let path = Path::new("x");
        let plain: VolumeConfiguration = parse(GOOD, path).unwrap();
        assert_eq!(plain.data.compression, CompressionSetting::Off);
        let with = |data: &str| GOOD.replace("[[replica]]", &format!("{data}\n[[replica]]"));
        let asked: VolumeConfiguration =
            parse(&with("[data]\ncompression = \"zstd\""), path).unwrap();
        assert_eq!(Compression::from(asked.data.compression), Compression::Zstd);
        let failure = failure(&with("[data]\ncompression = \"lzma\""));
        assert!(failure.message.contains("line 7") && failure.message.contains("zstd"));
    }

    #[test]
    fn a_disk_cache_is_kept_unless_it_is_said_to_have_no_size() {
        let path = Path::new("x");
        let plain: VolumeConfiguration = parse(GOOD, path).unwrap();
        assert_eq!(plain.cache.bytes(), Some(10 << 30));
        let with = |cache: &str| {
            let text = GOOD.replace("[[replica]]", &format!("[cache]\n{cache}\n[[replica]]"));
            parse::<VolumeConfiguration>(&text, path).unwrap().cache
        };
        let none = with("size_mib = 0");
        assert!(none.bytes().is_none() && none.check().is_ok());
        let small = with("size_mib = 15");
        assert_eq!(small.check().unwrap_err().exit, Exit::Usage);
        let other = with("path = \"/elsewhere\"\nfree_space_floor_mib = 1");
        assert_eq!(other.path, Path::new("/elsewhere"));
        assert_eq!(other.free_space_floor(), 1 << 20);
    }

    #[test]
    fn a_mount_is_of_the_tier_clouds_unless_another_is_named() {
        let path = Path::new("x");
        let plain: VolumeConfiguration = parse(GOOD, path).unwrap();
        assert_eq!(plain.mount.tier, TierSetting::Clouds);
        assert_eq!(plain.journal.bytes(), 1 << 30);
        let with = |more: &str| GOOD.replace("[[replica]]", &format!("{more}\n[[replica]]"));
        for tier in ["memory", "local", "clouds"] {
            let text = with(&format!("[mount]\ntier = \"{tier}\""));
            let read: VolumeConfiguration = parse(&text, path).unwrap();
            assert_eq!(read.mount.tier.name(), tier);
            assert_eq!(read.mount.tier.is_local(), tier == "local");
        }
        let failure = failure(&with("[mount]\ntier = \"cloud\""));
        assert!(failure.message.contains("line 7"), "{failure}");
        let small = with("[journal]\nsize_mib = 63");
        let small: VolumeConfiguration = parse(&small, path).unwrap();
        assert_eq!(small.journal.check().unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_likely_one() {
        let failure = failure(&GOOD.replace("location =", "locatoin ="));
        assert_eq!(failure.exit, Exit::Usage);
        assert_eq!(
            failure.message,
            "x/quorumfs.toml, line 11: unknown key `locatoin`"
        );
        assert!(
            failure
                .hint
                .unwrap()
                .starts_with("did you mean `location`?")
        );
    }

    #[test]
    fn an_unknown_key_like_no_other_is_not_guessed_at() {
        let failure = failure(&GOOD.replace("[[replica]]", "frobnicate = 1\n[[replica]]"));
        assert_eq!(
            failure.message,
            "x/quorumfs.toml, line 6: unknown key `frobnicate`"
        );
        assert!(failure.hint.unwrap().starts_with("remove it."));
    }

    #[test]
    fn a_newer_file_is_not_called_full_of_unknown_keys() {
        let failure = failure(&GOOD.replace("version = 1", "version = 2\nnovelty = true"));
        assert_eq!(failure.exit, Exit::NewerFormat);
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_placed() {
        let failure = failure(&GOOD.replace("\"127.0.0.1:7000\"", "7000"));
        assert!(
            failure.message.starts_with("x/quorumfs.toml, line 7:"),
            "{failure}"
        );
    }

    #[test]
    fn distances_are_levenshtein() {
        for (a, b, expected) in [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3)] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }
}
