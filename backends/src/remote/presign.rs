//! Signing a URL in the driver of a cloud across a network.
//!
//! A signature costs no request, so it takes no permit of the pace, is not counted and does not
//! read the marker. Credentials are renewed as for a request: if those that sign are refused, their
//! source is read once and the driver signs again. A provider whose key for signing has to be
//! fetched is asked once: the caller can ask again.

use super::{ObjectName, Refusal, RemoteStore};
use crate::error::{Operation, StoreError, StoreErrorKind};
use crate::presigned::PresignedUrl;
use crate::store::Deadline;
use std::time::Duration;
use tokio::time::timeout_at;

impl RemoteStore {
    /// Signs a URL at which anyone reads the object.
    pub(super) async fn sign_url(
        &self,
        name: &ObjectName,
        valid_for: Duration,
        deadline: Deadline,
    ) -> Result<PresignedUrl, StoreError> {
        let key = self.key(name.as_str());
        let end = deadline.instant();
        let mut renewed = false;
        loop {
            let credentials = self.driver.credentials();
            let refusal = match timeout_at(end, self.driver.presign(&key, valid_for)).await {
                Ok(Ok(signed)) => return Ok(signed),
                Ok(Err(refusal)) => refusal.without_identities(),
                Err(_) => Refusal::new(StoreErrorKind::Timeout, "no key to sign with in time"),
            };
            if refusal.outdated && !renewed {
                renewed = true;
                let looked = self.driver.renew_credentials(credentials);
                if timeout_at(end, looked).await == Ok(true) {
                    continue;
                }
            }
            return Err(self.error(Operation::Presign, Some(name), refusal.kind, refusal.detail));
        }
    }
}
