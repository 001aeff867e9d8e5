//! The newest known membership, for the next command.
//!
//! A volume's configuration names the replicas that its cluster began with. They lead a client to
//! the current ones, but one day none of them may be left. So the newest known membership is stored
//! in the state directory, after the id of its cluster, and the next client begins with it. It is
//! trusted like every other file there, since only its owner can write it. If it is damaged,
//! missing, or about another cluster, the client asks the first replicas as usual.

use crate::directory;
use bytes::Bytes;
use quorumfs_bft::identity::{ClusterId, Epoch};
use quorumfs_bft::membership::Membership;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

/// The file in a volume's state directory.
pub(super) const FILE: &str = "membership";

/// The file, and the cluster whose members it holds.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    pub(super) path: PathBuf,
    pub(super) cluster: ClusterId,
}

impl Memory {
    /// The stored membership, if there is one.
    pub(super) fn recall(&self) -> Option<Membership> {
        let read = match fs::read(&self.path) {
            Ok(bytes) => self.decode(bytes.into()),
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => Err(error.to_string()),
        };
        let membership = read.map_err(|error| {
            let path = self.path.display();
            tracing::warn!(%path, %error, "asking the replicas that the cluster began with");
        });
        membership.ok()
    }

    fn decode(&self, mut bytes: Bytes) -> Result<Membership, String> {
        let whose = bytes.split_to(bytes.len().min(self.cluster.0.len()));
        if whose[..] != self.cluster.0 {
            return Err("it is about another cluster".to_owned());
        }
        Membership::decode(&bytes).map_err(|error| error.to_string())
    }

    /// Stores a membership if it is later than the stored one.
    pub(super) fn keep(&self, membership: &Membership) {
        let known = self.recall().map_or(Epoch(0), |it| it.epoch);
        if membership.epoch <= known {
            return;
        }
        let content = [&self.cluster.0[..], &membership.encode()].concat();
        if let Err(failure) = directory::replace(&self.path, &content) {
            tracing::warn!(%failure, "the current membership could not be stored");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::fault_model::FaultModel;

    #[test]
    fn only_what_is_later_is_kept_and_what_is_damaged_is_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("membership");
        let of = |cluster| Memory {
            path: path.clone(),
            cluster: ClusterId([cluster; 16]),
        };
        let memory = of(1);
        assert_eq!(memory.recall(), None);
        let model = FaultModel::new(1, 1, 4).unwrap();
        let mut membership = Membership::unnamed(model);
        memory.keep(&membership);
        assert!(
            !path.exists(),
            "the membership of the configuration is not stored"
        );
        membership.epoch = Epoch(7);
        memory.keep(&membership);
        assert_eq!(memory.recall(), Some(membership.clone()));
        let earlier = Membership {
            epoch: Epoch(6),
            ..membership.clone()
        };
        memory.keep(&earlier);
        assert_eq!(
            memory.recall(),
            Some(membership),
            "stored by another process"
        );
        let another = of(2);
        assert_eq!(another.recall(), None, "it is about another volume");
        another.keep(&earlier);
        assert_eq!(another.recall(), Some(earlier));
        for rubbish in [&b"rubbish"[..], b""] {
            fs::write(&path, rubbish).unwrap();
            assert_eq!(memory.recall(), None);
        }
    }
}
