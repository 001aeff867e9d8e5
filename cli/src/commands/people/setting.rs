//! `people set`: what a person is from now on, and with it all of its machines.

use super::granting::{FIRST_UID, after, rights, role_of};
use super::{People, harmless};
use crate::arguments::PeopleSetArguments;
use crate::exit::Exit;
use crate::explain::volume_failure;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::blocks::ShareStore;
use quorumfs_gateway::volume::Grant;
use quorumfs_metadata::identity::PrincipalId;
use quorumfs_metadata::people::label_of_machine;
use quorumfs_metadata::row::Assertable;
use quorumfs_metadata::statement::Statement;

impl People<'_> {
    pub(super) async fn set(&self, arguments: &PeopleSetArguments) -> CommandResult {
        let volume = self.opened.volume();
        let person = self.find_lasting(&arguments.name)?.statement;
        let machines = self.machines_of(&person)?;
        if let Some(name) = &arguments.rename {
            self.check_name(name)?;
        }
        let uid = match (arguments.uid, &person.rights.uids) {
            (Some(uid), _) => uid,
            (None, Assertable::Only(uids)) => uids.first().map_or(FIRST_UID, |uid| uid.0),
            (None, Assertable::Any) => FIRST_UID,
        };
        let unchanged = arguments.groups.is_empty() && !arguments.no_groups;
        let groups = match (unchanged, &person.rights.gids) {
            (false, _) => self.groups(&arguments.groups)?,
            (true, Assertable::Only(gids)) => gids.iter().skip(1).copied().collect(),
            (true, Assertable::Any) => Vec::new(),
        };
        let role = arguments.role.unwrap_or_else(|| role_of(&person.rights));
        let grant = Grant {
            label: arguments.rename.clone().unwrap_or(person.label),
            rights: rights(role, uid, groups),
            expires: match arguments.expires {
                Some(time) => Some(after(time)),
                None if arguments.forever => None,
                None => person.expires,
            },
        };
        let me = volume.principal().id().signing;
        if machines.iter().any(|it| it.key == me) {
            let name = harmless(&arguments.name);
            let message = format!("this machine is one of \"{name}\", and no one changes itself");
            return Err(Failure::new(Exit::Usage, message).hint("another administrator can do it"));
        }
        let label = |machine| self.label_of(&grant, &person.key, machine);
        machines
            .iter()
            .map(label)
            .collect::<CommandResult<Vec<_>>>()?;
        let clouds = self.clouds()?;
        let changed = volume.regrant(self.opened.metadata(), &clouds, person.key, grant.clone());
        changed.await.map_err(|error| volume_failure(&error))?;
        let done = self.set_machines(&clouds, (&person.key, &grant)).await;
        done.map_err(|failure| {
            let label = harmless(&grant.label);
            failure.hint(format!(
                "not all machines of \"{label}\" are changed: type the same again, with that name"
            ))
        })?;
        self.list().await
    }

    /// The other machines of a person, by the statement that a name stands for. That of a further
    /// machine stands for the person if its first one was removed.
    pub(super) fn machines_of(&self, person: &Statement) -> CommandResult<Vec<Statement>> {
        let machines = self.opened.volume().machines();
        let of = |key: &PrincipalId| machines.get(key).copied();
        let first = of(&person.key).unwrap_or(person.key);
        let present = self.present().into_iter().map(|it| it.statement);
        let all: Vec<_> = present
            .filter(|it| it.key == first || of(&it.key) == Some(first))
            .collect();
        match all
            .iter()
            .find(|it| it.key == first && it.key != person.key)
        {
            None => Ok(all.into_iter().filter(|it| it.key != person.key).collect()),
            Some(first) => {
                let (name, machine) = (harmless(&first.label), harmless(&person.label));
                let message = format!("\"{machine}\" is a machine of \"{name}\"");
                Err(Failure::new(Exit::Usage, message)
                    .hint(format!("change \"{name}\": all machines follow")))
            }
        }
    }

    /// The label of a machine of a person that is granted something.
    fn label_of(
        &self,
        grant: &Grant,
        person: &PrincipalId,
        machine: &Statement,
    ) -> CommandResult<String> {
        let is_first = !self.opened.volume().machines().contains_key(person);
        let name = machine.label.rsplit_once('@').map_or("", |(_, name)| name);
        let label = label_of_machine((&grant.label, is_first), name);
        label.ok_or_else(|| {
            let message = "the name is too long with those of the machines behind it";
            Failure::new(Exit::Usage, message)
        })
    }

    /// Gives the further machines of a person what it has: its rights, its end, and its name before
    /// their own. The person comes first: from then on the replicas take no machine that has other
    /// rights. Those that were added until then are seen by looking again.
    async fn set_machines(
        &self,
        clouds: &ShareStore,
        (person, grant): (&PrincipalId, &Grant),
    ) -> CommandResult<()> {
        let (volume, metadata) = (self.opened.volume(), self.opened.metadata());
        loop {
            let learned = volume.learn_people(metadata).await;
            learned.map_err(|error| volume_failure(&error))?;
            let machines = volume.machines();
            let first = machines.get(person).copied().unwrap_or(*person);
            let mut others = self.present().into_iter().map(|it| it.statement);
            let differs = |it: &Statement| {
                machines.get(&it.key) == Some(&first)
                    && it.key != *person
                    && (it.rights != grant.rights || it.expires != grant.expires)
            };
            let renamed = |it: &Statement| {
                let label = self.label_of(grant, person, it);
                machines.get(&it.key) == Some(&first)
                    && it.key != *person
                    && label.is_ok_and(|label| label != it.label)
            };
            let Some(machine) = others.find(|it| differs(it) || renamed(it)) else {
                return Ok(());
            };
            let grant = Grant {
                label: self.label_of(grant, person, &machine)?,
                ..grant.clone()
            };
            let changed = volume.regrant(metadata, clouds, machine.key, grant);
            changed.await.map_err(|error| volume_failure(&error))?;
        }
    }
}
