//! What a mount stores on its own machine: the durability of data that is not on the clouds yet,
//! and how much of the disk is used.

use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use clap::ValueEnum;
use quorumfs_gateway::disk_cache::CACHE_BYTES_MIN;
use quorumfs_gateway::journal::{JOURNAL_BYTES_DEFAULT, JOURNAL_BYTES_MIN};
use quorumfs_gateway::vfs::Tier;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What close and fsync wait for, and so how durable written data is then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TierSetting {
    /// Nothing: until the commit, data may be lost with the mount's process.
    Memory,
    /// The journal on this machine's disk.
    Local,
    /// The clouds' acknowledgements and the commit.
    #[default]
    Clouds,
}

impl TierSetting {
    /// Whether it needs a journal.
    pub(crate) fn is_local(self) -> bool {
        self == Self::Local
    }

    /// Its name in files.
    pub(crate) fn name(self) -> &'static str {
        Tier::from(self).name()
    }
}

impl From<TierSetting> for Tier {
    fn from(setting: TierSetting) -> Self {
        match setting {
            TierSetting::Memory => Self::Memory,
            TierSetting::Local => Self::Local,
            TierSetting::Clouds => Self::Clouds,
        }
    }
}

/// The journal, in which a mount of tier `local`, or with files of that tier, stores uncommitted
/// data, encrypted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct JournalSection {
    /// The directory that holds it.
    pub(crate) path: PathBuf,
    /// Whether there is one at every tier of the mount, for files whose own tier is `local`.
    pub(crate) always: bool,
    /// The most MiB that it may take; writers then wait for the clouds.
    pub(crate) size_mib: u32,
    /// MiB to leave free on its disk; below that, close and fsync wait for the clouds.
    pub(crate) free_space_floor_mib: u32,
}

impl Default for JournalSection {
    fn default() -> Self {
        Self {
            path: "journal".into(),
            always: false,
            size_mib: u32::try_from(JOURNAL_BYTES_DEFAULT >> 20).unwrap_or(u32::MAX),
            free_space_floor_mib: 1 << 10,
        }
    }
}

impl JournalSection {
    /// The most bytes that it may take.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.size_mib) << 20
    }

    /// Bytes to leave free.
    pub(crate) fn free_space_floor(&self) -> u64 {
        u64::from(self.free_space_floor_mib) << 20
    }

    /// Refuses one that is too small.
    ///
    /// # Errors
    /// If it is.
    pub(crate) fn check(&self) -> CommandResult<()> {
        let least = JOURNAL_BYTES_MIN >> 20;
        if self.bytes() >= JOURNAL_BYTES_MIN {
            return Ok(());
        }
        let message = format!(
            "`size_mib` of `[journal]` is {}, and a journal needs {least} or more",
            self.size_mib
        );
        Err(Failure::new(Exit::Usage, message).hint("raise it, or leave it out"))
    }
}

/// The disk cache, in which a mount stores content that was read or written, encrypted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CacheSection {
    /// The directory that holds it.
    pub(crate) path: PathBuf,
    /// The most MiB that it may take; 0 for no cache.
    pub(crate) size_mib: u32,
    /// MiB to leave free on its disk.
    pub(crate) free_space_floor_mib: u32,
}

impl Default for CacheSection {
    fn default() -> Self {
        Self {
            path: "cache".into(),
            size_mib: 10 << 10,
            free_space_floor_mib: 2 << 10,
        }
    }
}

impl CacheSection {
    /// The setting for no cache.
    pub(crate) fn none() -> Self {
        Self {
            size_mib: 0,
            ..Self::default()
        }
    }

    /// The most bytes that it may take, if there is one.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let bytes = u64::from(self.size_mib) << 20;
        (bytes > 0).then_some(bytes)
    }

    /// Bytes to leave free.
    pub(crate) fn free_space_floor(&self) -> u64 {
        u64::from(self.free_space_floor_mib) << 20
    }

    /// Refuses one that is too small.
    ///
    /// # Errors
    /// If it is.
    pub(crate) fn check(&self) -> CommandResult<()> {
        let least = CACHE_BYTES_MIN >> 20;
        if self.bytes().is_none_or(|bytes| bytes >= CACHE_BYTES_MIN) {
            return Ok(());
        }
        let message = format!(
            "`size_mib` of `[cache]` is {}, and a disk cache needs {least} or more",
            self.size_mib
        );
        Err(Failure::new(Exit::Usage, message).hint("raise it, or set 0 for no cache"))
    }
}
