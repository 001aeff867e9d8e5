//! The URL under which a server is reached, as its links begin with it.
//!
//! It is an origin and perhaps a path, which a proxy in front of the server may remove or leave.

use crate::token::LinkToken;
use hyper::Uri;
use std::str::FromStr;

/// The beginning of all links of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BaseUrl {
    origin: String,
    path: String,
}

/// It is no such URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not the URL of a server: {reason}")]
pub struct NotBaseUrl {
    text: String,
    reason: &'static str,
}

impl BaseUrl {
    /// The path, without a slash at its end.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether what a link leads to crosses the network in the open.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.origin.starts_with("http://")
    }

    /// The URL of a link. A folder's has a slash at its end.
    #[must_use]
    pub fn link(&self, token: &LinkToken, is_folder: bool) -> String {
        let slash = if is_folder { "/" } else { "" };
        format!("{}{}/s/{}{slash}", self.origin, self.path, token.text())
    }
}

impl FromStr for BaseUrl {
    type Err = NotBaseUrl;

    fn from_str(text: &str) -> Result<Self, NotBaseUrl> {
        let wrong = |reason| NotBaseUrl {
            text: text.to_owned(),
            reason,
        };
        let url: Uri = text
            .parse()
            .map_err(|_| wrong("it has signs that no URL has"))?;
        let scheme = url.scheme_str().unwrap_or_default().to_lowercase();
        if scheme != "http" && scheme != "https" {
            return Err(wrong("it begins neither with https:// nor with http://"));
        }
        let authority = url.authority().map(hyper::http::uri::Authority::as_str);
        let authority = authority.filter(|it| !it.is_empty() && !it.starts_with(':'));
        let authority = authority.ok_or_else(|| wrong("it names no host"))?;
        if authority.contains('@') {
            return Err(wrong("a user's name in it would be in each link"));
        }
        if url.query().is_some() || text.contains('#') {
            return Err(wrong("it has more than a host and a path"));
        }
        let path = url.path().trim_end_matches('/').to_owned();
        if path.split('/').any(|name| matches!(name, "." | "..")) || path.contains("//") {
            return Err(wrong("its path is not in its shortest form"));
        }
        Ok(Self {
            origin: format!("{scheme}://{authority}"),
            path,
        })
    }
}

impl std::fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}/", self.origin, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_begin_with_it() {
        let token = LinkToken::new([0; 24]);
        let text = token.text();
        for (base, expected) in [
            ("https://files.example", "https://files.example/s/"),
            ("https://files.example/", "https://files.example/s/"),
            ("HTTP://[::1]:8480/a/b/", "http://[::1]:8480/a/b/s/"),
        ] {
            let base: BaseUrl = base.parse().unwrap();
            assert_eq!(base.link(&token, false), format!("{expected}{text}"));
            assert_eq!(base.link(&token, true), format!("{expected}{text}/"));
        }
        let base: BaseUrl = "https://h/x/".parse().unwrap();
        assert_eq!(
            (base.path(), base.to_string().as_str()),
            ("/x", "https://h/x/")
        );
    }

    #[test]
    fn what_is_no_such_url_is_refused_with_the_reason() {
        for (text, reason) in [
            ("files.example", "neither"),
            ("ftp://files.example", "neither"),
            ("https://", "signs"),
            ("https://a b", "signs"),
            ("https://me@files.example", "name"),
            ("https://files.example/?a", "more than"),
            ("https://files.example/#a", "more than"),
            ("https://files.example/a/../b", "shortest"),
        ] {
            let error = text.parse::<BaseUrl>().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
