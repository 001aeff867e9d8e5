//! The meaning of the service's refusals.
//!
//! A refusal has a status, and mostly JSON with a `reason`; for an object's bytes it is plain text.
//! Missing objects and missing buckets have the same code, so the text has to be examined.

use crate::StoreErrorKind;
use crate::remote::{Refusal, shorten};
use serde_json::Value;
use std::time::Duration;

/// Whether a text reports that tokens were made at another time than the service's.
pub(super) fn is_clock(text: &str) -> bool {
    text.contains("reasonable timeframe") || text.contains("iat and exp")
}

/// The meaning of a status and a reason; `text` is the rest of the service's answer.
pub(super) fn kind(status: u16, reason: &str, text: &str) -> StoreErrorKind {
    use StoreErrorKind as Kind;
    match reason {
        "rateLimitExceeded" | "userRateLimitExceeded" => return Kind::Throttled,
        "quotaExceeded" | "dailyLimitExceeded" => return Kind::Full,
        "retentionPolicyNotMet" | "objectUnderActiveHold" => return Kind::ReadOnly,
        "userProjectMissing" | "accountDisabled" => return Kind::Denied,
        _ => {}
    }
    match status {
        401 | 403 if is_clock(text) => Kind::Clock,
        401 | 403 => Kind::Denied,
        404 if text.contains("bucket does not exist") => Kind::NoContainer,
        404 => Kind::NotFound,
        409 | 412 => Kind::AlreadyExists,
        416 => Kind::Corrupt,
        429 | 503 => Kind::Throttled,
        507 => Kind::Full,
        // The body was damaged in transit.
        400 if text.to_lowercase().contains("crc32c") => Kind::Unavailable,
        // The service answers a successful request with none of these; or it is a redirection.
        200..=399 => Kind::Unavailable,
        407 | 408 | 500..=599 => Kind::Unavailable,
        _ => Kind::Other,
    }
}

/// The remedy for some of the reasons.
fn remedy(status: u16, reason: &str) -> &'static str {
    match (status, reason) {
        (_, "userProjectMissing") => "; name the project that pays: `?project=ID` in the location",
        (403, "forbidden" | "insufficientPermissions") => {
            "; give this identity the role `Storage Object User` on the bucket"
        }
        (401, _) => "; the credentials are wrong, expired or revoked",
        _ => "",
    }
}

/// The refusal that an unexpected answer amounts to.
pub(super) fn refusal(status: u16, body: &[u8], retry_after: Option<&str>) -> Refusal {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let at = |pointer| json.pointer(pointer).and_then(Value::as_str);
    let reason = at("/error/errors/0/reason").unwrap_or_default();
    let plain = String::from_utf8_lossy(body);
    let text = at("/error/message").or(at("/error_description"));
    let text = text.unwrap_or(if plain.trim_start().starts_with(['<', '{']) {
        "it gives no known reason"
    } else {
        &plain
    });
    let text = shorten(text.trim().trim_end_matches('.'));
    let seconds = retry_after.and_then(|text| text.parse::<u32>().ok());
    Refusal {
        kind: kind(status, reason, &text),
        detail: format!("{status} {reason}: {text}{}", remedy(status, reason)).replace(" :", ":"),
        retry_after: seconds.map(|it| Duration::from_secs(it.into())),
        outdated: status == 401,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_kind() {
        use StoreErrorKind as Kind;
        let bucket = "The specified bucket does not exist";
        let skew = "Invalid JWT: Token must be a short-lived token (60 minutes) and in a \
                    reasonable timeframe";
        for (status, reason, text, wanted) in [
            (404, "notFound", "No such object: b/o", Kind::NotFound),
            (404, "", "No such object: b/o", Kind::NotFound),
            (404, "notFound", bucket, Kind::NoContainer),
            (412, "conditionNotMet", "", Kind::AlreadyExists),
            (416, "", "", Kind::Corrupt),
            (401, "authError", "", Kind::Denied),
            (401, "authError", skew, Kind::Clock),
            (403, "forbidden", "", Kind::Denied),
            (403, "accountDisabled", "", Kind::Denied),
            (400, "userProjectMissing", "", Kind::Denied),
            (403, "retentionPolicyNotMet", "", Kind::ReadOnly),
            (403, "rateLimitExceeded", "", Kind::Throttled),
            (403, "quotaExceeded", "", Kind::Full),
            (429, "", "", Kind::Throttled),
            (503, "backendError", "", Kind::Throttled),
            (500, "internalError", "", Kind::Unavailable),
            (502, "", "", Kind::Unavailable),
            (408, "", "", Kind::Unavailable),
            (507, "", "", Kind::Full),
            (
                400,
                "invalid",
                "Provided CRC32C \"a\" doesn't match",
                Kind::Unavailable,
            ),
            (302, "", "", Kind::Unavailable),
            (204, "", "", Kind::Unavailable),
            (400, "invalid", "", Kind::Other),
            (409, "conflict", "", Kind::AlreadyExists),
        ] {
            assert_eq!(
                kind(status, reason, text),
                wanted,
                "{status} {reason} {text}"
            );
        }
    }

    #[test]
    fn json_and_plain_text_are_understood() {
        let body = br#"{"error": {"code": 403, "message": "x does not have access.",
                        "errors": [{"reason": "forbidden"}]}}"#;
        let refused = refusal(403, body, Some("3"));
        assert_eq!(refused.kind, StoreErrorKind::Denied);
        assert_eq!(refused.retry_after, Some(Duration::from_secs(3)));
        let wanted = "403 forbidden: x does not have access; give this identity the role";
        assert!(refused.detail.starts_with(wanted), "{refused}");
        let refused = refusal(404, b"No such object: b/o", None);
        assert_eq!(refused.detail, "404: No such object: b/o");
        let refused = refusal(502, b"<html>Bad</html>", None);
        assert_eq!(refused.detail, "502: it gives no known reason");
    }
}
