//! A network that waits for the critical moment.
//!
//! Frames lost at random leave two different certificates for one sequence only once in thousands
//! of runs, and safety depends on whether a view begins with the right one of them. So this network
//! does it on purpose, as an asynchronous one always may:
//!
//! ```text
//!  Lock   only one replica receives PREPAREs, none receives COMMITs: it alone is prepared. Then
//!         all change their view:
//!  Hide   it is cut off, so the next view knows nothing of its certificate; of what the others
//!         prepare in its place only one receives COMMITs. When that one has executed:
//!  Show   it is cut off instead, and the first one is back with its old certificate; it receives
//!         no proposal or vote before the others change their view, so that it still has it then.
//! ```

use super::Simulation;
use crate::workload::Workload;
use bytes::Bytes;
use quorumfs_bft::wire::message::Kind;

/// The progress of an ambush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Lock,
    Hide,
    Show,
    Over,
}

/// A running ambush.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ambush {
    fault: usize,
    alone: usize,
    receiver: usize,
    phase: Phase,
}

impl<W: Workload> Simulation<'_, W> {
    pub(super) fn begin_ambush(&mut self, fault: usize, alone: usize, receiver: usize) {
        self.ambush = Some(Ambush {
            fault,
            alone,
            receiver,
            phase: Phase::Lock,
        });
    }

    pub(super) fn end_ambush(&mut self, fault: usize) {
        self.ambush = self.ambush.filter(|ambush| ambush.fault != fault);
    }

    /// A node has executed a batch.
    pub(super) fn advance_ambush(&mut self, node: usize) {
        if let Some(ambush) = &mut self.ambush
            && ambush.phase == Phase::Hide
            && ambush.receiver == node
        {
            ambush.phase = Phase::Show;
            self.counters.count("ambushes");
            self.note(|_| "ambush: the old certificate is shown".into());
        }
    }

    /// Whether a frame between nodes is lost in an ambush.
    pub(super) fn ambushed(&mut self, from: usize, to: usize, frame: &Bytes) -> bool {
        let Some(ambush) = &mut self.ambush else {
            return false;
        };
        let kind = Kind::of_tag(frame.get(..8).unwrap_or_default());
        let change = matches!(kind, Some(Kind::ViewChange | Kind::Claims));
        if ambush.phase == Phase::Lock && change {
            ambush.phase = Phase::Hide;
        }
        let changes = change && from != ambush.alone;
        if ambush.phase == Phase::Show && changes && from != ambush.receiver {
            ambush.phase = Phase::Over;
        }
        let touches = |node: usize| from == node || to == node;
        let lost = match ambush.phase {
            Phase::Lock => match kind {
                Some(Kind::Prepare) => to != ambush.alone,
                Some(Kind::Commit) => true,
                _ => false,
            },
            Phase::Hide => {
                touches(ambush.alone) || (kind == Some(Kind::Commit) && to != ambush.receiver)
            }
            Phase::Show => {
                let votes = matches!(kind, Some(Kind::Proposal | Kind::Prepare | Kind::Commit));
                touches(ambush.receiver) || (votes && touches(ambush.alone))
            }
            Phase::Over => touches(ambush.receiver),
        };
        if lost {
            self.effective.insert(ambush.fault);
        }
        lost
    }
}
