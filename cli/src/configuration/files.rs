//! The files of a volume's state directory that commands and mounts open by name.

/// The configuration's file.
pub(crate) const CONFIGURATION: &str = "quorumfs.toml";
/// The genesis' file.
pub(crate) const GENESIS: &str = "volume.genesis";
/// The first principal's key file.
pub(crate) const KEY: &str = "principal.key";
/// The recovery kit's file.
pub(crate) const RECOVERY_KIT: &str = "recovery-kit.txt";
/// The first lines of the configuration.
pub(crate) const HEADING: &str = "A quorumfs volume, as it is opened from this machine.\n\
    Paths are relative to this file. There are no secrets in it.";
