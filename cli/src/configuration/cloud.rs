//! The sections of clouds, and the limits of requests to them.

use super::CloudBudget;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One cloud.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CloudSection {
    /// Its name in messages.
    pub(crate) name: String,
    /// Its number in the volume, if that is not its position in this file: of a cloud that was
    /// added after the volume's creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) index: Option<u8>,
    /// A directory that stands for it, or `s3://…`, `azure://…`, `gs://…`.
    pub(crate) location: String,
    /// A file with credentials that get and create, in the provider's own form, if they are not in
    /// the provider's usual place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credentials: Option<PathBuf>,
    /// The same for commands that only read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reader_credentials: Option<PathBuf>,
    /// The same for listing and deleting; not on a machine that mounts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) collector_credentials: Option<PathBuf>,
    /// Its failure domain, if the location does not tell: who could lose all of it at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) domain: Option<String>,
    /// The price of reading a GiB from it, in dollars or any other unit common to all clouds, if it
    /// is not the provider's usual price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) read_price_per_gib: Option<f64>,
    /// Its entry in the prices file, if it is not its provider's first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) price: Option<String>,
    /// What it may cost in a month.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub(crate) budget: CloudBudget,
    /// Limits of requests to it.
    #[serde(default, skip_serializing_if = "LimitsSection::is_empty")]
    pub(crate) limits: LimitsSection,
}

impl CloudSection {
    /// A cloud with nothing but its name and its place.
    pub(crate) fn at(name: String, location: String) -> Self {
        Self {
            name,
            index: None,
            location,
            credentials: None,
            reader_credentials: None,
            collector_credentials: None,
            domain: None,
            read_price_per_gib: None,
            price: None,
            budget: CloudBudget::default(),
            limits: LimitsSection::default(),
        }
    }

    /// A cloud that was added after the volume's creation, without anything that only this machine
    /// knows.
    pub(crate) fn added(name: String, index: u8, location: String) -> Self {
        Self {
            index: Some(index),
            ..Self::at(name, location)
        }
    }
}

/// Limits of requests, to one cloud or to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitsSection {
    /// Concurrent requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<u16>,
    /// Requests a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests_per_second: Option<u32>,
    /// MiB a second to send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) upload_mib_per_second: Option<u32>,
    /// MiB a second to receive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) download_mib_per_second: Option<u32>,
}

impl LimitsSection {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
