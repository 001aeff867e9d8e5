//! From what was found to what each request carries, and from there to what is found later.
//!
//! The SDK's pipeline is made once and has its policies for good; the one here asks for each
//! request what is lent to it now. An identity of Entra keeps its token until that ends by its own
//! words; if the service refuses it before, it is asked for another one.

use super::credentials::{AzureCredentials, Proof};
use super::{entra, signing};
use crate::StoreErrorKind;
use crate::remote::{Lent, Refusal};
use azure_core::http::policies::auth::BearerTokenAuthorizationPolicy;
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{ClientOptions, Context, Request};
use std::fmt;
use std::sync::Arc;

/// Whom the tokens of an identity are for.
const SCOPE: &str = "https://storage.azure.com/.default";

/// What it takes to make a policy of what was found.
pub(super) struct Prover {
    pub(super) account: String,
    /// Whether what is sent cannot be read on the way.
    pub(super) encrypted: bool,
    /// Whether it does not leave this machine.
    pub(super) loopback: bool,
    pub(super) options: ClientOptions,
}

/// A policy that proves the right to ask, and what it was made of.
pub(super) struct Proving {
    policy: Arc<dyn Policy>,
    proof: Proof,
}

impl Prover {
    /// The policy for what was found.
    ///
    /// # Errors
    /// `Denied` if it cannot be used.
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
    /// What takes the place of this one, which was refused; nothing if the same was found.
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

/// The policy that was found last.
pub(super) struct Newest(pub(super) Arc<Lent<Proving>>);

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
