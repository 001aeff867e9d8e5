//! The bytes of a part: rows, in the order of their keys.
//!
//! ```text
//! part  row ‖ row ‖ …
//! row   key length u16 ‖ key ‖ 00                                          the row went
//!       key length u16 ‖ key ‖ 01 ‖ birth u64 ‖ value length u32 ‖ value
//! ```
//!
//! Integers are little-endian. Whether rows are those of the volume is proved by all of them
//! together; here a part only has to be well-formed.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorumfs_bft::identity::Sequence;
use quorumfs_bft::state::{Born, ChangedRow, KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Plain bytes after which a part is full: a block's worth, so that it is coded like one.
pub(super) const PART_BYTES: usize = 4 << 20;

const GONE: u8 = 0;
const PRESENT: u8 = 1;

/// Collects rows into parts.
#[derive(Debug, Default)]
pub(super) struct PartWriter {
    bytes: BytesMut,
}

impl PartWriter {
    /// Adds a row; returns the part if it is full now.
    pub(super) fn push(&mut self, row: &ChangedRow) -> Option<Bytes> {
        // Keys and values are within the bounds of the state that they come from.
        self.bytes
            .put_u16_le(u16::try_from(row.key.len()).unwrap_or(u16::MAX));
        self.bytes.put_slice(&row.key);
        match &row.now {
            None => self.bytes.put_u8(GONE),
            Some(Born { birth, value }) => {
                self.bytes.put_u8(PRESENT);
                self.bytes.put_u64_le(birth.0);
                self.bytes
                    .put_u32_le(u32::try_from(value.len()).unwrap_or(u32::MAX));
                self.bytes.put_slice(value);
            }
        }
        if self.bytes.len() >= PART_BYTES {
            return Some(self.bytes.split().freeze());
        }
        None
    }

    /// The rest, if there is any.
    pub(super) fn finish(self) -> Option<Bytes> {
        (!self.bytes.is_empty()).then(|| self.bytes.freeze())
    }
}

/// The next row of a part; `None` at its end.
pub(super) fn next(part: &mut Bytes) -> Option<Result<ChangedRow, Malformed>> {
    if part.is_empty() {
        return None;
    }
    Some(read(part).ok_or(Malformed))
}

/// A part that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

fn read(part: &mut Bytes) -> Option<ChangedRow> {
    let length = usize::from(part.try_get_u16_le().ok()?);
    let key = take(part, length, KEY_BYTES_MAX)?;
    let now = match part.try_get_u8().ok()? {
        GONE => None,
        PRESENT => {
            let birth = Sequence(part.try_get_u64_le().ok()?);
            let length = usize::try_from(part.try_get_u32_le().ok()?).ok()?;
            let value = take(part, length, VALUE_BYTES_MAX)?;
            Some(Born { birth, value })
        }
        _ => return None,
    };
    Some(ChangedRow { key, now })
}

fn take(part: &mut Bytes, length: usize, most: usize) -> Option<Bytes> {
    (length <= part.len() && length <= most).then(|| part.split_to(length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in crate::backup) fn row(key: &[u8], now: Option<(u64, &[u8])>) -> ChangedRow {
        ChangedRow {
            key: Bytes::copy_from_slice(key),
            now: now.map(|(birth, value)| Born {
                birth: Sequence(birth),
                value: Bytes::copy_from_slice(value),
            }),
        }
    }

    fn all(mut part: Bytes) -> Result<Vec<ChangedRow>, Malformed> {
        std::iter::from_fn(|| next(&mut part)).collect()
    }

    proptest! {
        #[test]
        fn rows_come_back(rows: Vec<(Vec<u8>, Option<(u64, Vec<u8>)>)>) {
            let mut writer = PartWriter::default();
            let mut expected = Vec::new();
            for (key, now) in &rows {
                let row = row(key, now.as_ref().map(|(birth, value)| (*birth, value.as_slice())));
                prop_assert!(writer.push(&row).is_none());
                expected.push(row);
            }
            let part = writer.finish().unwrap_or_default();
            prop_assert_eq!(all(part.clone()), Ok(expected));
            for cut in 0..part.len() {
                let _ = all(part.slice(..cut));
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = all(bytes.into());
        }
    }

    #[test]
    fn a_full_part_is_handed_out_and_a_row_is_never_cut() {
        let mut writer = PartWriter::default();
        let value = vec![7; 1 << 20];
        let mut parts = Vec::new();
        for number in 0..9_u8 {
            parts.extend(writer.push(&row(&[number], Some((1, &value)))));
        }
        parts.extend(writer.finish());
        let counts: Vec<_> = parts
            .iter()
            .map(|part| all(part.clone()).unwrap().len())
            .collect();
        assert_eq!(counts, [4, 4, 1]);
    }
}
