//! Whether what leaves this machine is encrypted: always, but in one kind of test.
//!
//! A test plants names and contents and searches the bytes of all clouds and replicas for them.
//! That it finds none proves something only if the same search finds all of them where nothing is
//! sealed. For that control run there is [`Sealing::Off`]: a value of the program's memory that
//! tests hand over, on no command line, in no configuration and in no format. What is written under
//! it cannot be read by any real client, which takes its zero tags for forgeries.

/// Whether contents, names and small values are encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Sealing {
    /// As it must be.
    #[default]
    On,
    /// Plaintext with empty tags; for control runs of tests alone.
    #[doc(hidden)]
    Off,
}

/// Bytes of the tags of the ciphers of names and small values.
pub(super) const TAG_BYTES: usize = 16;
