//! What a mount keeps on its own machine: how safe something is there before the clouds have it,
//! and how much of that disk is used.

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use clap::ValueEnum;
use quorumfs_gateway::disk_cache::CACHE_BYTES_MIN;
use quorumfs_gateway::journal::{JOURNAL_BYTES_DEFAULT, JOURNAL_BYTES_MIN};
use quorumfs_gateway::vfs::Tier;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What close and fsync wait for: how safe is then what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TierSetting {
    /// Nothing: it may be lost with the mount's process until it was committed.
    Memory,
    /// The journal on this machine's disk.
    Local,
    /// The clouds' acknowledgements and the commit.
    #[default]
    Clouds,
}

impl TierSetting {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it takes a journal.
    pub(crate) fn is_local(self) -> bool {
        self == Self::Local
    }

    /// As it is written.
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

/// Where a mount of tier `local`, or with files of it, keeps, encrypted, what is not in the clouds
/// yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct JournalSection {
    /// The directory that holds it.
    pub(crate) path: PathBuf,
    /// Whether there is one at every tier of the mount, for files whose own is `local`.
    pub(crate) always: bool,
    /// MiB that it may hold; writers then wait for the clouds.
    pub(crate) size_mib: u32,
    /// MiB of that disk that it leaves free; close and fsync then wait for the clouds.
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
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Bytes that it may hold.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.size_mib) << 20
    }

    /// Bytes that it leaves free.
    pub(crate) fn free_space_floor(&self) -> u64 {
        u64::from(self.free_space_floor_mib) << 20
    }

    /// Refuses one that is too small to be of use.
    ///
    /// # Errors
    /// If it is.
    pub(crate) fn check(&self) -> Outcome<()> {
        let least = JOURNAL_BYTES_MIN >> 20;
        if self.bytes() >= JOURNAL_BYTES_MIN {
            return Ok(());
        }
        let message = format!(
            "`size_mib` of `[journal]` is {}, and a journal works with {least} or more",
            self.size_mib
        );
        Err(Failure::new(Exit::Usage, message).hint("raise it, or leave it out"))
    }
}

/// What a mount keeps, encrypted, on this machine's disk of what was read and written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CacheSection {
    /// The directory that holds it.
    pub(crate) path: PathBuf,
    /// MiB that it may hold; 0 for none.
    pub(crate) size_mib: u32,
    /// MiB of that disk that it leaves free.
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
    /// What says that there is to be none.
    pub(crate) fn none() -> Self {
        Self {
            size_mib: 0,
            ..Self::default()
        }
    }

    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Bytes that it may hold, if there is to be one.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let bytes = u64::from(self.size_mib) << 20;
        (bytes > 0).then_some(bytes)
    }

    /// Bytes that it leaves free.
    pub(crate) fn free_space_floor(&self) -> u64 {
        u64::from(self.free_space_floor_mib) << 20
    }

    /// Refuses one that is too small to be of use.
    ///
    /// # Errors
    /// If it is.
    pub(crate) fn check(&self) -> Outcome<()> {
        let least = CACHE_BYTES_MIN >> 20;
        if self.bytes().is_none_or(|bytes| bytes >= CACHE_BYTES_MIN) {
            return Ok(());
        }
        let message = format!(
            "`size_mib` of `[cache]` is {}, and a disk cache works with {least} or more",
            self.size_mib
        );
        Err(Failure::new(Exit::Usage, message).hint("raise it, or say 0 for none"))
    }
}
