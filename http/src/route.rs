//! What a request asks for: from its target to a link, a path below it, and a form.
//!
//! ```text
//! /s/TOKEN                the file, or (with a slash behind it) the folder
//! /s/TOKEN/a/b            what is below the folder
//! /s/TOKEN/a/?after=9     a further page of the folder
//! /s/TOKEN/a/?zip         the folder as an archive
//! ```
//!
//! A path becomes a list of names *after* the percent signs are decoded, once. A name that is
//! empty, `.`, `..`, too long, or has a slash or NUL in it makes the whole path lead nowhere; it is
//! never normalised into another one. So no spelling of `..` reaches anything.

use crate::limits::{DEPTH_MAX, NAME_BYTES_MAX};
use crate::token::LinkToken;
use percent_encoding::percent_decode_str;

/// What a request asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Route {
    /// The page at the root.
    Front,
    /// Something below a link.
    Link(LinkRoute),
    /// Something that is not there, whatever the links are.
    Nothing {
        /// It looked like a link: perhaps a try.
        is_try: bool,
    },
}

/// A link, and a path below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkRoute {
    /// The link.
    pub token: LinkToken,
    /// The names below it.
    pub path: Vec<Vec<u8>>,
    /// The target ends with a slash.
    pub as_folder: bool,
    /// The form.
    pub form: WantedForm,
}

/// In which form something is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WantedForm {
    /// A file's content, or a folder's page after a position.
    Usual {
        /// 0: the first page.
        after: u64,
    },
    /// A folder as an archive.
    Archive,
}

/// The route of a target: a path and a query, as they came. `base` is the path of the URL under
/// which the server is reached, without a slash at its end: a proxy may or may not remove it.
#[must_use]
pub fn route(base: &str, path: &str, query: Option<&str>) -> Route {
    let inner = path
        .strip_prefix(base)
        .filter(|rest| rest.starts_with('/'))
        .unwrap_or(path);
    if inner == "/" {
        return Route::Front;
    }
    let Some(rest) = inner.strip_prefix("/s/") else {
        return Route::Nothing { is_try: false };
    };
    below(rest, query).unwrap_or(Route::Nothing { is_try: true })
}

fn below(rest: &str, query: Option<&str>) -> Option<Route> {
    let (token, names) = match rest.split_once('/') {
        Some((token, names)) => (token, Some(names)),
        None => (rest, None),
    };
    let token = LinkToken::parse(token.as_bytes())?;
    let as_folder = names.is_some_and(|names| names.is_empty() || names.ends_with('/'));
    let names = names.unwrap_or_default();
    let names = names.strip_suffix('/').unwrap_or(names);
    let mut path = Vec::new();
    if !names.is_empty() {
        for name in names.split('/') {
            if path.len() >= DEPTH_MAX {
                return None;
            }
            path.push(name_of(name)?);
        }
    }
    Some(Route::Link(LinkRoute {
        token,
        path,
        as_folder,
        form: form(query),
    }))
}

/// The name that a segment of a path stands for.
fn name_of(segment: &str) -> Option<Vec<u8>> {
    let name: Vec<u8> = percent_decode_str(segment).collect();
    is_name(&name).then_some(name)
}

/// Whether these bytes can be the name of an entry.
#[must_use]
pub fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
        && name.len() <= NAME_BYTES_MAX
        && !name.contains(&b'/')
        && !name.contains(&0)
}

fn form(query: Option<&str>) -> WantedForm {
    let query = query.unwrap_or_default();
    if query == "zip" {
        return WantedForm::Archive;
    }
    let after = query.strip_prefix("after=").map(str::parse);
    WantedForm::Usual {
        after: after.and_then(Result::ok).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::escape::url;
    use proptest::prelude::*;

    fn token() -> LinkToken {
        LinkToken::new([7; 24])
    }

    fn paths(target: &str) -> Option<(Vec<Vec<u8>>, bool)> {
        let text = token().text();
        match route("", &target.replace("TOKEN", &text), None) {
            Route::Link(link) if link.token == token() => Some((link.path, link.as_folder)),
            _ => None,
        }
    }

    #[test]
    fn a_target_is_a_link_and_names_below_it() {
        let names = |names: &[&str]| names.iter().map(|it| it.as_bytes().to_vec()).collect();
        for (target, expected, as_folder) in [
            ("/s/TOKEN", names(&[]), false),
            ("/s/TOKEN/", names(&[]), true),
            ("/s/TOKEN/a/b", names(&["a", "b"]), false),
            ("/s/TOKEN/a/b/", names(&["a", "b"]), true),
            ("/s/TOKEN/a%20%C3%A4%25", names(&["a ä%"]), false),
            ("/s/TOKEN/...", names(&["..."]), false),
        ] {
            assert_eq!(paths(target), Some((expected, as_folder)), "{target}");
        }
    }

    #[test]
    fn no_spelling_leads_out_of_the_link() {
        let long = format!("/s/TOKEN/{}", "a".repeat(NAME_BYTES_MAX + 1));
        let deep = format!("/s/TOKEN{}", "/a".repeat(DEPTH_MAX + 1));
        for target in [
            "/s/TOKEN/..",
            "/s/TOKEN/../x",
            "/s/TOKEN/a/../../x",
            "/s/TOKEN/%2e%2e/x",
            "/s/TOKEN/.%2E/x",
            "/s/TOKEN/a%2f..%2fb",
            "/s/TOKEN/a%2fb",
            "/s/TOKEN/%2fetc%2fpasswd",
            "/s/TOKEN//etc/passwd",
            "/s/TOKEN/a//b",
            "/s/TOKEN/a//",
            "/s/TOKEN/.",
            "/s/TOKEN/%00",
            "/s/TOKEN/a%00b",
            &long,
            &deep,
            "/s/%2e%2e/TOKEN",
            "//s/TOKEN",
            "/S/TOKEN",
            "/s/TOKENx",
            "/s/",
            "/s",
        ] {
            assert_eq!(paths(target), None, "{target}");
        }
        // Decoded once only.
        let twice = paths("/s/TOKEN/%252e%252e");
        assert_eq!(twice, Some((vec![b"%2e%2e".to_vec()], false)));
        let backslash = paths("/s/TOKEN/..%5c..");
        assert_eq!(backslash, Some((vec![b"..\\..".to_vec()], false)));
    }

    #[test]
    fn what_is_no_link_is_not_counted_as_a_try() {
        for target in ["/favicon.ico", "/robots.txt", "/x/s/y", "*", ""] {
            assert_eq!(
                route("", target, None),
                Route::Nothing { is_try: false },
                "{target}"
            );
        }
        assert_eq!(route("", "/s/guess", None), Route::Nothing { is_try: true });
        assert_eq!(route("", "/", Some("x")), Route::Front);
    }

    #[test]
    fn a_proxy_may_or_may_not_remove_the_path_of_the_url() {
        let text = format!("/s/{}", token().text());
        let expected = route("", &text, None);
        assert_eq!(route("/files", &format!("/files{text}"), None), expected);
        assert_eq!(route("/files", &text, None), expected);
        assert_eq!(route("/files", "/files/", None), Route::Front);
        assert_eq!(
            route("/files", "/filesx/", None),
            Route::Nothing { is_try: false }
        );
    }

    #[test]
    fn a_query_says_the_form() {
        let text = format!("/s/{}/", token().text());
        let form = |query| match route("", &text, query) {
            Route::Link(link) => link.form,
            other => panic!("{other:?}"),
        };
        assert_eq!(form(Some("zip")), WantedForm::Archive);
        assert_eq!(form(Some("after=12")), WantedForm::Usual { after: 12 });
        for query in [
            None,
            Some(""),
            Some("after="),
            Some("after=-1"),
            Some("zip=1"),
        ] {
            assert_eq!(form(query), WantedForm::Usual { after: 0 }, "{query:?}");
        }
    }

    proptest! {
        #[test]
        fn names_survive_their_way_through_a_url(
            names in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..5)
        ) {
            let spelled: String = names.iter().map(|name| format!("/{}", url(name))).collect();
            let found = paths(&format!("/s/TOKEN{spelled}"));
            match names.iter().all(|name| is_name(name)) {
                true => prop_assert_eq!(found, Some((names, false))),
                false => {
                    let fine = |path: Vec<Vec<u8>>| path.iter().all(|it| is_name(it));
                    prop_assert!(found.is_none_or(|(path, _)| fine(path)));
                }
            }
        }

        #[test]
        fn whatever_comes_a_name_is_a_name(path in ".*", query in ".*") {
            let target = format!("/s/{}/{path}", token().text());
            if let Route::Link(link) = route("", &target, Some(&query)) {
                prop_assert!(link.path.iter().all(|name| is_name(name)));
                prop_assert!(link.path.len() <= DEPTH_MAX);
            }
        }
    }
}
