//! Questions about shares. Their answers depend on everything, because no row covers that there is
//! no share, or no principal.

use super::{UNKNOWN, has_ended, is_of};
use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::{PrincipalId, ShareId, Uid};
use crate::limits::SHARE_PAGE_MAX;
use crate::people;
use crate::query::SharesOf;
use crate::reply::{ListedShare, QueryResult};
use crate::row::{Principal, Share, ShareAt, ShareWith, key};
use crate::rows::{Halt, Outcome, Rows, require};

/// A share as an answer has it.
fn listed(rows: &impl Rows, id: ShareId, mut share: Share) -> Outcome<ListedShare> {
    share.ended = has_ended(rows, &share)?;
    let exists = rows.has(&key::inode(share.inode))?;
    Ok(ListedShare { id, share, exists })
}

/// The share of a link, unless it has ended.
pub(crate) fn of_token(rows: &impl Rows, token: &[u8; 32]) -> Outcome<QueryResult> {
    rows.view().depend_on_everything();
    let found: Option<ShareAt> = rows.find(&key::share_of_token(token))?;
    let ShareAt { id } = found.ok_or(Halt::Refused(UNKNOWN))?;
    let share: Option<Share> = rows.find(&key::share(id))?;
    let share = share.filter(|share| matches!(share.with, ShareWith::Link { .. }));
    let share = share.ok_or(Halt::Refused(UNKNOWN))?;
    let found = listed(rows, id, share)?;
    require(!found.share.ended, UNKNOWN)?;
    Ok(QueryResult::Share(found))
}

/// A page of shares.
pub(crate) fn all(
    rows: &impl Rows,
    (principal, row): (&PrincipalId, &Principal),
    who: &Credentials,
    of: &SharesOf,
    (after, limit): (Option<ShareId>, u32),
) -> Outcome<QueryResult> {
    rows.view().depend_on_everything();
    let (prefix, from) = match of {
        SharesOf::Mine => {
            let next = after.map(|id| key::share_by(who.uid, id));
            (key::all_shares_by(who.uid), next)
        }
        SharesOf::With(number) => {
            let number = people::person_number(rows, *number)?;
            let next = after.map(|id| key::share_with(number, id));
            (key::all_shares_with(number), next)
        }
        SharesOf::All => {
            let may = row.rights.administer || who.uid == Uid::ROOT;
            require(may, Error::NoRight)?;
            (key::all_shares(), after.map(key::share))
        }
    };
    let from = from.map_or_else(
        || prefix.clone(),
        |mut from| {
            // The first key after that one.
            from.push(0);
            from
        },
    );
    let limit = usize::try_from(limit.clamp(1, SHARE_PAGE_MAX)).unwrap_or(1);
    let found = rows.scan(&prefix, &from, limit.saturating_add(1))?;
    let more = found.len() > limit;
    let mut shares = Vec::new();
    let mut last = None;
    for (row_key, _) in found.iter().take(limit) {
        let Some(id) = key::trailing_share(row_key) else {
            continue;
        };
        last = Some(id);
        let Some(share) = rows.find::<Share>(&key::share(id))? else {
            continue;
        };
        let mut found = listed(rows, id, share)?;
        let with_caller = is_with(rows, &found.share, principal)?;
        if !with_caller && !is_of(&found.share, who.uid, &row.rights) {
            found.share.place.bytes.clear();
        }
        shares.push(found);
    }
    let next = last.filter(|_| more);
    Ok(QueryResult::Shares { shares, next })
}

/// Whether a share is with a principal's person.
fn is_with(rows: &impl Rows, share: &Share, principal: &PrincipalId) -> Outcome<bool> {
    let ShareWith::Person { principal: of, .. } = &share.with else {
        return Ok(false);
    };
    let caller: Option<Principal> = rows.find(&key::principal(principal))?;
    let number = caller.map(|caller| people::person_number(rows, caller.number));
    Ok(number.transpose()? == Some(*of))
}
