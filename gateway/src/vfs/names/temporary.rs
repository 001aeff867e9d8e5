//! Names of entries of copies and capsules in progress, until they get others or are removed.
//!
//! `.quorumfs-ID` and `.quorumfs-ID-N`, where ID has 16 hexadecimal digits. What lies there is a
//! part, or has keys in it, so it is shown to no one else: it is in no capsule and in no served
//! folder. Other names of ours that begin alike are content as others: what was rescued, and names
//! that do not decrypt.

const PREFIX: &str = ".quorumfs-";
const ID_DIGITS: usize = 16;

/// The name of an entry in progress, or how such names of one command begin.
#[must_use]
pub fn temporary_name(id: &str) -> String {
    format!("{PREFIX}{id}")
}

/// Whether an entry is in progress, by its name.
#[must_use]
pub fn is_temporary_name(name: &[u8]) -> bool {
    let Some((id, rest)) = name
        .strip_prefix(PREFIX.as_bytes())
        .and_then(|rest| rest.split_at_checked(ID_DIGITS))
    else {
        return false;
    };
    id.iter().all(u8::is_ascii_hexdigit) && (rest.is_empty() || rest.starts_with(b"-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_in_progress_has_a_temporary_name() {
        let name = temporary_name("0123456789abcdef");
        assert!(is_temporary_name(name.as_bytes()));
        assert!(is_temporary_name(format!("{name}-7").as_bytes()));
        for other in [
            ".quorumfs-rescued",
            ".quorumfs-rescued-12",
            ".quorumfs-undecryptable-0000000012345678",
            ".quorumfs-0123456789abcde",
            ".quorumfs-0123456789abcdef.txt",
            "quorumfs-0123456789abcdef",
        ] {
            assert!(!is_temporary_name(other.as_bytes()), "{other}");
        }
    }
}
