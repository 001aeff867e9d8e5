//! See `decoders` in quorumfs-tests.
#![no_main]
use quorumfs_tests::decoders::find;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (find("people").expect("known").run)(bytes));
