//! The meaning of an answer of the service, or of its absence.
//!
//! The SDK gives a status, and a code and a message if it found an S3 error in the answer; the kind
//! follows from these three and from the subject of the request. Compatible services use the same
//! codes, with a few of their own.

use crate::error::StoreErrorKind;
use crate::remote::{Refusal, tls};
use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use std::error::Error;
use std::time::Duration;

/// An answer as received.
pub(super) type Response = HttpResponse;

/// The subject of a request: a 404 and a 412 have another meaning for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// An object that may exist.
    Object,
    /// An object that is being created.
    New,
    /// The bucket.
    Bucket,
}

/// The longest foreign text that is repeated in a message, in characters.
const MESSAGE_CHARS_MAX: usize = 300;

/// The kind that callers decide on.
fn kind(status: u16, code: &str, message: &str, subject: Subject) -> StoreErrorKind {
    use StoreErrorKind as Kind;
    let says = |words: &str| message.to_ascii_lowercase().contains(words);
    match code {
        "NoSuchKey" | "NoSuchVersion" => return Kind::NotFound,
        "NoSuchBucket" | "InvalidBucketName" => return Kind::NoContainer,
        // The bucket lies in another region; this region's service has none of that name.
        "PermanentRedirect" | "IllegalLocationConstraintException" => return Kind::NoContainer,
        "AuthorizationHeaderMalformed" if says("region") => return Kind::NoContainer,
        "SlowDown"
        | "SlowDownRead"
        | "SlowDownWrite"
        | "RequestLimitExceeded"
        | "Throttling"
        | "ThrottlingException"
        | "TooManyRequests"
        | "TooManyRequestsException"
        | "RequestThrottled"
        | "RequestThrottledException"
        | "BandwidthLimitExceeded" => {
            return Kind::Throttled;
        }
        "RequestTimeTooSkewed" | "RequestInTheFuture" | "RequestExpired" => return Kind::Clock,
        "QuotaExceeded"
        | "InsufficientStorage"
        | "StorageFull"
        | "StorageCapExceeded"
        | "StorageQuotaExceeded"
        | "XMinioStorageFull"
        | "XMinioAdminBucketQuotaExceeded" => {
            return Kind::Full;
        }
        // Garage and Backblaze answer "denied" when the quota is used up.
        "AccessDenied" if says("quota") || says("storage cap exceeded") => return Kind::Full,
        "AccessDenied"
        | "AllAccessDisabled"
        | "AccountProblem"
        | "NotSignedUp"
        | "InvalidAccessKeyId"
        | "SignatureDoesNotMatch"
        | "ExpiredToken"
        | "InvalidToken"
        | "TokenRefreshRequired"
        | "InvalidSecurity"
        | "InvalidPayer"
        | "UnauthorizedAccess"
        | "Unauthorized"
        | "AuthorizationHeaderMalformed" => return Kind::Denied,
        // The object exists, in an archive where reading takes hours.
        "InvalidObjectState" => return Kind::Other,
        // The body arrived late or damaged.
        "RequestTimeout"
        | "IncompleteBody"
        | "BadDigest"
        | "XAmzContentSHA256Mismatch"
        | "XAmzContentChecksumMismatch"
        | "InternalError"
        | "OperationAborted"
        | "TemporaryRedirect"
        | "XMinioServerNotInitialized"
        | "XMinioBackendDown" => {
            return Kind::Unavailable;
        }
        _ => {}
    }
    match (status, subject) {
        (404, Subject::Object) => Kind::NotFound,
        (404, Subject::New | Subject::Bucket) | (301 | 308, _) => Kind::NoContainer,
        (412, Subject::New) => Kind::AlreadyExists,
        // Another write of this name is under way and may still fail.
        (409, Subject::New) => Kind::Unavailable,
        (401 | 403, _) => Kind::Denied,
        (416, _) => Kind::Corrupt,
        (429 | 503, _) => Kind::Throttled,
        (507, _) => Kind::Full,
        (501 | 505, _) => Kind::Other,
        // A success without a valid answer, or an answer of a portal or balancer in between.
        (200..=299 | 302 | 303 | 307 | 408 | 500..=599, _) => Kind::Unavailable,
        _ => Kind::Other,
    }
}

/// Whether the keys themselves are refused, as they are when they expired or were replaced. An
/// answer to HEAD has no code.
fn is_of_the_keys(status: u16, code: &str) -> bool {
    match code {
        "ExpiredToken"
        | "ExpiredTokenException"
        | "TokenRefreshRequired"
        | "InvalidToken"
        | "InvalidAccessKeyId"
        | "SignatureDoesNotMatch" => true,
        "" | "BadRequest" | "Forbidden" => matches!(status, 400 | 401 | 403),
        _ => status == 401,
    }
}

/// A foreign text, made safe for a terminal.
fn quoted(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(plain).take(MESSAGE_CHARS_MAX).collect()
}

/// The seconds that a service asks us to pause; the header may also be a date, which no S3 service
/// sends.
fn retry_after(header: Option<&str>) -> Option<Duration> {
    Some(Duration::from_secs(header?.trim().parse().ok()?))
}

/// The chain of causes, beginning with this error.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let this = next?;
        next = this.source();
        Some(this)
    })
}

/// The text of the innermost cause: the outer ones repeat what the caller knows.
fn root(error: &(dyn Error + 'static)) -> String {
    let words = causes(error).map(ToString::to_string);
    quoted(
        &words
            .filter(|words| !words.is_empty())
            .last()
            .unwrap_or_default(),
    )
}

/// Whether the service reports that it does not support `If-None-Match`.
pub(super) fn is_not_implemented<E: ProvideErrorMetadata>(error: &SdkError<E, Response>) -> bool {
    let Some(answer) = error.raw_response() else {
        return false;
    };
    let names_it = || {
        let message = error.message().unwrap_or_default().to_ascii_lowercase();
        message.contains("if-none-match")
    };
    match answer.status().as_u16() {
        501 => true,
        400 => error.code() == Some("NotImplemented") || names_it(),
        _ => false,
    }
}

/// The meaning of a failure to get keys; `keys` names their sources.
pub(super) fn no_keys(error: &(dyn Error + 'static), keys: &str) -> Refusal {
    let detail = format!("no keys: {}; {keys}", root(error));
    Refusal::new(StoreErrorKind::Denied, detail).outdated()
}

/// The meaning of a failed try; `keys` names the sources of the keys.
pub(super) fn of<E>(error: &SdkError<E, Response>, subject: Subject, keys: &str) -> Refusal
where
    E: ProvideErrorMetadata + Error + 'static,
{
    if let Some(cause) = causes(error).find(|cause| cause.is::<CredentialsError>()) {
        return no_keys(cause, keys);
    }
    let Some(answer) = error.raw_response() else {
        let kind = match error {
            SdkError::ConstructionFailure(_) => StoreErrorKind::Other,
            _ => StoreErrorKind::Unavailable,
        };
        let words = root(error);
        return tls::refusal(&words).unwrap_or_else(|| Refusal::new(kind, words));
    };
    let header = |name| answer.headers().get(name);
    let status = answer.status().as_u16();
    let (code, message) = (error.code(), error.message().unwrap_or_default());
    let kind = kind(status, code.unwrap_or_default(), message, subject);
    let mut detail = match code {
        Some(code) if message.is_empty() => format!("{} (HTTP {status})", quoted(code)),
        Some(code) => format!("{}: {} (HTTP {status})", quoted(code), quoted(message)),
        None if (200..300).contains(&status) || matches!(error, SdkError::ResponseError(_)) => {
            format!(
                "HTTP {status} with an answer that no S3 service gives ({}); check the endpoint",
                root(error)
            )
        }
        None => format!("HTTP {status}, without an S3 error"),
    };
    if kind == StoreErrorKind::NoContainer
        && let Some(region) = header("x-amz-bucket-region")
    {
        detail = format!("{detail}; the bucket is in region={}", quoted(region));
    }
    if kind == StoreErrorKind::Denied {
        detail = format!("{detail}; the keys: {keys}");
    }
    let outdated = is_of_the_keys(status, code.unwrap_or_default());
    let retry_after = match kind {
        StoreErrorKind::Throttled | StoreErrorKind::Unavailable => {
            retry_after(header("retry-after"))
        }
        _ => None,
    };
    Refusal {
        kind,
        detail,
        retry_after,
        outdated,
    }
}

/// The meaning of an interrupted object.
pub(super) fn of_body(error: &(dyn Error + 'static)) -> Refusal {
    let words = root(error);
    if words.contains("checksum mismatch") {
        return Refusal::new(StoreErrorKind::Corrupt, words);
    }
    Refusal::new(
        StoreErrorKind::Unavailable,
        format!("the answer was interrupted: {words}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_has_its_kind() {
        use StoreErrorKind as Kind;
        use Subject::{Bucket, New, Object};
        for (status, code, message, subject, wanted) in [
            (404, "NoSuchKey", "", Object, Kind::NotFound),
            (404, "NotFound", "", Object, Kind::NotFound),
            (404, "", "", Object, Kind::NotFound),
            (404, "NoSuchBucket", "", Object, Kind::NoContainer),
            (404, "", "", Bucket, Kind::NoContainer),
            (404, "", "", New, Kind::NoContainer),
            (412, "PreconditionFailed", "", New, Kind::AlreadyExists),
            (412, "PreconditionFailed", "", Object, Kind::Other),
            (
                409,
                "ConditionalRequestConflict",
                "",
                New,
                Kind::Unavailable,
            ),
            (409, "OperationAborted", "", New, Kind::Unavailable),
            (503, "SlowDown", "", New, Kind::Throttled),
            (503, "ServiceUnavailable", "", Bucket, Kind::Throttled),
            (503, "", "", Object, Kind::Throttled),
            (429, "", "", Object, Kind::Throttled),
            (503, "SlowDownRead", "", Object, Kind::Throttled),
            (
                503,
                "XMinioServerNotInitialized",
                "",
                Object,
                Kind::Unavailable,
            ),
            (500, "InternalError", "", New, Kind::Unavailable),
            (502, "", "", Object, Kind::Unavailable),
            (504, "", "", Object, Kind::Unavailable),
            (400, "RequestTimeout", "", New, Kind::Unavailable),
            (400, "BadDigest", "", New, Kind::Unavailable),
            (200, "", "", Bucket, Kind::Unavailable),
            (302, "", "", Object, Kind::Unavailable),
            (307, "TemporaryRedirect", "", New, Kind::Unavailable),
            (403, "AccessDenied", "Access Denied", New, Kind::Denied),
            (403, "SignatureDoesNotMatch", "", Object, Kind::Denied),
            (403, "InvalidAccessKeyId", "", Object, Kind::Denied),
            (400, "ExpiredToken", "", Object, Kind::Denied),
            (403, "", "", Object, Kind::Denied),
            (401, "", "", Object, Kind::Denied),
            (
                400,
                "AuthorizationHeaderMalformed",
                "",
                Object,
                Kind::Denied,
            ),
            (
                400,
                "AuthorizationHeaderMalformed",
                "the region 'us-east-1' is wrong; expecting 'eu-west-1'",
                Object,
                Kind::NoContainer,
            ),
            (301, "PermanentRedirect", "", Object, Kind::NoContainer),
            (301, "", "", Object, Kind::NoContainer),
            (403, "RequestTimeTooSkewed", "", Object, Kind::Clock),
            (403, "QuotaExceeded", "", New, Kind::Full),
            (507, "", "", New, Kind::Full),
            (507, "XMinioStorageFull", "", New, Kind::Full),
            (
                403,
                "AccessDenied",
                "Bucket size quota is reached, …",
                New,
                Kind::Full,
            ),
            (403, "AccessDenied", "Storage cap exceeded", New, Kind::Full),
            (416, "InvalidRange", "", Object, Kind::Corrupt),
            (403, "InvalidObjectState", "", Object, Kind::Other),
            (501, "NotImplemented", "", Bucket, Kind::Other),
            (400, "InvalidArgument", "", New, Kind::Other),
        ] {
            let found = kind(status, code, message, subject);
            assert_eq!(found, wanted, "{status} {code} {message} {subject:?}");
        }
    }

    #[test]
    fn refusals_of_keys_differ_from_refusals_that_other_keys_would_get_too() {
        for (status, code, wanted) in [
            (400, "ExpiredToken", true),
            (403, "InvalidAccessKeyId", true),
            (403, "", true),
            (400, "", true),
            (403, "AccessDenied", false),
            (400, "InvalidArgument", false),
            (404, "", false),
            (503, "SlowDown", false),
        ] {
            assert_eq!(is_of_the_keys(status, code), wanted, "{status} {code}");
        }
    }

    #[test]
    fn a_stranger_cannot_write_on_the_terminal() {
        assert_eq!(quoted("a\u{1b}[2Jb\nc"), "a [2Jb c");
        assert_eq!(quoted(&"x".repeat(9000)).len(), MESSAGE_CHARS_MAX);
    }

    #[test]
    fn a_pause_is_asked_for_in_seconds() {
        assert_eq!(retry_after(Some(" 7 ")), Some(Duration::from_secs(7)));
        assert_eq!(retry_after(Some("-1")), None);
        assert_eq!(retry_after(None), None);
    }
}
