//! An object's bytes as they arrive, never more than were requested.

use crate::error::StoreErrorKind;
use crate::remote::Refusal;
use bytes::{Bytes, BytesMut};

/// The most that is allocated in advance; a longer body has to arrive first.
const ROOM_MAX: u64 = 64 << 20;

/// The part of an object that has arrived.
#[derive(Debug)]
pub(crate) struct Body {
    length_max: u64,
    announced: Option<u64>,
    /// The only piece so far; most small objects come in one piece, which is not copied.
    first: Option<Bytes>,
    pieces: BytesMut,
}

impl Body {
    /// An empty body, of which `announced` bytes are expected, if known.
    ///
    /// # Errors
    /// `Corrupt` if more bytes are announced than are allowed.
    pub(crate) fn new(length_max: u64, announced: Option<u64>) -> Result<Self, Refusal> {
        if let Some(length) = announced.filter(|length| *length > length_max) {
            return Err(too_long(length_max, length));
        }
        Ok(Self {
            length_max,
            announced,
            first: None,
            pieces: BytesMut::new(),
        })
    }

    fn length(&self) -> u64 {
        let first = self.first.as_ref().map_or(0, Bytes::len);
        (first + self.pieces.len()) as u64
    }

    /// Takes the next piece.
    ///
    /// # Errors
    /// `Corrupt` if it exceeds the allowed length: the caller stops reading.
    pub(crate) fn push(&mut self, piece: Bytes) -> Result<(), Refusal> {
        let length = self.length().saturating_add(piece.len() as u64);
        if length > self.length_max {
            return Err(too_long(self.length_max, length));
        }
        if length == piece.len() as u64 {
            self.first = Some(piece);
            return Ok(());
        }
        if let Some(first) = self.first.take() {
            let room = self
                .announced
                .unwrap_or(0)
                .clamp(length, length.max(ROOM_MAX));
            self.pieces
                .reserve(usize::try_from(room).unwrap_or_default());
            self.pieces.extend_from_slice(&first);
        }
        self.pieces.extend_from_slice(&piece);
        Ok(())
    }

    /// The whole body.
    ///
    /// # Errors
    /// `Unavailable` if fewer bytes came than were announced.
    pub(crate) fn finish(self) -> Result<Bytes, Refusal> {
        let length = self.length();
        if let Some(announced) = self.announced.filter(|announced| *announced != length) {
            let detail = format!("the answer ended after {length} of {announced} bytes");
            return Err(Refusal::new(StoreErrorKind::Unavailable, detail));
        }
        Ok(self.first.unwrap_or_else(|| self.pieces.freeze()))
    }
}

fn too_long(length_max: u64, length: u64) -> Refusal {
    let detail = format!("it has {length} bytes or more, and at most {length_max} were expected");
    Refusal::new(StoreErrorKind::Corrupt, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_put_together_up_to_the_bound() {
        let mut body = Body::new(6, Some(6)).unwrap();
        for piece in ["ab", "", "cd", "ef"] {
            body.push(Bytes::from(piece)).unwrap();
        }
        assert_eq!(body.finish().unwrap(), "abcdef");
        let mut body = Body::new(3, None).unwrap();
        body.push(Bytes::from("abc")).unwrap();
        let error = body.push(Bytes::from("d")).unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Corrupt);
        let error = Body::new(3, Some(4)).unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Corrupt);
    }

    #[test]
    fn less_than_was_announced_is_not_the_object() {
        let mut body = Body::new(9, Some(4)).unwrap();
        body.push(Bytes::from("abc")).unwrap();
        assert_eq!(body.finish().unwrap_err().kind, StoreErrorKind::Unavailable);
    }
}
