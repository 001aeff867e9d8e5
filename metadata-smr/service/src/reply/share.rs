//! Shares, in answers.

use crate::identity::ShareId;
use crate::row::Share;
use borsh::{BorshDeserialize, BorshSerialize};

/// A share in an answer.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ListedShare {
    /// Its number.
    pub id: ShareId,
    /// Its row. It has ended too if its person is none any more, or, of a link or a capsule, the
    /// principal that made it. The place is empty if the caller may not know it.
    pub share: Share,
    /// Whether the inode exists, outside of the trash.
    pub exists: bool,
}
