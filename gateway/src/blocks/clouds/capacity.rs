//! The clouds' free space together, in plain bytes.
//!
//! A write of x bytes is done when w clouds have taken x / k bytes each, and completed when all
//! have. So a cloud with b free bytes is good for k b bytes of content, and the volume takes as
//! much as the cloud with the w-th largest free space does. f full clouds do not block it, and f
//! clouds that lie about their free space, in either direction, do not move the answer past the
//! statements of honest clouds. Clouds that share a disk, as its directories do, get an equal part
//! of its free space each.
//!
//! A cloud without a statement sets no bound: most object stores take whatever is paid for. For a
//! cloud that does not answer, its last statement counts. Headers, and a file system's overhead for
//! each file, are left out: they are less than a hundredth of any file above a mebibyte.

use super::{Clouds, Link};
use quorumfs_backends::{Deadline, FreeSpace};
use quorumfs_metadata::placement::Policy;
use std::sync::Arc;
use tokio::task::JoinSet;

/// The content that clouds with this free space take; `None` if there is no bound.
fn combined_capacity(rooms: &[Option<FreeSpace>], policy: Policy) -> Option<u64> {
    let sharers = |room: &FreeSpace| {
        let same = |other: &&FreeSpace| other.pool == room.pool;
        rooms.iter().flatten().filter(same).count() as u64
    };
    let data = u64::from(policy.data());
    let mut each: Vec<u64> = rooms
        .iter()
        .map(|room| {
            room.as_ref().map_or(u64::MAX, |room| {
                let part = room.bytes.checked_div(sharers(room)).unwrap_or(0);
                part.saturating_mul(data)
            })
        })
        .collect();
    each.sort_unstable_by(|one, other| other.cmp(one));
    let last = usize::from(policy.write_quorum()).saturating_sub(1);
    let bytes = each.get(last).copied().unwrap_or(0);
    (bytes != u64::MAX).then_some(bytes)
}

impl Clouds {
    /// Asks the clouds.
    pub(in crate::blocks) async fn capacity(&self) -> Option<u64> {
        let deadline = Deadline::after(self.config.timeouts.suspect);
        let mut questions = JoinSet::new();
        for link in self.attached().active() {
            let link: Arc<Link> = Arc::clone(link);
            questions.spawn(async move { link.room(deadline).await });
        }
        combined_capacity(&questions.join_all().await, self.config.policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn policy() -> Policy {
        Policy::new(4, 1, 2, 4).unwrap()
    }

    fn room(pool: u64, mebibytes: u64) -> Option<FreeSpace> {
        let bytes = mebibytes * MIB;
        Some(FreeSpace { pool, bytes })
    }

    #[test]
    fn the_cloud_with_the_wth_largest_capacity_decides() {
        let rooms = [room(1, 10), room(2, 40), room(3, 30), room(4, 20)];
        assert_eq!(combined_capacity(&rooms, policy()), Some(40 * MIB));
    }

    #[test]
    fn one_that_is_full_or_exaggerates_decides_nothing() {
        let honest = [room(1, 30), room(2, 30), room(3, 30)];
        for liar in [0, 30, 1 << 30] {
            let rooms = [honest[0], honest[1], honest[2], room(4, liar)];
            assert_eq!(
                combined_capacity(&rooms, policy()),
                Some(60 * MIB),
                "{liar}"
            );
        }
        let two_full = [room(1, 30), room(2, 0), room(3, 30), room(4, 0)];
        assert_eq!(combined_capacity(&two_full, policy()), Some(0));
    }

    #[test]
    fn clouds_on_one_disk_have_a_part_of_it_each() {
        let rooms = [room(7, 100), room(7, 100), room(7, 100), room(7, 100)];
        assert_eq!(combined_capacity(&rooms, policy()), Some(50 * MIB));
    }

    #[test]
    fn an_unknown_capacity_is_no_bound() {
        assert_eq!(combined_capacity(&[None; 4], policy()), None);
        let one = [room(1, 10), None, None, None];
        assert_eq!(combined_capacity(&one, policy()), None);
        let two = [room(1, 10), room(2, 20), None, None];
        assert_eq!(combined_capacity(&two, policy()), Some(40 * MIB));
    }
}
