//! Whether data is encrypted before it leaves this machine: always, except in one kind of test.
//!
//! A test plants names and contents and searches the bytes of all clouds and replicas for them.
//! Finding none proves something only if the same search finds all of them when nothing is sealed.
//! For that control run there is [`Sealing::Off`]: a value in the program's memory that tests pass
//! in, on no command line, in no configuration and in no format. Real clients cannot read data
//! written under it: its zero tags count as forgeries.

/// Whether contents, names and small values are encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Sealing {
    /// Encrypted, as always outside tests.
    #[default]
    On,
    /// Plaintext with empty tags; for control runs of tests alone.
    #[doc(hidden)]
    Off,
}

/// Bytes of the tags of the ciphers of names and small values.
pub(super) const TAG_BYTES: usize = 16;
