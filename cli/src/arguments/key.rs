//! What can be typed after `quorumfs key`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// What can be done with the key that opens a volume here.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Whether it is protected, and where its passphrase would come from
    Status,
    /// Seal it under a passphrase, or under another one
    Protect(KeyProtectArguments),
    /// Take its passphrase away: whoever has the file has the key then
    Unprotect,
    /// Keep its passphrase in the kernel's keyring for a while
    Unlock(KeyUnlockArguments),
    /// Have the kernel's keyring forget its passphrase
    Lock,
}

/// `quorumfs key protect`
#[derive(Debug, Args)]
pub(crate) struct KeyProtectArguments {
    /// A file of mode 0600 that holds the new passphrase (default: where passphrases come from, or
    /// for another one the terminal)
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
}

/// `quorumfs key unlock`
#[derive(Debug, Args)]
pub(crate) struct KeyUnlockArguments {
    /// For how many seconds
    #[arg(long, value_name = "S", default_value_t = 8 * 3600,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) seconds: u32,
}
