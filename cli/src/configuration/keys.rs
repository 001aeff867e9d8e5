//! How the key that opens a volume is unlocked on this machine, and whether the clouds' shares of
//! it are cached here.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The source of a protected key's passphrase, and whether to ask the clouds each time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct KeysSection {
    /// A file of mode 0600 that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) passphrase_file: Option<PathBuf>,
    /// A program and its arguments; what it prints is the passphrase.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) passphrase_command: Vec<String>,
    /// Whether to cache the clouds' shares of the volume's key here, sealed, so that a mount can
    /// begin while the clouds are unreachable.
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
