//! How the key that opens a volume is unlocked on this machine, and what of the clouds' part in it
//! stays here.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where the passphrase of a protected key comes from, and whether clouds are asked each time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct KeysSection {
    /// A file of mode 0600 that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) passphrase_file: Option<PathBuf>,
    /// A program and its arguments; what it prints is the passphrase.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) passphrase_command: Vec<String>,
    /// Whether what the clouds share of the volume's key is kept here, sealed, so that a mount
    /// begins while they are gone.
    pub(crate) keep_cloud_secret: bool,
}

impl Default for KeysSection {
    fn default() -> Self {
        Self {
            passphrase_file: None,
            passphrase_command: Vec::new(),
            keep_cloud_secret: true,
        }
    }
}

impl KeysSection {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
