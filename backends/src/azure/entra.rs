//! Who we are in Microsoft Entra, found as the provider's other SDKs find it.
//!
//! A client secret or a workload's token file in the environment is meant: if one is there, it is
//! used, and what it answers is the answer. Otherwise the machine may have an identity, or its user
//! may have signed in with `az` or `azd`; whichever gave a token first is asked from then on.

use crate::remote::causes;
use azure_core::credentials::{AccessToken, Secret, TokenCredential, TokenRequestOptions};
use azure_core::error::{Error, ErrorKind};
use azure_core::http::ClientOptions;
use azure_identity::{
    ClientAssertionCredentialOptions, ClientSecretCredential, ClientSecretCredentialOptions,
    DeveloperToolsCredential, ManagedIdentityCredential, ManagedIdentityCredentialOptions,
    UserAssignedId, WorkloadIdentityCredential, WorkloadIdentityCredentialOptions,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long each is waited for. A machine that is not in Azure has nobody at the address where
/// machines ask who they are.
const MACHINE_TIMEOUT: Duration = Duration::from_secs(2);
const TOOL_TIMEOUT: Duration = Duration::from_secs(10);

/// One way to an identity, with what it is called in messages and how long it may take.
#[derive(Debug)]
struct Way {
    name: &'static str,
    credential: azure_core::Result<Arc<dyn TokenCredential>>,
    timeout: Duration,
}

/// Ways to an identity, of which the first that works is kept.
#[derive(Debug)]
pub(super) struct Identity {
    ways: Vec<Way>,
    chosen: AtomicUsize,
}

impl Identity {
    /// The ways that the environment allows.
    pub(super) fn find(options: &ClientOptions, variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let client = set("AZURE_CLIENT_ID");
        let secret = set("AZURE_CLIENT_SECRET");
        let ways = if let (Some(tenant), Some(client), Some(secret)) =
            (set("AZURE_TENANT_ID"), client.clone(), secret)
        {
            let options = ClientSecretCredentialOptions {
                client_options: options.clone(),
            };
            let secret = Secret::new(secret);
            let made = ClientSecretCredential::new(&tenant, client, secret, Some(options));
            vec![Way {
                name: "AZURE_CLIENT_SECRET",
                credential: made.map(|it| it as Arc<dyn TokenCredential>),
                timeout: TOOL_TIMEOUT,
            }]
        } else if set("AZURE_FEDERATED_TOKEN_FILE").is_some() {
            let options = WorkloadIdentityCredentialOptions {
                credential_options: ClientAssertionCredentialOptions {
                    client_options: options.clone(),
                },
                ..WorkloadIdentityCredentialOptions::default()
            };
            let made = WorkloadIdentityCredential::new(Some(options));
            vec![Way {
                name: "AZURE_FEDERATED_TOKEN_FILE",
                credential: made.map(|it| it as Arc<dyn TokenCredential>),
                timeout: TOOL_TIMEOUT,
            }]
        } else {
            let options = ManagedIdentityCredentialOptions {
                user_assigned_id: client.map(UserAssignedId::ClientId),
                client_options: options.clone(),
            };
            let machine = ManagedIdentityCredential::new(Some(options));
            let tools = DeveloperToolsCredential::new(None);
            vec![
                Way {
                    name: "this machine's managed identity",
                    credential: machine.map(|it| it as Arc<dyn TokenCredential>),
                    timeout: MACHINE_TIMEOUT,
                },
                Way {
                    name: "az and azd",
                    credential: tools.map(|it| it as Arc<dyn TokenCredential>),
                    timeout: TOOL_TIMEOUT,
                },
            ]
        };
        Self {
            ways,
            chosen: AtomicUsize::new(usize::MAX),
        }
    }
}

impl Way {
    async fn token(
        &self,
        scopes: &[&str],
        options: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        let credential = self
            .credential
            .as_ref()
            .map_err(|error| Error::with_message(ErrorKind::Credential, causes(error)))?;
        let token = credential.get_token(scopes, options);
        let late = |_| Error::with_message(ErrorKind::Io, "no answer in time");
        tokio::time::timeout(self.timeout, token)
            .await
            .map_err(late)?
    }
}

#[async_trait::async_trait]
impl TokenCredential for Identity {
    async fn get_token(
        &self,
        scopes: &[&str],
        options: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        if let [only] = self.ways.as_slice() {
            return only.token(scopes, options).await;
        }
        if let Some(chosen) = self.ways.get(self.chosen.load(Ordering::Relaxed)) {
            return chosen.token(scopes, options).await;
        }
        let mut answers = Vec::new();
        for (index, way) in self.ways.iter().enumerate() {
            match way.token(scopes, options.clone()).await {
                Ok(token) => {
                    self.chosen.store(index, Ordering::Relaxed);
                    return Ok(token);
                }
                Err(error) => answers.push(format!("{}: {}", way.name, causes(&error))),
            }
        }
        // Only words: that nobody is at the machine's address is no failure of the network.
        let detail = format!(
            "there are no credentials: neither a file beside the location, nor \
             AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or \
             AZURE_CLIENT_SECRET in the environment, nor an identity ({})",
            answers.join("; ")
        );
        Err(Error::with_message(ErrorKind::Credential, detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nobody;

    #[async_trait::async_trait]
    impl TokenCredential for Nobody {
        async fn get_token(
            &self,
            _: &[&str],
            _: Option<TokenRequestOptions<'_>>,
        ) -> azure_core::Result<AccessToken> {
            std::future::pending().await
        }
    }

    #[derive(Debug)]
    struct Somebody(AtomicUsize);

    #[async_trait::async_trait]
    impl TokenCredential for Somebody {
        async fn get_token(
            &self,
            _: &[&str],
            _: Option<TokenRequestOptions<'_>>,
        ) -> azure_core::Result<AccessToken> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let now = azure_core::time::OffsetDateTime::now_utc();
            Ok(AccessToken::new("token", now))
        }
    }

    fn identity(credentials: Vec<Arc<dyn TokenCredential>>) -> Identity {
        let way = |credential| Way {
            name: "way",
            credential: Ok(credential),
            timeout: MACHINE_TIMEOUT,
        };
        Identity {
            ways: credentials.into_iter().map(way).collect(),
            chosen: AtomicUsize::new(usize::MAX),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_source_that_gave_a_token_is_asked_first_afterwards() {
        let somebody = Arc::new(Somebody(AtomicUsize::new(0)));
        let identity = identity(vec![Arc::new(Nobody), somebody.clone()]);
        let begin = tokio::time::Instant::now();
        for _ in 0..3 {
            identity.get_token(&["scope"], None).await.unwrap();
        }
        assert_eq!(begin.elapsed().as_secs(), MACHINE_TIMEOUT.as_secs());
        assert_eq!(somebody.0.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn without_any_identity_it_says_where_it_looked() {
        let identity = identity(vec![Arc::new(Nobody), Arc::new(Nobody)]);
        let error = identity.get_token(&["scope"], None).await.unwrap_err();
        let refusal = super::super::errors::refusal(&error);
        assert_eq!(refusal.kind, crate::StoreErrorKind::Denied);
        assert!(refusal.detail.contains("AZURE_STORAGE_KEY"), "{refusal}");
    }
}
