//! The clouds of a configuration, as stores.
//!
//! This module alone turns the configuration of a cloud (location, credentials, limits) into a
//! store. A cloud that cannot be used as configured does not keep a volume from being opened: a
//! store that refuses everything takes its place, and `status` shows why.
//!
//! Each [`Role`] has its own credentials, so that a thief of those of a mounting machine can
//! neither delete nor overwrite. The command decides whose it uses: of those that open the volume,
//! only a reconciler uses the collector's, and a mount that has them.

use crate::configuration::{CloudSection, LimitsSection, VolumeConfiguration};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::prices::PriceOf;
use quorumfs_backends::location::{Access, Location};
use quorumfs_backends::marker::Marker;
use quorumfs_backends::remote::{Limits, Pace, RemoteStore, RetryPolicy};
use quorumfs_backends::{Deadline, ObjectStore, StoreError};
use quorumfs_gateway::volume::Volume;
use quorumfs_metadata::identity::VolumeId;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long checking a cloud may take before it counts as unreachable.
const LOOK_WITHIN: Duration = Duration::from_secs(8);
/// Connections to all clouds together, unless configured: as many as a home router can handle.
const CONNECTIONS: usize = 128;

/// The deadline of checking a cloud.
pub(crate) fn soon() -> Deadline {
    Deadline::after(LOOK_WITHIN)
}

/// The marker of a cloud of this volume.
pub(crate) fn marker(volume: VolumeId, cloud: u16) -> Marker {
    Marker {
        volume: volume.0,
        cloud,
    }
}

/// The location of a cloud of a configuration in `base`.
pub(crate) fn location(section: &CloudSection, base: &Path) -> CommandResult<Location> {
    let location: Location = section.location.parse().map_err(|error| {
        Failure::new(Exit::Usage, format!("cloud `{}`: {error}", section.name))
            .hint("docs/CLOUDS.md has a location of each kind")
    })?;
    Ok(location.below(base))
}

/// The failure domain: who could lose the whole cloud at once.
pub(crate) fn failure_domain(section: &CloudSection, location: &Location) -> String {
    let given = section.domain.clone();
    given
        .or_else(|| location.failure_domain())
        .unwrap_or_else(|| section.name.clone())
}

/// The meaning of a locked bucket, for people.
pub(crate) const LOCKED: &str = "its bucket destroys nothing that is younger than its retention: \
    deleted and useless objects are paid for until then";
/// The meaning of a versioned bucket, for people.
pub(crate) const VERSIONED: &str = "its bucket keeps old versions of deleted and overwritten \
    objects, and charges for them: let a life cycle rule delete them after a while";

/// The purpose of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// Gets.
    Reader,
    /// Gets and creates; neither overwrites nor deletes.
    Writer,
    /// Lists and deletes; neither gets nor creates.
    Collector,
}

impl Role {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Writer => "writer",
            Self::Collector => "collector",
        }
    }
}

/// A cloud, ready to be attached.
#[derive(Clone, Debug)]
pub(crate) struct NamedCloud {
    /// Its number in the volume.
    pub(crate) index: u8,
    /// Its name in messages.
    pub(crate) name: String,
    /// Its location.
    pub(crate) location: Location,
    /// The price of reading a GiB from it, in millionths.
    pub(crate) read_price: u32,
    /// The writer's access.
    access: Access,
    reader: Option<PathBuf>,
    collector: Option<PathBuf>,
}

impl NamedCloud {
    /// Whether it is a directory of a machine, which needs no credentials.
    pub(crate) fn is_a_directory(&self) -> bool {
        matches!(self.location, Location::Local(_))
    }

    /// The file with a role's credentials; `None` if they are in the provider's usual place, or if
    /// there are none of this role.
    pub(crate) fn credentials(&self, role: Role) -> Option<&Path> {
        match role {
            Role::Reader => self.reader.as_deref(),
            Role::Writer => self.access.credentials.as_deref(),
            Role::Collector => self.collector.as_deref(),
        }
    }

    /// The access for opening it as `role`; a reader without credentials reads as the writer.
    fn access(&self, role: Role) -> Access {
        let mut access = self.access.clone();
        if let Some(own) = self.credentials(role) {
            access.credentials = Some(own.to_owned());
        }
        access
    }

    /// A store for it, even if it is unusable.
    pub(crate) async fn store(&self, role: Role) -> Arc<dyn ObjectStore> {
        self.location.attach_or_refuse(&self.access(role)).await
    }

    /// A store that also lists and deletes, with the collector's credentials if there are any.
    pub(crate) async fn store_to_collect(&self) -> Arc<dyn ObjectStore> {
        let mut access = self.access(Role::Writer);
        access.collector.clone_from(&self.collector);
        self.location.attach_or_refuse(&access).await
    }

    /// Whether this machine may list and delete there: it has the collector's credentials, or it
    /// is a directory.
    pub(crate) fn may_delete(&self) -> bool {
        self.collector.is_some() || matches!(self.location, Location::Local(_))
    }

    /// The role whose credentials show whether the cloud is usable from here: the writer's, unless
    /// this machine only has a reader's.
    pub(crate) fn usual(&self) -> Role {
        match (&self.access.credentials, &self.reader) {
            (None, Some(_)) => Role::Reader,
            _ => Role::Writer,
        }
    }

    /// A store that may inspect the place and remove the marker: the writer's, which lists and
    /// deletes with the collector's credentials if there are any.
    pub(crate) async fn attach_to_found(&self) -> CommandResult<Arc<dyn ObjectStore>> {
        let mut access = self.access(Role::Writer);
        access.collector.clone_from(&self.collector);
        let store = self.location.attach(&access).await;
        store.map_err(|error| crate::explain::store_failure(&error))
    }

    /// The cloud as a role sees it, with more than the interface of a store; `None` if it is a
    /// directory.
    pub(crate) async fn attach_remote(
        &self,
        role: Role,
    ) -> Result<Option<RemoteStore>, StoreError> {
        match &self.location {
            Location::Local(_) => Ok(None),
            Location::Remote(remote) => remote.attach(&self.access(role)).await.map(Some),
        }
    }
}

/// Where a state directory has the credentials of a cloud that an administrator of the volume has
/// given its principal. Those that the configuration names come first.
pub(crate) fn given_credentials(state: &Path, cloud: u8) -> PathBuf {
    state.join("given").join(cloud.to_string())
}

/// The clouds of these sections, in their order.
pub(crate) fn named(
    sections: &[CloudSection],
    limits: &LimitsSection,
    base: &Path,
    volume: VolumeId,
) -> CommandResult<Vec<NamedCloud>> {
    let shared = Arc::new(Pace::new(bounds(limits, CONNECTIONS)));
    let numbered = sections.iter().zip(0_u8..);
    numbered
        .map(|(section, position)| {
            let index = section.index.unwrap_or(position);
            let location = location(section, base)?;
            let file = |path: &Option<PathBuf>| path.as_ref().map(|path| base.join(path));
            let given = Some(given_credentials(base, index)).filter(|path| path.exists());
            Ok(NamedCloud {
                index,
                name: section.name.clone(),
                read_price: read_price(section, &location)?,
                location,
                access: Access {
                    marker: marker(volume, u16::from(index)),
                    credentials: file(&section.credentials).or(given),
                    collector: None,
                    signer: file(&section.reader_credentials),
                    retry_policy: RetryPolicy::default(),
                    limits: bounds(&section.limits, Limits::default().connections),
                    shared: Arc::clone(&shared),
                },
                reader: file(&section.reader_credentials),
                collector: file(&section.collector_credentials),
            })
        })
        .collect()
}

fn read_price(section: &CloudSection, location: &Location) -> CommandResult<u32> {
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

/// All clouds that a volume ever had, as far as this machine knows, in the order of their numbers:
/// each as the configuration describes it, or as the administrator did that added it.
pub(crate) fn of_volume(
    configuration: &VolumeConfiguration,
    base: &Path,
    volume: &Volume,
) -> CommandResult<Vec<NamedCloud>> {
    let mut sections = Vec::new();
    for known in volume.known_clouds() {
        let index = known.cloud.index.0;
        let described = sections_of(configuration).find(|(number, _)| *number == index);
        let section = match (described, known.location) {
            (Some((_, section)), _) => section.clone(),
            (None, Some(location)) => CloudSection::added(known.cloud.name, index, location),
            (None, None) => {
                let message = format!("cloud `{}` is not configured", known.cloud.name);
                return Err(Failure::new(Exit::Usage, message).hint(
                    "quorumfs.toml needs a section for each cloud that the volume was created \
                     with, in their order, even if it was replaced since",
                ));
            }
        };
        sections.push(section);
    }
    let mut clouds = named(&sections, &configuration.limits, base, volume.id())?;
    let by_entry = |it: &&CloudSection| it.price.is_some() && it.read_price_per_gib.is_none();
    if sections.iter().any(|it| by_entry(&it)) {
        let book = configuration.prices(base)?;
        let priced = clouds.iter_mut().zip(&sections);
        for (cloud, section) in priced.filter(|(_, section)| by_entry(section)) {
            let named = section.price.as_deref();
            if let PriceOf::Named(entry) = book.of_cloud(named, &cloud.location)? {
                cloud.read_price = entry.read_price_millionths();
            }
        }
    }
    Ok(clouds)
}

/// The sections of clouds, each with the number of its cloud in the volume.
pub(crate) fn sections_of(
    configuration: &VolumeConfiguration,
) -> impl Iterator<Item = (u8, &CloudSection)> {
    let numbered = (0_u8..).zip(&configuration.cloud);
    numbered.map(|(position, section)| (section.index.unwrap_or(position), section))
}

fn bounds(section: &LimitsSection, connections: usize) -> Limits {
    let bytes = |mib: Option<u32>| mib.map(|mib| u64::from(mib) << 20);
    Limits {
        connections: section
            .connections
            .map_or(connections, |given| usize::from(given).max(1)),
        requests_per_second: section.requests_per_second,
        upload_bytes_per_second: bytes(section.upload_mib_per_second),
        download_bytes_per_second: bytes(section.download_mib_per_second),
    }
}
