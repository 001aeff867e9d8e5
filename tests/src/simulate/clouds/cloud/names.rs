//! The requests that do not transfer content: lengths, lists of names, deletion.

use super::super::lie::{CloudRequest, Lie};
use super::SimulatedCloud;
use quorumfs_backends::{
    Deadline, ObjectInfo, ObjectName, Operation, Page, StoreError, StoreErrorKind,
};

impl SimulatedCloud {
    pub(in super::super) async fn head(
        &self,
        name: &ObjectName,
        deadline: Deadline,
    ) -> Result<ObjectInfo, StoreError> {
        let way = self
            .arrive(Operation::Head, Some(name), deadline, None)
            .await?;
        let lie = self.lie(CloudRequest::Head);
        let truth = match (lie, self.truth(name)) {
            (Some(Lie::Resurrect), None) => self.resurrected(name),
            (Some(Lie::Deny), Some(_)) => {
                self.record_lie(Lie::Deny);
                None
            }
            (_, truth) => truth,
        };
        let missing = || self.error(Operation::Head, Some(name), StoreErrorKind::NotFound);
        let answer = truth.ok_or_else(missing).map(|body| {
            let mut length = body.len() as u64;
            if lie == Some(Lie::WrongLength) {
                self.record_lie(Lie::WrongLength);
                length += 1;
            }
            ObjectInfo { length }
        });
        self.answer(way, Operation::Head, Some(name), deadline, answer)
            .await
    }

    pub(in super::super) async fn list(
        &self,
        prefix: &str,
        cursor: Option<&ObjectName>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Page, StoreError> {
        let way = self.arrive(Operation::List, None, deadline, None).await?;
        let lie = self.lie(CloudRequest::List);
        let mut names: Vec<ObjectName> = {
            let mut state = self.state();
            state.forget_lost();
            match lie {
                Some(Lie::OldList) => state.old_names.clone(),
                _ => state.objects.keys().cloned().collect(),
            }
        };
        names.retain(|name| {
            name.as_str().starts_with(prefix) && cursor.is_none_or(|cursor| name > cursor)
        });
        let at = self.state().random.index(names.len());
        match lie {
            Some(Lie::OmitFromList) if !names.is_empty() => {
                names.remove(at);
            }
            Some(Lie::DuplicateInList) if !names.is_empty() => {
                if let Some(name) = names.get(at).cloned() {
                    names.insert(at, name);
                }
            }
            Some(Lie::PhantomInList) => {
                let phantom = format!("{}/{:032x}", "00", self.state().random.next());
                names.extend(ObjectName::parse(&phantom).ok());
                names.sort();
            }
            _ => {}
        }
        if let Some(lie) = lie {
            self.record_lie(lie);
        }
        let more = names.len() > limit;
        names.truncate(limit);
        self.answer(
            way,
            Operation::List,
            None,
            deadline,
            Ok(Page { names, more }),
        )
        .await
    }

    pub(in super::super) async fn delete(
        &self,
        name: &ObjectName,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let way = self
            .arrive(Operation::Delete, Some(name), deadline, None)
            .await?;
        self.delete_now(name);
        self.answer(way, Operation::Delete, Some(name), deadline, Ok(()))
            .await
    }
}
