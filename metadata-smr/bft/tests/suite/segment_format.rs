//! The bytes of a journal's segment, pinned.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use bytes::Bytes;
use quorumfs_bft::journal::framing::end_page;
use quorumfs_bft::journal::{Condition, Framing, Record, Segment, SegmentIdentity, examine};
use quorumfs_bft::step::Token;
use std::path::PathBuf;

const FIRST: Token = Token(0x0102_0304);

fn fixture(name: &str) -> Vec<u8> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let text = std::fs::read_to_string(root.join(name)).unwrap_or_default();
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn hex(bytes: &[u8]) -> String {
    let line = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes
        .chunks(32)
        .map(line)
        .collect::<Vec<String>>()
        .join("\n")
}

fn pinned(name: &str, bytes: &[u8]) {
    assert!(fixture(name) == bytes, "{name} is now:\n{}", hex(bytes));
}

fn found(identity: SegmentIdentity, bytes: Vec<u8>) -> Vec<Bytes> {
    let bytes = bytes.into();
    let journal = examine(&[Segment {
        first: FIRST,
        identity,
        bytes,
    }]);
    assert_eq!(journal.condition, Condition::Intact);
    let entries = journal.entries.into_iter();
    entries.map(|entry| entry.record).collect()
}

#[test]
fn a_group_and_a_seal_have_the_bytes_that_were_released() {
    let identity = SegmentIdentity(*b"one use of bytes");
    let framing = Framing::new(identity);
    let record = Record::BootMark.encode();
    let mut bytes = Vec::new();
    framing.put_record(FIRST, FIRST, &record, &mut bytes);
    let second = Token(FIRST.0 + 1);
    framing.put_record(second, FIRST, b"another", &mut bytes);
    pinned("segment/group.hex", &bytes);
    end_page(&mut bytes);
    let seal = framing.seal(Token(FIRST.0 + 2));
    let (seal_header, rest) = seal.split_at(32);
    pinned("segment/seal.hex", seal_header);
    assert!(rest.iter().all(|byte| *byte == 0));
    bytes.extend_from_slice(&seal);
    let another = Bytes::from_static(b"another");
    assert_eq!(found(identity, bytes), [record, another]);
}
