//! What is logged: to standard error, by default errors alone.
//!
//! The crates of the providers log identities, and a log is copied into reports. So only our own
//! crates are logged, whatever the filter says.

use crate::failure::{BenchFailure, BenchResult};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging.
pub(crate) fn start(filter: Option<&str>) -> BenchResult {
    let wanted = filter.unwrap_or("error");
    let filter = EnvFilter::builder().parse(wanted).map_err(|error| {
        BenchFailure::usage(format!("`{wanted}` is not a log filter: {error}"))
            .hint("examples: `warn`, `info`, `quorumfs_gateway=debug,warn`")
    })?;
    let ours = filter_fn(|event| event.target().starts_with("quorumfs"));
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .with_filter(filter.and(ours));
    tracing_subscriber::registry().with(lines).init();
    Ok(())
}
