//! What a service has to provide to be simulated.
//!
//! Implement [`Workload`] for a service of your own and pass it to
//! [`Simulation::run`](crate::simulation::Simulation::run): the simulator provides cluster,
//! clients, faults and liars, and judges agreement, exactly-once and progress by itself. The
//! workload adds what is specific to the service: which operations make sense, and whether the
//! answers that the clients saw could have come from one correct machine
//! ([`crate::linearizability`] helps). [`crate::key_value`] is a complete example.
//!
//! There are also clients that lie: they contradict themselves, flood, and send operations that
//! consist of repeated bytes or the word `nonsense`. Their calls are not in the history, so such
//! operations must have no effect, or one that the judge allows for.

use crate::history::{History, OperationKind};
use crate::random::Random;
use bytes::Bytes;
use quorumfs_bft::identity::PublicKey;
use quorumfs_bft::service::Service;

/// A service under test with its operations and its judge.
pub trait Workload {
    /// The replicated application.
    type Service: Service + 'static;

    /// A fresh instance for one replica; called at every start of a replica.
    fn service(&self) -> Self::Service;

    /// The bytes that every replica is initialised with. Sessions of `principals` have to be
    /// admitted with at least four lanes.
    fn genesis(&self, principals: &[PublicKey]) -> Bytes;

    /// The next operation of a client.
    fn next(&mut self, client: usize, random: &mut Random) -> (OperationKind, Bytes);

    /// The keys that clients watch ([`Service::watch`]): each client watches all of them. The
    /// simulator reads the rows under the prefixes before and after every call of the service, and
    /// expects a report of every change, so writing a row must change it.
    fn watches(&self) -> Vec<Bytes> {
        Vec::new()
    }

    /// A client learns an answer, or (`None`) that it will never learn one.
    fn answered(&mut self, client: usize, operation: &Bytes, answer: Option<&Bytes>) {
        let _ = (client, operation, answer);
    }

    /// Decides whether the clients' answers could come from one correct machine.
    ///
    /// # Errors
    /// The answers that no correct machine could have given.
    fn judge(&self, history: &History) -> Result<(), String>;

    /// Decides whether each session's reads moved forward
    /// ([`check_sessions`](crate::linearizability::check_sessions) helps).
    ///
    /// # Errors
    /// A read that showed a state that never existed, or an outdated one.
    fn judge_sessions(&self, history: &History) -> Result<(), String> {
        let _ = history;
        Ok(())
    }
}
