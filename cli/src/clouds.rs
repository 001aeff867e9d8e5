//! The clouds of a configuration, as stores.
//!
//! What the configuration says of a cloud (where it is, whose credentials, how much may be asked of
//! it) becomes a store here, and nowhere else. A cloud that cannot be used as it is described does
//! not keep a volume from being opened: it takes its place and refuses, and `status` says why.

use crate::configuration::{CloudSection, LimitsSection, VolumeConfiguration};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use quorumfs_backends::location::{Access, Location};
use quorumfs_backends::marker::Marker;
use quorumfs_backends::remote::{Limits, Pace, Patience};
use quorumfs_backends::{Deadline, ObjectStore};
use quorumfs_metadata::identity::VolumeId;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long looking at a cloud may take before it counts as out of reach.
const LOOK_WITHIN: Duration = Duration::from_secs(8);
/// Connections to all clouds together, unless the configuration says otherwise: a home's router
/// lives with as many.
const CONNECTIONS: usize = 128;

/// When looking at a cloud is given up.
pub(crate) fn soon() -> Deadline {
    Deadline::after(LOOK_WITHIN)
}

/// The marker of a cloud of this volume.
pub(crate) fn marker(volume: VolumeId, cloud: u16) -> Marker {
    Marker {
        volume: volume.0,
        incarnation: 0,
        cloud,
    }
}

/// Where a cloud of a configuration in `base` is.
pub(crate) fn location(section: &CloudSection, base: &Path) -> Outcome<Location> {
    let location: Location = section.location.parse().map_err(|error| {
        Failure::new(Exit::Usage, format!("cloud `{}`: {error}", section.name))
            .hint("docs/CLOUDS.md has a location of each kind")
    })?;
    Ok(location.below(base))
}

/// Who could lose the whole cloud at once.
pub(crate) fn failure_domain(section: &CloudSection, location: &Location) -> String {
    let told = section.domain.clone();
    told.or_else(|| location.failure_domain())
        .unwrap_or_else(|| section.name.clone())
}

/// A cloud, ready to be attached.
#[derive(Clone, Debug)]
pub(crate) struct NamedCloud {
    /// What people call it.
    pub(crate) name: String,
    /// Where it is.
    pub(crate) location: Location,
    /// What reading a GiB from it costs, in millionths.
    pub(crate) read_price: u32,
    access: Access,
}

impl NamedCloud {
    /// A store for it, whatever ails it.
    pub(crate) async fn store(&self) -> Arc<dyn ObjectStore> {
        self.location.attach_or_refuse(&self.access).await
    }

    /// A store for it, or why there can be none.
    pub(crate) async fn attach(&self) -> Outcome<Arc<dyn ObjectStore>> {
        let store = self.location.attach(&self.access).await;
        store.map_err(|error| crate::commands::store_failure(&error))
    }
}

/// The clouds that sections describe, in their order.
pub(crate) fn named(
    sections: &[CloudSection],
    limits: &LimitsSection,
    base: &Path,
    volume: VolumeId,
) -> Outcome<Vec<NamedCloud>> {
    let shared = Arc::new(Pace::new(bounds(limits, CONNECTIONS)));
    let numbered = sections.iter().zip(0_u16..);
    numbered
        .map(|(section, index)| {
            let credentials = section.credentials.as_ref().map(|path| base.join(path));
            let location = location(section, base)?;
            Ok(NamedCloud {
                name: section.name.clone(),
                read_price: read_price(section, &location)?,
                location,
                access: Access {
                    marker: marker(volume, index),
                    credentials,
                    collector: None,
                    patience: Patience::default(),
                    limits: bounds(&section.limits, Limits::default().connections),
                    shared: Arc::clone(&shared),
                },
            })
        })
        .collect()
}

fn read_price(section: &CloudSection, location: &Location) -> Outcome<u32> {
    let Some(price) = section.read_price_per_gib else {
        return Ok(location.usual_read_price());
    };
    let millionths = price * 1e6;
    if !(0.0..=f64::from(u32::MAX)).contains(&millionths) {
        let message = format!("cloud `{}`: `read_price_per_gib` is {price}", section.name);
        return Err(Failure::new(Exit::Usage, message).hint("it is a price from 0 to 4000"));
    }
    Ok(millionths as u32)
}

/// The clouds of a volume's configuration.
pub(crate) fn configured(
    configuration: &VolumeConfiguration,
    base: &Path,
    volume: VolumeId,
) -> Outcome<Vec<NamedCloud>> {
    named(&configuration.cloud, &configuration.limits, base, volume)
}

fn bounds(section: &LimitsSection, connections: usize) -> Limits {
    let bytes = |mib: Option<u32>| mib.map(|mib| u64::from(mib) << 20);
    Limits {
        connections: section
            .connections
            .map_or(connections, |told| usize::from(told).max(1)),
        requests_per_second: section.requests_per_second,
        upload_bytes_per_second: bytes(section.upload_mib_per_second),
        download_bytes_per_second: bytes(section.download_mib_per_second),
    }
}
