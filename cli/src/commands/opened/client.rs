//! The servers of a volume's client, and what its session counts.

use super::{CONNECT_WITHIN, CommandResult, Exit, Failure, Opened, VolumeConfiguration};
use crate::clouds::sections_of;
use crate::values::public_key;
use quorumfs_bft_runtime::client::{ClientConfig, Member};
use quorumfs_bft_runtime::keys::NodeKey;
use quorumfs_bft_runtime::server::first_incarnation;
use quorumfs_gateway::volume::Volume;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The client's configuration: the genesis names the keys that count, the configuration their
/// addresses.
pub(super) fn client_config(
    configuration: &VolumeConfiguration,
    volume: &Volume,
    path: &Path,
) -> CommandResult<ClientConfig> {
    let wrong = |what: String| {
        Failure::new(Exit::WrongCluster, format!("{}: {what}", path.display()))
            .hint("take the configuration that `quorumfs volume create` wrote for this volume")
    };
    let genesis = volume.genesis();
    if configuration.replica.len() != genesis.replicas.len() {
        let (listed, real) = (configuration.replica.len(), genesis.replicas.len());
        return Err(wrong(format!(
            "it lists {listed} replicas, the volume has {real}"
        )));
    }
    // Clouds that were added since the creation say their numbers, or need no section at all.
    let founding = |cloud: &u8| usize::from(*cloud) < genesis.clouds.len();
    let listed: BTreeSet<u8> = sections_of(configuration).map(|(cloud, _)| cloud).collect();
    let unnumbered = sections_of(configuration).filter(|(_, section)| section.index.is_none());
    let are_unknown = !unnumbered
        .map(|(cloud, _)| cloud)
        .all(|cloud| founding(&cloud));
    let are_there = listed.iter().filter(|cloud| founding(cloud)).count() == genesis.clouds.len();
    if listed.len() != configuration.cloud.len() {
        return Err(wrong("two clouds have the same number".to_owned()));
    }
    if are_unknown || !are_there {
        let (listed, real) = (configuration.cloud.len(), genesis.clouds.len());
        return Err(wrong(format!(
            "it lists {listed} clouds, the volume has {real}"
        )));
    }
    let mut members = Vec::new();
    for (section, replica) in configuration.replica.iter().zip(&genesis.replicas) {
        let id = replica.id;
        if public_key(&section.key)? != replica.key {
            return Err(wrong(format!(
                "replica {id} has another key in this volume"
            )));
        }
        members.push(Member {
            id,
            key: replica.key,
            incarnation: first_incarnation(&replica.key),
            address: section.address.clone(),
        });
    }
    let model = genesis
        .fault_model()
        .map_err(|error| Failure::new(Exit::Damaged, format!("the genesis: {error}")))?;
    let seed = Zeroizing::new(*volume.principal().signing_secret().expose());
    let principal = NodeKey::from_seed(seed)
        .map_err(|error| Failure::new(Exit::WrongKey, error.to_string()))?;
    let mut client = ClientConfig::new(volume.id(), model, members, Arc::new(principal));
    client.connect_deadline = CONNECT_WITHIN;
    Ok(client)
}

impl Opened {
    /// How many queries of the session were answered unordered, and how many had to be ordered.
    pub(crate) fn queries(&self) -> (u64, u64) {
        self.client.reads()
    }
}
