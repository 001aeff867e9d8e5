//! Keys sort as they should, and no tag is the beginning of another.

use super::*;

#[test]
fn keys_sort_as_their_numbers_do() {
    assert!(inode(InodeId(255)) < inode(InodeId(256)));
    assert!(extent(InodeId(1), u64::MAX) < extent(InodeId(2), 0));
    assert_eq!(trailing_number(&extent(InodeId(1), 77)), Some(77));
    let (pack, slice) = (
        ObjectId {
            allocation: AllocationId(1),
            counter: 2,
        },
        SliceId {
            allocation: AllocationId(3),
            counter: 4,
        },
    );
    let found = trailing_slice(&packed(pack, Home(5), slice));
    assert_eq!(found, Some((Home(5), slice)));
    assert!(packed(pack, Home(5), slice).starts_with(&all_packed(pack)));
}

#[test]
fn no_tag_is_the_beginning_of_another() {
    let mut tags = TAGS.to_vec();
    tags.extend(RESERVED);
    for (i, a) in tags.iter().enumerate() {
        for (j, b) in tags.iter().enumerate() {
            assert!(i == j || !a.starts_with(b), "{a:?} {b:?}");
        }
    }
}
