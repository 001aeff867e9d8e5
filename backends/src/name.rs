//! The names of objects.
//!
//! A name is two hexadecimal digits, a slash, and at least one lower-case letter, digit, `-` or
//! `_`. The two digits spread the objects over 256 directories, which suits file systems and some
//! stores. All stores support this alphabet, so a name never needs escaping, never differs from
//! another only by case, and never leaves its directory.

use std::fmt;
use std::sync::Arc;

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 200;

/// A checked name; cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName(Arc<str>);

/// Why a string is not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Longer than [`NAME_BYTES_MAX`].
    #[error("an object's name has at most {NAME_BYTES_MAX} bytes, not {0}")]
    Length(usize),
    /// Not of the form that this module's documentation gives.
    #[error("an object's name is two of 0-9a-f, a slash, and letters a-z, digits, '-' or '_'")]
    Form,
}

impl ObjectName {
    /// Checks `name`.
    ///
    /// # Errors
    /// If it breaks the rules in this module's documentation.
    pub fn parse(name: &str) -> Result<Self, NameError> {
        if name.len() > NAME_BYTES_MAX {
            return Err(NameError::Length(name.len()));
        }
        let (place, rest) = name.split_once('/').ok_or(NameError::Form)?;
        let hexadecimal = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b);
        let formed = place.len() == 2
            && place.bytes().all(hexadecimal)
            && !rest.is_empty()
            && rest.bytes().all(plain);
        if !formed {
            return Err(NameError::Form);
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The two digits and what follows the slash.
    #[must_use]
    pub fn parts(&self) -> (&str, &str) {
        self.0.split_once('/').unwrap_or((&self.0, ""))
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_could_leave_its_directory_is_refused() {
        let bad = [
            "", "..", "00/..", "/a", "00/", "00//b", "00/b/c", "0g/a", "AA/a", "00/A", "00/a\0",
            "000/a",
        ];
        for name in bad {
            assert!(ObjectName::parse(name).is_err(), "{name:?}");
        }
        assert!(ObjectName::parse(&format!("00/{}", "a".repeat(NAME_BYTES_MAX))).is_err());
    }

    #[test]
    fn a_hexadecimal_name_below_its_fan_out_is_accepted() {
        let name = ObjectName::parse("0f/0123456789abcdef").unwrap();
        assert_eq!(name.parts(), ("0f", "0123456789abcdef"));
    }
}
