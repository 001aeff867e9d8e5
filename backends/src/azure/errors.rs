//! The meaning of the service's refusals.
//!
//! A refusal of the service has a status, a code in the header `x-ms-error-code` (the only place
//! for it in answers to HEAD) and some XML. An answer without any of these comes from something in
//! between: a proxy, a network's login page, a wrong endpoint.

use crate::StoreErrorKind;
use crate::remote::{Refusal, causes, shorten, tls};
use azure_core::error::ErrorKind;
use azure_core::http::RawResponse;
use azure_core::http::headers::HeaderName;
use std::error::Error;
use std::time::Duration;

/// The meaning of a status and a code; `text` is the rest of the service's answer.
pub(super) fn kind(status: u16, code: &str, text: &str) -> StoreErrorKind {
    use StoreErrorKind as Kind;
    match code {
        "BlobNotFound" | "ResourceNotFound" => return Kind::NotFound,
        "ContainerNotFound" | "ContainerBeingDeleted" | "ContainerDisabled" => {
            return Kind::NoContainer;
        }
        // The last one is the answer to a SAS token that may create but not write.
        "BlobAlreadyExists"
        | "ContainerAlreadyExists"
        | "ConditionNotMet"
        | "TargetConditionNotMet"
        | "UnauthorizedBlobOverwrite" => return Kind::AlreadyExists,
        "BlobImmutableDueToPolicy" | "AccountIsReadOnly" => return Kind::ReadOnly,
        "ServerBusy" | "TooManyRequests" | "IngressLimitExceeded" | "EgressLimitExceeded" => {
            return Kind::Throttled;
        }
        "InvalidAuthenticationInfo" | "PublicAccessNotPermitted" | "AccountIsDisabled" => {
            return Kind::Denied;
        }
        "LeaseIdMissing" | "LeaseIdMismatchWithBlobOperation" => return Kind::Denied,
        "InvalidRange" => return Kind::Corrupt,
        // The body was damaged in transit.
        "Md5Mismatch" | "Crc64Mismatch" | "InternalError" | "OperationTimedOut" => {
            return Kind::Unavailable;
        }
        _ => {}
    }
    match status {
        401 | 403 if text.contains("date header too old") => Kind::Clock,
        401 | 403 => Kind::Denied,
        416 => Kind::Corrupt,
        429 | 503 => Kind::Throttled,
        507 => Kind::Full,
        _ if code.contains("Quota") || code.contains("Capacity") => Kind::Full,
        // The service answers a successful request with none of these; or it is a redirection.
        200..=399 => Kind::Unavailable,
        // Every 404 of the service has a code.
        404 | 407 | 408 | 500..=599 => Kind::Unavailable,
        _ => Kind::Other,
    }
}

/// Whether the service refuses the credentials themselves: expired, replaced or invalid.
fn is_of_the_credentials(status: u16, code: &str) -> bool {
    let codes = [
        "AuthenticationFailed",
        "AuthorizationFailure",
        "InvalidAuthenticationInfo",
        "ExpiredAuthenticationToken",
    ];
    status == 401 || codes.contains(&code)
}

/// The remedy for some of the codes.
fn remedy(code: &str, text: &str) -> &'static str {
    match code {
        "AuthorizationPermissionMismatch" => {
            "; grant this identity or SAS token its rights: reading and creating (rc) or, for the \
             collector, listing and deleting (ld); docs/CLOUDS.md, \"Roles\", lists the roles"
        }
        "AuthenticationFailed" if text.contains("specified time frame") => {
            "; the SAS token expired or is not valid yet: make a new one"
        }
        "AuthorizationFailure" => {
            "; the key or token may be wrong, or the account's firewall may not know this machine"
        }
        "KeyBasedAuthenticationNotPermitted" => {
            "; the account takes no keys: sign in with Microsoft Entra"
        }
        _ => "",
    }
}

/// The text between `<name>` and `</name>`.
fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (inside, _) = rest.split_once(&format!("</{name}>"))?;
    Some(inside)
}

/// The readable part of the service's message, without its internal details and signatures.
fn message_text(body: &str) -> String {
    let message = element(body, "Message").unwrap_or_default();
    let message = message.split("RequestId:").next().unwrap_or_default();
    let detail = element(body, "AuthenticationErrorDetail").unwrap_or_default();
    let shows = |word: &str| detail.contains(word);
    let detail = match shows("signature found") || shows("tring to sign") {
        true => "the signature does not match",
        false => detail,
    };
    let words = shorten(&format!("{message} {detail}"));
    words.trim_end_matches('.').to_owned()
}

fn retry_after(response: &RawResponse) -> Option<Duration> {
    let number = |name| {
        let text = response
            .headers()
            .get_optional_str(&HeaderName::from_static(name));
        text.and_then(|text| text.parse::<u32>().ok())
    };
    let milliseconds = number("x-ms-retry-after-ms").map(|it| Duration::from_millis(it.into()));
    milliseconds.or(number("retry-after").map(|it| Duration::from_secs(it.into())))
}

/// A refusal made from an unexpected answer.
fn answered(status: u16, response: Option<&RawResponse>) -> Refusal {
    let header = |name| {
        let name = HeaderName::from_static(name);
        response.and_then(|it| it.headers().get_optional_str(&name))
    };
    let body = response.map(|it| String::from_utf8_lossy(it.body()));
    let body = body.unwrap_or_default();
    let code = header("x-ms-error-code").or(element(&body, "Code"));
    let code = code.unwrap_or_default();
    let text = message_text(&body);
    let mut detail = match code {
        "" => format!("it answered {status}, which the service itself never does"),
        code if text.is_empty() => format!("{status} {code}{}", remedy(code, &text)),
        code => format!("{status} {code}: {text}{}", remedy(code, &text)),
    };
    if let Some(place) = header("location") {
        let place = place.split('?').next().unwrap_or_default();
        detail.push_str(&format!(", and sends us to {place}"));
    }
    Refusal {
        kind: kind(status, code, &text),
        detail,
        retry_after: response.and_then(retry_after),
        outdated: is_of_the_credentials(status, code),
    }
}

/// Whether the network failed, somewhere in the chain of causes.
fn is_network(error: &azure_core::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let core = error
            .downcast_ref::<azure_core::Error>()
            .map(|it| it.kind());
        if matches!(core, Some(ErrorKind::Io | ErrorKind::Connection)) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The refusal that an error of the SDK amounts to.
pub(super) fn refusal(error: &azure_core::Error) -> Refusal {
    let kind = match error.kind() {
        ErrorKind::HttpResponse {
            status,
            raw_response,
            ..
        } => return answered(u16::from(*status), raw_response.as_deref()),
        _ if is_network(error) => StoreErrorKind::Unavailable,
        ErrorKind::Credential => StoreErrorKind::Denied,
        // For example a listing that does not parse: something other than the service answers.
        ErrorKind::DataConversion => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Other,
    };
    let words = causes(error);
    tls::refusal(&words).unwrap_or_else(|| Refusal::new(kind, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_its_kind() {
        use StoreErrorKind as Kind;
        let skew = "Request date header too old: 'Fri, 01 Jan 2016 00:00:00 GMT'";
        let expired = "Signature not valid in the specified time frame: Start [a] - Expiry [b]";
        for (status, code, text, wanted) in [
            (404, "BlobNotFound", "", Kind::NotFound),
            (404, "ContainerNotFound", "", Kind::NoContainer),
            (409, "ContainerBeingDeleted", "", Kind::NoContainer),
            (409, "BlobAlreadyExists", "", Kind::AlreadyExists),
            (409, "ContainerAlreadyExists", "", Kind::AlreadyExists),
            (412, "ConditionNotMet", "", Kind::AlreadyExists),
            (403, "UnauthorizedBlobOverwrite", "", Kind::AlreadyExists),
            (412, "LeaseIdMissing", "", Kind::Denied),
            (409, "BlobImmutableDueToPolicy", "", Kind::ReadOnly),
            (403, "AuthenticationFailed", "", Kind::Denied),
            (403, "AuthenticationFailed", expired, Kind::Denied),
            (403, "AuthenticationFailed", skew, Kind::Clock),
            (403, "AuthorizationFailure", "", Kind::Denied),
            (401, "NoAuthenticationInformation", "", Kind::Denied),
            (400, "InvalidAuthenticationInfo", "", Kind::Denied),
            (409, "PublicAccessNotPermitted", "", Kind::Denied),
            (503, "ServerBusy", "", Kind::Throttled),
            (429, "", "", Kind::Throttled),
            (500, "OperationTimedOut", "", Kind::Unavailable),
            (500, "InternalError", "", Kind::Unavailable),
            (502, "", "", Kind::Unavailable),
            (400, "Md5Mismatch", "", Kind::Unavailable),
            (416, "InvalidRange", "", Kind::Corrupt),
            (507, "", "", Kind::Full),
            (409, "AccountQuotaExceeded", "", Kind::Full),
            (200, "", "", Kind::Unavailable),
            (302, "", "", Kind::Unavailable),
            (404, "", "", Kind::Unavailable),
            (400, "InvalidHeaderValue", "", Kind::Other),
        ] {
            assert_eq!(kind(status, code, text), wanted, "{status} {code} {text}");
        }
    }

    #[test]
    fn signatures_are_kept_out_of_messages() {
        let body = "<Error><Code>AuthenticationFailed</Code><Message>Server failed to \
            authenticate the request.\nRequestId:1\nTime:2</Message><AuthenticationErrorDetail>\
            The MAC signature found in the HTTP request 'c2VjcmV0' is not the same\
            </AuthenticationErrorDetail></Error>";
        let words = message_text(body);
        assert!(words.starts_with("Server failed to authenticate the request"));
        assert!(words.contains("does not match"), "{words}");
        assert!(
            !words.contains("c2VjcmV0") && !words.contains("RequestId"),
            "{words}"
        );
    }
}
