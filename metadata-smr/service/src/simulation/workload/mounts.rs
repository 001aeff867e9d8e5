//! Sessions that mount the realm alone or together and ask for its news, as gateways do. In half of
//! the runs mounts last.

use super::{Call, Chance};
use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::{LogPosition, RealmId};
use crate::operation::{Operation, Takeover};
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, QueryResult, Response};
use crate::row::MountMode;
use std::collections::BTreeMap;

/// A mount of a client.
#[derive(Clone, Copy, Debug)]
struct ClientMount {
    /// How far it knows the change log.
    known: LogPosition,
    /// It has to share the realm.
    recalled: bool,
}

/// The mounts of all clients.
#[derive(Clone, Debug, Default)]
pub struct Mounts {
    mounted: BTreeMap<usize, ClientMount>,
    /// Whether mounts last, once it was drawn.
    lasting: Option<bool>,
}

const LABEL: &str = "client ";

/// The client of a mount, by its label.
pub(in crate::simulation) fn client_of(label: &str) -> Option<usize> {
    label.strip_prefix(LABEL)?.parse().ok()
}

fn mount(client: usize, mode: MountMode) -> Option<Call> {
    let mount = Operation::MountRealm {
        realm: RealmId::ROOT,
        takeover: Takeover::Refused,
        mode,
        label: format!("{LABEL}{client}"),
    };
    Some(Call::Execute(mount.to_bytes()))
}

fn any_mode(chance: Chance<'_>) -> MountMode {
    match chance(8) {
        0 => MountMode::Exclusive,
        1..5 => MountMode::Alone,
        _ => MountMode::Shared,
    }
}

impl Mounts {
    /// Mounts that do not last in any run.
    #[must_use]
    pub fn brief() -> Self {
        Self {
            lasting: Some(false),
            ..Self::default()
        }
    }

    /// Whether the client has the realm mounted, as far as it knows.
    #[must_use]
    pub fn has(&self, client: usize) -> bool {
        self.mounted.contains_key(&client)
    }

    /// A mount, its end or a question of this client; or `None`: something else is next.
    pub fn next(&mut self, client: usize, chance: Chance<'_>) -> Option<Call> {
        let realm = RealmId::ROOT;
        let lasting = *self.lasting.get_or_insert_with(|| chance(2) == 0);
        let Some(own) = self.mounted.get(&client).copied() else {
            return match chance(3) {
                0 if lasting => mount(client, MountMode::Shared),
                0 => mount(client, any_mode(chance)),
                _ => None,
            };
        };
        let news = |after| {
            let query = Query {
                credentials: Credentials::root(),
                question: Question::News { realm, after },
            };
            Some(Call::Query(query.to_bytes()))
        };
        if own.recalled && chance(2) == 0 {
            return mount(client, MountMode::Shared);
        }
        let drawn = chance(40);
        if lasting && drawn < 2 && chance(10) > 0 {
            return None;
        }
        match drawn {
            0 => Some(Call::Execute(Operation::UnmountRealm { realm }.to_bytes())),
            1 => mount(client, any_mode(chance)),
            2 => news(None),
            3..8 => news(Some(own.known)),
            _ => None,
        }
    }

    /// Learns from an answer; `None`: it was lost.
    pub fn learn(&mut self, client: usize, call: &[u8], answer: Option<&[u8]>) {
        let is_mount = match Operation::from_bytes(call) {
            Ok(Operation::MountRealm { .. } | Operation::UnmountRealm { .. }) => true,
            Ok(Operation::Lock(_)) => {
                if let Some(Ok(Response(Err(refusal)))) = answer.map(Response::from_bytes)
                    && refusal.error == Error::NotMounted
                {
                    self.mounted.remove(&client);
                }
                return;
            }
            Ok(_) => return,
            Err(_) => false,
        };
        let mounted = match answer {
            Some(answer) if is_mount => match Response::from_bytes(answer) {
                Ok(Response(Ok(Done::Mounted { position, .. }))) => Some((position, false)),
                _ => None,
            },
            Some(answer) => match Answer::from_bytes(answer) {
                Ok(Answer(Ok(QueryResult::News {
                    position, recalled, ..
                }))) => Some((position, recalled)),
                Ok(Answer(Err(Error::NotMounted))) => None,
                _ => return,
            },
            None if is_mount => None,
            None => return,
        };
        match mounted {
            Some((known, recalled)) => {
                let own = ClientMount { known, recalled };
                self.mounted.insert(client, own);
            }
            None => {
                self.mounted.remove(&client);
            }
        };
    }
}
