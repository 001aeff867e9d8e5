//! Our identity in Microsoft Entra, found as the provider's other SDKs find it.
//!
//! A client secret or a workload's token file in the environment is a deliberate choice: if there
//! is one, it is used, and its result is final. Otherwise the machine may have an identity, or its
//! user may have signed in with `az` or `azd`. The source that gave a token first is asked from
//! then on.

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

/// How long each source may take. On a machine outside Azure nothing answers at the address of the
/// identity service.
const MACHINE_TIMEOUT: Duration = Duration::from_secs(2);
const TOOL_TIMEOUT: Duration = Duration::from_secs(10);

/// A source of tokens, with its name for messages and its time limit.
#[derive(Debug)]
struct TokenSource {
    name: &'static str,
    credential: azure_core::Result<Arc<dyn TokenCredential>>,
    timeout: Duration,
}

/// Sources of tokens; the first that works is used from then on.
#[derive(Debug)]
pub(super) struct Identity {
    sources: Vec<TokenSource>,
    chosen: AtomicUsize,
}

impl Identity {
    /// The sources that the environment allows.
    pub(super) fn find(options: &ClientOptions, variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let client = set("AZURE_CLIENT_ID");
        let secret = set("AZURE_CLIENT_SECRET");
        let sources = if let (Some(tenant), Some(client), Some(secret)) =
            (set("AZURE_TENANT_ID"), client.clone(), secret)
        {
            let options = ClientSecretCredentialOptions {
                client_options: options.clone(),
            };
            let secret = Secret::new(secret);
            let made = ClientSecretCredential::new(&tenant, client, secret, Some(options));
            vec![TokenSource {
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
            vec![TokenSource {
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
                TokenSource {
                    name: "this machine's managed identity",
                    credential: machine.map(|it| it as Arc<dyn TokenCredential>),
                    timeout: MACHINE_TIMEOUT,
                },
                TokenSource {
                    name: "az and azd",
                    credential: tools.map(|it| it as Arc<dyn TokenCredential>),
                    timeout: TOOL_TIMEOUT,
                },
            ]
        };
        Self {
            sources,
            chosen: AtomicUsize::new(usize::MAX),
        }
    }
}

impl TokenSource {
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
        if let [only] = self.sources.as_slice() {
            return only.token(scopes, options).await;
        }
        if let Some(chosen) = self.sources.get(self.chosen.load(Ordering::Relaxed)) {
            return chosen.token(scopes, options).await;
        }
        let mut answers = Vec::new();
        for (index, source) in self.sources.iter().enumerate() {
            match source.token(scopes, options.clone()).await {
                Ok(token) => {
                    self.chosen.store(index, Ordering::Relaxed);
                    return Ok(token);
                }
                Err(error) => answers.push(format!("{}: {}", source.name, causes(&error))),
            }
        }
        // Text only: an unanswered request to the identity service is not a network failure.
        let detail = format!(
            "there are no credentials: neither a file named with the location, nor \
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
    struct Unanswered;

    #[async_trait::async_trait]
    impl TokenCredential for Unanswered {
        async fn get_token(
            &self,
            _: &[&str],
            _: Option<TokenRequestOptions<'_>>,
        ) -> azure_core::Result<AccessToken> {
            std::future::pending().await
        }
    }

    #[derive(Debug)]
    struct Answering(AtomicUsize);

    #[async_trait::async_trait]
    impl TokenCredential for Answering {
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
        let source = |credential| TokenSource {
            name: "source",
            credential: Ok(credential),
            timeout: MACHINE_TIMEOUT,
        };
        Identity {
            sources: credentials.into_iter().map(source).collect(),
            chosen: AtomicUsize::new(usize::MAX),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_source_that_gave_a_token_is_asked_first_afterwards() {
        let answering = Arc::new(Answering(AtomicUsize::new(0)));
        let identity = identity(vec![Arc::new(Unanswered), answering.clone()]);
        let begin = tokio::time::Instant::now();
        for _ in 0..3 {
            identity.get_token(&["scope"], None).await.unwrap();
        }
        assert_eq!(begin.elapsed().as_secs(), MACHINE_TIMEOUT.as_secs());
        assert_eq!(answering.0.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn without_any_identity_it_says_where_it_looked() {
        let identity = identity(vec![Arc::new(Unanswered), Arc::new(Unanswered)]);
        let error = identity.get_token(&["scope"], None).await.unwrap_err();
        let refusal = super::super::errors::refusal(&error);
        assert_eq!(refusal.kind, crate::StoreErrorKind::Denied);
        assert!(refusal.detail.contains("AZURE_STORAGE_KEY"), "{refusal}");
    }
}
