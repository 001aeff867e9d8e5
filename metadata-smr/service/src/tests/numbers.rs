//! Stored numbers never change.

use crate::error::Error;
use crate::row::Resource;

#[test]
fn every_error_keeps_its_number() {
    let first = borsh::to_vec(&Error::NotFound).unwrap();
    let last = borsh::to_vec(&Error::BadEpoch).unwrap();
    assert_eq!((first[0], last[0]), (0, 41));
    let full = Error::RealmQuota {
        of: Resource::Bytes,
        remaining: 0,
    };
    assert_eq!(borsh::to_vec(&full).unwrap()[0], 45);
}
