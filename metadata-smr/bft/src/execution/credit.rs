//! The part of a replica's capacity that a session is granted.
//!
//! A replica stores everything that sessions send within their credit until it is executed, so the
//! credit of all sessions together must be within its capacity, and has to be the same on all
//! replicas: the sums that it follows from are rows. The capacity has two parts:
//!
//! * a *floor* for every session that may ever be open: the longest request, so that each session
//!   can make every possible request;
//! * the capacity *beyond the floor*: a session gets as much as the service wants for it, but at
//!   most a quarter of what is left for all and of what is left for its principal. So later
//!   sessions get less, but never nothing because one principal came first.
//!
//! A principal may have a quarter of all sessions. A session keeps its credit until it ends; then
//! the credit is released.

use super::rows::{ClockRow, PrincipalRow, SessionRow};
use crate::service::Credit;
use crate::wire::limits::{
    CREDIT_BEYOND_FLOOR, CREDIT_FLOOR, LANES_MAX, PRINCIPAL_CREDIT_BEYOND_FLOOR,
    PRINCIPAL_SESSIONS_MAX, SESSIONS_MAX,
};

/// Whether one more session is allowed, and one more of this principal.
pub(super) const fn has_room(clock: &ClockRow, principal: &PrincipalRow) -> bool {
    (clock.sessions_open as usize) < SESSIONS_MAX
        && (principal.sessions as usize) < PRINCIPAL_SESSIONS_MAX
}

/// The credit of a session for which the service wants `wanted` and its client asks for `lanes`.
pub(super) fn grant(
    wanted: Credit,
    lanes: u16,
    clock: &ClockRow,
    principal: &PrincipalRow,
) -> Credit {
    let left = CREDIT_BEYOND_FLOOR.saturating_sub(clock.beyond_floor);
    let own = PRINCIPAL_CREDIT_BEYOND_FLOOR.saturating_sub(principal.beyond_floor);
    let most = u32::try_from(left.min(own) / 4).unwrap_or(u32::MAX);
    let beyond = wanted.bytes.saturating_sub(CREDIT_FLOOR).min(most);
    Credit {
        lanes: wanted.lanes.min(lanes).clamp(1, LANES_MAX),
        bytes: wanted.bytes.min(CREDIT_FLOOR).saturating_add(beyond),
    }
}

fn beyond_floor(row: &SessionRow) -> u64 {
    row.credit.bytes.saturating_sub(CREDIT_FLOOR).into()
}

/// Accounts for a session that was opened.
pub(super) fn give(clock: &mut ClockRow, principal: &mut PrincipalRow, row: &SessionRow) {
    clock.sessions_open = clock.sessions_open.saturating_add(1);
    principal.sessions = principal.sessions.saturating_add(1);
    clock.beyond_floor = clock.beyond_floor.saturating_add(beyond_floor(row));
    principal.beyond_floor = principal.beyond_floor.saturating_add(beyond_floor(row));
}

/// Accounts for a session that has ended.
pub(super) fn take_back(clock: &mut ClockRow, principal: &mut PrincipalRow, row: &SessionRow) {
    clock.sessions_open = clock.sessions_open.saturating_sub(1);
    principal.sessions = principal.sessions.saturating_sub(1);
    clock.beyond_floor = clock.beyond_floor.saturating_sub(beyond_floor(row));
    principal.beyond_floor = principal.beyond_floor.saturating_sub(beyond_floor(row));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{PublicKey, Sequence, Time};
    use proptest::prelude::*;

    fn row(credit: Credit) -> SessionRow {
        SessionRow {
            principal: PublicKey([1; 32]),
            key: PublicKey([2; 32]),
            credit,
            opened: Sequence(1),
            active: Time(0),
            signed: Time(0),
        }
    }

    proptest! {
        #[test]
        fn the_sum_of_credits_is_bounded_and_every_session_has_the_floor(
            acts in prop::collection::vec((0..5_usize, any::<bool>(), any::<u32>()), 0..3000),
        ) {
            let mut clock = ClockRow::default();
            let mut principals = [PrincipalRow::default(); 5];
            let mut open: Vec<(usize, SessionRow)> = Vec::new();
            for (owner, closes, bytes) in acts {
                let principal = &mut principals[owner];
                if closes && !open.is_empty() {
                    let (owner, row) = open.swap_remove(bytes as usize % open.len());
                    take_back(&mut clock, &mut principals[owner], &row);
                } else if has_room(&clock, principal) {
                    let wanted = Credit { lanes: 99, bytes };
                    let credit = grant(wanted, 200, &clock, principal);
                    prop_assert!(credit.bytes >= bytes.min(CREDIT_FLOOR));
                    prop_assert_eq!(credit.lanes, LANES_MAX);
                    give(&mut clock, principal, &row(credit));
                    open.push((owner, row(credit)));
                }
                let sum = |of: Option<usize>| -> u64 {
                    let those = open.iter().filter(|(owner, _)| of.is_none_or(|of| of == *owner));
                    those.map(|(_, row)| u64::from(row.credit.bytes)).sum()
                };
                let floors = |sessions: usize| sessions as u64 * u64::from(CREDIT_FLOOR);
                prop_assert!(open.len() <= SESSIONS_MAX);
                prop_assert!(sum(None) <= floors(open.len()) + CREDIT_BEYOND_FLOOR);
                let most = floors(PRINCIPAL_SESSIONS_MAX) + PRINCIPAL_CREDIT_BEYOND_FLOOR;
                prop_assert!(sum(Some(owner)) <= most);
            }
            for (owner, row) in open {
                take_back(&mut clock, &mut principals[owner], &row);
            }
            prop_assert_eq!(clock, ClockRow::default());
            prop_assert_eq!(principals, [PrincipalRow::default(); 5]);
        }
    }

    #[test]
    fn one_principal_leaves_something_for_the_next() {
        let wanted = Credit {
            lanes: 1,
            bytes: u32::MAX,
        };
        let (mut clock, mut greedy) = (ClockRow::default(), PrincipalRow::default());
        while has_room(&clock, &greedy) {
            let credit = grant(wanted, 1, &clock, &greedy);
            give(&mut clock, &mut greedy, &row(credit));
        }
        assert_eq!(greedy.sessions as usize, PRINCIPAL_SESSIONS_MAX);
        let new_principal = PrincipalRow::default();
        assert!(has_room(&clock, &new_principal));
        let credit = grant(wanted, 1, &clock, &new_principal);
        assert!(credit.bytes >= 4 * CREDIT_FLOOR, "{credit:?}");
    }
}
