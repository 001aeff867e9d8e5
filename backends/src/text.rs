//! Text files of users: credentials.

/// The text without the byte order mark that some editors write at its beginning.
pub(crate) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_mark_at_the_beginning_is_taken_away() {
        assert_eq!(without_mark("\u{feff}[default]\n"), "[default]\n");
        assert_eq!(without_mark("a\u{feff}b"), "a\u{feff}b");
        assert_eq!(without_mark(""), "");
    }
}
