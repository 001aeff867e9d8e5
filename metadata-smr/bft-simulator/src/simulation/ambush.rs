//! A network that waits for its moment.
//!
//! Frames lost at random leave two different certificates for one sequence behind only once in
//! thousands of runs, and whether a view begins with the right one of them is what safety hangs on.
//! So a network may do it on purpose, which an asynchronous one may always do:
//!
//! ```text
//!  Lock   only one replica hears PREPAREs, nobody COMMITs: it alone is prepared. Then they change
//!         their view:
//!  Hide   it is cut off, so the next view knows nothing of that; of what the others prepare in its
//!         place only one hears COMMITs. When that one has executed:
//!  Show   it is cut off instead, and the first one is back with its old certificate; it hears of
//!         no proposal or vote before the others change their view, so that it still has it then.
//! ```

use super::Simulation;
use crate::workload::Workload;
use bytes::Bytes;
use quorumfs_bft::wire::message::Kind;

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Lock,
    Hide,
    Show,
    Over,
}

/// An ambush under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ambush {
    fault: usize,
    alone: usize,
    hears: usize,
    phase: Phase,
}

impl<W: Workload> Simulation<'_, W> {
    pub(super) fn begin_ambush(&mut self, fault: usize, alone: usize, hears: usize) {
        self.ambush = Some(Ambush {
            fault,
            alone,
            hears,
            phase: Phase::Lock,
        });
    }

    pub(super) fn end_ambush(&mut self, fault: usize) {
        self.ambush = self.ambush.filter(|ambush| ambush.fault != fault);
    }

    /// A node has executed something.
    pub(super) fn ambush_sees(&mut self, node: usize) {
        if let Some(ambush) = &mut self.ambush
            && ambush.phase == Phase::Hide
            && ambush.hears == node
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
        if ambush.phase == Phase::Show && changes && from != ambush.hears {
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
                touches(ambush.alone) || (kind == Some(Kind::Commit) && to != ambush.hears)
            }
            Phase::Show => {
                let votes = matches!(kind, Some(Kind::Proposal | Kind::Prepare | Kind::Commit));
                touches(ambush.hears) || (votes && touches(ambush.alone))
            }
            Phase::Over => touches(ambush.hears),
        };
        if lost {
            self.effective.insert(ambush.fault);
        }
        lost
    }
}
