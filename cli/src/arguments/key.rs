//! The command line of `quorumfs key`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Commands for the key that opens a volume on this machine.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Show whether the key is protected, and where its passphrase is read from
    Status,
    /// Seal the key file under a passphrase, or change its passphrase
    Protect(KeyProtectArguments),
    /// Remove the passphrase: any reader of the key file then has the key
    Unprotect,
    /// Put the key's passphrase into the kernel's keyring for a while
    Unlock(KeyUnlockArguments),
    /// Remove the key's passphrase from the kernel's keyring
    Lock,
}

/// `quorumfs key protect`
#[derive(Debug, Args)]
pub(crate) struct KeyProtectArguments {
    /// A file of mode 0600 that holds the new passphrase (default: the usual source of passphrases;
    /// to change a passphrase, the terminal)
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
