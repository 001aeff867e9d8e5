//! Answers about locks that are lost, hand-overs that fail, and processes that wait for long.

use super::*;
use crate::common::OperationFault;
use quorumfs_metadata::operation::Operation;

fn is_lock(operation: &Operation) -> bool {
    matches!(operation, Operation::Lock(_))
}

fn is_end_lock(operation: &Operation) -> bool {
    matches!(operation, Operation::Lock(request) if request.kind == LockKind::Appends)
}

#[tokio::test(start_paused = true)]
async fn the_locks_of_a_closed_file_do_not_end_those_of_who_has_its_number_next() {
    let world = TestVolume::in_test_time();
    let (first, wire) = world.share_over(VfsOptions::default()).await;
    let second = shared(&world).await;
    let inode = file(&first, b"").await;
    let one = Process::open(&first, inode, 1).await;
    let other = Process::open(&second, inode, 1).await;
    one.attempt(RANGES, LockWish::Exclusive).await.unwrap();
    // The process closes the file, and that is not answered.
    wire.next(is_lock, OperationFault::NotSent);
    first.close_descriptor(one.handle, 1).await.unwrap();
    assert!(wire.all_faults_occurred());
    assert_eq!(
        other.attempt(RANGES, LockWish::Shared).await,
        Err(Errno::AGAIN)
    );
    let next = Process::open(&first, inode, 1).await;
    next.attempt(RANGES, LockWish::Exclusive).await.unwrap();
    for _ in 0..5 {
        tokio::time::sleep(SOON).await;
        assert_eq!(
            other.attempt(RANGES, LockWish::Shared).await,
            Err(Errno::AGAIN)
        );
    }
    // Without one, what could not be ended is ended later.
    wire.next(is_lock, OperationFault::NotSent);
    first.close_descriptor(next.handle, 1).await.unwrap();
    tokio::time::sleep(SOON).await;
    other.attempt(RANGES, LockWish::Exclusive).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_file_is_given_up_whatever_answers_are_lost() {
    for fault in [OperationFault::AnswerLost, OperationFault::NotSent] {
        for before in 0..3 {
            let world = TestVolume::in_test_time();
            let (first, wire) = world.share_over(VfsOptions::default()).await;
            let second = shared(&world).await;
            let inode = file(&first, b"").await;
            let one = Process::open(&first, inode, 1).await;
            let other = Process::open(&second, inode, 1).await;
            if before > 0 {
                one.append("0\n").await;
            }
            if before > 1 {
                settle().await;
            }
            wire.next(is_end_lock, fault);
            let line = Bytes::from_static(b"1\n");
            if first.append(one.handle, line).await.is_err() {
                one.append("1\n").await;
            }
            timeout(10 * SOON, other.append("2\n")).await.unwrap();
            one.append("3\n").await;
            timeout(10 * SOON, other.append("4\n")).await.unwrap();
            first.fsync(one.handle).await.unwrap();
            second.fsync(other.handle).await.unwrap();
            let text = String::from_utf8(content(&second, inode).await).unwrap();
            let lines = if before > 0 {
                "0\n1\n2\n3\n4\n"
            } else {
                "1\n2\n3\n4\n"
            };
            assert_eq!(text, lines, "{fault:?} {before}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_that_fails_half_way_is_tried_again() {
    let world = TestVolume::in_test_time();
    let (first, wire) = world.over(MountMode::Alone, VfsOptions::default()).await;
    tokio::time::sleep(SOON).await;
    let inode = file(&first, b"").await;
    let one = Process::open(&first, inode, 1).await;
    let next = Process::open(&first, inode, 2).await;
    one.attempt(RANGES, LockWish::Exclusive).await.unwrap();
    wire.next(is_lock, OperationFault::AnswerLost);
    let second = alone(&world).await;
    assert!(wire.all_faults_occurred());
    let other = Process::open(&second, inode, 1).await;
    assert_eq!(
        other.attempt(RANGES, LockWish::Shared).await,
        Err(Errno::AGAIN)
    );
    one.unlock(RANGES).await;
    next.attempt(RANGES, LockWish::Exclusive).await.unwrap();
    assert_eq!(
        other.attempt(RANGES, LockWish::Shared).await,
        Err(Errno::AGAIN)
    );
    next.unlock(RANGES).await;
    other.attempt(RANGES, LockWish::Exclusive).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_more_is_not_repeated_again_and_again() {
    for mode in [MountMode::Shared, MountMode::Alone] {
        let world = TestVolume::in_test_time();
        let fs = world.mount_as(mode, VfsOptions::default()).await;
        tokio::time::sleep(SOON).await;
        let inode = file(&fs, b"").await;
        let (one, other) = (
            Process::open(&fs, inode, 1).await,
            Process::open(&fs, inode, 2).await,
        );
        for reader in [&one, &other] {
            reader.attempt(RANGES, LockWish::Shared).await.unwrap();
        }
        let (_interrupt, waits) = one.wait_for(RANGES, LockWish::Exclusive);
        settle().await;
        let before = fs.status();
        tokio::time::sleep(Duration::from_secs(9)).await;
        let after = fs.status();
        assert!(after.operations - before.operations <= 1, "{mode:?}");
        assert!(after.queries - before.queries < 40, "{mode:?}");
        other.unlock(RANGES).await;
        timeout(SOON, waits).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_handed_over_in_a_silence_decides_no_more_when_it_is_alone_again() {
    let world = TestVolume::in_test_time();
    let (first, wire) = world.over(MountMode::Alone, VfsOptions::default()).await;
    tokio::time::sleep(SOON).await;
    let inode = file(&first, b"").await;
    let one = Process::open(&first, inode, 1).await;
    let next = Process::open(&first, inode, 2).await;
    one.attempt(RANGES, LockWish::Exclusive).await.unwrap();
    // It hears nothing, so there may be others. The servers get a lock, and do not say so.
    wire.unheard.store(true, Ordering::Relaxed);
    tokio::time::sleep(2 * SOON).await;
    wire.next(is_lock, OperationFault::AnswerLost);
    let refused = next.attempt(RANGES, LockWish::Exclusive).await;
    assert!(refused.is_err() && wire.all_faults_occurred());
    wire.unheard.store(false, Ordering::Relaxed);
    first.getattr(inode).await.unwrap();
    tokio::time::sleep(SOON).await;
    assert!(!first.is_shared());
    one.unlock(RANGES).await;
    let second = alone(&world).await;
    let other = Process::open(&second, inode, 1).await;
    other.attempt(RANGES, LockWish::Exclusive).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_in_a_mount_that_nothing_else_uses_is_told_soon() {
    // At every moment between the repetitions of its request, which are ten seconds apart.
    for seconds in 30..75 {
        let world = TestVolume::in_test_time();
        let (first, second) = (shared(&world).await, shared(&world).await);
        let inode = file(&first, b"").await;
        let one = Process::open(&first, inode, 1).await;
        let other = Process::open(&second, inode, 1).await;
        one.attempt(RANGES, LockWish::Exclusive).await.unwrap();
        let (_interrupt, waits) = other.wait_for(RANGES, LockWish::Exclusive);
        for _ in 0..seconds {
            tokio::time::sleep(Duration::from_secs(1)).await;
            first.getattr(inode).await.unwrap();
        }
        one.unlock(RANGES).await;
        // No bell is heard here: the news are asked for.
        let waited = timeout(SOON, waits).await;
        waited.expect("after so many seconds").unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_answer_was_lost_is_given_up_with_the_file() {
    let world = TestVolume::in_test_time();
    let (first, wire) = world.share_over(VfsOptions::default()).await;
    let second = shared(&world).await;
    let inode = file(&first, b"").await;
    let one = Process::open(&first, inode, 1).await;
    let other = Process::open(&second, inode, 1).await;
    wire.next(is_lock, OperationFault::AnswerLost);
    assert!(one.attempt(RANGES, LockWish::Exclusive).await.is_err());
    assert!(wire.all_faults_occurred());
    assert_eq!(
        other.attempt(RANGES, LockWish::Shared).await,
        Err(Errno::AGAIN)
    );
    first.close_descriptor(one.handle, 1).await.unwrap();
    other.attempt(RANGES, LockWish::Exclusive).await.unwrap();
}
