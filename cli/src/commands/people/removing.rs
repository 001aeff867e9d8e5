//! `people remove`: a person, or one machine of a person.
//!
//! The servers refuse the keys at once. An administrator's command goes on: new keys begin, which
//! only the others have, and names are resealed. A member can remove a machine of its own, since a
//! thief does not wait for an administrator; the new keys are left to one.

use super::super::epochs::{self, RekeyLine};
use super::super::reseal;
use super::shown::{MachineRemoved, Removed};
use super::{People, harmless, has_ended};
use crate::arguments::{PeopleRemoveArguments, VolumeRekeyArguments};
use crate::exit::Exit;
use crate::explain::volume_failure;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::volume::Person;

impl People<'_> {
    pub(super) async fn remove(&self, arguments: &PeopleRemoveArguments) -> CommandResult {
        let volume = self.opened.volume();
        let left = volume.people_without_first_key().into_iter();
        let mut left = left.filter(|it| it.label == arguments.name);
        let is_machine = match self.find_other(&arguments.name) {
            // The replicas have dismissed it at its end.
            Ok(person) if has_ended(&person) && !self.has_machines(&person) => false,
            Ok(person) => self.refuse_keys(&person, arguments).await?,
            // Its first machine was removed, and there are others.
            Err(_) if let Some(left) = left.next() => {
                let dismissed = volume.dismiss(self.opened.metadata(), left.key);
                dismissed.await.map_err(|error| volume_failure(&error))?;
                false
            }
            Err(failure) => {
                // It was dismissed by a command that was interrupted before the new keys began.
                let dismissed = volume.dismissed_in(&arguments.name);
                let is_late = dismissed.is_none() || dismissed != volume.current_epoch();
                if is_late || !volume.administers() {
                    return Err(failure);
                }
                arguments.name.contains('@')
            }
        };
        let clouds = self.configured.clouds().iter();
        let clouds = clouds.map(|cloud| cloud.name.clone()).collect();
        let name = harmless(&arguments.name);
        if is_machine && !volume.administers() {
            let removed = MachineRemoved { name, clouds };
            self.output
                .record("removed", &removed, MachineRemoved::text)?;
            return Ok(Exit::Success);
        }
        let begun = epochs::begin(self.configured, self.opened, &as_before()).await;
        let rekey: RekeyLine = begun.map_err(|failure| {
            failure.hint(
                "the person is refused already; the same command again begins the new keys, once \
                 enough clouds answer",
            )
        })?;
        let names = reseal::reseal(self.opened, self.output)
            .await
            .map_err(|failure| {
                failure.hint(
                    "the person is refused already, and new keys have begun; `quorumfs volume \
                     reseal` goes on",
                )
            })?;
        let exit = names.exit_after(rekey.exit());
        let removed = Removed {
            name,
            is_machine,
            clouds,
            rekey,
            names,
        };
        self.output.record("removed", &removed, Removed::text)?;
        Ok(exit)
    }

    fn has_machines(&self, person: &Person) -> bool {
        let machines = self.opened.volume().machines();
        let key = person.statement.key;
        machines.values().any(|of| *of == key)
    }

    /// Has the replicas refuse a person's keys, or one of them; returns whether it was one of
    /// several.
    async fn refuse_keys(
        &self,
        person: &Person,
        arguments: &PeopleRemoveArguments,
    ) -> CommandResult<bool> {
        let (volume, metadata) = (self.opened.volume(), self.opened.metadata());
        let key = person.statement.key;
        let machines = volume.machines();
        let is_further = machines.contains_key(&key);
        let is_machine = is_further || arguments.this_machine_only;
        if arguments.this_machine_only && !is_further && !machines.values().any(|of| *of == key) {
            let name = harmless(&arguments.name);
            let message = format!("\"{name}\" has only one machine");
            return Err(Failure::new(Exit::Usage, message)
                .hint("without --this-machine-only, the person is removed"));
        }
        let of = |key| machines.get(key).copied();
        let me = volume.principal().id().signing;
        let is_own = of(&me).unwrap_or(me) == of(&key).unwrap_or(key);
        if !is_machine && !volume.administers() && is_own {
            let message = "only an administrator can remove a person with all machines";
            return Err(Failure::new(Exit::Usage, message).hint(
                "your first machine alone: `quorumfs people remove` with --this-machine-only",
            ));
        }
        let done = match is_machine {
            true => volume.drop_machine(metadata, key).await,
            false => volume.dismiss(metadata, key).await,
        };
        done.map_err(|error| volume_failure(&error))?;
        Ok(is_machine)
    }
}

/// A new key epoch with the lock that the present one has.
fn as_before() -> VolumeRekeyArguments {
    VolumeRekeyArguments::default()
}
