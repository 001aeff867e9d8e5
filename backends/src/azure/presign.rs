//! URLs at which anyone reads an object: a shared access signature (SAS) for one blob.
//!
//! ```text
//!  an account's key ───────────────────────────────────────────► service SAS
//!  an identity in Entra ── Get User Delegation Key, for a week ─► user delegation SAS
//!  a SAS token ────────────────────────────────────────────────► refused
//! ```
//!
//! Both kinds are an HMAC-SHA256 over the same fields ("Create a service SAS" and "Create a user
//! delegation SAS", version 2020-12-06 and later, which the service keeps supporting); the second
//! also names the key. A URL allows reading (`sp=r`) of one blob (`sr=b`) over https (`spr`) until
//! `se`. It has no beginning (`st`), which a service whose clock is behind would still wait for.
//!
//! *A SAS token is never handed out.* One that serves as a cloud's credentials opens the whole
//! container. It cannot make a smaller one, as only a key can.
//!
//! A delegation key is cached, because one key signs any number of URLs. A URL is valid as long as
//! its key at most, and a key at most a week from its beginning; a key begins a little in the past,
//! so that a service whose clock is behind accepts it. The service also refuses the URL when the
//! identity loses its right to read.

use super::credentials::Proof;
use super::signing::SharedKey;
use super::{Blobs, PresignedUrl, Refusal, SystemTime};
use crate::StoreErrorKind;
use crate::presigned::{Maximum, SEVEN_DAYS, Utc, refuse_clear, unix_seconds, valid_seconds};
use azure_core::time::OffsetDateTime;
use azure_storage_blob::models::KeyInfo;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::time::Duration;
use tokio::sync::Mutex;

/// The version of the fields that are signed.
const SAS_VERSION: &str = "2020-12-06";
/// How long before now a delegation key begins.
const CLOCK_MARGIN: u64 = 5 * 60;

const DELEGATION_MAXIMUM: Maximum = Maximum {
    seconds: SEVEN_DAYS,
    of: "Azure, with an identity in Microsoft Entra,",
};

/// A key for signing that an identity was given.
#[derive(Clone)]
struct Delegation {
    /// The number of the credentials that it was given for.
    credentials: u64,
    object_id: String,
    tenant_id: String,
    start: u64,
    expiry: u64,
    service: String,
    version: String,
    /// The key itself, in base64.
    value: String,
}

/// The last delegation key.
#[derive(Default)]
pub(super) struct CachedDelegation(Mutex<Option<Delegation>>);

/// The fields of a SAS for one blob.
struct BlobSas<'a> {
    account: &'a str,
    container: &'a str,
    key: &'a str,
    expires: u64,
    /// Whether it allows encrypted requests alone.
    encrypted: bool,
}

impl BlobSas<'_> {
    fn protocol(&self) -> &'static str {
        if self.encrypted { "https" } else { "" }
    }

    /// The text that is signed.
    fn text(&self, delegation: Option<&Delegation>) -> String {
        let blob = format!("/blob/{}/{}/{}", self.account, self.container, self.key);
        let mut fields = vec!["r".to_owned(), String::new()];
        fields.push(Utc::from_unix(self.expires).to_string());
        fields.push(blob);
        match delegation {
            // No stored policy is named.
            None => fields.push(String::new()),
            Some(key) => fields.extend([
                key.object_id.clone(),
                key.tenant_id.clone(),
                Utc::from_unix(key.start).to_string(),
                Utc::from_unix(key.expiry).to_string(),
                key.service.clone(),
                key.version.clone(),
                // No agent acts for the identity, and nothing relates the URL to a log.
                String::new(),
                String::new(),
                String::new(),
            ]),
        }
        let network = "";
        let (snapshot, encryption_scope) = ("", "");
        let replaced_headers = ["", "", "", "", ""];
        let rest = [
            network,
            self.protocol(),
            SAS_VERSION,
            "b",
            snapshot,
            encryption_scope,
        ];
        let rest = rest.into_iter().chain(replaced_headers);
        fields.extend(rest.map(str::to_owned));
        fields.join("\n")
    }

    /// The parameters of the URL, without the signature.
    fn parameters(&self, delegation: Option<&Delegation>) -> Vec<(&'static str, String)> {
        let mut parameters = vec![
            ("sv", SAS_VERSION.to_owned()),
            ("se", Utc::from_unix(self.expires).to_string()),
            ("sr", "b".to_owned()),
            ("sp", "r".to_owned()),
        ];
        if self.encrypted {
            parameters.push(("spr", self.protocol().to_owned()));
        }
        if let Some(key) = delegation {
            parameters.extend([
                ("skoid", key.object_id.clone()),
                ("sktid", key.tenant_id.clone()),
                ("skt", Utc::from_unix(key.start).to_string()),
                ("ske", Utc::from_unix(key.expiry).to_string()),
                ("sks", key.service.clone()),
                ("skv", key.version.clone()),
            ]);
        }
        parameters
    }
}

impl Blobs {
    /// Signs a URL that is valid from `now` on.
    pub(super) async fn presign_at(
        &self,
        key: &str,
        valid_for: Duration,
        now: SystemTime,
    ) -> Result<PresignedUrl, Refusal> {
        let now = unix_seconds(now);
        let (signer, seconds, delegation) = match &self.renewable.get().proof {
            Proof::Key(account_key) => {
                let seconds = valid_seconds(valid_for, now, None)?;
                (
                    SharedKey::new(&self.prover.account, account_key),
                    seconds,
                    None,
                )
            }
            Proof::Identity => {
                let seconds = valid_seconds(valid_for, now, Some(DELEGATION_MAXIMUM))?;
                let delegation = self.delegation(now, now.saturating_add(seconds)).await?;
                let signer = SharedKey::new(&self.prover.account, &delegation.value);
                (signer, seconds, Some(delegation))
            }
            Proof::Token(_) => {
                let detail = format!(
                    "a link cannot be made with a SAS token, as {} has one: only a key can sign, \
                     and to give away the token would give away all that it opens; use the \
                     account's key or an identity in Microsoft Entra for this cloud, or \
                     `quorumfs serve`, which serves links for every cloud",
                    self.origin
                );
                return Err(Refusal::new(StoreErrorKind::Unsupported, detail));
            }
        };
        let no_key = || Refusal::new(StoreErrorKind::Denied, "the key for signing is not base64");
        let signer = signer.ok_or_else(no_key)?;
        let wanted = now.saturating_add(seconds);
        let sas = BlobSas {
            account: &self.prover.account,
            container: &self.container_name,
            key,
            expires: delegation
                .as_ref()
                .map_or(wanted, |it| it.expiry.min(wanted)),
            encrypted: self.prover.encrypted,
        };
        let mut url = self.container.blob_client(key).url().clone();
        refuse_clear(&url)?;
        let signature = signer.sign(&sas.text(delegation.as_ref()));
        url.query_pairs_mut()
            .extend_pairs(sas.parameters(delegation.as_ref()))
            .append_pair("sig", &signature);
        Ok(PresignedUrl {
            url: url.into(),
            expires: sas.expires,
            may_end_earlier: false,
        })
    }

    /// A delegation key that lasts until `wanted`, or as long as any.
    async fn delegation(&self, now: u64, wanted: u64) -> Result<Delegation, Refusal> {
        let mut cached = self.delegation.0.lock().await;
        let credentials = self.renewable.number();
        // One that was fetched a while ago lasts hardly less than a new one.
        let longest = now.saturating_add(SEVEN_DAYS.saturating_sub(2 * CLOCK_MARGIN));
        if let Some(known) = cached.as_ref()
            && known.credentials == credentials
            && known.expiry >= wanted.min(longest)
        {
            return Ok(known.clone());
        }
        let start = now.saturating_sub(CLOCK_MARGIN);
        let fetched = self.fetch_delegation(start, start.saturating_add(SEVEN_DAYS));
        let mut fetched = fetched.await?;
        if fetched.expiry <= now {
            let detail = "it gives a key for signing that has ended: check this machine's clock";
            return Err(Refusal::new(StoreErrorKind::Clock, detail));
        }
        fetched.credentials = credentials;
        *cached = Some(fetched.clone());
        Ok(fetched)
    }

    async fn fetch_delegation(&self, start: u64, expiry: u64) -> Result<Delegation, Refusal> {
        let date = |seconds: u64| {
            let seconds = i64::try_from(seconds).ok()?;
            OffsetDateTime::from_unix_timestamp(seconds).ok()
        };
        let asked = KeyInfo {
            start: date(start),
            expiry: date(expiry),
            ..KeyInfo::default()
        };
        let asked = asked.try_into().map_err(|error| self.refused(&error))?;
        let answer = self.service.get_user_delegation_key(asked, None).await;
        let answer = answer.map_err(|error| {
            let mut refusal = self.refused(&error);
            if refusal.kind == StoreErrorKind::Denied {
                refusal.detail.push_str(
                    "; to make links, the identity needs the role `Storage Blob Delegator` on the \
                     account",
                );
            }
            refusal
        })?;
        let given = answer.into_model().map_err(|error| self.refused(&error))?;
        let seconds = |date: Option<OffsetDateTime>| u64::try_from(date?.unix_timestamp()).ok();
        let delegation = || {
            Some(Delegation {
                credentials: 0,
                object_id: given.signed_oid?,
                tenant_id: given.signed_tid?,
                start: seconds(given.signed_start)?,
                expiry: seconds(given.signed_expiry)?,
                service: given.signed_service?,
                version: given.signed_version?,
                value: STANDARD.encode(given.value?),
            })
        };
        let incomplete = || {
            let detail = "it gives an incomplete key for signing";
            Refusal::new(StoreErrorKind::Unavailable, detail)
        };
        delegation().ok_or_else(incomplete)
    }
}

#[cfg(test)]
mod tests;
