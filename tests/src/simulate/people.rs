//! People who come and go, under simulation.
//!
//! The clients' principals are admitted, dismissed and left out of key epochs by each other. The
//! workload and the plain model are the metadata crate's. The search for one order that explains
//! all answers shows what matters: once a dismissal was answered, no quorum answers the principal
//! any more, nor one that a key epoch has left out; and all others are answered.

use bytes::Bytes;
use quorumfs_bft::identity::{PublicKey, SessionId, Time};
use quorumfs_bft::service::{Caller, Context, Credit, Service};
use quorumfs_bft::state::{StateError, Txn, View};
use quorumfs_bft_simulator::history::{Call, History, OperationKind};
use quorumfs_bft_simulator::linearizability::{self, check, check_sessions};
use quorumfs_bft_simulator::random::Random;
use quorumfs_bft_simulator::workload::Workload;
use quorumfs_metadata::Metadata;
use quorumfs_metadata::identity::{PrincipalId, RealmId};
use quorumfs_metadata::operation::Operation;
use quorumfs_metadata::people::PeopleStep;
use quorumfs_metadata::reply::{Done, Response};
use quorumfs_metadata::row::{Row, Session, key};
use quorumfs_metadata::session::CREDIT;
use quorumfs_metadata::simulation::people::{PeopleCalls, PeopleModel, genesis, key_of};
use quorumfs_metadata::simulation::sign;
use quorumfs_metadata::simulation::workload::Call as MetadataCall;
use std::sync::OnceLock;

/// The genesis's parameters of the metadata servers; the service only stores them.
const SERVERS: (u16, u16, u16) = (1, 1, 4);

/// A defect of every replica's metadata service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeopleDefect {
    /// A dismissed principal stays one.
    DismissalUndone,
    /// A member that a key epoch leaves out stays one.
    LeftOutStays,
    /// A principal whose rights are changed keeps its role.
    RoleStays,
    /// The further machines of a dismissed principal stay.
    MachinesStay,
    /// A share that was ended is there as if it were not.
    EndedShareStays,
}

impl PeopleDefect {
    /// Every defect.
    pub const ALL: [Self; 5] = [
        Self::DismissalUndone,
        Self::LeftOutStays,
        Self::RoleStays,
        Self::MachinesStay,
        Self::EndedShareStays,
    ];

    /// Whether rows with this prefix stay what they were when an operation has succeeded.
    fn keeps(self, operation: &Operation) -> Option<Vec<u8>> {
        match (self, operation) {
            (Self::LeftOutStays, Operation::BeginEpoch(_)) => Some(key::members(RealmId::ROOT)),
            (Self::EndedShareStays, Operation::EndShare(_)) => Some(key::all_shares()),
            (_, Operation::ChangePeople(ordered)) => {
                let change = ordered.signed.decoded()?;
                match (self, change.step) {
                    (Self::DismissalUndone, PeopleStep::Dismiss { principal })
                    | (Self::RoleStays, PeopleStep::Regrant { principal, .. }) => {
                        Some(key::principal(&principal))
                    }
                    (Self::MachinesStay, PeopleStep::Dismiss { .. }) => Some(key::principals()),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// The metadata service for principals whose simulated keys stand for real ones. All sessions are
/// opened, of those that are no principals too: what they are answered is what is judged.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeopleService {
    defect: Option<PeopleDefect>,
}

/// The principal that an operation dismisses.
fn decoded_dismissal(operation: &[u8]) -> Option<PrincipalId> {
    let Ok(Operation::ChangePeople(ordered)) = Operation::from_bytes(operation) else {
        return None;
    };
    match ordered.signed.decoded()?.step {
        PeopleStep::Dismiss { principal } => Some(principal),
        _ => None,
    }
}

fn real(caller: &Caller) -> Caller {
    Caller {
        session: caller.session,
        principal: key_of(&caller.principal),
    }
}

#[deny(clippy::missing_trait_methods)]
impl Service for PeopleService {
    fn genesis(&self, txn: &mut Txn<'_>, genesis: &[u8]) -> Result<(), StateError> {
        Metadata.genesis(txn, genesis)
    }

    fn sessions_begin_after(&self, genesis: &[u8]) -> SessionId {
        Metadata.sessions_begin_after(genesis)
    }

    fn open_session(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
    ) -> Result<Option<Credit>, StateError> {
        let caller = real(caller);
        if let Some(credit) = Metadata.open_session(txn, context, &caller)? {
            return Ok(Some(credit));
        }
        let session = Session {
            principal: caller.principal,
            opened: context.time,
            mounted: None,
            fenced_by: None,
            allocations: Vec::new(),
        };
        txn.put(&key::session(caller.session), session.to_bytes())?;
        Ok(Some(CREDIT))
    }

    fn may_open(&self, view: &View<'_>, principal: &PublicKey) -> Result<bool, StateError> {
        let _ = (view, principal);
        Ok(true)
    }

    fn administers(
        &self,
        view: &View<'_>,
        principal: &PublicKey,
    ) -> Result<Option<bool>, StateError> {
        // The simulated administrator is a founder, and the cluster's faults are not in question.
        let _ = (view, principal);
        Ok(None)
    }

    fn may_copy(&self, view: &View<'_>, principal: &PublicKey) -> Result<bool, StateError> {
        Metadata.may_copy(view, &key_of(principal))
    }

    fn close_session(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
    ) -> Result<(), StateError> {
        Metadata.close_session(txn, context, &real(caller))
    }

    fn execute(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
        operation: &[u8],
    ) -> Result<Bytes, StateError> {
        let caller = real(caller);
        let decoded = Operation::from_bytes(operation).ok();
        let kept = decoded.and_then(|it| self.defect?.keeps(&it));
        let before = match &kept {
            Some(prefix) => {
                let end = quorumfs_bft::state::prefix_end(prefix);
                txn.scan(prefix..end.as_slice(), usize::MAX)?
            }
            None => Vec::new(),
        };
        let response = Metadata.execute(txn, context, &caller, operation)?;
        let succeeded = Response::from_bytes(&response).is_ok_and(|Response(it)| {
            matches!(
                it,
                Ok(Done::PeopleChanged { .. } | Done::EpochBegun { .. } | Done::ShareEnded)
            )
        });
        // Machines alone stay, and not what they are of.
        let gone = decoded_dismissal(operation).map(|it| key::principal(&it));
        let is_kept = |row_key: &[u8]| {
            self.defect != Some(PeopleDefect::MachinesStay) || gone.as_deref() != Some(row_key)
        };
        let kept = before
            .into_iter()
            .filter(|(row_key, _)| succeeded && is_kept(row_key));
        for (row_key, bytes) in kept {
            txn.put(&row_key, bytes.to_vec())?;
        }
        Ok(response)
    }

    fn read(&self, view: &View<'_>, caller: &Caller, query: &[u8]) -> Result<Bytes, StateError> {
        Metadata.read(view, &real(caller), query)
    }

    fn read_in_order(
        &self,
        view: &View<'_>,
        context: &Context,
        caller: &Caller,
        query: &[u8],
    ) -> Result<Bytes, StateError> {
        let _ = context;
        self.read(view, caller, query)
    }

    fn watch(
        &self,
        view: &View<'_>,
        caller: &Caller,
        watch: &[u8],
    ) -> Result<Option<Vec<Bytes>>, StateError> {
        Metadata.watch(view, &real(caller), watch)
    }

    fn next_deadline(&self, view: &View<'_>) -> Result<Option<Time>, StateError> {
        Metadata.next_deadline(view)
    }

    fn tick(&self, txn: &mut Txn<'_>, context: &Context) -> Result<(), StateError> {
        Metadata.tick(txn, context)
    }
}

/// Clients that admit, dismiss and leave each other out.
#[derive(Debug, Default)]
pub struct PeopleWorkload {
    /// The simulated keys of the clients, in their order.
    keys: OnceLock<Vec<PublicKey>>,
    calls: Option<PeopleCalls>,
    service: PeopleService,
}

impl PeopleWorkload {
    /// The same of a service with a defect.
    #[must_use]
    pub fn planted(defect: Option<PeopleDefect>) -> Self {
        Self {
            service: PeopleService { defect },
            ..Self::default()
        }
    }

    fn keys(&self) -> &[PublicKey] {
        self.keys.get().map_or(&[], Vec::as_slice)
    }
}

impl Workload for PeopleWorkload {
    type Service = PeopleService;

    fn service(&self) -> PeopleService {
        self.service
    }

    fn genesis(&self, principals: &[PublicKey]) -> Bytes {
        let keys = self.keys.get_or_init(|| principals.to_vec());
        match genesis(keys, SERVERS) {
            Ok(genesis) => Bytes::from(sign(&genesis)),
            // The service refuses an empty genesis, and the run fails.
            Err(_) => Bytes::new(),
        }
    }

    fn next(&mut self, client: usize, random: &mut Random) -> (OperationKind, Bytes) {
        let keys = self.keys.get().map_or(&[][..], Vec::as_slice);
        let calls = self.calls.get_or_insert_with(|| PeopleCalls::new(keys));
        match calls.next(client, &mut |bound| random.below(bound)) {
            MetadataCall::Execute(bytes) => (OperationKind::Execute, Bytes::from(bytes)),
            MetadataCall::Query(bytes) => (OperationKind::Query, Bytes::from(bytes)),
        }
    }

    fn answered(&mut self, _: usize, operation: &Bytes, answer: Option<&Bytes>) {
        if let (Some(calls), Some(answer)) = (&mut self.calls, answer) {
            calls.learn(operation, answer);
        }
    }

    fn judge(&self, history: &History) -> Result<(), String> {
        check(&Volume(self.keys()), history).map_err(|failure| failure.to_string())
    }

    fn judge_sessions(&self, history: &History) -> Result<(), String> {
        check_sessions(&Volume(self.keys()), history, |_| ())
    }
}

/// The principals of a volume as the sequential object.
#[derive(Clone, Copy, Debug)]
struct Volume<'k>(&'k [PublicKey]);

impl linearizability::Model for Volume<'_> {
    type State = PeopleModel;

    fn initial(&self) -> PeopleModel {
        PeopleModel::new(self.0)
    }

    fn apply(&self, state: &PeopleModel, call: &Call) -> Vec<PeopleModel> {
        let Some(principal) = self.0.get(call.client).map(key_of) else {
            return Vec::new();
        };
        let answer = call.answer.as_ref().map(|(_, answer)| answer.as_ref());
        match (call.kind, answer) {
            (OperationKind::Execute, answer) => state.after(principal, &call.operation, answer),
            (_, Some(answer)) => {
                let after = state.answered(principal, &call.operation, answer);
                after.into_iter().collect()
            }
            _ => vec![state.clone()],
        }
    }
}

#[cfg(test)]
mod tests;
