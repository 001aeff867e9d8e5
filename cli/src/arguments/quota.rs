//! The command line of `quorumfs quota`.

use clap::{ArgGroup, Args, Subcommand};

/// `quorumfs quota`
#[derive(Debug, Args)]
pub(crate) struct QuotaArguments {
    /// The command; without it, show.
    #[command(subcommand)]
    pub(crate) command: Option<QuotaCommand>,
}

/// Commands for quotas, except showing them.
#[derive(Debug, Subcommand)]
pub(crate) enum QuotaCommand {
    /// Set limits of the volume, or of its users; limits that are not named stay as they are
    Set(QuotaSetArguments),
}

/// `quorumfs quota set`
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("limit").required(true).multiple(true))]
pub(crate) struct QuotaSetArguments {
    /// The user (default: the volume as a whole)
    #[arg(long, value_name = "UID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) uid: Option<u32>,
    /// Every user without a limit of his own
    #[arg(long, conflicts_with = "uid")]
    pub(crate) default: bool,
    /// Bytes of content: a number, perhaps followed by KiB, MiB, GiB, TiB or PiB; or `none`
    #[arg(long, value_name = "SIZE", value_parser = size, group = "limit")]
    pub(crate) bytes: Option<Setting>,
    /// Files, directories and all other inodes; or `none`
    #[arg(long, value_name = "N", value_parser = count, group = "limit")]
    pub(crate) files: Option<Setting>,
    /// Remove all limits
    #[arg(long, group = "limit", conflicts_with_all = ["bytes", "files"])]
    pub(crate) no_limit: bool,
    /// Remove the user's own limits, so that the default ones apply again
    #[arg(
        long,
        group = "limit",
        requires = "uid",
        conflicts_with_all = ["bytes", "files", "no_limit"]
    )]
    pub(crate) inherit: bool,
}

/// A limit, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting(pub(crate) Option<u64>);

const UNITS: [(&str, u32); 5] = [
    ("KiB", 10),
    ("MiB", 20),
    ("GiB", 30),
    ("TiB", 40),
    ("PiB", 50),
];

fn size(text: &str) -> Result<Setting, String> {
    let found = UNITS
        .iter()
        .find_map(|(unit, bits)| Some((text.strip_suffix(unit)?.trim_end(), *bits)));
    let (number, bits) = found.unwrap_or((text, 0));
    let Setting(number) = match (number, bits) {
        ("none", bits) if bits > 0 => Err("`none` takes no unit".to_owned()),
        _ => count(number),
    }?;
    let Some(number) = number else {
        return Ok(Setting(None));
    };
    let bytes = 1_u64
        .checked_shl(bits)
        .and_then(|unit| number.checked_mul(unit));
    bytes
        .map(|bytes| Setting(Some(bytes)))
        .ok_or_else(|| "the number is too large".to_owned())
}

fn count(text: &str) -> Result<Setting, String> {
    if text == "none" {
        return Ok(Setting(None));
    }
    let number: u64 = text.parse().map_err(|_| {
        "expected a whole number (for bytes perhaps with KiB, MiB, GiB, TiB or PiB) or `none`"
            .to_owned()
    })?;
    Ok(Setting(Some(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_nothing_else() {
        let good = |text: &str| size(text).unwrap().0;
        assert_eq!(good("10GiB"), Some(10 << 30));
        assert_eq!(good("1 KiB"), Some(1024));
        assert_eq!(good("0"), Some(0));
        assert_eq!(good("none"), None);
        for bad in [
            "",
            "GiB",
            "-1",
            "1GB",
            "1.5GiB",
            "noneKiB",
            "99999999PiB",
            "0x10",
        ] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert!(count("1KiB").is_err());
    }
}
