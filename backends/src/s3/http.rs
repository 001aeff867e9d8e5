//! The connections that all S3 clouds of a process share, and the bound of an answer.
//!
//! A connection is driven by the runtime that opened it and dies with it, so each runtime has its
//! own pool; a process has one. Certificates are those of the system (or of `SSL_CERT_FILE`).
//!
//! The SDK reads every answer that is not an object's content into memory before it examines it. A
//! lying cloud could send an endless answer: more than [`ANSWER_BYTES_MAX`] is an error.

use aws_sdk_s3::config::interceptors::BeforeDeserializationInterceptorContextMut;
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents, SharedHttpClient};
use aws_sdk_s3::error::BoxError;
use aws_sdk_s3::primitives::SdkBody;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use http_body_util::Limited;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::{Handle, Id};

/// More than the longest list: a thousand keys of a kilobyte, each with as much around it.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// The runtime's connections.
pub(super) fn client() -> SharedHttpClient {
    static CLIENTS: Mutex<Vec<(Id, SharedHttpClient)>> = Mutex::new(Vec::new());
    let runtime = Handle::current().id();
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, client)) = clients.iter().find(|(id, _)| *id == runtime) {
        return client.clone();
    }
    let client = aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::AwsLc))
        .build_https();
    clients.push((runtime, client.clone()));
    client
}

/// Captures the `Date` of an answer, which the SDK does not return.
#[derive(Clone, Debug, Default)]
pub(super) struct Date(Arc<Mutex<Option<String>>>);

impl Date {
    /// The date of the last answer.
    pub(super) fn take(&self) -> Option<String> {
        let mut date = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        date.take()
    }
}

impl Intercept for Date {
    fn name(&self) -> &'static str {
        "Date"
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date").map(str::to_owned);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = date;
        Ok(())
    }
}

/// Bounds what the SDK reads into memory.
#[derive(Debug)]
pub(super) enum Bound {
    /// All answers.
    All,
    /// Errors: a success is an object, which our own code reads.
    Errors,
}

impl Intercept for Bound {
    fn name(&self) -> &'static str {
        "Bound"
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let answer = context.response_mut();
        if matches!(self, Self::All) || !answer.status().is_success() {
            let body = std::mem::replace(answer.body_mut(), SdkBody::taken());
            let bounded = SdkBody::from_body_1_x(Limited::new(body, ANSWER_BYTES_MAX));
            *answer.body_mut() = bounded;
        }
        Ok(())
    }
}
