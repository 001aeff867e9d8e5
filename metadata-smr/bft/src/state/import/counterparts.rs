//! The parts of an old tree at the place of a node that arrives: they are removed once the new one
//! is there.

use super::{Import, Node, NodeRef, Open, Prefix, Slots, StateError, Store};
use crate::state::nibbles::slot;

impl Import {
    pub(super) fn counterparts(
        &mut self,
        store: &dyn Store,
        open: &Open,
        prefix: &Prefix,
    ) -> Result<(Slots, Slots), StateError> {
        let old = match open.old {
            Some(old) => self.counterpart(store, old, prefix, true)?,
            None => Slots::new(),
        };
        let partial = match open.partial {
            Some(partial) => self.counterpart(store, partial, prefix, false)?,
            None => Slots::new(),
        };
        Ok((old, partial))
    }

    /// The parts of another tree below `prefix`, by slot of a branch there. Parts of the own tree
    /// next to it, which has to be complete, are not needed any more.
    fn counterpart(
        &mut self,
        store: &dyn Store,
        from: NodeRef,
        prefix: &Prefix,
        own: bool,
    ) -> Result<Slots, StateError> {
        let mut at = from;
        loop {
            let node = match own {
                true => Some(self.load_own(store, &at)?),
                false => self.load(store, &at)?,
            };
            let Some(Node::Branch(branch)) = node else {
                if own {
                    self.released.push(at.id);
                }
                return Ok(Slots::new());
            };
            let (mine, theirs) = (prefix.nibbles(), branch.prefix.nibbles());
            let shared = branch.prefix.common_with(prefix);
            if shared == mine && theirs > mine {
                return Ok(vec![(branch.prefix.slot(mine), at)]);
            }
            if shared < theirs {
                if own {
                    self.sweep.push(at);
                }
                return Ok(Slots::new());
            }
            if own {
                self.released.push(at.id);
            }
            if theirs == mine {
                return Ok(branch.children);
            }
            let towards = slot(prefix.bytes(), theirs);
            if own {
                let siblings = branch.children.iter().filter(|(own, _)| *own != towards);
                self.sweep.extend(siblings.map(|(_, child)| *child));
            }
            match branch.child(towards) {
                Some(child) => at = child,
                None => return Ok(Slots::new()),
            }
        }
    }
}
