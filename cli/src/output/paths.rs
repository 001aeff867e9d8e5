//! Paths in JSON. A path is bytes, and nearly always text: then it is a string. A path that is not
//! text is an object with a readable form and a form that preserves every byte:
//!
//! ```text
//! "/mnt/docs"      { "text": "/mnt/?", "escaped": "/mnt/\\xff" }
//! ```
//!
//! In the escaped form a backslash is two, and a byte that is not part of a character is `\x` and
//! two hexadecimal digits. (In JSON itself each backslash is doubled once more.)

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    Bytes { text: String, escaped: String },
}

pub(crate) fn serialize<P: AsRef<Path>, S: Serializer>(
    path: &P,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    form(path.as_ref()).serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    match Form::deserialize(deserializer)? {
        Form::Text(text) => Ok(text.into()),
        Form::Bytes { escaped, .. } => {
            let bytes = unescape(&escaped).ok_or_else(|| D::Error::custom("no escaped path"))?;
            Ok(OsString::from_vec(bytes).into())
        }
    }
}

fn form(path: &Path) -> Form {
    match path.to_str() {
        Some(text) => Form::Text(text.to_owned()),
        None => Form::Bytes {
            text: path.to_string_lossy().into_owned(),
            escaped: escape(path.as_os_str().as_bytes()),
        },
    }
}

/// Bytes as text that can be converted back.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "\\\\"));
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, escaped)) = rest.split_once('\\') {
        bytes.extend_from_slice(plain.as_bytes());
        rest = match escaped.strip_prefix('\\') {
            Some(after) => {
                bytes.push(b'\\');
                after
            }
            None => {
                let (digits, after) = escaped.strip_prefix('x')?.split_at_checked(2)?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                after
            }
        };
    }
    bytes.extend_from_slice(rest.as_bytes());
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    struct Record {
        #[serde(with = "super")]
        path: PathBuf,
    }

    #[test]
    fn every_path_survives_json_and_text_stays_text() {
        let json = |bytes: &[u8]| {
            let path = PathBuf::from(OsString::from_vec(bytes.to_vec()));
            let record = Record { path };
            let made = serde_json::to_value(&record).unwrap();
            let read: Record = serde_json::from_value(made.clone()).unwrap();
            assert_eq!(read, record);
            made["path"].clone()
        };
        assert_eq!(json(b"/mnt/a\\b"), "/mnt/a\\b");
        assert_eq!(json("/m\u{e4}h".as_bytes()), "/m\u{e4}h");
        let bytes = json(b"/a\\/\xff\xc3\xa4\n");
        assert_eq!(bytes["text"], "/a\\/\u{fffd}\u{e4}\n");
        assert_eq!(bytes["escaped"], "/a\\\\/\\xff\u{e4}\n");
        for wrong in ["\\", "\\x", "\\x4", "\\xzz", "\\y"] {
            assert_eq!(unescape(wrong), None, "{wrong}");
        }
    }
}
