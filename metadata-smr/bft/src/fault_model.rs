//! Every quorum, computed here and nowhere else.
//!
//! Two numbers describe what may go wrong: the cluster is *live* while at most `u` replicas fail in
//! any way, and *right* while at most `r` of them lie (a replica that forgot its own promises is
//! one of these). n ≥ 2u + r + 1 replicas suffice; a spare one during a swap is allowed.
//!
//! * small, r + 1: holds at least one correct voucher;
//! * medium, q = ⌈(n + r + 1) / 2⌉ ≤ n − u: any two share r + 1 members, one of them
//!   correct;
//! * survival, max(u, r) + 1: where a hash stands for bytes that must still exist.
//!
//! Source: A. Clement, "UpRight Fault Tolerance" (2010), chapters 2 and 6.

/// The failures that a cluster is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct FaultModel {
    up: u16,
    right: u16,
    replicas: u16,
}

/// The most replicas that a cluster may have.
pub const REPLICAS_MAX: u16 = 64;

/// A cluster that cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultModelError {
    /// Too few replicas for the faults to survive.
    #[error(
        "{replicas} replicas cannot survive u = {up}, r = {right}: at least {needed} are needed"
    )]
    TooFew {
        /// How many there are.
        replicas: u16,
        /// Failures of any kind.
        up: u16,
        /// Commission failures.
        right: u16,
        /// How many are needed.
        needed: u32,
    },
    /// So many that the medium quorum could not be met with u of them down.
    #[error(
        "{replicas} replicas are too many for u = {up}, r = {right}: \
         a quorum of {quorum} could not be met with {up} down"
    )]
    TooManySpares {
        /// How many there are.
        replicas: u16,
        /// Failures of any kind.
        up: u16,
        /// Commission failures.
        right: u16,
        /// The medium quorum that would follow.
        quorum: u16,
    },
    /// More than this library handles.
    #[error("{replicas} replicas are more than the {REPLICAS_MAX} that are supported")]
    TooMany {
        /// How many there are.
        replicas: u16,
    },
}

impl FaultModel {
    /// `replicas` replicas, live with `up` failures of any kind and right with `right` liars.
    ///
    /// # Errors
    /// If the numbers contradict each other.
    pub fn new(up: u16, right: u16, replicas: u16) -> Result<Self, FaultModelError> {
        let needed = 2 * u32::from(up) + u32::from(right) + 1;
        if u32::from(replicas) < needed {
            return Err(FaultModelError::TooFew {
                replicas,
                up,
                right,
                needed,
            });
        }
        if replicas > REPLICAS_MAX {
            return Err(FaultModelError::TooMany { replicas });
        }
        let model = Self {
            up,
            right,
            replicas,
        };
        if model.medium() > replicas - up {
            let quorum = model.medium();
            return Err(FaultModelError::TooManySpares {
                replicas,
                up,
                right,
                quorum,
            });
        }
        Ok(model)
    }

    /// u: failures of any kind that the cluster stays live with.
    #[must_use]
    pub const fn up(&self) -> u16 {
        self.up
    }

    /// r: commission failures that the cluster stays right with.
    #[must_use]
    pub const fn right(&self) -> u16 {
        self.right
    }

    /// n: voters.
    #[must_use]
    pub const fn replicas(&self) -> u16 {
        self.replicas
    }

    /// r + 1: at least one of them is correct.
    #[must_use]
    pub const fn small(&self) -> u16 {
        self.right + 1
    }

    /// ⌈(n + r + 1) / 2⌉: any two such sets share a correct replica.
    #[must_use]
    pub const fn medium(&self) -> u16 {
        (self.replicas + self.right + 1).div_ceil(2)
    }

    /// max(u, r + 1): how many voters have to report nearly full disks before the state stops
    /// growing. Liars alone are too few, and where so many stop for it, one more failure stops the
    /// cluster.
    #[must_use]
    pub const fn shortage(&self) -> usize {
        let small = self.small();
        (if self.up > small { self.up } else { small }) as usize
    }

    /// max(u, r) + 1: of these at least one is correct and at least one is up.
    #[must_use]
    pub const fn survival(&self) -> u16 {
        if self.up > self.right {
            self.up + 1
        } else {
            self.right + 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quorums_intersect_and_can_be_met_over_the_grid() {
        for up in 0..6_u16 {
            for right in 0..6_u16 {
                let n = 2 * up + right + 1;
                let model = FaultModel::new(up, right, n).expect("the minimum suffices");
                let q = model.medium();
                assert!(2 * q > n + right, "two quorums share r + 1");
                assert!(q <= n - up, "a quorum can be met with u down");
                assert!(model.small() >= 1 && model.small() <= q);
                assert!(FaultModel::new(up, right, n - 1).is_err());
            }
        }
    }

    #[test]
    fn the_presets_are_what_the_literature_says() {
        let four = FaultModel::new(1, 1, 4).expect("3f + 1");
        assert_eq!((four.small(), four.medium(), four.survival()), (2, 3, 2));
        let three = FaultModel::new(1, 0, 3).expect("2c + 1");
        assert_eq!((three.small(), three.medium(), three.survival()), (1, 2, 2));
        let two = FaultModel::new(0, 1, 2).expect("a detector of non-determinism");
        assert_eq!((two.small(), two.medium(), two.survival()), (2, 2, 2));
        let one = FaultModel::new(0, 0, 1).expect("embedded");
        assert_eq!((one.small(), one.medium(), one.survival()), (1, 1, 1));
    }

    #[test]
    fn a_spare_is_allowed_as_long_as_quorums_can_be_met() {
        assert!(FaultModel::new(1, 1, 5).is_ok());
        assert!(matches!(
            FaultModel::new(0, 0, 65),
            Err(FaultModelError::TooMany { .. })
        ));
    }
}
