//! The pages: a folder, and a short text for everything that is not there.
//!
//! Plain HTML with one style sheet inside, without scripts and without anything from elsewhere. All
//! names pass through [`escape`](crate::escape). What is not a file or a folder, symbolic links
//! above all, is shown and leads nowhere.

use crate::conditions::time;
use crate::escape::{html, shown, url};
use crate::source::{ListedEntry, ListedPage, TargetKind};
use std::fmt::Write;

/// The style of all pages.
const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;\
color:#222;background:#fff}h1{font-size:1.3rem;overflow-wrap:anywhere}table{width:100%;\
border-collapse:collapse}td,th{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ddd;\
overflow-wrap:anywhere}td+td,th+th{text-align:right;white-space:nowrap;color:#666}a{color:#0b57d0;\
text-decoration:none}a:hover{text-decoration:underline}@media(prefers-color-scheme:dark){body{\
color:#ddd;background:#181818}td,th{border-color:#333}a{color:#8ab4f8}}";

/// The hash of the pages' style, by which `Content-Security-Policy` allows this style and no other.
pub const STYLE_HASH: &str = "sha256-OGZP75/f+IC0rT9OidSogDtmVXX+U37H9LWQQWpKr4w=";

/// Where a page of a folder lies.
#[derive(Clone, Copy, Debug)]
pub struct PagePlace<'a> {
    /// The names from the link's own down to the folder's.
    pub names: &'a [&'a [u8]],
    /// The position that the page begins after.
    pub after: u64,
}

/// A number of bytes for people.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut whole, mut rest, mut unit) = (bytes, 0, "B");
    for next in UNITS {
        if whole < 1024 {
            break;
        }
        (rest, whole, unit) = (whole % 1024, whole / 1024, next);
    }
    format!("{whole}.{} {unit}", rest * 10 / 1024)
}

/// A time for people, in UTC: `06 Nov 1994 08:49`.
fn minute(seconds: i64) -> String {
    let date = httpdate::fmt_http_date(time(seconds));
    date.get(5..22).unwrap_or_default().to_owned()
}

fn frame(title: &str, body: &str) -> String {
    let title = html(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <meta name=\"robots\" content=\"noindex\"><title>{title}</title>\
         <style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    )
}

/// A page with a few words, of what no one may draw conclusions from.
#[must_use]
pub fn message(title: &str, text: &str) -> String {
    let (heading, text) = (html(title), html(text));
    frame(title, &format!("<h1>{heading}</h1>\n<p>{text}</p>\n"))
}

/// The page of a folder, sorted: folders first, then by name.
#[must_use]
pub fn folder(place: PagePlace<'_>, listed: &ListedPage) -> String {
    let title = place.names.last().map(|name| shown(name));
    let title = title.unwrap_or_default();
    let mut body = String::with_capacity(256 + listed.entries.len() * 192);
    body.push_str("<h1>");
    for (depth, name) in place.names.iter().enumerate() {
        let (name, up) = (html(&shown(name)), place.names.len() - 1 - depth);
        if depth > 0 {
            body.push_str(" / ");
        }
        let _ = match up {
            0 => write!(body, "<bdi>{name}</bdi>"),
            up => write!(
                body,
                "<a href=\"{}\"><bdi>{name}</bdi></a>",
                "../".repeat(up)
            ),
        };
    }
    body.push_str("</h1>\n<p><a href=\"./?zip\" download>Download all (ZIP)</a></p>\n");
    let mut entries: Vec<&ListedEntry> = listed.entries.iter().collect();
    let order = |entry: &ListedEntry| entry.entry.kind != TargetKind::Folder;
    entries.sort_by(|a, b| (order(a), &a.name).cmp(&(order(b), &b.name)));
    let is_part = place.after > 0 || listed.next.is_some();
    if is_part {
        body.push_str("<p>This folder is long: it has several pages, each sorted by itself.</p>\n");
    }
    body.push_str("<table><tr><th>Name</th><th>Size</th><th>Changed (UTC)</th></tr>\n");
    for entry in entries {
        row(&mut body, entry);
    }
    body.push_str("</table>\n");
    if listed.entries.is_empty() {
        body.push_str("<p>Nothing is in this folder.</p>\n");
    }
    if let Some(next) = listed.next {
        let _ = writeln!(body, "<p><a href=\"./?after={next}\">Next page</a></p>");
    }
    frame(&title, &body)
}

fn row(body: &mut String, entry: &ListedEntry) {
    let (name, target) = (html(&shown(&entry.name)), url(&entry.name));
    let entry = &entry.entry;
    let changed = minute(entry.modified);
    let _ = match entry.kind {
        TargetKind::Folder => writeln!(
            body,
            "<tr><td><a href=\"./{target}/\"><bdi>{name}</bdi>/</a></td><td></td>\
             <td>{changed}</td></tr>"
        ),
        TargetKind::File => writeln!(
            body,
            "<tr><td><a href=\"./{target}\"><bdi>{name}</bdi></a></td><td>{}</td>\
             <td>{changed}</td></tr>",
            size(entry.size)
        ),
        TargetKind::Other(what) => writeln!(
            body,
            "<tr><td><bdi>{name}</bdi></td><td>{what}</td><td>{changed}</td></tr>"
        ),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::TargetEntry;
    use base64::Engine;
    use proptest::prelude::*;
    use sha2::{Digest, Sha256};

    fn entry(name: &[u8], kind: TargetKind) -> ListedEntry {
        ListedEntry {
            name: name.to_vec(),
            entry: TargetEntry {
                inode: 1,
                kind,
                size: 1536,
                modified: 784_111_777,
                version: [0; 16],
            },
        }
    }

    fn page(entries: Vec<ListedEntry>, next: Option<u64>) -> String {
        let place = PagePlace {
            names: &[b"Photos", b"2024"],
            after: 0,
        };
        folder(place, &ListedPage { entries, next })
    }

    #[test]
    fn the_policy_allows_this_style_and_no_other() {
        let hash = Sha256::digest(STYLE.as_bytes());
        let hash = base64::engine::general_purpose::STANDARD.encode(hash);
        assert_eq!(STYLE_HASH, format!("sha256-{hash}"));
    }

    #[test]
    fn a_folder_is_listed_with_sizes_and_times() {
        let page = page(
            vec![
                entry(b"b.txt", TargetKind::File),
                entry(b"z", TargetKind::Folder),
                entry(b"a b", TargetKind::File),
                entry(b"link", TargetKind::Other("symbolic link")),
            ],
            None,
        );
        let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}: {page}"));
        assert!(at("./z/") < at("./a%20b") && at("./a%20b") < at("./b.txt"));
        at("1.5 KiB");
        at("06 Nov 1994 08:49");
        at("<a href=\"../\"><bdi>Photos</bdi></a> / <bdi>2024</bdi>");
        at("<td><bdi>link</bdi></td><td>symbolic link</td>");
        assert!(!page.contains("Next page") && !page.contains("<script"));
    }

    #[test]
    fn a_long_folder_says_that_it_goes_on() {
        let page = page(vec![entry(b"a", TargetKind::File)], Some(17));
        assert!(page.contains("href=\"./?after=17\"") && page.contains("several pages"));
    }

    #[test]
    fn sizes_are_for_people() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (2_202_623, "2.0 MiB"),
            (2_202_624, "2.1 MiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
    }

    proptest! {
        #[test]
        fn no_name_adds_a_tag_to_the_page(name in prop::collection::vec(any::<u8>(), 1..60)) {
            let tags = |page: &str| page.matches('<').count();
            let plain = page(vec![entry(b"x", TargetKind::File)], None);
            let named = page(vec![entry(&name, TargetKind::File)], None);
            prop_assert_eq!(tags(&named), tags(&plain));
            prop_assert_eq!(named.matches('"').count(), plain.matches('"').count());
        }
    }
}
