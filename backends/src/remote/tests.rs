//! The common part over a scripted driver, in virtual time.

use super::*;
use std::collections::{BTreeMap, VecDeque};

const MARKER: Marker = Marker {
    volume: [3; 16],
    cloud: 1,
};

/// The scripted outcome of a call that does not concern the marker.
#[derive(Clone, Debug)]
enum ScriptedOutcome {
    Refuse(StoreErrorKind),
    RefuseFor(StoreErrorKind, Duration),
    RefuseSaying(&'static str),
    /// The credentials themselves are refused.
    RefuseCredentials,
    Hang,
    /// Executes the call and reports a failure.
    LoseTheAnswer,
}

#[derive(Debug, Default)]
struct ScriptState {
    objects: BTreeMap<String, Bytes>,
    scripted: VecDeque<ScriptedOutcome>,
    /// When each call arrived, except those for the marker.
    calls: Vec<Instant>,
    /// Whether the source of credentials has others.
    renewable: bool,
    /// The page size of listings; zero repeats the first page for ever.
    page: Option<usize>,
}

/// A driver over a map.
#[derive(Debug, Default)]
struct Scripted(Mutex<ScriptState>);

impl Scripted {
    fn state(&self) -> std::sync::MutexGuard<'_, ScriptState> {
        self.0.lock().unwrap()
    }

    fn tell(&self, scripted: &[ScriptedOutcome]) {
        self.state().scripted.extend(scripted.iter().cloned());
    }

    async fn answer(&self) -> Result<bool, Refusal> {
        let scripted = {
            let mut state = self.state();
            state.calls.push(Instant::now());
            state.scripted.pop_front()
        };
        match scripted {
            None => Ok(false),
            Some(ScriptedOutcome::Refuse(kind)) => Err(Refusal::new(kind, "scripted")),
            Some(ScriptedOutcome::RefuseFor(kind, length)) => Err(Refusal {
                retry_after: Some(length),
                ..Refusal::new(kind, "scripted")
            }),
            Some(ScriptedOutcome::RefuseSaying(text)) => {
                Err(Refusal::new(StoreErrorKind::Denied, text))
            }
            Some(ScriptedOutcome::RefuseCredentials) => {
                Err(Refusal::new(StoreErrorKind::Denied, "expired").outdated())
            }
            Some(ScriptedOutcome::Hang) => std::future::pending().await,
            Some(ScriptedOutcome::LoseTheAnswer) => Ok(true),
        }
    }
}

#[async_trait::async_trait]
impl Driver for Scripted {
    fn place(&self) -> String {
        "scripted".to_owned()
    }

    async fn renew_credentials(&self, _: u64) -> bool {
        self.state().renewable
    }

    async fn presign(&self, key: &str, valid_for: Duration) -> Result<PresignedUrl, Refusal> {
        self.answer().await?;
        Ok(PresignedUrl {
            url: format!("https://cloud.example/{key}"),
            expires: valid_for.as_secs(),
            may_end_earlier: false,
        })
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<Option<Receipt>, Refusal> {
        let lost = self.answer().await?;
        let mut state = self.state();
        if state.objects.contains_key(key) {
            return Err(Refusal::new(StoreErrorKind::AlreadyExists, "taken"));
        }
        let receipt = Receipt::crc32c(&body);
        state.objects.insert(key.to_owned(), body);
        match lost {
            true => Err(Refusal::new(
                StoreErrorKind::Unavailable,
                "the answer was lost",
            )),
            false => Ok(Some(receipt)),
        }
    }

    async fn overwrite(&self, key: &str, body: Bytes) -> Result<(), Refusal> {
        self.answer().await?;
        self.state().objects.insert(key.to_owned(), body);
        Ok(())
    }

    async fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        length_max: u64,
    ) -> Result<Bytes, Refusal> {
        if !key.ends_with(MARKER_FILE) {
            self.answer().await?;
        }
        let state = self.state();
        let none = || Refusal::new(StoreErrorKind::NotFound, "none");
        let body = state.objects.get(key).ok_or_else(none)?.clone();
        let range = range.unwrap_or(0..body.len() as u64);
        assert!(range.end - range.start <= length_max);
        Ok(body.slice(range.start as usize..range.end as usize))
    }

    async fn head(&self, key: &str) -> Result<u64, Refusal> {
        self.answer().await?;
        let none = || Refusal::new(StoreErrorKind::NotFound, "none");
        self.state()
            .objects
            .get(key)
            .map(|it| it.len() as u64)
            .ok_or_else(none)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listing, Refusal> {
        self.answer().await?;
        let state = self.state();
        let stuck = state.page == Some(0);
        let behind = |key: &&String| stuck || after.is_none_or(|after| key.as_str() > after);
        let all: Vec<String> = state
            .objects
            .keys()
            .filter(|key| key.starts_with(prefix))
            .filter(behind)
            .cloned()
            .collect();
        let page = state.page.unwrap_or(limit).max(1).min(limit);
        let more = stuck || all.len() > page;
        Ok(Listing {
            keys: all.into_iter().take(page).collect(),
            more,
        })
    }

    async fn delete(&self, key: &str) -> Result<(), Refusal> {
        self.answer().await?;
        self.state().objects.remove(key);
        Ok(())
    }

    async fn create_container(&self) -> Result<(), Refusal> {
        Ok(())
    }

    async fn container(&self) -> Result<Container, Refusal> {
        Ok(Container::default())
    }

    async fn date(&self) -> Result<Option<String>, Refusal> {
        Ok(None)
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

fn name(number: u32) -> ObjectName {
    ObjectName::parse(&format!("{:02x}/{number:08x}", number % 256)).unwrap()
}

fn over(driver: &Arc<Scripted>) -> RemoteStore {
    RemoteStore::attach(
        Arc::clone(driver) as Arc<dyn Driver>,
        "below/",
        MARKER,
        RetryPolicy::default(),
        Limits::default(),
        Arc::new(Pace::new(Limits::default())),
    )
}

/// A new cloud, with the log of its calls cleared.
async fn founded() -> (Arc<Scripted>, RemoteStore) {
    let driver = Arc::new(Scripted::default());
    let store = over(&driver);
    store.found(soon()).await.unwrap();
    driver.state().calls.clear();
    (driver, store)
}

#[tokio::test(start_paused = true)]
async fn transient_errors_are_retried_with_backoff_and_all_tries_are_counted() {
    let (driver, store) = founded().await;
    let before = store.traffic();
    driver.tell(&[
        ScriptedOutcome::Refuse(StoreErrorKind::Unavailable),
        ScriptedOutcome::Refuse(StoreErrorKind::Throttled),
    ]);
    store
        .put_if_absent(&name(1), Bytes::from_static(b"abc"), soon())
        .await
        .unwrap();
    let calls = driver.state().calls.clone();
    assert_eq!(calls.len(), 3);
    assert!(calls[1] - calls[0] <= Duration::from_millis(101));
    assert!(calls[2] - calls[1] <= Duration::from_millis(201));
    let after = store.traffic();
    assert_eq!(after.puts - before.puts, 3);
    assert_eq!(after.bytes_sent - before.bytes_sent, 9);
    assert_eq!(
        (
            after.failed - before.failed,
            after.throttled - before.throttled
        ),
        (2, 1)
    );
    assert_eq!(after.retries - before.retries, 2);
}

#[tokio::test(start_paused = true)]
async fn permanent_errors_are_not_retried_and_lasting_ones_end_the_retries() {
    let (driver, store) = founded().await;
    for kind in [
        StoreErrorKind::Denied,
        StoreErrorKind::Full,
        StoreErrorKind::Clock,
    ] {
        driver.tell(&[ScriptedOutcome::Refuse(kind)]);
        let error = store.head(&name(1), soon()).await.unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
    }
    assert_eq!(driver.state().calls.len(), 3);
    driver.tell(&vec![ScriptedOutcome::Refuse(StoreErrorKind::Throttled); 3]);
    let error = store.head(&name(1), soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Throttled);
    assert_eq!(driver.state().calls.len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_asks_to_be_left_alone_is_left_alone_within_reason() {
    let (driver, store) = founded().await;
    let asked = Duration::from_millis(1700);
    let far = Duration::from_secs(3600);
    driver.tell(&[
        ScriptedOutcome::RefuseFor(StoreErrorKind::Throttled, asked),
        ScriptedOutcome::RefuseFor(StoreErrorKind::Throttled, far),
    ]);
    let error = store.get(&name(1), 10, soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::NotFound);
    let calls = driver.state().calls.clone();
    assert_eq!((calls[1] - calls[0]).as_millis().div_ceil(10), 170);
    assert_eq!((calls[2] - calls[1]).as_secs(), 5, "the longest pause");
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_never_answers_ends_at_the_deadline() {
    let (driver, store) = founded().await;
    driver.tell(&[
        ScriptedOutcome::Hang,
        ScriptedOutcome::Hang,
        ScriptedOutcome::Hang,
    ]);
    let begin = Instant::now();
    let deadline = Deadline::after(Duration::from_secs(10));
    let error = store.head(&name(1), deadline).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Timeout, "{error}");
    assert!(begin.elapsed() <= Duration::from_millis(10_010));
    assert!(
        driver.state().calls.len() >= 2,
        "a try has a bound of its own"
    );
}

#[tokio::test(start_paused = true)]
async fn requests_waiting_for_a_hanging_cloud_hold_no_permit_of_the_others() {
    let shared = Arc::new(Pace::new(Limits {
        connections: 4,
        ..Limits::default()
    }));
    let limits = Limits {
        connections: 2,
        ..Limits::default()
    };
    let attach = |driver: &Arc<Scripted>| {
        let driver = Arc::clone(driver) as Arc<dyn Driver>;
        let (marker, retry_policy) = (MARKER, RetryPolicy::default());
        RemoteStore::attach(
            driver,
            "below/",
            marker,
            retry_policy,
            limits,
            Arc::clone(&shared),
        )
    };
    let (hung, well) = (Arc::new(Scripted::default()), Arc::new(Scripted::default()));
    let (hanging, working) = (Arc::new(attach(&hung)), attach(&well));
    hanging.found(soon()).await.unwrap();
    working.found(soon()).await.unwrap();
    hung.tell(&vec![ScriptedOutcome::Hang; 100]);
    for number in 0..20 {
        let hanging = Arc::clone(&hanging);
        tokio::spawn(async move { hanging.head(&name(number), soon()).await.is_ok() });
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    let begin = Instant::now();
    working
        .put_if_absent(&name(1), Bytes::from_static(b"on time"), soon())
        .await
        .unwrap();
    assert!(begin.elapsed() < Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn a_put_whose_answer_was_lost_finds_its_own_object() {
    let (driver, store) = founded().await;
    driver.tell(&[ScriptedOutcome::LoseTheAnswer]);
    let body = Bytes::from_static(b"mine");
    let error = store
        .put_if_absent(&name(1), body.clone(), soon())
        .await
        .unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::AlreadyExists);
    assert_eq!(store.get(&name(1), 10, soon()).await.unwrap(), body);
}

#[tokio::test(start_paused = true)]
async fn a_cloud_with_another_volumes_marker_is_left_alone() {
    let driver = Arc::new(Scripted::default());
    let other = Marker {
        volume: [4; 16],
        ..MARKER
    };
    let key = format!("below/{MARKER_FILE}");
    driver
        .state()
        .objects
        .insert(key.clone(), other.encode().into());
    let store = over(&driver);
    let body = Bytes::from_static(b"x");
    let error = store
        .put_if_absent(&name(1), body.clone(), soon())
        .await
        .unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Foreign, "{error}");
    assert_eq!(
        store.found(soon()).await.unwrap_err().kind,
        StoreErrorKind::Foreign
    );
    assert_eq!(
        store.delete(&name(1), soon()).await.unwrap_err().kind,
        StoreErrorKind::Foreign
    );
    assert_eq!(driver.state().objects.len(), 1);

    // A marker that is replaced while the store is open is noticed when its validity ends.
    driver
        .state()
        .objects
        .insert(key.clone(), MARKER.encode().into());
    store
        .put_if_absent(&name(1), body.clone(), soon())
        .await
        .unwrap();
    driver.state().objects.insert(key, other.encode().into());
    tokio::time::sleep(RetryPolicy::default().marker_age_max).await;
    let error = store
        .put_if_absent(&name(2), body, soon())
        .await
        .unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Foreign, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_place_that_holds_something_else_is_not_founded_and_one_in_use_not_given_back() {
    let driver = Arc::new(Scripted::default());
    driver
        .state()
        .objects
        .insert("below/photograph".into(), Bytes::new());
    driver
        .state()
        .objects
        .insert("elsewhere".into(), Bytes::new());
    let store = over(&driver);
    let error = store.found(soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Foreign);
    assert!(error.to_string().contains("photograph"), "{error}");
    driver.state().objects.remove("below/photograph");
    store.found(soon()).await.unwrap();
    store.found(soon()).await.unwrap();
    store.give_back(soon()).await.unwrap();
    assert_eq!(driver.state().objects.len(), 1);
    store.found(soon()).await.unwrap();
    store
        .put_if_absent(&name(1), Bytes::new(), soon())
        .await
        .unwrap();
    assert_eq!(
        store.give_back(soon()).await.unwrap_err().kind,
        StoreErrorKind::Foreign
    );
}

#[tokio::test(start_paused = true)]
async fn a_listing_in_small_pages_is_whole_and_one_that_goes_round_in_circles_ends() {
    let (driver, store) = founded().await;
    for number in 0..25 {
        store
            .put_if_absent(&name(number), Bytes::new(), soon())
            .await
            .unwrap();
    }
    driver
        .state()
        .objects
        .insert("below/not a name".into(), Bytes::new());
    driver.state().page = Some(4);
    let page = store.list("", None, 10, soon()).await.unwrap();
    assert!(page.names.len() == 10 && page.more);
    let rest = store
        .list("", page.names.last(), 100, soon())
        .await
        .unwrap();
    assert!(rest.names.len() == 15 && !rest.more);
    assert_eq!(rest.names[14], name(24));
    driver.state().page = Some(0);
    let page = store.list("", None, 10, soon()).await.unwrap();
    assert!(page.names.len() <= 10, "{page:?}");
}

#[tokio::test(start_paused = true)]
async fn a_range_of_nothing_costs_nothing_and_a_short_answer_is_corrupt() {
    let (driver, store) = founded().await;
    store
        .put_if_absent(&name(1), Bytes::from_static(b"abcdef"), soon())
        .await
        .unwrap();
    let asked = driver.state().calls.len();
    assert!(
        store
            .get_range(&name(1), 3..3, soon())
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(driver.state().calls.len(), asked);
    assert_eq!(store.get_range(&name(1), 2..4, soon()).await.unwrap(), "cd");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_made_without_a_look_at_the_marker() {
    let driver = Arc::new(Scripted::default());
    let store = over(&driver);
    let (taken, body) = (name(1), Bytes::from_static(b"abc"));
    for (attempt, ends) in [
        (Attempt::Create, None),
        (Attempt::Create, Some(StoreErrorKind::AlreadyExists)),
        (Attempt::Overwrite, None),
        (Attempt::Get, None),
        (Attempt::List, None),
        (Attempt::Delete, None),
        (Attempt::Get, Some(StoreErrorKind::NotFound)),
    ] {
        let ended = store.attempt(attempt, &taken, &body, soon()).await;
        assert_eq!(ended.err().map(|error| error.kind), ends, "{attempt:?}");
    }
    assert!(store.check(soon()).await.is_err(), "there is no marker");
}

#[tokio::test(start_paused = true)]
async fn credentials_of_roles_need_each_other_to_found_a_cloud_and_sign_alone() {
    let [writer, collector, signer] = [(); 3].map(|()| Arc::new(Scripted::default()));
    let both = Both {
        writer: Arc::clone(&writer) as Arc<dyn Driver>,
        collector: Arc::clone(&collector) as Arc<dyn Driver>,
        signer: Ok(Arc::clone(&signer) as Arc<dyn Driver>),
    };
    let store = RemoteStore::attach(
        Arc::new(both),
        "below/",
        MARKER,
        RetryPolicy::default(),
        Limits::default(),
        Arc::new(Pace::new(Limits::default())),
    );
    // The objects that the collector lists prevent founding, even if the writer cannot see them.
    let stranger = "below/photograph".to_owned();
    collector
        .state()
        .objects
        .insert(stranger.clone(), Bytes::new());
    let error = store.found(soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Foreign, "{error}");
    collector.state().objects.clear();
    store.found(soon()).await.unwrap();
    assert_eq!(writer.state().objects.len(), 1, "the writer put the marker");
    assert_eq!(collector.state().objects.len(), 0);
    // Only the signer signs links.
    let asked = writer.state().calls.len();
    let minute = Duration::from_secs(60);
    store.presign(&name(1), minute, soon()).await.unwrap();
    assert_eq!(signer.state().calls.len(), 1);
    assert_eq!(writer.state().calls.len(), asked);
    // Only the collector deletes, here at another place: the marker stays.
    store.give_back(soon()).await.unwrap();
    assert_eq!(writer.state().objects.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_error_names_the_refused_account() {
    let (driver, store) = founded().await;
    driver.tell(&[ScriptedOutcome::RefuseSaying(
        "arn:aws:iam::123456789012:user/me with AKIAIOSFODNN7EXAMPLE may not",
    )]);
    let error = store.head(&name(1), soon()).await.unwrap_err();
    assert_eq!(error.detail, "(an account) with (a key's id) may not");
}

#[tokio::test(start_paused = true)]
async fn a_url_is_signed_again_once_if_there_are_other_credentials() {
    let (driver, store) = founded().await;
    let refused = ScriptedOutcome::RefuseCredentials;
    let minute = Duration::from_secs(60);
    let object = name(1);
    let sign = || store.presign(&object, minute, soon());
    driver.tell(std::slice::from_ref(&refused));
    let error = sign().await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Denied);
    assert_eq!(error.operation, Operation::Presign);
    assert_eq!(driver.state().calls.len(), 1, "there are no others");
    driver.state().renewable = true;
    driver.tell(std::slice::from_ref(&refused));
    let signed = sign().await.unwrap();
    assert_eq!(signed.url, format!("https://cloud.example/below/{object}"));
    assert_eq!(driver.state().calls.len(), 3);
    driver.tell(&[refused.clone(), refused]);
    assert_eq!(sign().await.unwrap_err().kind, StoreErrorKind::Denied);
    assert_eq!(driver.state().calls.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_signature_that_takes_long_ends_at_the_deadline_and_is_not_counted() {
    let (driver, store) = founded().await;
    let before = store.traffic();
    driver.tell(&[ScriptedOutcome::Hang]);
    let begin = Instant::now();
    let minute = Duration::from_secs(60);
    let error = store.presign(&name(1), minute, soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Timeout);
    assert_eq!(begin.elapsed().as_secs(), 20);
    assert_eq!(store.traffic(), before);
}
