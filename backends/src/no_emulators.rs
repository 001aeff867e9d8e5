//! Replaces the emulators in a program that was built without them: it starts nothing and returns
//! an error that says so.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// A server of a provider's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// S3 over a directory.
    Versitygw,
    /// Azure Blob Storage.
    Azurite,
    /// Google Cloud Storage.
    FakeGcs,
}

/// A server that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    /// This program has no emulators.
    #[error(
        "this program was built without the servers of the clouds' protocols; \
         `scripts/demo --clouds emulators` builds and runs one that has them"
    )]
    NotBuilt,
}

/// A running server: there is none.
#[derive(Debug)]
pub struct Emulator(Infallible);

impl Emulator {
    /// Fails.
    ///
    /// # Errors
    /// Always.
    pub async fn start(_: Server, _: &Path) -> Result<Self, EmulatorError> {
        Err(EmulatorError::NotBuilt)
    }

    /// Fails.
    ///
    /// # Errors
    /// Always.
    pub async fn start_at(_: Server, _: &Path, _: SocketAddr) -> Result<Self, EmulatorError> {
        Err(EmulatorError::NotBuilt)
    }

    /// Never called.
    ///
    /// # Errors
    /// Never.
    pub async fn start_again(&mut self) -> Result<(), EmulatorError> {
        match self.0 {}
    }

    /// Never called.
    pub async fn stop(&mut self) {
        match self.0 {}
    }

    /// Never called.
    pub async fn freeze(&self) {
        match self.0 {}
    }

    /// Never called.
    pub fn thaw(&self) {
        match self.0 {}
    }

    /// Never called.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        match self.0 {}
    }

    /// Never called.
    #[must_use]
    pub fn credentials(&self) -> Option<PathBuf> {
        match self.0 {}
    }

    /// Never called.
    #[must_use]
    pub fn location(&self, _: &str, _: &str) -> String {
        match self.0 {}
    }
}
