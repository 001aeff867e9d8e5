//! Logs: to standard error or a file of bounded size, one line for one cause in a minute.
//!
//! ```text
//! an event ── the filter of --log ── whose is it? ── repeats: new in this minute? ── a line
//!                                      │                │ no: counted               │
//!                       other crates': warnings only,   └── later: "N more like it" │
//!                       without identities                                          ▼
//!                                                     standard error, or `bounded`: FILE, FILE.old
//! ```
//!
//! - [`cause`]: which events have one cause: a pure function of the event's text.
//! - [`repeats`]: what is logged, what is counted, and when the count is logged; pure, given the
//!   time.
//! - [`bounded`]: a file of bounded size, and its predecessor.
//!
//! *Identities.* The crates of the providers log the access key or account that they found, at a
//! mount's log level. A log is copied into tickets, so it must not have them: below a warning only
//! our own crates and fuser are logged, whatever the filter says, and warnings of other crates pass
//! [`quorumfs_backends::identities`].

mod bounded;
mod cause;
mod repeats;

pub(crate) use self::bounded::BYTES_MAX;

use self::bounded::{Bounded, Log};
use self::cause::Site;
use self::repeats::{Repeated, Repeats};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_backends::identities;
use std::fmt;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

/// Crates that may log below a warning: ours, and the one that connects to the kernel.
const LOGGED_CRATES: [&str; 2] = ["quorumfs", "fuser"];

/// The counts to log at the end of the process.
static LAST: OnceLock<Last> = OnceLock::new();

struct Last {
    repeats: Arc<Mutex<Repeats<Site>>>,
    writer: BoxMakeWriter,
}

/// Starts logging; `default` is the filter unless the user gave one; `file` replaces standard
/// error.
pub(crate) fn start(filter: Option<&str>, default: &str, file: Option<&Path>) -> CommandResult<()> {
    let wanted = filter.unwrap_or(default);
    let filter = EnvFilter::builder().parse(wanted).map_err(|error| {
        Failure::new(
            Exit::Usage,
            format!("`{wanted}` is not a log filter: {error}"),
        )
        .hint("examples: `warn`, `info`, `quorumfs_gateway=debug,warn`")
    })?;
    let stderr = || std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let colour = file.is_none() && stderr();
    let log = file.map(Bounded::open).transpose()?;
    let log = log.map(|bounded| Log(Arc::new(bounded)));
    let writer = || match &log {
        Some(log) => BoxMakeWriter::new(log.clone()),
        None => BoxMakeWriter::new(std::io::stderr),
    };
    let repeats = Arc::<Mutex<Repeats<Site>>>::default();
    // It fails only if a test starts it twice. A terminal that is gone is no reason to panic.
    let _ = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_writer(writer())
        .with_ansi(colour)
        .event_format(Folded {
            repeats: Arc::clone(&repeats),
            format: Format::default(),
        })
        .try_init();
    let _ = LAST.set(Last {
        repeats,
        writer: writer(),
    });
    Ok(())
}

/// Logs the counts that are still pending at the end of a process.
pub(crate) fn finish() {
    let Some(Last { repeats, writer }) = LAST.get() else {
        return;
    };
    let left = lock(repeats).finish(Instant::now());
    let mut text = String::new();
    for repeated in left {
        let _ = write_count(&mut Writer::new(&mut text), &repeated);
    }
    // Nothing was counted, or the terminal is gone.
    let _ = std::io::Write::write_all(&mut writer.make_writer(), text.as_bytes());
}

fn lock(repeats: &Mutex<Repeats<Site>>) -> std::sync::MutexGuard<'_, Repeats<Site>> {
    repeats.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an event may be logged, whatever the filter says: other crates may only warn.
fn may_log(target: &str, level: Level) -> bool {
    level <= Level::WARN || is_heard(target)
}

fn is_heard(target: &str) -> bool {
    LOGGED_CRATES.iter().any(|known| target.starts_with(known))
}

/// The line for counted repeats.
fn write_count(writer: &mut Writer<'_>, repeated: &Repeated<Site>) -> fmt::Result {
    SystemTime.format_time(writer)?;
    let (metadata, seconds) = (repeated.site.0, repeated.within.as_secs());
    let (level, target, count) = (metadata.level(), metadata.target(), repeated.count);
    writeln!(
        writer,
        " {level:>5} {target}: {count} more like it in {seconds} s: {}",
        repeated.text
    )
}

/// The standard format, with one line a minute for each cause.
struct Folded {
    repeats: Arc<Mutex<Repeats<Site>>>,
    format: Format<Full, SystemTime>,
}

impl<S, N> FormatEvent<S, N> for Folded
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        if !may_log(metadata.target(), *metadata.level()) {
            return Ok(());
        }
        // With a more detailed filter than a mount's default, every line is wanted.
        if *metadata.level() <= Level::INFO {
            let cause = cause::of(event);
            let decision = lock(&self.repeats).decide(Instant::now(), Site(metadata), cause);
            for repeated in &decision.due {
                write_count(&mut writer, repeated)?;
            }
            if !decision.is_new {
                return Ok(());
            }
        }
        if is_heard(metadata.target()) {
            return self.format.format_event(context, writer, event);
        }
        let mut text = String::new();
        self.format
            .format_event(context, Writer::new(&mut text), event)?;
        writer.write_str(&identities::hidden(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_crates_only_warn_whatever_the_filter_says() {
        for (target, level, may) in [
            ("aws_config::profile::credentials", Level::INFO, false),
            ("aws_config::profile::credentials", Level::WARN, true),
            ("h2::codec", Level::TRACE, false),
            ("quorumfs_gateway::blocks", Level::TRACE, true),
            ("fuser::session", Level::DEBUG, true),
        ] {
            assert_eq!(may_log(target, level), may, "{target} {level}");
        }
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_failing_reader_fills_no_log_and_no_identity_is_in_it() {
        let lines = Lines::default();
        let made = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || made.clone())
            .with_ansi(false)
            .event_format(Folded {
                repeats: Arc::default(),
                format: Format::default(),
            })
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            for object in 0..10_000 {
                let object = format!("9f{object:08x}");
                tracing::warn!(%object, error = "cloud 0: denied", "a shard cannot be read");
                tracing::info!(target: "aws_config::profile", id = "AKIAIOSFODNN7EXAMPLE", "keys");
                tracing::warn!(target: "aws_config::profile", id = "AKIAIOSFODNN7EXAMPLE", "none");
            }
            tracing::warn!(error = "cloud 1: denied", "a shard cannot be read");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("cloud 1") && text.contains("none"), "{text}");
        assert!(!text.contains("AKIA"), "{text}");
    }
}
