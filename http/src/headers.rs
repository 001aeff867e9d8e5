//! The headers that every answer has, so that a browser does nothing with it but show or save it.
//!
//! | Header | Why |
//! |---|---|
//! | `Content-Security-Policy` | no script, no form, no frame, no other origin; see [`Policy`] |
//! | `X-Content-Type-Options: nosniff` | content is of the type that is said |
//! | `Referrer-Policy: no-referrer` | the URL is the secret: no other site learns it |
//! | `X-Robots-Tag: noindex, nofollow` | a link that leaked is not found by searching |
//! | `X-Frame-Options: DENY` | as `frame-ancestors`, for old browsers |
//! | `Cross-Origin-Resource-Policy: same-origin` | other sites cannot embed content |
//! | `Cache-Control` | nothing stays in shared caches; a browser asks again each time |

use crate::page::STYLE_HASH;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderMap, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};

/// What an answer is, for a browser's rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// A page of this server: its own style, and downloads that begin there.
    Page,
    /// Content of a file, which another person has chosen: it may load nothing but itself.
    Content,
}

const FIXED: [(HeaderName, &str); 5] = [
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("x-robots-tag"), "noindex, nofollow"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// The value of `Content-Security-Policy`.
#[must_use]
pub fn content_policy(policy: Policy) -> String {
    const NOTHING: &str =
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    match policy {
        Policy::Page => format!("{NOTHING}; style-src '{STYLE_HASH}'; sandbox allow-downloads"),
        Policy::Content => format!("{NOTHING}; img-src 'self'; media-src 'self'; sandbox"),
    }
}

/// Adds the headers of every answer.
pub fn secure(headers: &mut HeaderMap, policy: Policy) {
    for (name, value) in FIXED {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(value) = HeaderValue::from_str(&content_policy(policy)) {
        headers.insert(CONTENT_SECURITY_POLICY, value);
    }
    let cached = match policy {
        // It may be kept, and is asked for again each time.
        Policy::Content => "private, no-cache",
        Policy::Page => "no-store",
    };
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(cached));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_forbids_scripts_and_keeps_the_url_secret() {
        for policy in [Policy::Page, Policy::Content] {
            let mut headers = HeaderMap::new();
            secure(&mut headers, policy);
            assert_eq!(headers.len(), 7);
            let rules = headers[CONTENT_SECURITY_POLICY].to_str().unwrap();
            assert!(rules.starts_with("default-src 'none'; "), "{rules}");
            assert!(
                !rules.contains("script") && !rules.contains("unsafe"),
                "{rules}"
            );
            assert!(rules.contains("sandbox"), "{rules}");
            assert_eq!(headers[REFERRER_POLICY], "no-referrer");
            assert_eq!(headers[X_CONTENT_TYPE_OPTIONS], "nosniff");
        }
    }
}
