//! The prices file: what clouds charge.
//!
//! One ships inside the program (`cli/prices.toml`); `--prices FILE` and the key `prices` of
//! `[cost]` replace it. It is TOML in which an unknown key is an error, like a configuration. What
//! is wrong in a file is said with its line, or with the name of the entry.
//!
//! A cloud has the entry that the key `price` of its section names; without it, the first entry of
//! its provider, which is said, because the region or the storage class may be another. A cloud
//! behind an endpoint of its own has no provider here, and so no price until one is named.

use crate::configuration;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_backends::location::Location;
use quorumfs_gateway::cost::{PriceList, Tariff, Tier};
use serde::Deserialize;
use std::path::Path;

/// The file that ships with the program.
const SHIPPED: &str = include_str!("../prices.toml");
/// What messages call it.
const SHIPPED_NAME: &str = "prices.toml of this program";
/// Nano-units in a millionth.
const NANOS_IN_MILLIONTH: u64 = 1000;
/// The highest price of a unit.
const PRICE_MAX: f64 = 1_000.0;
/// The most entries of a file: a plan looks at every choice among them.
const ENTRIES_MAX: usize = 64;

/// A price as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum PriceText {
    One(f64),
    Tiers(Vec<TierText>),
}

/// A tier as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct TierText {
    up_to: Option<u64>,
    price: f64,
}

/// An entry as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryText {
    name: String,
    provider: String,
    #[serde(default)]
    source: String,
    gigabyte: u64,
    storage_per_gb_month: PriceText,
    put_per_1000: Option<PriceText>,
    list_per_1000: Option<PriceText>,
    get_per_1000: Option<PriceText>,
    head_per_1000: Option<PriceText>,
    delete_per_1000: Option<PriceText>,
    egress_per_gb: Option<PriceText>,
    retrieval_per_gb: Option<PriceText>,
    #[serde(default)]
    free_egress_per_stored: f64,
    #[serde(default)]
    minimum_days: u16,
    #[serde(default)]
    minimum_gb: u32,
    #[serde(default)]
    minimum_object_bytes: u32,
}

/// A file as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct PricesText {
    /// Checked before the other keys are read.
    #[serde(rename = "version")]
    _version: u32,
    currency: String,
    as_of: String,
    price: Vec<EntryText>,
}

/// What one provider charges for one storage class in one region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PriceEntry {
    /// Its name.
    pub(crate) name: String,
    /// The provider, as locations name it.
    pub(crate) provider: String,
    /// The page that the prices are from.
    pub(crate) source: String,
    /// The prices.
    pub(crate) list: PriceList,
}

impl PriceEntry {
    /// What reading a gigabyte costs once allowances are used up, in nano-units.
    pub(crate) fn read_price(&self) -> u64 {
        let PriceList {
            egress, retrieval, ..
        } = &self.list;
        egress.first_paid().saturating_add(retrieval.first_paid())
    }

    /// The same in millionths, as a configuration has it.
    pub(crate) fn read_price_millionths(&self) -> u32 {
        u32::try_from(self.read_price() / NANOS_IN_MILLIONTH).unwrap_or(u32::MAX)
    }
}

/// A prices file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PriceBook {
    /// The currency of all prices.
    pub(crate) currency: String,
    /// When they were right.
    pub(crate) as_of: String,
    /// The entries, in the order of the file.
    pub(crate) entries: Vec<PriceEntry>,
}

/// How a cloud got its prices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PriceOf {
    /// Its section names the entry.
    Named(PriceEntry),
    /// It is the first entry of its provider.
    Usual(PriceEntry),
    /// There is none.
    Unknown,
}

impl PriceOf {
    /// The entry, if there is one.
    pub(crate) fn entry(&self) -> Option<&PriceEntry> {
        match self {
            Self::Named(entry) | Self::Usual(entry) => Some(entry),
            Self::Unknown => None,
        }
    }
}

impl PriceBook {
    /// The file that ships with the program, or another one.
    pub(crate) fn open(path: Option<&Path>) -> CommandResult<Self> {
        match path {
            None => Self::parse(SHIPPED, Path::new(SHIPPED_NAME)),
            Some(path) => {
                let text = configuration::text(path)
                    .map_err(|error| Failure::file("read the prices", path, &error))?;
                Self::parse(&text, path)
            }
        }
    }

    fn parse(text: &str, path: &Path) -> CommandResult<Self> {
        let wrong = |what: String| {
            Failure::new(Exit::Usage, format!("{}: {what}", path.display()))
                .hint("docs/COST.md has every key of a prices file")
        };
        let written: PricesText = configuration::parse(text, path)?;
        if written.price.len() > ENTRIES_MAX {
            return Err(wrong(format!("it has more than {ENTRIES_MAX} entries")));
        }
        if written.currency.is_empty() || written.currency.contains(char::is_whitespace) {
            return Err(wrong("`currency` is one word, such as USD".to_owned()));
        }
        let mut entries: Vec<PriceEntry> = Vec::new();
        for entry in &written.price {
            if entries.iter().any(|it| it.name == entry.name) {
                return Err(wrong(format!("two entries are called `{}`", entry.name)));
            }
            let made = made(entry);
            entries.push(made.map_err(|what| wrong(format!("entry `{}`: {what}", entry.name)))?);
        }
        Ok(Self {
            currency: written.currency,
            as_of: written.as_of,
            entries,
        })
    }

    /// The entry of this name, or the first of this provider.
    pub(crate) fn find(&self, name: &str) -> CommandResult<&PriceEntry> {
        let named = self.entries.iter().find(|entry| entry.name == name);
        let found = named.or_else(|| self.entries.iter().find(|entry| entry.provider == name));
        found.ok_or_else(|| {
            let known: Vec<_> = self.entries.iter().map(|it| it.name.as_str()).collect();
            Failure::new(Exit::Usage, format!("there are no prices of `{name}`")).hint(format!(
                "the prices file has {}; a file of your own is named with --prices",
                known.join(", ")
            ))
        })
    }

    /// The prices of a cloud.
    pub(crate) fn of_cloud(
        &self,
        named: Option<&str>,
        location: &Location,
    ) -> CommandResult<PriceOf> {
        if let Some(name) = named {
            return Ok(PriceOf::Named(self.find(name)?.clone()));
        }
        let provider = match location {
            Location::Local(_) => Some("local".to_owned()),
            Location::Remote(_) => location.failure_domain(),
        };
        let mut entries = self.entries.iter();
        let usual = entries.find(|entry| provider.as_deref() == Some(entry.provider.as_str()));
        Ok(usual.map_or(PriceOf::Unknown, |entry| PriceOf::Usual(entry.clone())))
    }
}

/// A price in nano-units.
fn nanos(price: f64) -> Result<u64, String> {
    match (0.0..=PRICE_MAX).contains(&price) {
        true => Ok((price * 1e9).round() as u64),
        false => Err(format!("{price} is no price; it is from 0 to {PRICE_MAX}")),
    }
}

fn tariff(key: &str, unit: u64, price: Option<&PriceText>) -> Result<Tariff, String> {
    let failed = |what: String| format!("`{key}`: {what}");
    let written = match price {
        None => return Ok(Tariff::default()),
        Some(PriceText::One(price)) => vec![TierText {
            up_to: None,
            price: *price,
        }],
        Some(PriceText::Tiers(tiers)) => tiers.clone(),
    };
    let mut tiers: Vec<Tier> = Vec::new();
    for (number, tier) in written.iter().enumerate() {
        let is_last = number + 1 == written.len();
        if tier.up_to.is_none() != is_last {
            return Err(failed("every tier but the last has `up_to`".to_owned()));
        }
        let before = tiers.last().and_then(|tier| tier.up_to);
        if tier.up_to.is_some() && tier.up_to <= before {
            return Err(failed("each `up_to` is above the one before".to_owned()));
        }
        tiers.push(Tier {
            up_to: tier.up_to,
            nanos: nanos(tier.price).map_err(failed)?,
        });
    }
    if tiers.is_empty() {
        return Err(failed("it has no tier".to_owned()));
    }
    Ok(Tariff::new(unit, tiers))
}

fn made(entry: &EntryText) -> Result<PriceEntry, String> {
    const THOUSAND: u64 = 1000;
    let gigabyte = entry.gigabyte;
    if !(1_000_000_000..=1 << 30).contains(&gigabyte) {
        return Err("`gigabyte` is 1_000_000_000 or 1_073_741_824 bytes".to_owned());
    }
    let free = entry.free_egress_per_stored;
    if !(0.0..=PRICE_MAX).contains(&free) {
        return Err(format!(
            "`free_egress_per_stored` is {free}; it is from 0 to {PRICE_MAX}"
        ));
    }
    let storage = Some(&entry.storage_per_gb_month);
    let requests = |key, price: &Option<PriceText>| tariff(key, THOUSAND, price.as_ref());
    let bytes = |key, price: &Option<PriceText>| tariff(key, gigabyte, price.as_ref());
    Ok(PriceEntry {
        name: entry.name.clone(),
        provider: entry.provider.clone(),
        source: entry.source.clone(),
        list: PriceList {
            storage: tariff("storage_per_gb_month", gigabyte, storage)?,
            put: requests("put_per_1000", &entry.put_per_1000)?,
            get: requests("get_per_1000", &entry.get_per_1000)?,
            head: requests("head_per_1000", &entry.head_per_1000)?,
            list: requests("list_per_1000", &entry.list_per_1000)?,
            delete: requests("delete_per_1000", &entry.delete_per_1000)?,
            egress: bytes("egress_per_gb", &entry.egress_per_gb)?,
            retrieval: bytes("retrieval_per_gb", &entry.retrieval_per_gb)?,
            free_egress_thousandths: (free * 1000.0).round() as u64,
            days_min: u64::from(entry.minimum_days),
            bytes_min: u64::from(entry.minimum_gb).saturating_mul(gigabyte),
            object_bytes_min: u64::from(entry.minimum_object_bytes),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_gateway::cost::{CloudUse, PartOfMonth, bill};

    fn book() -> PriceBook {
        PriceBook::open(None).unwrap()
    }

    #[test]
    fn the_shipped_prices_are_read_and_cover_each_provider_that_a_location_can_name() {
        let book = book();
        assert_eq!(book.currency, "USD");
        for (location, name) in [
            ("s3://bucket", "aws-s3-standard-us-east-1"),
            ("azure://account/container", "azure-blob-hot-lrs-east-us"),
            ("gs://bucket", "google-standard-us-central1"),
            ("s3://bucket?preset=b2&region=x", "backblaze-b2"),
            ("s3://bucket?preset=r2&account=x", "cloudflare-r2"),
            ("s3://bucket?preset=wasabi", "wasabi-us-east-1"),
            ("/mnt/first", "local"),
        ] {
            let found = book.of_cloud(None, &location.parse().unwrap()).unwrap();
            assert!(
                matches!(&found, PriceOf::Usual(entry) if entry.name == name),
                "{location}"
            );
        }
        let own = "s3://bucket?endpoint=http%3A%2F%2Flocalhost"
            .parse()
            .unwrap();
        assert_eq!(book.of_cloud(None, &own).unwrap(), PriceOf::Unknown);
        let named = book.of_cloud(Some("google-nearline-us-central1"), &own);
        assert!(matches!(named.unwrap(), PriceOf::Named(_)));
        let failure = book.of_cloud(Some("google-nearlin"), &own).unwrap_err();
        assert!(failure.message.contains("`google-nearlin`"), "{failure}");
        for entry in &book.entries {
            assert!(entry.provider == "local" || entry.source.starts_with("https://"));
        }
    }

    #[test]
    fn a_terabyte_at_amazon_costs_what_its_price_page_says() {
        let terabyte = CloudUse {
            stored: 1 << 40,
            puts: 1_000_000,
            gets: 10_000_000,
            bytes_received: 200 << 30,
            ..CloudUse::default()
        };
        let entry = book().find("amazon").unwrap().clone();
        let bill = bill(&entry.list, &terabyte, PartOfMonth::WHOLE);
        assert_eq!(bill.storage.to_string(), "23.55");
        assert_eq!(
            (bill.put.to_string(), bill.get.to_string()),
            ("5.00".into(), "4.00".into())
        );
        assert_eq!(bill.egress.to_string(), "9.00", "the first 100 GB are free");
    }

    #[test]
    fn what_is_wrong_in_a_prices_file_is_said_with_its_key() {
        let refused = |from: &str, to: &str| {
            assert!(SHIPPED.contains(from), "{from}");
            let text = SHIPPED.replacen(from, to, 1);
            let failure = PriceBook::parse(&text, Path::new("own.toml")).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            failure.message
        };
        let unknown = refused("put_per_1000", "puts_per_1000");
        assert!(
            unknown.contains("own.toml, line 20: unknown key `puts_per_1000`"),
            "{unknown}"
        );
        let negative = refused("put_per_1000 = 0.005", "put_per_1000 = -1");
        assert!(
            negative.contains("`put_per_1000`") && negative.contains("-1"),
            "{negative}"
        );
        for (from, to, said) in [
            (
                "{ up_to = 512_000, price",
                "{ up_to = 51_200, price",
                "`storage_per_gb_month`",
            ),
            (
                "{ up_to = 512_000, price",
                "{ price",
                "every tier but the last",
            ),
            ("= 0.005", "= []", "it has no tier"),
            ("1_073_741_824", "1_024", "`gigabyte`"),
            (
                "aws-s3-standard-ia-us-east-1",
                "aws-s3-standard-us-east-1",
                "two entries",
            ),
            ("\"USD\"", "\"\"", "`currency`"),
            ("= 3.0", "= -3.0", "`free_egress_per_stored`"),
        ] {
            let message = refused(from, to);
            assert!(message.contains(said), "{message}");
        }
        let newer = SHIPPED.replacen("version = 1", "version = 2", 1);
        let failure = PriceBook::parse(&newer, Path::new("own.toml")).unwrap_err();
        assert_eq!(failure.exit, Exit::NewerFormat);
    }
}
