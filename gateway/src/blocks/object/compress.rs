//! Compression of a slice's segments.
//!
//! Each segment is compressed alone, so that any of them can still be read alone. A segment that
//! does not shrink by a sixteenth is stored uncompressed. So is the whole slice, without an index,
//! if it would not gain more than that.
//!
//! **Why a sixteenth.** A compressed slice costs a reader the work of expanding it, an index in
//! front of it (a round trip, the first time), and segments that no longer end where cells do: a
//! small read then fetches two cells instead of one. Pictures, archives and other compressed files
//! gain some thousandths, which is not worth that cost.
//!
//! **Why level 3.** There is one level, because a choice that readers cannot see is one more thing
//! to get wrong, and the processor also has to encrypt, code and hash. In segments of 64 KiB, over
//! Rust sources and over a program, level 3 came out 4 % smaller than level 1 for a tenth to a
//! third more time; level 6 another 5 to 9 % smaller, for two and a half times the time.
//!
//! **Reads are bounded.** A segment's plain length is known before it is expanded, and the output
//! buffer has exactly that length: a frame that holds more, or less, is refused. The input was
//! authenticated first, so only a holder of the slice's key can have made it; it is still not
//! trusted.
//!
//! What a compressed length reveals is in docs/THREAT_MODEL.md. The output of a compressor may
//! differ from one version of zstd to the next; the stored bytes count, and no slice is sealed
//! twice.

use super::index::SliceIndex;
use super::segment::SEGMENT_BYTES;
use zstd::bulk::{Compressor, Decompressor};

/// Whether slices are compressed before they are sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// Slices are not compressed.
    #[default]
    Off,
    /// Zstandard, segment by segment, where it gains something.
    Zstd,
}

const LEVEL: i32 = 3;
/// The gain that is required: one part of so many.
const GAIN: usize = 16;

/// The compressed segments of a slice.
#[derive(Debug)]
pub(in crate::blocks) struct Squeezed {
    pub(in crate::blocks) index: SliceIndex,
    /// The stored bytes of the segments that shrank, one after the other.
    bodies: Vec<u8>,
    /// The beginning of each segment in them.
    begins: Vec<usize>,
}

impl Squeezed {
    /// Compresses a slice; `None` if the gain is too small.
    pub(in crate::blocks) fn new(plain: &[u8]) -> Option<Self> {
        let mut compressor = Compressor::new(LEVEL).ok()?;
        let (mut bodies, mut begins, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        for segment in plain.chunks(SEGMENT_BYTES as usize) {
            let begin = bodies.len();
            begins.push(begin);
            bodies.resize(begin + segment.len() - segment.len().div_ceil(GAIN), 0);
            let room = bodies.get_mut(begin..).unwrap_or_default();
            // It fails if the output does not fit: too little was gained.
            let shrunk = compressor.compress_to_buffer(segment, room).ok();
            bodies.truncate(begin + shrunk.unwrap_or(0));
            lengths.push(shrunk.unwrap_or(segment.len()));
        }
        let index = SliceIndex::of_lengths(u32::try_from(plain.len()).ok()?, &lengths)?;
        let (before, after) = (index.uncompressed_length(), index.sealed_length());
        let is_worth_it = before.checked_sub(after)? >= before.div_ceil(GAIN as u64);
        is_worth_it.then_some(Self {
            index,
            bodies,
            begins,
        })
    }

    /// The stored bytes of a segment; `None` if it is stored uncompressed.
    pub(in crate::blocks) fn body(&self, segment: u32) -> Option<&[u8]> {
        if !self.index.is_compressed(segment) {
            return None;
        }
        let begin = *self.begins.get(segment as usize)?;
        let length = self.index.body_length(segment) as usize;
        self.bodies.get(begin..begin.checked_add(length)?)
    }
}

/// Expands segments, one after the other.
pub(super) struct Expander(Option<Decompressor<'static>>);

impl Expander {
    pub(in crate::blocks) fn new() -> Self {
        Self(None)
    }

    /// Expands a segment into `plain`; returns whether it has exactly that length.
    pub(super) fn expand(&mut self, body: &[u8], plain: &mut [u8]) -> bool {
        if self.0.is_none() {
            self.0 = Decompressor::new().ok();
        }
        let wanted = plain.len();
        match &mut self.0 {
            None => false,
            Some(it) => it.decompress_to_buffer(body, plain).ok() == Some(wanted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn segments_that_gain_less_than_a_sixteenth_stay_uncompressed() {
        let mut noise = vec![0; 3 * SEGMENT_BYTES as usize];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        assert!(Squeezed::new(&noise).is_none() && Squeezed::new(&[]).is_none());
        assert!(Squeezed::new(&[7; 40]).is_none(), "the index outweighs it");
        noise[..SEGMENT_BYTES as usize].fill(0);
        let squeezed = Squeezed::new(&noise).unwrap();
        assert!(squeezed.body(0).unwrap().len() < 100);
        assert!(squeezed.body(1).is_none() && squeezed.body(2).is_none());
        let long = [vec![0; 1000], noise[SEGMENT_BYTES as usize..].to_vec()].concat();
        assert!(Squeezed::new(&long).is_none(), "a hundredth was gained");
    }

    #[test]
    fn a_body_that_expands_to_more_or_less_than_its_segment_is_refused_within_bounds() {
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 19).unwrap();
        assert!(bomb.len() < 10_000);
        let mut expander = Expander::new();
        let mut room = vec![0; SEGMENT_BYTES as usize];
        assert!(!expander.expand(&bomb, &mut room));
        let right = zstd::bulk::compress(&vec![9; room.len()], LEVEL).unwrap();
        assert!(expander.expand(&right, &mut room) && room.iter().all(|byte| *byte == 9));
        assert!(!expander.expand(&right, &mut vec![0; room.len() + 1]));
        assert!(!expander.expand(&right, &mut vec![0; room.len() - 1]));
    }

    proptest! {
        #[test]
        fn nothing_that_is_expanded_is_a_panic(
            body in proptest::collection::vec(any::<u8>(), 0..2000),
            length in 0_usize..70_000,
            at in 0_usize..2000,
        ) {
            let mut expander = Expander::new();
            let _ = expander.expand(&body, &mut vec![0; length]);
            let text: Vec<u8> = body.iter().map(|byte| byte % 5).collect();
            let mut frame = zstd::bulk::compress(&text, LEVEL).unwrap();
            let at = at % frame.len();
            frame[at] ^= 0x41;
            frame.extend(&body);
            let _ = expander.expand(&frame, &mut vec![0; length]);
        }
    }
}
