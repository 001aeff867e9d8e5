//! Logs: to standard error, by `--log` or `QUORUMFS_LOG`, without colour where nobody sees it.

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging; `default` holds when the user did not say.
pub(crate) fn start(filter: Option<&str>, default: &str) -> Outcome<()> {
    let wanted = filter.unwrap_or(default);
    let filter = EnvFilter::builder().parse(wanted).map_err(|error| {
        Failure::new(Exit::Usage, format!("`{wanted}` is no log filter: {error}"))
            .hint("examples: `warn`, `info`, `quorumfs_gateway=debug,warn`")
    })?;
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    // Started twice only where a test runs two commands in one process.
    // A line that cannot be written, because the terminal is gone, is nothing to panic for.
    let _ = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .try_init();
    Ok(())
}
