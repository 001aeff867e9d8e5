//! Sessions that mount the realm together and ask for its news, as gateways do.

use super::{Call, Chance};
use crate::attributes::Credentials;
use crate::identity::{LogPosition, RealmId};
use crate::operation::{Operation, Takeover};
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, QueryResult, Response};
use std::collections::BTreeMap;

/// How far each client knows the change log.
#[derive(Clone, Debug, Default)]
pub struct Mounts {
    known: BTreeMap<usize, LogPosition>,
}

impl Mounts {
    /// A mount, its end or a question of this client; or `None`: something else is next.
    pub fn next(&self, client: usize, chance: Chance<'_>) -> Option<Call> {
        let realm = RealmId::ROOT;
        let mount = Operation::MountRealm {
            realm,
            takeover: Takeover::Refused,
            alone: false,
            label: format!("client {client}"),
        };
        let Some(position) = self.known.get(&client).copied() else {
            return (chance(3) == 0).then(|| Call::Execute(mount.to_bytes()));
        };
        let news = |after| {
            let query = Query {
                credentials: Credentials::root(),
                question: Question::News { realm, after },
            };
            Some(Call::Query(query.to_bytes()))
        };
        match chance(40) {
            0 => Some(Call::Execute(Operation::UnmountRealm { realm }.to_bytes())),
            1 => Some(Call::Execute(mount.to_bytes())),
            2 => news(None),
            3..8 => news(Some(position)),
            _ => None,
        }
    }

    /// Learns from an answer; `None`: it was lost.
    pub fn learn(&mut self, client: usize, call: &[u8], answer: Option<&[u8]>) {
        let is_mount = match Operation::from_bytes(call) {
            Ok(Operation::MountRealm { .. } | Operation::UnmountRealm { .. }) => true,
            Ok(_) => return,
            Err(_) => false,
        };
        let position = match answer {
            Some(answer) if is_mount => match Response::from_bytes(answer) {
                Ok(Response(Ok(Done::Mounted { position, .. }))) => Some(position),
                _ => None,
            },
            Some(answer) => match Answer::from_bytes(answer) {
                Ok(Answer(Ok(QueryResult::News { position, .. }))) => Some(position),
                Ok(Answer(Err(crate::error::Error::NotMounted))) => None,
                _ => return,
            },
            None if is_mount => None,
            None => return,
        };
        match position {
            Some(position) => self.known.insert(client, position),
            None => self.known.remove(&client),
        };
    }
}
