//! Hides the names of accounts in texts.
//!
//! Providers name the refused account in their refusals: the id of the access key, the address of a
//! service account, an ARN, the number of an account, a tenant's or an application's id. None of
//! these is a secret, but all of them help an attacker; errors are copied into tickets and logs are
//! kept for months. Our own messages name the origin of the credentials instead, which is what the
//! operator has to check. Text of the following forms is replaced:
//!
//! | Looks like | Becomes |
//! |---|---|
//! | `arn:aws:iam::123456789012:user/me` | `(an account)` |
//! | `name@project.iam.gserviceaccount.com` | `(an account)` |
//! | `123456789012`, an account's number | `(an account)` |
//! | `AKIAIOSFODNN7EXAMPLE`: capitals and digits, 16 to 32 of them | `(a key's id)` |
//! | `01234567-89ab-cdef-0123-456789abcdef` | `(an id)` |
//!
//! A name without a form, such as a MinIO user's, is recognised only with the credentials; a driver
//! that has them hides it with [`hidden_with`].

/// A text without anything of the form of an account's name.
#[must_use]
pub fn hidden(text: &str) -> String {
    hidden_with(text, &[])
}

/// The same, and without the given names.
#[must_use]
pub fn hidden_with(text: &str, known: &[&str]) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        // Punctuation at the end of a sentence is not part of a name.
        let name = word.trim_end_matches(['.', ':', '/']);
        let stop = word.get(name.len()..).unwrap_or_default();
        shown.push_str(match known.contains(&name) {
            true if !name.is_empty() => KEY,
            _ => stand_in(name).unwrap_or(name),
        });
        shown.push_str(stop);
        let separator = behind.chars().next();
        shown.extend(separator);
        rest = separator.map_or("", |c| behind.get(c.len_utf8()..).unwrap_or_default());
    }
    shown
}

const ACCOUNT: &str = "(an account)";
const KEY: &str = "(a key's id)";
const ID: &str = "(an id)";
/// Digits of an account's number at Amazon.
const NUMBER_DIGITS: usize = 12;

/// The characters that words of names consist of.
fn is_part(c: char) -> bool {
    c.is_alphanumeric() || "@.:/_-+".contains(c)
}

fn stand_in(word: &str) -> Option<&'static str> {
    let all = |is: fn(&u8) -> bool| word.bytes().all(|byte| is(&byte));
    let number = all(u8::is_ascii_digit) && word.len() == NUMBER_DIGITS;
    let capitals = all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
    let mixed = word.contains(|c: char| c.is_ascii_uppercase());
    if word.starts_with("arn:") || number || is_address(word) {
        Some(ACCOUNT)
    } else if capitals && mixed && (16..=32).contains(&word.len()) {
        Some(KEY)
    } else if is_uuid(word) {
        Some(ID)
    } else {
        None
    }
}

/// Whether it is `name@host.domain`, and no URL.
fn is_address(word: &str) -> bool {
    word.split_once('@')
        .is_some_and(|(name, host)| !name.is_empty() && host.contains('.') && !word.contains('/'))
}

fn is_uuid(word: &str) -> bool {
    let lengths = word.split('-').map(str::len);
    let hex = |byte: u8| byte == b'-' || byte.is_ascii_hexdigit();
    lengths.eq([8, 4, 4, 4, 12]) && word.bytes().all(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_names_are_hidden_and_the_rest_is_shown() {
        for (text, wanted) in [
            (
                "User: arn:aws:iam::123456789012:user/me is not authorized to: s3:PutObject",
                "User: (an account) is not authorized to: s3:PutObject",
            ),
            (
                "me-2@my-project.iam.gserviceaccount.com does not have storage.objects.get access.",
                "(an account) does not have storage.objects.get access.",
            ),
            (
                "Credentials { access_key_id: \"AKIAIOSFODNN7EXAMPLE\", account: 123456789012 }",
                "Credentials { access_key_id: \"(a key's id)\", account: (an account) }",
            ),
            (
                "AADSTS700016: Application '01234567-89ab-cdef-0123-456789abcdef' was not found.",
                "AADSTS700016: Application '(an id)' was not found.",
            ),
            (
                "the key of https://h.example:9000/b is (ünknown); 403 AccessDenied: eu-west-1.",
                "the key of https://h.example:9000/b is (ünknown); 403 AccessDenied: eu-west-1.",
            ),
            ("", ""),
        ] {
            assert_eq!(hidden(text), wanted);
        }
    }

    #[test]
    fn a_name_without_a_form_is_hidden_where_it_is_known() {
        let text = "The access key 'minioadmin' is unknown: minioadmin.";
        let wanted = "The access key '(a key's id)' is unknown: (a key's id).";
        assert_eq!(hidden_with(text, &["minioadmin", ""]), wanted);
    }
}
