//! The type of a file's content, by the ending of its name, and whether a browser may show it.
//!
//! Types that a browser shows without running anything are shown in it: plain text, pictures,
//! sound, films. HTML, SVG, XML and PDF can contain scripts, and what is not known here may be
//! anything: they are downloaded. Text is shown as UTF-8, source code too.

/// The content of a file, for a browser.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContentKind {
    /// `Content-Type`
    pub media_type: &'static str,
    /// It may be shown; otherwise it is only downloaded.
    pub inline: bool,
}

const TEXT: &str = "text/plain; charset=utf-8";

/// The endings that are known.
const KINDS: &[(&str, &str, bool)] = &[
    ("txt", TEXT, true),
    ("md", TEXT, true),
    ("log", TEXT, true),
    ("csv", "text/csv; charset=utf-8", false),
    ("rs", TEXT, true),
    ("c", TEXT, true),
    ("h", TEXT, true),
    ("py", TEXT, true),
    ("toml", TEXT, true),
    ("yml", TEXT, true),
    ("yaml", TEXT, true),
    ("ini", TEXT, true),
    ("conf", TEXT, true),
    ("diff", TEXT, true),
    ("patch", TEXT, true),
    ("png", "image/png", true),
    ("jpg", "image/jpeg", true),
    ("jpeg", "image/jpeg", true),
    ("gif", "image/gif", true),
    ("webp", "image/webp", true),
    ("avif", "image/avif", true),
    ("bmp", "image/bmp", true),
    ("heic", "image/heic", false),
    ("tif", "image/tiff", false),
    ("tiff", "image/tiff", false),
    ("mp3", "audio/mpeg", true),
    ("m4a", "audio/mp4", true),
    ("flac", "audio/flac", true),
    ("ogg", "audio/ogg", true),
    ("opus", "audio/ogg", true),
    ("wav", "audio/wav", true),
    ("mp4", "video/mp4", true),
    ("m4v", "video/mp4", true),
    ("webm", "video/webm", true),
    ("mov", "video/quicktime", false),
    ("mkv", "video/matroska", false),
    ("pdf", "application/pdf", false),
    ("json", "application/json", false),
    ("zip", "application/zip", false),
    ("gz", "application/gzip", false),
    ("tgz", "application/gzip", false),
    ("xz", "application/x-xz", false),
    ("zst", "application/zstd", false),
    ("tar", "application/x-tar", false),
    ("7z", "application/x-7z-compressed", false),
    ("epub", "application/epub+zip", false),
    ("doc", "application/msword", false),
    ("xls", "application/vnd.ms-excel", false),
    ("ppt", "application/vnd.ms-powerpoint", false),
    (
        "docx",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        false,
    ),
    (
        "xlsx",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        false,
    ),
    (
        "pptx",
        "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        false,
    ),
    ("odt", "application/vnd.oasis.opendocument.text", false),
    (
        "ods",
        "application/vnd.oasis.opendocument.spreadsheet",
        false,
    ),
    (
        "odp",
        "application/vnd.oasis.opendocument.presentation",
        false,
    ),
    ("ics", "text/calendar; charset=utf-8", false),
    ("vcf", "text/vcard; charset=utf-8", false),
];

/// The kind of a file of this name.
#[must_use]
pub fn content_kind(name: &[u8]) -> ContentKind {
    let ending = name.rsplit(|it| *it == b'.').next().unwrap_or_default();
    let has_one = ending.len() < name.len();
    let known = KINDS
        .iter()
        .find(|(known, _, _)| has_one && ending.eq_ignore_ascii_case(known.as_bytes()));
    match known {
        Some((_, media_type, inline)) => ContentKind {
            media_type,
            inline: *inline,
        },
        None => ContentKind {
            media_type: "application/octet-stream",
            inline: false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_can_run_is_shown() {
        for name in [
            "a.html", "a.HTM", "a.svg", "a.xml", "a.xhtml", "a.js", "a.pdf", "a", "txt",
        ] {
            assert!(!content_kind(name.as_bytes()).inline, "{name}");
        }
        let shown = KINDS.iter().filter(|(_, _, inline)| *inline);
        for (ending, media_type, _) in shown {
            let safe = ["image/", "audio/", "video/", "text/plain"];
            assert!(safe.iter().any(|it| media_type.starts_with(it)), "{ending}");
            assert!(!media_type.contains("svg"), "{ending}");
        }
    }

    #[test]
    fn the_last_ending_counts_in_any_case() {
        assert_eq!(content_kind(b"a.html.JPG").media_type, "image/jpeg");
        assert!(content_kind(b"a.TXT").inline);
        assert_eq!(
            content_kind(b"a.jpg.html").media_type,
            "application/octet-stream"
        );
    }
}
