//! The service that a location's options and preset describe.

use crate::error::StoreErrorKind;
use crate::location::Remote;
use crate::remote::Refusal;
use url::Url;

/// How to address a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Service {
    /// The endpoint; Amazon's follows from the region.
    pub(super) endpoint: Option<String>,
    /// The region, if location or preset give it.
    pub(super) region: Option<String>,
    /// Whether the bucket's name is in the path, and not in the host's name.
    pub(super) path_style: bool,
    /// Whether it supports the SDK's checksums.
    pub(super) checksums: bool,
    /// Whether it supports `If-None-Match: *`.
    pub(super) create_only: bool,
    /// Whether it is Amazon's: only Amazon sees this machine's Amazon identity.
    pub(super) amazon: bool,
}

/// A kind of service.
struct Preset {
    name: &'static str,
    /// The endpoint, with `{account}` or `{region}` in it; empty if each customer has another.
    endpoint: &'static str,
    region: Option<&'static str>,
    checksums: bool,
    create_only: bool,
}

/// The documentation of the parent module gives the sources.
const PRESETS: [Preset; 6] = [
    Preset {
        name: "r2",
        endpoint: "https://{account}.r2.cloudflarestorage.com",
        region: Some("auto"),
        checksums: false,
        create_only: true,
    },
    Preset {
        name: "b2",
        endpoint: "https://s3.{region}.backblazeb2.com",
        region: None,
        checksums: false,
        create_only: false,
    },
    Preset {
        name: "wasabi",
        endpoint: "https://s3.{region}.wasabisys.com",
        region: Some("us-east-1"),
        checksums: false,
        create_only: false,
    },
    Preset {
        name: "minio",
        endpoint: "",
        region: Some("us-east-1"),
        checksums: true,
        create_only: true,
    },
    Preset {
        name: "garage",
        endpoint: "",
        region: Some("garage"),
        checksums: true,
        create_only: false,
    },
    Preset {
        name: "ceph",
        endpoint: "",
        region: Some("us-east-1"),
        checksums: false,
        create_only: true,
    },
];

/// The domains of Amazon's own services.
const AMAZON: [&str; 3] = [".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu"];

fn wrong<T>(detail: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::new(StoreErrorKind::Other, detail))
}

impl Service {
    /// The service that the location describes.
    ///
    /// # Errors
    /// If options contradict each other, or one is missing.
    pub(super) fn of(remote: &Remote) -> Result<Self, Refusal> {
        let given = |name| remote.option(name).filter(|value| !value.is_empty());
        let endpoint = given("endpoint").map(parse).transpose()?;
        let host = endpoint.as_ref().and_then(Url::host_str);
        let Some(name) = given("preset") else {
            if given("account").is_some() {
                return wrong("`account` belongs to preset=r2; Amazon's follows from the keys");
            }
            let amazon = host.is_none_or(|host| AMAZON.iter().any(|end| host.ends_with(end)));
            return Ok(Self {
                endpoint: given("endpoint").map(str::to_owned),
                region: given("region").map(str::to_owned),
                path_style: !amazon,
                checksums: true,
                create_only: true,
                amazon,
            });
        };
        let Some(preset) = PRESETS.iter().find(|preset| preset.name == name) else {
            let known = PRESETS.map(|preset| preset.name).join(", ");
            return wrong(format!("there is no preset `{name}`; there are {known}"));
        };
        if preset.name != "r2" && given("account").is_some() {
            return wrong(format!("`account` belongs to preset=r2, not to {name}"));
        }
        let region = given("region")
            .or_else(|| host.and_then(|host| preset.region_of(host)))
            .or(preset.region);
        let endpoint = match given("endpoint") {
            Some(endpoint) => endpoint.to_owned(),
            None => preset.endpoint(given("account"), region)?,
        };
        Ok(Self {
            endpoint: Some(endpoint),
            region: region.map(str::to_owned),
            path_style: true,
            checksums: preset.checksums,
            create_only: preset.create_only,
            amazon: false,
        })
    }

    /// Whether requests are protected against reading and changes in transit.
    pub(super) fn encrypted(&self) -> bool {
        self.endpoint
            .as_ref()
            .is_none_or(|endpoint| endpoint.starts_with("https:"))
    }
}

impl Preset {
    /// The provider's endpoint, if all of its customers have the same.
    fn endpoint(&self, account: Option<&str>, region: Option<&str>) -> Result<String, Refusal> {
        let mut endpoint = self.endpoint.to_owned();
        if endpoint.is_empty() {
            let detail = format!(
                "preset={} needs endpoint=URL: where it runs, as in endpoint=http://HOST:PORT",
                self.name
            );
            return wrong(detail);
        }
        for (name, value) in [("account", account), ("region", region)] {
            let place = format!("{{{name}}}");
            if !endpoint.contains(&place) {
                continue;
            }
            let plain = |value: &&str| {
                value
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-')
            };
            let Some(value) = value.filter(plain) else {
                let detail = format!(
                    "preset={} needs {name}=NAME, as its endpoint is {}, or endpoint=URL",
                    self.name, self.endpoint
                );
                return wrong(detail);
            };
            endpoint = endpoint.replace(&place, value);
        }
        Ok(endpoint)
    }

    /// The region in one of the provider's endpoints.
    fn region_of<'a>(&self, host: &'a str) -> Option<&'a str> {
        let (before, behind) = self.endpoint.split_once("{region}")?;
        let before = before.trim_start_matches("https://");
        host.strip_prefix(before)?.strip_suffix(behind)
    }
}

/// Checks an endpoint.
fn parse(text: &str) -> Result<Url, Refusal> {
    let form = "it is http://HOST[:PORT] or https://HOST[:PORT]";
    let Ok(url) = Url::parse(text) else {
        return wrong(format!("the endpoint `{text}` is no URL: {form}"));
    };
    if !url.username().is_empty() || url.password().is_some() {
        return wrong(format!("an endpoint has no credentials in it: {form}"));
    }
    let whole = matches!(url.scheme(), "http" | "https") && url.host_str().is_some();
    if !whole || url.query().is_some() || url.fragment().is_some() {
        return wrong(format!("the endpoint `{text}` cannot be used: {form}"));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::location::Location;

    fn service(text: &str) -> Result<Service, Refusal> {
        match text.parse() {
            Ok(Location::Remote(remote)) => Service::of(&remote),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_preset_follows_its_providers_documentation() {
        let own = "http://127.0.0.1:9000";
        for (options, endpoint, region, checksums, create_only) in [
            (
                "?preset=r2&account=0a1b",
                "https://0a1b.r2.cloudflarestorage.com",
                "auto",
                false,
                true,
            ),
            (
                "?preset=r2&endpoint=https://0a1b.eu.r2.cloudflarestorage.com",
                "https://0a1b.eu.r2.cloudflarestorage.com",
                "auto",
                false,
                true,
            ),
            (
                "?preset=b2&region=us-west-004",
                "https://s3.us-west-004.backblazeb2.com",
                "us-west-004",
                false,
                false,
            ),
            (
                "?preset=b2&endpoint=https://s3.eu-central-003.backblazeb2.com",
                "https://s3.eu-central-003.backblazeb2.com",
                "eu-central-003",
                false,
                false,
            ),
            (
                "?preset=wasabi",
                "https://s3.us-east-1.wasabisys.com",
                "us-east-1",
                false,
                false,
            ),
            (
                "?preset=wasabi&region=eu-west-1",
                "https://s3.eu-west-1.wasabisys.com",
                "eu-west-1",
                false,
                false,
            ),
            (
                "?preset=minio&endpoint=http://127.0.0.1:9000",
                own,
                "us-east-1",
                true,
                true,
            ),
            (
                "?preset=garage&endpoint=http://127.0.0.1:9000",
                own,
                "garage",
                true,
                false,
            ),
            (
                "?preset=garage&endpoint=http://127.0.0.1:9000&region=x",
                own,
                "x",
                true,
                false,
            ),
            (
                "?preset=ceph&endpoint=http://127.0.0.1:9000",
                own,
                "us-east-1",
                false,
                true,
            ),
        ] {
            let wanted = Service {
                endpoint: Some(endpoint.to_owned()),
                region: Some(region.to_owned()),
                path_style: true,
                checksums,
                create_only,
                amazon: false,
            };
            assert_eq!(
                service(&format!("s3://bucket{options}")),
                Ok(wanted),
                "{options}"
            );
        }
    }

    #[test]
    fn without_a_preset_it_is_amazon_or_like_amazon() {
        let amazon = service("s3://bucket?region=eu-central-1").unwrap();
        assert!(amazon.amazon && !amazon.path_style && amazon.encrypted());
        assert_eq!(amazon.region.as_deref(), Some("eu-central-1"));
        let inside = service("s3://bucket?endpoint=https://s3.eu-west-1.amazonaws.com").unwrap();
        assert!(inside.amazon && !inside.path_style);
        let other = service("s3://bucket?endpoint=http://amazonaws.com.example:1").unwrap();
        assert!(!other.amazon && other.path_style && !other.encrypted());
    }

    #[test]
    fn missing_and_wrong_fields_are_reported() {
        for (options, says) in [
            ("?preset=s4", "r2, b2, wasabi, minio, garage, ceph"),
            ("?preset=r2", "account=NAME"),
            ("?preset=r2&account=a.b", "account=NAME"),
            ("?preset=b2", "region=NAME"),
            ("?preset=minio", "endpoint=URL"),
            ("?account=x", "preset=r2"),
            ("?preset=b2&region=x&account=y", "preset=r2"),
            ("?endpoint=127.0.0.1:9000", "http://HOST"),
            ("?endpoint=ftp://host", "http://HOST"),
            ("?endpoint=http://key:geheim@host", "no credentials"),
        ] {
            let refusal = service(&format!("s3://bucket{options}")).unwrap_err();
            assert!(refusal.detail.contains(says), "{options}: {refusal}");
            assert!(!refusal.detail.contains("geheim"), "{refusal}");
        }
    }
}
