//! Who the replicas are, for the next command.
//!
//! A volume's configuration names the replicas that its cluster began with. They lead a client to
//! those that there are now, but one day none of them may be left. So the newest membership that
//! was heard of is kept in the state directory, and the next client begins with it. It is believed
//! like everything else there, since only its owner can write it. If it is damaged or gone, the
//! first replicas are asked as if it had never been there.

use crate::directory;
use bytes::Bytes;
use quorumfs_bft::identity::Epoch;
use quorumfs_bft::membership::Membership;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

/// The file in a volume's state directory.
pub(super) const FILE: &str = "membership";

/// The file, and how new what it says is.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    path: PathBuf,
    known: Epoch,
}

impl Memory {
    /// What is remembered, if anything is.
    pub(super) fn recall(path: PathBuf) -> (Self, Option<Membership>) {
        let read = match fs::read(&path) {
            Ok(bytes) => Membership::decode(&Bytes::from(bytes)).map_err(|it| it.to_string()),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let known = Epoch(0);
                return (Self { path, known }, None);
            }
            Err(error) => Err(error.to_string()),
        };
        let membership = read.map_err(|error| {
            let path = path.display();
            tracing::warn!(%path, %error, "the replicas that the cluster began with are asked");
        });
        let membership = membership.ok();
        let known = membership.as_ref().map_or(Epoch(0), |it| it.epoch);
        (Self { path, known }, membership)
    }

    /// Keeps a later membership than what is remembered.
    pub(super) fn keep(&self, membership: &Membership) {
        if membership.epoch <= self.known {
            return;
        }
        if let Err(failure) = directory::replace(&self.path, &membership.encode()) {
            tracing::warn!(%failure, "who the replicas are now is not remembered");
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
        let (memory, nothing) = Memory::recall(path.clone());
        assert_eq!(nothing, None);
        let model = FaultModel::new(1, 1, 4).unwrap();
        let mut membership = Membership::unnamed(model);
        memory.keep(&membership);
        assert!(!path.exists(), "what the configuration says is not news");
        membership.epoch = Epoch(7);
        memory.keep(&membership);
        let (memory, kept) = Memory::recall(path.clone());
        assert_eq!(kept, Some(membership.clone()));
        let earlier = Membership {
            epoch: Epoch(6),
            ..membership
        };
        memory.keep(&earlier);
        assert_ne!(Memory::recall(path.clone()).1, Some(earlier));
        fs::write(&path, b"rubbish").unwrap();
        assert_eq!(Memory::recall(path).1, None);
    }
}
