//! How links of this volume begin.

use serde::{Deserialize, Serialize};

/// Where what is shared by links is served.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ShareSection {
    /// The URL under which `quorumfs serve` is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
}
