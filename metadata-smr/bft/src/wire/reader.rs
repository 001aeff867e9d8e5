//! Reading and writing the fields of a body: borsh's layout, without its allocations.
//!
//! Borsh is little-endian numbers, a one-byte tag before variants, a four-byte count before
//! sequences. This reader returns byte strings as slices of the frame instead of copying them, and
//! checks every count against a limit before anything is allocated.

use super::frame::{HEADER_BYTES, Header, Malformed, SIGNATURE_BYTES, VERSION};
use super::message::Kind;
use crate::identity::{
    ClusterId, Digest, Epoch, Group, Incarnation, Lane, PublicKey, ReplicaId, RequestNumber,
    Sequence, SessionId, Signature, Time, View,
};
use crate::observer::WatchId;
use bytes::Bytes;

/// A position in a frame.
pub(crate) struct Reader<'a> {
    frame: &'a Bytes,
    at: usize,
    end: usize,
}

/// A type with one fixed layout.
pub(crate) trait Field: Sized {
    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, Malformed>;
    fn write(&self, bytes: &mut Vec<u8>);
}

impl<'a> Reader<'a> {
    pub(crate) fn new(frame: &'a Bytes) -> Self {
        Self {
            frame,
            at: 0,
            end: frame.len(),
        }
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], Malformed> {
        let short = Malformed::CutShort { field };
        let end = self
            .at
            .checked_add(N)
            .filter(|end| *end <= self.end)
            .ok_or(short)?;
        let slice = self.frame.get(self.at..end).ok_or(short)?;
        self.at = end;
        slice.try_into().map_err(|_| short)
    }

    pub(crate) fn get<T: Field>(&mut self, field: &'static str) -> Result<T, Malformed> {
        T::read(self, field)
    }

    /// A count that is at most `count_max`.
    pub(crate) fn count(
        &mut self,
        field: &'static str,
        count_max: usize,
    ) -> Result<usize, Malformed> {
        let count = usize::try_from(self.get::<u32>(field)?).unwrap_or(usize::MAX);
        if count > count_max {
            return Err(Malformed::TooMany {
                field,
                count,
                count_max,
            });
        }
        Ok(count)
    }

    /// A byte string, as a slice of the frame.
    pub(crate) fn bytes(
        &mut self,
        field: &'static str,
        length_max: usize,
    ) -> Result<Bytes, Malformed> {
        let length = self.count(field, length_max)?;
        let short = Malformed::CutShort { field };
        let end = self
            .at
            .checked_add(length)
            .filter(|end| *end <= self.end)
            .ok_or(short)?;
        let slice = self.frame.slice(self.at..end);
        self.at = end;
        Ok(slice)
    }

    /// A sequence of at most `count_max` items.
    pub(crate) fn list<T>(
        &mut self,
        field: &'static str,
        count_max: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.count(field, count_max)?;
        // Every item takes at least a byte, so a false count cannot allocate more than the frame.
        let mut items = Vec::with_capacity(count.min(self.end.saturating_sub(self.at)));
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// An optional item.
    pub(crate) fn option<T>(
        &mut self,
        field: &'static str,
        item: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        Ok(if self.get::<bool>(field)? {
            Some(item(self)?)
        } else {
            None
        })
    }

    pub(crate) fn header(&mut self) -> Result<(Kind, Header), Malformed> {
        let tag: [u8; 8] = self.array("tag")?;
        let kind = Kind::of_tag(&tag).ok_or(Malformed::UnknownKind)?;
        let version: u16 = self.get("version")?;
        if version != VERSION {
            return Err(Malformed::OtherVersion { version });
        }
        let header = Header {
            cluster: ClusterId(self.array("cluster")?),
            epoch: self.get("epoch")?,
            group: self.get("group")?,
            view: self.get("view")?,
        };
        Ok((kind, header))
    }

    /// Removes the signature from the end.
    pub(crate) fn signature(&mut self) -> Result<Signature, Malformed> {
        let short = Malformed::CutShort { field: "signature" };
        let at = self
            .end
            .checked_sub(SIGNATURE_BYTES)
            .filter(|at| *at >= HEADER_BYTES);
        let at = at.ok_or(short)?;
        let slice = self.frame.get(at..self.end).ok_or(short)?;
        self.end = at;
        slice.try_into().map(Signature).map_err(|_| short)
    }

    /// The remaining bytes.
    pub(crate) fn rest(&mut self) -> Bytes {
        let slice = self.frame.slice(self.at..self.end);
        self.at = self.end;
        slice
    }

    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.at == self.end {
            Ok(())
        } else {
            Err(Malformed::Impossible {
                field: "length: bytes are left over",
            })
        }
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Field for $number {
            fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, Malformed> {
                reader.array(field).map(<$number>::from_le_bytes)
            }
            fn write(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
numbers!(u8, u16, u32, u64);

macro_rules! newtypes {
    ($($name:ident),*) => {$(
        impl Field for $name {
            fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, Malformed> {
                Field::read(reader, field).map(Self)
            }
            fn write(&self, bytes: &mut Vec<u8>) {
                self.0.write(bytes);
            }
        }
    )*};
}
newtypes!(
    ReplicaId,
    Epoch,
    Group,
    View,
    Sequence,
    SessionId,
    Lane,
    RequestNumber,
    Time,
    WatchId
);
newtypes!(Digest, Incarnation, PublicKey, Signature);

impl<const N: usize> Field for [u8; N] {
    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, Malformed> {
        reader.array(field)
    }
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self);
    }
}

impl Field for bool {
    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, Malformed> {
        match u8::read(reader, field)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Impossible { field }),
        }
    }
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(*self));
    }
}

impl<T: Field> Field for Option<T> {
    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, Malformed> {
        reader.option(field, |reader| T::read(reader, field))
    }
    fn write(&self, bytes: &mut Vec<u8>) {
        write_option(bytes, self.as_ref(), |item, bytes| item.write(bytes));
    }
}

/// A count. Nothing that long is ever encoded: frames are bounded far below it.
pub(crate) fn write_count(bytes: &mut Vec<u8>, count: usize) {
    u32::try_from(count).unwrap_or(u32::MAX).write(bytes);
}

pub(crate) fn write_bytes(bytes: &mut Vec<u8>, string: &[u8]) {
    write_count(bytes, string.len());
    bytes.extend_from_slice(string);
}

pub(crate) fn write_list<T>(bytes: &mut Vec<u8>, items: &[T], item: impl Fn(&T, &mut Vec<u8>)) {
    write_count(bytes, items.len());
    for entry in items {
        item(entry, bytes);
    }
}

pub(crate) fn write_option<T>(
    bytes: &mut Vec<u8>,
    value: Option<&T>,
    item: impl FnOnce(&T, &mut Vec<u8>),
) {
    value.is_some().write(bytes);
    if let Some(value) = value {
        item(value, bytes);
    }
}
