//! What happens to objects later than to the requests for them: losses, and puts that are executed
//! after a deletion.

use super::{CloudState, Object, SimulatedCloud};
use quorumfs_backends::ObjectName;
use std::time::Duration;
use tokio::time::Instant;

impl SimulatedCloud {
    /// Deletes an object because of a request; a late put may bring it back.
    pub(super) fn delete_now(&self, name: &ObjectName) {
        let state = &mut *self.state();
        state.deleted.insert(name.clone());
        let Some(object) = state.objects.remove(name) else {
            return;
        };
        state.gone.insert(name.clone(), object.body.clone());
        if state.late_per_mille > 0 && state.random.chance(state.late_per_mille, 1000) {
            let length = Duration::from_millis(state.random.between(1, 20_000));
            let late = (Instant::now() + length, name.clone(), object.body);
            state.late.push(late);
            self.ledger.late(self.index, name);
        }
    }
}

impl CloudState {
    pub(super) fn forget_lost(&mut self) {
        let now = Instant::now();
        let late = std::mem::take(&mut self.late);
        let (due, late) = late.into_iter().partition(|(when, ..)| *when <= now);
        self.late = late;
        for (_, name, body) in due {
            let object = Object { body, lost: None };
            self.objects.entry(name).or_insert(object);
        }
        let is_lost = |object: &Object| object.lost.is_some_and(|lost| lost <= now);
        let lost: Vec<ObjectName> = self
            .objects
            .iter()
            .filter(|(_, object)| is_lost(object))
            .map(|(name, _)| name.clone())
            .collect();
        for name in lost {
            if let Some(object) = self.objects.remove(&name) {
                self.gone.insert(name, object.body);
            }
        }
    }
}
