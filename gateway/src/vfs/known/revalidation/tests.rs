//! Asking, hearing, and what the kernel has to drop.

use super::super::coherence::tests::Scripted;
use super::super::owner::Scope;
use super::*;
use crate::metadata::Standing;
use quorumfs_metadata::identity::LogPosition;

const HERE: InodeId = InodeId(5);
const THERE: Known = Known::Entry(InodeId(9));

/// News of these changes up to this position.
fn news(position: u64, changed: Changed) -> News {
    News::UpTo {
        position: LogPosition(position),
        changed,
        more: false,
        others: true,
        recalled: false,
    }
}

fn quiet(position: u64) -> News {
    news(position, Changed::Inodes(Vec::new()))
}

/// A name is known as of the first answer, and the kernel has cached it.
async fn known_after(first: News, then: &[News]) -> (Arc<KnownMetadata>, Invalidations) {
    let answers = [&[first], then].concat();
    let known = KnownMetadata::new(100, Scripted::shared(answers));
    known.revalidate().await;
    known.learn_name(known.stamp(HERE), HERE, b"a", THERE);
    assert!(known.may_cache_name(HERE, b"a", THERE));
    let kernel = known.invalidations();
    tokio::time::advance(2 * VALID_FOR).await;
    (known, kernel)
}

#[tokio::test(start_paused = true)]
async fn news_of_nothing_make_everything_valid_again() {
    let (known, kernel) = known_after(quiet(7), &[quiet(7)]).await;
    assert_eq!(known.name(HERE, b"a"), None, "not confirmed");
    known.revalidate().await;
    assert_eq!(known.name(HERE, b"a"), Some(THERE));
    assert!(!kernel.is_waiting());
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_as_long_as_news_take() {
    let far = Scripted::shared(vec![quiet(7); 3]).after(Duration::from_millis(400));
    let known = KnownMetadata::new(100, far);
    known.revalidate().await;
    assert!(
        !known.has_fresh_news(),
        "it is not known yet how far they are"
    );
    known.hear().await;
    known.learn_name(known.stamp(HERE), HERE, b"a", THERE);
    tokio::time::advance(2 * VALID_FOR).await;
    known.revalidate().await;
    assert_eq!(known.name(HERE, b"a"), Some(THERE));
}

#[tokio::test(start_paused = true)]
async fn a_gap_invalidates_everything_here_and_in_the_kernel() {
    let (known, mut kernel) = known_after(quiet(7), &[news(8, Changed::Anything)]).await;
    known.revalidate().await;
    assert_eq!(known.name(HERE, b"a"), None);
    assert_eq!(kernel.next().await, Some(Invalidation::Everything));
    known.learn_name(known.stamp(HERE), HERE, b"a", THERE);
    assert!(known.may_cache_name(HERE, b"a", THERE), "as of the new one");
}

#[tokio::test(start_paused = true)]
async fn what_others_have_changed_goes_here_and_in_the_kernel_and_nothing_else() {
    let there = InodeId(6);
    let changed = Changed::Inodes(vec![HERE]);
    let (known, mut kernel) = known_after(quiet(7), &[quiet(7), news(9, changed)]).await;
    known.revalidate().await;
    known.learn_name(known.stamp(there), there, b"b", THERE);
    tokio::time::advance(VALID_FOR).await;
    known.revalidate().await;
    assert_eq!(known.name(HERE, b"a"), None);
    assert_eq!(known.name(there, b"b"), Some(THERE));
    let next = kernel.next().await;
    assert_eq!(next, Some(Invalidation::Inodes([HERE].into())));
    assert!(!kernel.is_waiting());
    assert!(known.may_cache_name(there, b"b", THERE));
}

#[tokio::test(start_paused = true)]
async fn the_bell_has_news_asked_for_at_once() {
    let answers = [quiet(7), quiet(7), news(9, Changed::Inodes(vec![HERE]))];
    let known = KnownMetadata::new(100, Scripted::shared(answers.into()));
    known.revalidate().await;
    known.learn_name(known.stamp(HERE), HERE, b"a", THERE);
    assert!(known.may_cache_name(HERE, b"a", THERE));
    let mut kernel = known.invalidations();
    spawn(&known);
    // Its first round takes no time.
    tokio::time::sleep(EVERY / 10).await;
    let rung = Instant::now();
    known.coherence.bell().notify_one();
    let next = kernel.next().await;
    assert_eq!(next, Some(Invalidation::Inodes([HERE].into())));
    assert!(rung.elapsed() < EVERY / 10);
}

#[tokio::test(start_paused = true)]
async fn the_bell_is_heard_while_an_earlier_question_is_on_its_way() {
    let known = KnownMetadata::new(100, Scripted::shared(vec![quiet(9)]));
    let on_its_way = known.revalidation.turn.lock().await;
    let (sent, asking) = (Instant::now(), known.hear());
    tokio::pin!(asking);
    tokio::time::advance(EVERY / 10).await;
    let waits = tokio::time::timeout(Duration::ZERO, asking.as_mut()).await;
    assert!(waits.is_err());
    // Its answer arrives, and was given before the bell rang.
    {
        let mut state = known.revalidation.state();
        (state.answered, state.last_answer) = (Some(sent), Some(Instant::now()));
    }
    drop(on_its_way);
    asking.await;
    assert_eq!(known.news_position(), Some(LogPosition(9)));
}

#[tokio::test(start_paused = true)]
async fn the_kernel_drops_everything_soon_after_the_last_news_though_a_question_hangs() {
    let known = KnownMetadata::new(100, Scripted::shared(vec![quiet(7)]).then_hanging());
    let mut kernel = known.invalidations();
    spawn(&known);
    known.revalidate().await;
    let last = Instant::now();
    known.learn_name(known.stamp(HERE), HERE, b"a", THERE);
    assert!(known.may_cache_name(HERE, b"a", THERE));
    assert_eq!(kernel.next().await, Some(Invalidation::Everything));
    assert!(last.elapsed() <= LAPSE + EVERY / 5, "{:?}", last.elapsed());
    assert!(!known.may_cache_name(HERE, b"a", THERE));
}

#[tokio::test(start_paused = true)]
async fn a_long_log_is_read_to_its_end_before_it_confirms_anything() {
    let changed = Changed::Inodes(vec![InodeId(6)]);
    let more = News::UpTo {
        position: LogPosition(8),
        changed: changed.clone(),
        more: true,
        others: true,
        recalled: false,
    };
    let (known, mut kernel) = known_after(quiet(7), &[more.clone(), news(9, changed)]).await;
    known.revalidate().await;
    assert_eq!(known.name(HERE, b"a"), Some(THERE));
    for _ in 0..2 {
        let next = kernel.next().await;
        assert_eq!(next, Some(Invalidation::Inodes([InodeId(6)].into())));
    }
    let (known, _) = known_after(quiet(7), &[more]).await;
    known.revalidate().await;
    assert_eq!(known.name(HERE, b"a"), None, "the rest may tell of it");
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_is_not_ours_any_more_confirms_nothing() {
    let (known, mut kernel) = known_after(quiet(7), &[News::Ended]).await;
    known.revalidate().await;
    assert_eq!(kernel.next().await, Some(Invalidation::Everything));
    known.learn_name(known.stamp(HERE), HERE, b"a", THERE);
    assert!(!known.may_cache_name(HERE, b"a", THERE));
}

#[tokio::test(start_paused = true)]
async fn what_is_invalidated_is_unknown_and_not_absent() {
    let (known, _) = known_after(quiet(7), &[quiet(7)]).await;
    known.revalidate().await;
    known.learn_directory(
        known.stamp(HERE),
        HERE,
        [(&b"b"[..], InodeId(8))].into_iter(),
    );
    assert_eq!(known.name(HERE, b"c"), Some(Known::Absent));
    known.invalidate(Scope::Name(HERE, b"b"));
    assert_eq!(
        (known.name(HERE, b"b"), known.name(HERE, b"c")),
        (None, None)
    );
    assert_eq!(known.name(HERE, b"a"), Some(THERE));
    known.invalidate(Scope::All);
    assert_eq!(known.name(HERE, b"a"), None);
}

#[tokio::test(start_paused = true)]
async fn an_unused_mount_that_is_alone_hears_the_bell_and_shares() {
    let recalled = News::UpTo {
        position: LogPosition(7),
        changed: Changed::Inodes(Vec::new()),
        more: false,
        others: false,
        recalled: true,
    };
    let known = KnownMetadata::new(100, Scripted::alone(vec![quiet(7), recalled]));
    let mut kernel = known.invalidations();
    spawn(&known);
    // Its first round takes no time.
    tokio::time::sleep(RECALLS_EVERY / 10).await;
    assert!(!known.is_shared() && !kernel.is_waiting());
    let rung = Instant::now();
    known.coherence.bell().notify_one();
    assert_eq!(kernel.next().await, Some(Invalidation::Everything));
    assert!(rung.elapsed() < RECALLS_EVERY / 10);
    assert_eq!(known.coherence.standing(), Standing::Shared);
}
