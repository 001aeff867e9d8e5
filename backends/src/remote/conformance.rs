//! What drivers have to make of bad answers, in whatever form their providers give them.
//!
//! A service that is busy, breaks off, says too much, says nothing or is another one: no emulator
//! gives these answers, so a [`Scripted`] server does. A driver's tests say how its provider is
//! busy ([`Provider`]) and ask everything (`tests!`); what only one provider has is asked there.

use super::scripted::{Scripted, ScriptedAnswer};
use super::{Driver, Limits, Pace, RemoteStore, RetryPolicy};
use crate::StoreErrorKind;
use crate::marker::Marker;
use crate::store::{Deadline, ObjectStore as _};
use bytes::Bytes;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const MARKER: Marker = Marker {
    volume: [7; 16],
    cloud: 0,
};

/// A driver, and the answers of its provider.
pub(crate) trait Provider: Driver + Sized + 'static {
    /// A header by which an answer is known as the provider's.
    const OURS: &'static str;

    /// The driver of a volume at a service with this address.
    fn at(address: SocketAddr) -> Self;

    /// The refusal of a service that is busy, with one more header.
    fn busy(header: &str) -> ScriptedAnswer;

    /// The refusal of one request too many, with one more header.
    fn too_many(header: &str) -> ScriptedAnswer;
}

/// A service that gives these answers, and its driver.
pub(crate) async fn served<P: Provider>(answers: Vec<ScriptedAnswer>) -> (Scripted, P) {
    let server = Scripted::start(answers).await;
    let driver = P::at(server.address);
    (server, driver)
}

/// A cloud that tries again soon.
pub(crate) fn store(driver: impl Driver + 'static) -> RemoteStore {
    let retry_policy = RetryPolicy {
        pause_min: Duration::from_millis(1),
        pause_max: Duration::from_millis(2),
        ..RetryPolicy::default()
    };
    let shared = Arc::new(Pace::new(Limits::default()));
    let limits = Limits::default();
    RemoteStore::attach(
        Arc::new(driver),
        "volume/",
        MARKER,
        retry_policy,
        limits,
        shared,
    )
}

pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

/// A test of each question, of the driver that is named.
macro_rules! tests {
    ($driver:ident) => {
        $crate::remote::conformance::tests! { $driver:
            a_busy_service_is_asked_again_after_the_time_it_asks_for
            a_service_that_stays_busy_is_given_up
            an_object_that_breaks_off_is_not_an_object
            a_login_page_is_not_the_service
            reading_stops_where_there_is_more_than_was_asked_for
            a_service_that_never_answers_is_left_at_the_deadline
        }
    };
    ($driver:ident: $($question:ident)+) => {$(
        #[tokio::test]
        async fn $question() {
            $crate::remote::conformance::$question::<$driver>().await;
        }
    )+};
}
pub(crate) use tests;

pub(crate) async fn a_busy_service_is_asked_again_after_the_time_it_asks_for<P: Provider>() {
    let busy = P::busy("Retry-After: 7");
    let answers = vec![busy, ScriptedAnswer::whole("200 OK", P::OURS, "object")];
    let (server, driver) = served::<P>(answers).await;
    let error = driver.get("volume/x", None, 9).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Throttled);
    assert_eq!(error.retry_after, Some(Duration::from_secs(7)));
    assert_eq!(server.requests().len(), 1, "no retries below");
    assert_eq!(driver.get("volume/x", None, 9).await.unwrap(), "object");
}

pub(crate) async fn a_service_that_stays_busy_is_given_up<P: Provider>() {
    let (server, driver) = served::<P>(vec![P::too_many("Retry-After: 9")]).await;
    let error = store(driver).check(soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Throttled, "{error}");
    assert_eq!(server.requests().len(), 3);
}

pub(crate) async fn an_object_that_breaks_off_is_not_an_object<P: Provider>() {
    let headers = format!("{}\nContent-Length: 100", P::OURS);
    let answer = ScriptedAnswer::whole("200 OK", &headers, "short");
    let (_server, driver) = served::<P>(vec![answer]).await;
    let error = driver.get("volume/x", None, 1000).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
}

pub(crate) async fn a_login_page_is_not_the_service<P: Provider>() {
    let page = ScriptedAnswer::whole("200 OK", "Content-Type: text/html", "<html>Welcome!</html>");
    let (_server, driver) = served::<P>(vec![page]).await;
    for error in [
        driver.get("volume/x", None, 1000).await.unwrap_err(),
        driver.get("volume/x", Some(2..5), 3).await.unwrap_err(),
        driver.head("volume/x").await.unwrap_err(),
        driver.list("volume/", None, 9).await.unwrap_err(),
        driver.put("volume/x", Bytes::from("x")).await.unwrap_err(),
        driver.delete("volume/x").await.unwrap_err(),
        driver.container().await.unwrap_err(),
    ] {
        assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    }
    let moved = ScriptedAnswer::whole("302 Found", "Location: http://login.example/?token=x", "");
    let (_server, driver) = served::<P>(vec![moved]).await;
    let error = driver.get("volume/x", None, 1000).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    assert!(error.detail.contains("http://login.example/"), "{error}");
    assert!(!error.detail.contains("token"), "{error}");
}

pub(crate) async fn reading_stops_where_there_is_more_than_was_asked_for<P: Provider>() {
    let head = format!("HTTP/1.1 200 OK\r\n{}\r\n\r\n", P::OURS).into_bytes();
    let endless = ScriptedAnswer::Endless(head, vec![b'x'; 1000]);
    let announced = ScriptedAnswer::whole("200 OK", P::OURS, "more than nine bytes");
    for answer in [endless, announced] {
        let (_server, driver) = served::<P>(vec![answer]).await;
        let error = driver.get("volume/x", None, 9).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Corrupt, "{error}");
    }
}

pub(crate) async fn a_service_that_never_answers_is_left_at_the_deadline<P: Provider>() {
    let (_server, driver) = served::<P>(vec![ScriptedAnswer::Silence]).await;
    let deadline = Deadline::after(Duration::from_millis(300));
    let error = store(driver).check(deadline).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Timeout, "{error}");
}
