//! Tries the rights of credentials on an object that exists only for this purpose.
//!
//! A missing right shows only when an operation is refused, so it has to be tried. None of this is
//! part of [`ObjectStore`](crate::ObjectStore), so that no code that stores files can call it: a
//! gateway cannot overwrite. Nor does anything here check the marker first, because a role without
//! the right to read could not; the caller has checked it before, with a role that may read.

use super::{Deadline, ObjectName, RemoteStore, pace};
use crate::error::{Operation, StoreError};
use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The operation that is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Creating the object, if there is none.
    Create,
    /// Writing it, even if it exists.
    Overwrite,
    /// Reading it.
    Get,
    /// Listing names.
    List,
    /// Deleting it.
    Delete,
}

impl RemoteStore {
    /// Tries one operation on the object of this name, with `body` as its content.
    ///
    /// # Errors
    /// The provider's refusal, `Denied` if the credentials do not allow the operation.
    #[boxed]
    pub async fn attempt(
        &self,
        attempt: Attempt,
        name: &ObjectName,
        body: &Bytes,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let key = self.key(name.as_str());
        let (length, limit) = (body.len() as u64, 1);
        let sent = pace::Bytes::Sent(length);
        match attempt {
            Attempt::Create => {
                let put = || self.driver.put(&key, body.clone());
                let put = self.tries(Operation::Put, Some(name), deadline, sent, put);
                put.await.map(drop)
            }
            Attempt::Overwrite => {
                let put = || self.driver.overwrite(&key, body.clone());
                self.tries(Operation::Put, Some(name), deadline, sent, put)
                    .await
            }
            Attempt::Get => {
                let received = pace::Bytes::Received(length);
                let get = || self.driver.get(&key, None, length);
                let got = self.tries(Operation::Get, Some(name), deadline, received, get);
                got.await.map(drop)
            }
            Attempt::List => {
                let nothing = pace::Bytes::Sent(0);
                let list = || self.driver.list(&self.prefix, None, limit);
                let listed = self.tries(Operation::List, None, deadline, nothing, list);
                listed.await.map(drop)
            }
            Attempt::Delete => {
                let nothing = pace::Bytes::Sent(0);
                let delete = || self.driver.delete(&key);
                self.tries(Operation::Delete, Some(name), deadline, nothing, delete)
                    .await
            }
        }
    }

    /// How far this machine's clock is ahead of the cloud's, in seconds, rounded down; negative if
    /// it is behind. `None` if the cloud gives no date.
    ///
    /// # Errors
    /// The provider's refusal.
    #[boxed]
    pub async fn clock_ahead(&self, deadline: Deadline) -> Result<Option<i64>, StoreError> {
        let nothing = pace::Bytes::Sent(0);
        let date = || self.driver.date();
        let date = self.tries(Operation::Open, None, deadline, nothing, date);
        let date = date.await?;
        let ours = SystemTime::now().duration_since(UNIX_EPOCH);
        let ours = ours.as_ref().map_or(0, Duration::as_secs);
        let theirs = date.as_deref().and_then(seconds_of);
        Ok(theirs.and_then(|theirs| i64::try_from(ours).ok()?.checked_sub(theirs)))
    }
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// The seconds since 1970 of an HTTP date (RFC 9110, 5.6.7), in the one form that is still in use.
fn seconds_of(date: &str) -> Option<i64> {
    let mut words = date.split_once(", ")?.1.split(' ');
    let day: i64 = words.next()?.parse().ok()?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|name| *name == month)?;
    let month = i64::try_from(month).ok()? + 1;
    let year: i64 = words.next()?.parse().ok()?;
    let mut time = words
        .next()?
        .split(':')
        .map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    if words.next() != Some("GMT") || !(1970..10_000).contains(&year) || !(1..=31).contains(&day) {
        return None;
    }
    // Years that begin in March, so that the leap day is their last; eras of 400 years.
    let (year, month) = match month {
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    let days = year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1;
    let days = days - DAYS_TO_1970;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

/// From the first of March of the year 0 to the first of January 1970.
const DAYS_TO_1970: i64 = 719_468;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_http_are_read() {
        for (date, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Thu, 29 Feb 2024 23:59:59 GMT", Some(1_709_251_199)),
            ("Fri, 01 Mar 2024 00:00:00 GMT", Some(1_709_251_200)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49:37 CET", None),
            ("Sun, 06 Nom 1994 08:49:37 GMT", None),
            ("Sun, 99 Nov 1994 08:49:37 GMT", None),
            ("", None),
        ] {
            assert_eq!(seconds_of(date), seconds, "{date}");
        }
    }
}
