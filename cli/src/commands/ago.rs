//! How long ago something was, for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// For a time in seconds since 1970, by this machine's clock.
pub(super) fn seconds_ago(since: u64) -> String {
    let ago = SystemTime::now()
        .duration_since(UNIX_EPOCH + Duration::from_secs(since))
        .unwrap_or_default()
        .as_secs();
    match ago {
        0..120 => format!("{ago} s ago"),
        120..7200 => format!("{} min ago", ago / 60),
        7200..172_800 => format!("{} h ago", ago / 3600),
        _ => format!("{} days ago", ago / 86400),
    }
}
