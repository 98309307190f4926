//! First attempts: `poll_ready` of the service, its clones, and replicas that fail.

use super::{called, is_uncalled, layer, pairs};
use std::task::Poll;
use tower::limit::ConcurrencyLimit;
use tower::{Service, service_fn};
use tower_test::mock::Spawn;

#[tokio::test(start_paused = true)]
async fn one_replica_that_is_not_ready_blocks_nobody() {
    let (mocks, [mut a, mut b]) = pairs();
    a.allow(0);
    let mut service = Spawn::new(layer("none", 0.0).0.over(mocks));
    for _ in 0..3 {
        assert!(service.poll_ready().is_ready());
        drop(service.call("what?"));
        called(&mut b);
    }
    assert!(is_uncalled(&mut a));
}

#[tokio::test(start_paused = true)]
async fn the_replica_that_was_ready_is_the_one_that_is_called() {
    let (mocks, [mut a, mut b]) = pairs();
    a.allow(0);
    let mut service = Spawn::new(layer("none", 0.0).0.over(mocks));
    assert!(service.poll_ready().is_ready());
    // The one that is asked first is ready too, now; the answer stands all the same.
    a.allow(1);
    assert!(service.poll_ready().is_ready());
    drop(service.call("what?"));
    called(&mut b);
    assert!(is_uncalled(&mut a));
}

#[tokio::test(start_paused = true)]
async fn while_none_is_ready_each_of_them_wakes_the_caller_and_nothing_else_does() {
    for first_ready in [0, 1] {
        let (mocks, mut handles) = pairs::<2>();
        handles.iter_mut().for_each(|handle| handle.allow(0));
        let mut service = Spawn::new(layer("none", 0.0).0.over(mocks));
        assert!(service.poll_ready().is_pending());
        assert!(!service.is_woken(), "a loop that waits busily");
        handles[first_ready].allow(1);
        assert!(service.is_woken());
        assert!(service.poll_ready().is_ready());
        drop(service.call("what?"));
        called(&mut handles[first_ready]);
    }
}

/// A place in a queue that is kept for nothing is one that nobody else gets.
#[tokio::test(start_paused = true)]
async fn a_wait_for_a_replica_ends_when_another_one_is_ready() {
    let limited = || ConcurrencyLimit::new(service_fn(|()| std::future::pending::<Result<(), &str>>()), 1);
    let (mut a, b) = (limited(), limited());
    let mut service = Spawn::new(layer("none", 0.0).0.over([a.clone(), b]));
    let mut ready = Spawn::new(a.clone());
    assert!(ready.poll_ready().is_ready());
    let holder = ready.call(());
    assert!(service.poll_ready().is_ready(), "the second one has room");
    drop(holder);
    assert!(tokio_test::task::spawn(()).enter(|context, _| Service::<()>::poll_ready(&mut a, context)).is_ready());
}

#[tokio::test(start_paused = true)]
async fn clones_begin_in_turn_at_all_replicas() {
    let (mocks, mut handles) = pairs::<3>();
    let service = layer("none", 0.0).0.over(mocks);
    for request in 0..6 {
        let mut clone = Spawn::new(service.clone());
        assert!(clone.poll_ready().is_ready());
        drop(clone.call("what?"));
        called(&mut handles[request % 3]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_clone_neither_takes_readiness_nor_has_it() {
    let (mocks, [mut a, mut b]) = pairs();
    let mut service = Spawn::new(layer("none", 0.0).0.over(mocks));
    assert!(service.poll_ready().is_ready());
    a.allow(0);
    b.allow(0);
    let mut clone = service.clone();
    assert!(clone.poll_ready().is_pending(), "it has to ask for itself");
    drop(clone);
    drop(service.call("what?"));
    called(&mut a);
    assert!(is_uncalled(&mut b));
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_fails_is_left_out() {
    let (mocks, [mut a, mut b]) = pairs();
    let mut service = Spawn::new(layer("none", 0.0).0.over(mocks));
    a.send_error("a is gone");
    for _ in 0..3 {
        assert!(matches!(service.poll_ready(), Poll::Ready(Ok(()))));
        drop(service.call("what?"));
        called(&mut b);
    }
    assert!(is_uncalled(&mut a));
}

#[tokio::test(start_paused = true)]
async fn the_error_is_told_when_none_is_left() {
    let (mocks, [mut a, mut b]) = pairs();
    let mut service = Spawn::new(layer("none", 0.0).0.over(mocks));
    a.send_error("a is gone");
    b.allow(0);
    assert!(service.poll_ready().is_pending(), "the other one may become ready");
    b.send_error("b is gone");
    assert!(service.is_woken());
    let Poll::Ready(Err(error)) = service.poll_ready() else { panic!("nobody is left") };
    assert_eq!(error.to_string(), "b is gone");
    // Whoever asks once more gets what the replicas say then.
    b.allow(0);
    assert!(service.poll_ready().is_ready());
    drop(service.call("what?"));
    called(&mut a);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_fails_after_it_was_ready_is_replaced_before_the_call() {
    let (mocks, [mut a, mut b]) = pairs();
    let mut service = Spawn::new(layer("none", 0.0).0.over(mocks));
    assert!(service.poll_ready().is_ready());
    a.send_error("a is gone");
    assert!(matches!(service.poll_ready(), Poll::Ready(Ok(()))));
    drop(service.call("what?"));
    called(&mut b);
    assert!(is_uncalled(&mut a));
}
