//! The source of the keys.
//!
//! A file that is named with the location is an AWS credentials file: its `[default]` section, or
//! that of `profile=`. It is read again every quarter of an hour, before the keys expire, and when
//! the service refuses them ([`super::cached_keys`]), so rotated keys and renewed sessions need no
//! restart. No other source is read then.
//!
//! Without a file the order is that of AWS's own tools: the profile in the shared files if the
//! location names one; else the environment, the default profile, a web identity, the container's
//! and the machine's identity. The last three are for Amazon alone: no other service ever sees
//! them. If keys are missing, the next operation looks for them again.

use crate::error::StoreErrorKind;
use crate::remote::Refusal;
use crate::text::without_mark;
use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::environment::{
    EnvironmentVariableCredentialsProvider, EnvironmentVariableRegionProvider,
};
use aws_config::imds::region::ImdsRegionProvider;
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::meta::region::{ProvideRegion, RegionProviderChain};
use aws_config::profile::{ProfileFileCredentialsProvider, ProfileFileRegionProvider};
use aws_config::provider_config::ProviderConfig;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_sdk_s3::config::{Credentials, Region, SharedHttpClient};
use std::env;
use std::path::{Path, PathBuf};

/// The section of a credentials file that is used if none is named.
const DEFAULT_PROFILE: &str = "default";

/// The sources of keys.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// The file that is named with the location.
    pub(super) file: Option<PathBuf>,
    /// The section that the location names.
    pub(super) profile: Option<String>,
    /// Whether the service is Amazon's.
    pub(super) amazon: bool,
}

/// A credentials file, read each time.
async fn read(path: &Path) -> Result<EnvConfigFiles, std::io::Error> {
    let text = tokio::fs::read_to_string(path).await?;
    let text = without_mark(&text);
    let kind = EnvConfigFileKind::Credentials;
    Ok(EnvConfigFiles::builder().with_contents(kind, text).build())
}

/// The keys in a file.
#[derive(Debug)]
struct FromFile {
    path: PathBuf,
    profile: String,
    config: ProviderConfig,
}

impl FromFile {
    async fn load(&self) -> Result<Credentials, CredentialsError> {
        let files = read(&self.path).await;
        let provider = ProfileFileCredentialsProvider::builder()
            .configure(&self.config)
            .profile_files(files.map_err(CredentialsError::invalid_configuration)?)
            .profile_name(&self.profile)
            .build();
        provider.provide_credentials().await
    }
}

impl ProvideCredentials for FromFile {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.load())
    }
}

impl Keys {
    /// The section of the files.
    fn section(&self) -> String {
        let chosen = match &self.file {
            // The environment may choose another section of the shared files.
            Some(_) => None,
            None => env::var("AWS_PROFILE").ok(),
        };
        let chosen = self.profile.clone().or(chosen);
        chosen.unwrap_or_else(|| DEFAULT_PROFILE.to_owned())
    }

    /// The sources that are searched and what to do if they have no keys, for messages.
    pub(super) fn place(&self) -> String {
        let section = self.section();
        if let Some(file) = &self.file {
            return format!(
                "they are looked for in section [{section}] of {}, which has aws_access_key_id, \
                 aws_secret_access_key and, for a session, aws_session_token",
                file.display()
            );
        }
        let shared =
            |variable, usual: &str| env::var(variable).unwrap_or_else(|_| usual.to_owned());
        let files = format!(
            "section [{section}] of {} or {}",
            shared("AWS_CONFIG_FILE", "~/.aws/config"),
            shared("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        );
        let places = match (&self.profile, self.amazon) {
            (Some(_), _) => files,
            (None, amazon) => format!(
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the environment, then in {files}{}",
                if amazon {
                    ", then with the container or machine"
                } else {
                    ""
                }
            ),
        };
        format!("they are looked for in {places}; such a file can also be named with the location")
    }

    /// The region, if neither location nor preset give it.
    ///
    /// # Errors
    /// If the region is unknown and the service is Amazon's.
    pub(super) async fn region(
        &self,
        http: &SharedHttpClient,
        has_endpoint: bool,
    ) -> Result<String, Refusal> {
        let mut profile = ProfileFileRegionProvider::builder().profile_name(self.section());
        if let Some(file) = &self.file
            && let Ok(files) = read(file).await
        {
            profile = profile.profile_files(files);
        }
        let environment = EnvironmentVariableRegionProvider::new();
        let profile = profile.build();
        // A choice for this one cloud has precedence over one for the whole process.
        let chosen = self.file.is_some() || self.profile.is_some();
        let first = if chosen { profile.region().await } else { None };
        let region = match first {
            Some(region) => Some(region),
            None => {
                RegionProviderChain::first_try(environment)
                    .or_else(profile)
                    .region()
                    .await
            }
        };
        if let Some(region) = region {
            return Ok(region.to_string());
        }
        if has_endpoint {
            return Ok("us-east-1".to_owned());
        }
        let config = ProviderConfig::without_region().with_http_client(http.clone());
        let machine = ImdsRegionProvider::builder().configure(&config).build();
        match machine.region().await {
            Some(region) => Ok(region.to_string()),
            None => {
                let detail = "no region is known: add region=NAME to the location, or set \
                              AWS_REGION, or `region` in the profile; if the service is not \
                              Amazon's, add endpoint=URL or preset=NAME";
                Err(Refusal::new(StoreErrorKind::Other, detail))
            }
        }
    }

    /// The provider that gives the keys on demand.
    pub(super) async fn provider(
        &self,
        http: &SharedHttpClient,
        region: &str,
    ) -> SharedCredentialsProvider {
        let region = Region::new(region.to_owned());
        let config = ProviderConfig::without_region()
            .with_region(Some(region.clone()))
            .with_http_client(http.clone());
        if let Some(path) = self.file.clone() {
            let profile = self.section();
            return SharedCredentialsProvider::new(FromFile {
                path,
                profile,
                config,
            });
        }
        if self.amazon && self.profile.is_none() {
            let chain = DefaultCredentialsChain::builder()
                .region(region)
                .configure(config);
            return SharedCredentialsProvider::new(chain.build().await);
        }
        let profile = ProfileFileCredentialsProvider::builder()
            .configure(&config)
            .profile_name(self.section())
            .build();
        if self.profile.is_some() {
            return SharedCredentialsProvider::new(profile);
        }
        let environment = EnvironmentVariableCredentialsProvider::new();
        SharedCredentialsProvider::new(
            CredentialsProviderChain::first_try("Environment", environment)
                .or_else("Profile", profile),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::http;
    use std::fs;

    fn keys(file: &Path, profile: Option<&str>) -> Keys {
        Keys {
            file: Some(file.to_owned()),
            profile: profile.map(str::to_owned),
            amazon: false,
        }
    }

    #[tokio::test]
    async fn keys_that_are_rotated_in_their_file_are_taken() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |id: &str| {
            let text = format!("[default]\naws_access_key_id={id}\naws_secret_access_key=s\n");
            fs::write(file.path(), text).unwrap();
        };
        let provider = keys(file.path(), None).provider(&http::client(), "x").await;
        assert!(provider.provide_credentials().await.is_err(), "it is empty");
        for id in ["FIRST", "SECOND"] {
            write(id);
            let found = provider.provide_credentials().await.unwrap();
            assert_eq!(found.access_key_id(), id);
        }
    }

    #[tokio::test]
    async fn the_section_that_has_the_keys_has_the_region() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(
            file.path(),
            "[default]\nregion=eu-north-1\n[b]\nregion=eu-south-2\n",
        )
        .unwrap();
        for (profile, region) in [(None, "eu-north-1"), (Some("b"), "eu-south-2")] {
            let keys = keys(file.path(), profile);
            let found = keys.region(&http::client(), true).await;
            assert_eq!(found.as_deref(), Ok(region));
        }
    }

    #[test]
    fn the_description_names_the_sources_that_are_searched() {
        let keys = |profile: Option<&str>, amazon| Keys {
            file: None,
            profile: profile.map(str::to_owned),
            amazon,
        };
        let says = |keys: Keys, words| keys.place().contains(words);
        assert!(says(keys(None, true), "machine"));
        assert!(!says(keys(None, false), "machine"));
        assert!(!says(keys(Some("a"), true), "AWS_ACCESS_KEY_ID of"));
        assert!(says(keys(Some("a"), true), "[a]"));
    }
}
