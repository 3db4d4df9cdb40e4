//! Several publishers, and readers beside publishers and collections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gcodec_store::{Collection, Error, Published, Publisher};

use crate::basics::{memory, open, policy};
use crate::weights::{check, publish};

#[test]
fn two_publishers_never_both_win() {
    let objects = memory();
    let run = |first: u64| {
        let store = open(&objects);
        let mut publisher = Publisher::new(&store, policy(4)).unwrap();
        let (mut won, mut lost) = (Vec::new(), 0);
        for step in (first..).step_by(2).take(20) {
            loop {
                match publish(&mut publisher, step) {
                    Ok(published) => break won.push((published.version, step)),
                    Err(Error::Conflict { .. }) => lost += 1,
                    Err(e) => panic!("{e}"),
                }
                publisher.synchronise().unwrap();
            }
        }
        (won, lost)
    };
    let (one, two) = std::thread::scope(|scope| {
        let (one, two) = (scope.spawn(|| run(0)), scope.spawn(|| run(1)));
        (one.join().unwrap(), two.join().unwrap())
    });
    let mut won = [one.0, two.0].concat();
    won.sort_unstable();
    assert!(won.iter().map(|(version, _)| *version).eq(1..=40));
    let store = open(&objects);
    for (version, step) in won {
        let replica = store.pull(None, Some(version)).unwrap();
        check(&replica);
        assert_eq!(replica.meta()["step"], step.to_string());
    }
}

/// Publishes a step. A busy machine may need longer than the grace period of a test, so it tries again until
/// 20 seconds after `start`.
fn publish_in_time(publisher: &mut Publisher, step: u64, start: Instant) -> Result<Published, Error> {
    loop {
        match publish(publisher, step) {
            Err(Error::TooSlow { .. }) if start.elapsed() < Duration::from_secs(20) => {}
            published => break published,
        }
    }
}

/// Follows a store while versions are published and collected with this grace period. Returns the versions
/// seen, and the errors.
fn race(grace: Duration, versions: u64) -> (u64, Vec<Error>) {
    let objects = memory();
    let store = open(&objects).with_grace(grace);
    publish_in_time(&mut Publisher::new(&store, policy(3)).unwrap(), 0, Instant::now()).unwrap();
    let done = AtomicBool::new(false);
    let follow = || {
        let store = open(&objects);
        let (mut held, mut seen, mut errors) = (None, 0, Vec::new());
        while !done.load(Ordering::Relaxed) {
            match store.pull(held.clone(), None) {
                Ok(replica) => {
                    check(&replica);
                    seen += u64::from(held.as_ref().is_none_or(|h| replica.version() > h.version()));
                    held = Some(replica);
                }
                Err(e) => errors.push(e),
            }
        }
        (seen, errors)
    };
    let collect = || {
        let store = open(&objects);
        while !done.load(Ordering::Relaxed) {
            if let Err(e) = store.gc(&Collection::default()) {
                return Some(e);
            }
        }
        None
    };
    std::thread::scope(|scope| {
        let followers = [scope.spawn(follow), scope.spawn(follow)];
        let collector = scope.spawn(collect);
        let store = open(&objects);
        let mut publisher = Publisher::new(&store, policy(3)).unwrap();
        let start = Instant::now();
        let published =
            (1..versions).try_for_each(|step| publish_in_time(&mut publisher, step, start).map(drop));
        done.store(true, Ordering::Relaxed);
        published.unwrap();
        let (mut seen, mut errors) = (0, Vec::new());
        for follower in followers {
            let (more, failed) = follower.join().unwrap();
            seen += more;
            errors.extend(failed);
        }
        assert!(collector.join().unwrap().is_none());
        check(&open(&objects).pull(None, None).unwrap());
        (seen, errors)
    })
}

#[test]
fn a_reader_within_the_grace_period_is_never_disturbed() {
    let (seen, errors) = race(Duration::from_secs(1), 150);
    assert!(seen > 10 && errors.is_empty(), "{seen}, {errors:?}");
}

#[test]
fn a_reader_without_grace_sees_whole_versions_or_errors() {
    let (seen, errors) = race(Duration::from_millis(50), 150);
    assert!(seen > 5, "{seen}, {errors:?}");
    let is_gone = |e: &Error| matches!(e, Error::Missing { .. } | Error::Unreachable { .. });
    assert!(errors.iter().all(is_gone), "{errors:?}");
}
