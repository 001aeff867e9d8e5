//! Extended attributes of the model: their names, lengths and permissions.

use super::{Inode, Model, ModelKind, StepResult};
use crate::attributes::{Credentials, Namespace};
use crate::error::Error;
use crate::identity::AttributeHash;
use crate::operation::{AttributePlace, SetExtended, SetMode};
use std::collections::BTreeMap;

/// The attributes of an inode.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Extended(BTreeMap<(Namespace, AttributeHash), u64>);

impl Extended {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The sealed bytes of names and values.
    pub(super) fn bytes(&self) -> u64 {
        self.0.values().sum()
    }

    /// Clears capabilities after a change of content or owner.
    pub(super) fn lose_capability(&mut self) {
        self.0.remove(&(Namespace::Capability, AttributeHash::ONLY));
    }
}

impl Model {
    pub(super) fn set_extended(&mut self, who: &Credentials, set: &SetExtended) -> StepResult {
        let inode = self.get_mut(set.place.inode)?;
        inode.may_change(who, set.place.namespace)?;
        let name = (set.place.namespace, set.place.hash);
        let bytes = set.name.len().saturating_add(set.value.bytes.len()) as u64;
        match (set.mode, inode.extended.0.contains_key(&name)) {
            (SetMode::Create, true) => return Err(Error::Exists),
            (SetMode::Replace, false) => return Err(Error::NoAttribute),
            _ => inode.extended.0.insert(name, bytes),
        };
        Ok(vec![set.place.inode])
    }

    pub(super) fn remove_extended(
        &mut self,
        who: &Credentials,
        place: &AttributePlace,
    ) -> StepResult {
        let inode = self.get_mut(place.inode)?;
        inode.may_change(who, place.namespace)?;
        match inode.extended.0.remove(&(place.namespace, place.hash)) {
            Some(_) => Ok(vec![place.inode]),
            None => Err(Error::NoAttribute),
        }
    }
}

impl Inode {
    fn may_change(&self, who: &Credentials, namespace: Namespace) -> Result<(), Error> {
        let root = who.uid.0 == 0;
        let directory = matches!(self.kind, ModelKind::Directory { .. });
        let permitted = match namespace {
            Namespace::User => {
                let sticky = directory && self.mode & 0o1000 != 0;
                (directory || matches!(self.kind, ModelKind::File { .. }))
                    && (!sticky || root || who.uid.0 == self.uid)
            }
            _ => root,
        };
        if !permitted {
            return Err(Error::NotPermitted);
        }
        if namespace == Namespace::User && !self.allows(who, 2) {
            return Err(Error::Denied);
        }
        Ok(())
    }
}
