//! The command line of `quorumfs quota`.

use clap::{ArgGroup, Args, Subcommand};

/// `quorumfs quota`
#[derive(Debug, Args)]
pub(crate) struct QuotaArguments {
    /// What to do; without it, show.
    #[command(subcommand)]
    pub(crate) command: Option<QuotaCommand>,
}

/// What can be done with quotas beside showing them.
#[derive(Debug, Subcommand)]
pub(crate) enum QuotaCommand {
    /// Set what the volume, or users in it, may have; what is not named stays as it is
    Set(QuotaSetArguments),
}

/// `quorumfs quota set`
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("limit").required(true).multiple(true))]
pub(crate) struct QuotaSetArguments {
    /// Of this user (default: of the whole volume, whoever owns what is in it)
    #[arg(long, value_name = "UID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) uid: Option<u32>,
    /// Of each user who has no limit of his own
    #[arg(long, conflicts_with = "uid")]
    pub(crate) default: bool,
    /// Bytes of content: a number, perhaps with KiB, MiB, GiB, TiB or PiB behind it; or `none`
    #[arg(long, value_name = "SIZE", value_parser = size, group = "limit")]
    pub(crate) bytes: Option<Setting>,
    /// Files, directories and everything else that has a name; or `none`
    #[arg(long, value_name = "N", value_parser = count, group = "limit")]
    pub(crate) files: Option<Setting>,
    /// No limit at all
    #[arg(long, group = "limit", conflicts_with_all = ["bytes", "files"])]
    pub(crate) no_limit: bool,
    /// The user's own limits go, and those by default count again
    #[arg(
        long,
        group = "limit",
        requires = "uid",
        conflicts_with_all = ["bytes", "files", "no_limit"]
    )]
    pub(crate) inherit: bool,
}

/// A limit, or that there is none.
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
        ("none", bits) if bits > 0 => Err("nothing of a unit".to_owned()),
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
        .ok_or_else(|| "more than can be counted".to_owned())
}

fn count(text: &str) -> Result<Setting, String> {
    if text == "none" {
        return Ok(Setting(None));
    }
    let number: u64 = text.parse().map_err(|_| {
        "neither a whole number, with KiB, MiB, GiB, TiB or PiB behind it for bytes, nor `none`"
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
