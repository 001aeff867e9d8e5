//! The secret of a link.
//!
//! A token is 24 random bytes in the alphabet of URLs (RFC 4648, section 5): 192 bits in 32
//! characters, without padding, so that each token has one spelling. The servers keep only a hash
//! of it. A token is never logged: its debug form hides it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;

/// Random bytes of a token.
pub const TOKEN_BYTES: usize = 24;

/// The secret of a link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkToken([u8; TOKEN_BYTES]);

impl LinkToken {
    /// A token of these bytes, which are random.
    #[must_use]
    pub const fn new(bytes: [u8; TOKEN_BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes, to be hashed.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; TOKEN_BYTES] {
        &self.0
    }

    /// As it is spelled in a URL.
    #[must_use]
    pub fn text(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// The token that is spelled so.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut bytes = [0; TOKEN_BYTES];
        match URL_SAFE_NO_PAD.decode_slice(text, &mut bytes) {
            Ok(TOKEN_BYTES) => Some(Self(bytes)),
            _ => None,
        }
    }
}

impl fmt::Debug for LinkToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_one_spelling_and_is_not_shown() {
        let token = LinkToken::new(*b"twenty-four random bytes");
        let text = token.text();
        assert_eq!(text.len(), 32);
        assert_eq!(LinkToken::parse(text.as_bytes()), Some(token));
        assert_eq!(format!("{token:?}"), "LinkToken(…)");
        let cut = &text[..31];
        for wrong in [
            "",
            "a",
            cut,
            &format!("{text}A"),
            &format!("{cut}="),
            &format!("{cut}+"),
        ] {
            assert_eq!(LinkToken::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
