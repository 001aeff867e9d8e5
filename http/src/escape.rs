//! Names in other languages: HTML, URLs, headers, archives.
//!
//! Names come from the writers of the volume, who may mean ill to those that open a link. A name is
//! up to 255 arbitrary bytes without a slash or NUL; what is not text is shown as U+FFFD. Controls,
//! and the signs that turn the direction of text around (with which `exe.txt` is shown for
//! `txt.exe`), are shown as U+FFFD too.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// What a path may not contain as it is (RFC 3986, section 3.3): everything but `unreserved`.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The same for the extended values of headers (RFC 8187, section 3.2.1): everything but
/// `attr-char`, of which this is a part.
const ATTRIBUTE: &AsciiSet = PATH;

/// A name as one segment of a URL's path.
#[must_use]
pub fn url(name: &[u8]) -> String {
    percent_encode(name, PATH).to_string()
}

/// A name as text that shows no more than it is.
#[must_use]
pub fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name)
        .chars()
        .map(|it| if misleads(it) { '\u{fffd}' } else { it })
        .collect()
}

/// Whether a character changes how others are shown, or stands for none.
fn misleads(it: char) -> bool {
    it.is_control()
        || matches!(it,
            '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}')
}

/// Text for HTML: between tags, and in attributes with double quotes.
#[must_use]
pub fn html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for it in text.chars() {
        match it {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            it => escaped.push(it),
        }
    }
    escaped
}

/// The value of `Content-Disposition`: how to show it, and the name under which it is saved, in
/// ASCII for old clients and in full (RFC 6266, RFC 8187).
#[must_use]
pub fn disposition(inline: bool, name: &[u8]) -> String {
    let kind = if inline { "inline" } else { "attachment" };
    let full = shown(name);
    // Separators of other systems' paths are not for the one who downloads.
    let full: String = full
        .chars()
        .map(|it| if matches!(it, '/' | '\\') { '_' } else { it })
        .collect();
    let ascii: String = full
        .chars()
        .map(|it| match it {
            '"' | '%' | ';' => '_',
            it if it == ' ' || it.is_ascii_graphic() => it,
            _ => '_',
        })
        .collect();
    let encoded = percent_encode(full.as_bytes(), ATTRIBUTE);
    format!("{kind}; filename=\"{ascii}\"; filename*=UTF-8''{encoded}")
}

/// A name as a name in an archive. Names that all systems can have stay as they are; any other is
/// percent-encoded as a whole, so that no two become one and none is a path elsewhere.
#[must_use]
pub fn archived(name: &[u8]) -> String {
    let plain = std::str::from_utf8(name).ok().filter(|text| {
        !text.is_empty()
            && *text != "."
            && *text != ".."
            && !text.contains(|it: char| misleads(it) || matches!(it, '/' | '\\' | ':'))
    });
    match plain {
        Some(text) => text.to_owned(),
        None => match name {
            b"." => "%2E".to_owned(),
            b".." => "%2E%2E".to_owned(),
            name => url(name),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_is_text_and_no_mark_up() {
        let name = b"<script>alert(\"1\" & '2')</script>";
        let text = html(&shown(name));
        assert!(!text.contains(['<', '>', '"', '\'']), "{text}");
        assert!(text.starts_with("&lt;script&gt;"));
        assert_eq!(
            shown("invoice\u{202e}fdp.exe".as_bytes()),
            "invoice\u{fffd}fdp.exe"
        );
        assert_eq!(shown(b"a\nb\xff"), "a\u{fffd}b\u{fffd}");
    }

    #[test]
    fn a_download_has_its_name_in_full_and_in_ascii() {
        assert_eq!(
            disposition(false, "Büro \"x\".pdf".as_bytes()),
            "attachment; filename=\"B_ro _x_.pdf\"; filename*=UTF-8''B%C3%BCro%20%22x%22.pdf"
        );
        assert!(disposition(true, b"a\r\nSet-Cookie: x").starts_with("inline; filename=\"a__Set"));
        assert!(disposition(false, b"..\\..\\x").contains("filename=\".._.._x\""));
    }

    #[test]
    fn no_name_in_an_archive_is_a_path_on_any_system() {
        for (name, expected) in [
            (&b"a b.txt"[..], "a b.txt"),
            ("ä".as_bytes(), "ä"),
            (b"100%", "100%"),
            (b"..", "%2E%2E"),
            (b"..\\..\\x", "..%5C..%5Cx"),
            (b"C:x", "C%3Ax"),
            (b"\xff", "%FF"),
        ] {
            assert_eq!(archived(name), expected);
        }
    }

    proptest! {
        #[test]
        fn whatever_a_name_is_it_stays_inside(name in prop::collection::vec(any::<u8>(), 0..64)) {
            let text = html(&shown(&name));
            prop_assert!(!text.contains(['<', '>', '"', '\'']));
            prop_assert!(url(&name).bytes().all(|it| it.is_ascii_graphic() && it != b'"'));
            let value = disposition(false, &name);
            prop_assert!(value.bytes().all(|it| it == b' ' || it.is_ascii_graphic()));
            prop_assert_eq!(value.matches('"').count(), 2);
            prop_assert_eq!(value.matches(';').count(), 2);
            let archived = archived(&name);
            let is_path = archived.contains(['/', '\\', '\0']);
            prop_assert!(!is_path && archived != "." && archived != "..");
        }
    }
}
