//! Turns credentials into the policy that signs each request, and renews them.
//!
//! The SDK's pipeline is built once and its policies are fixed; the policy here fetches the current
//! credentials for each request. An identity of Entra keeps its token until the expiry that the
//! token states; if the service refuses it earlier, a new one is requested.

use super::credentials::{AzureCredentials, Proof};
use super::{entra, signing};
use crate::StoreErrorKind;
use crate::remote::{Refusal, RenewableCredentials};
use azure_core::http::policies::auth::BearerTokenAuthorizationPolicy;
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{ClientOptions, Context, Request};
use std::fmt;
use std::sync::Arc;

/// The audience of an identity's tokens.
const SCOPE: &str = "https://storage.azure.com/.default";

/// The inputs for a policy in addition to the credentials.
pub(super) struct Prover {
    pub(super) account: String,
    /// Whether the connection is encrypted.
    pub(super) encrypted: bool,
    /// Whether the service is on this machine.
    pub(super) loopback: bool,
    pub(super) options: ClientOptions,
}

/// A policy that authorises requests, and the credentials that it was made of.
pub(super) struct Proving {
    pub(super) policy: Arc<dyn Policy>,
    pub(super) proof: Proof,
}

impl Prover {
    /// Makes the policy for these credentials.
    ///
    /// # Errors
    /// `Denied` if the credentials cannot be used.
    pub(super) fn prove(
        &self,
        found: &AzureCredentials,
        variable: fn(&str) -> Option<String>,
    ) -> Result<Proving, Refusal> {
        let denied = |detail: String| Refusal::new(StoreErrorKind::Denied, detail);
        let policy: Arc<dyn Policy> = match &found.proof {
            Proof::Key(key) => {
                let signer = signing::SharedKey::new(&self.account, key);
                let detail = || format!("{} has an account key that is not base64", found.origin);
                Arc::new(signer.ok_or_else(|| denied(detail()))?)
            }
            Proof::Token(_) if !self.encrypted && !self.loopback => {
                let detail = format!(
                    "{} is a SAS token, which anyone on the way could read and use: it is sent \
                     over https only; give the endpoint as https://",
                    found.origin
                );
                return Err(denied(detail));
            }
            Proof::Token(token) => Arc::new(signing::SharedAccessSignature::new(token)),
            Proof::Identity if self.encrypted => {
                let identity = Arc::new(entra::Identity::find(&self.options, variable));
                Arc::new(BearerTokenAuthorizationPolicy::new(identity, [SCOPE]))
            }
            Proof::Identity => {
                let detail = "there are no credentials: neither a file, named with the location, \
                              nor AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY or \
                              AZURE_STORAGE_SAS_TOKEN in the environment; identities of Microsoft \
                              Entra are sent over https only";
                return Err(denied(detail.to_owned()));
            }
        };
        Ok(Proving {
            policy,
            proof: found.proof.clone(),
        })
    }
}

impl Proving {
    /// The replacement of this policy, which was refused; `None` if the same credentials were
    /// found.
    pub(super) fn renewed(
        &self,
        prover: &Prover,
        found: &AzureCredentials,
        variable: fn(&str) -> Option<String>,
    ) -> Option<Self> {
        match found.proof == self.proof && found.proof != Proof::Identity {
            true => None,
            false => prover.prove(found, variable).ok(),
        }
    }
}

/// The current policy.
pub(super) struct Newest(pub(super) Arc<RenewableCredentials<Proving>>);

impl fmt::Debug for Newest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Newest").finish()
    }
}

#[async_trait::async_trait]
impl Policy for Newest {
    async fn send(
        &self,
        ctx: &Context,
        request: &mut Request,
        next: &[Arc<dyn Policy>],
    ) -> PolicyResult {
        self.0.get().policy.send(ctx, request, next).await
    }
}
