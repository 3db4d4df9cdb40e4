//! A fault at each call of the object store: refused, unanswered, cut, short, flipped, late.

use std::sync::Arc;
use std::time::Duration;

use gcodec_store::object_store::path::Path;
use gcodec_store::{Collection, Publisher, Staged, Store};

use crate::basics::{fill, memory, open, policy};
use crate::faulty::{Fault, Faulty};
use crate::weights::{check, options, publish};

const FAULTS: [Fault; 6] =
    [Fault::Refused, Fault::Unanswered, Fault::Cut, Fault::Short, Fault::Flipped, Fault::Late];

fn over(faulty: &Arc<Faulty>, attempts: u32) -> Store {
    let options = options().with_attempts(attempts).with_backoff(Duration::from_micros(1));
    Store::with_objects(Arc::clone(faulty) as _, Path::from("runs/7"), options).unwrap()
}

/// Runs `work` with a fault at each call in turn, on a store that `prepare` fills. After each, readers must
/// see right versions, and a publisher must be able to go on.
fn at_each_call(prepare: impl Fn(&Store), work: impl Fn(&Store, bool)) -> u64 {
    let mut tried = 0;
    for attempts in [1, 3] {
        for fault in FAULTS {
            for at in 0.. {
                let objects = memory();
                prepare(&open(&objects).with_grace(Duration::ZERO));
                let faulty = Faulty::new(
                    Arc::clone(&objects),
                    move |call, _| {
                        if call == at { fault } else { Fault::None }
                    },
                );
                // A version whose record is not there yet does not exist.
                work(&over(&faulty, attempts), attempts > 1 && fault != Fault::Late);
                let store = open(&objects);
                check(&store.pull(None, None).unwrap());
                let latest = store.latest().unwrap();
                let mut publisher = Publisher::new(&store, policy(4)).unwrap();
                assert_eq!(publish(&mut publisher, 100).unwrap().version, latest + 1);
                check(&store.pull(None, None).unwrap());
                tried += 1;
                if faulty.calls() <= at {
                    break;
                }
            }
        }
    }
    tried
}

#[test]
fn while_publishing() {
    let tried = at_each_call(
        |store| fill(store, 4),
        |store, must| {
            let published =
                Publisher::new(store, policy(4)).and_then(|mut publisher| publish(&mut publisher, 5));
            match published {
                Ok(published) => assert_eq!(published.version, 5),
                Err(e) => assert!(!must, "{e}"),
            }
        },
    );
    assert!(tried > 100, "{tried}");
}

#[test]
fn while_pulling() {
    let tried = at_each_call(
        |store| fill(store, 7),
        |store, must| {
            let held = match store.pull(None, Some(2)) {
                Ok(held) => held,
                Err(e) => return assert!(!must, "{e}"),
            };
            check(&held);
            let staged = store.stage(Some(&held), Some(7)).and_then(Staged::verify);
            // What the receiver holds is the same whatever happened.
            check(&held);
            match staged.and_then(|verified| verified.commit(Some(held))) {
                Ok(replica) => check(&replica),
                Err(e) => assert!(!must, "{e}"),
            }
        },
    );
    assert!(tried > 100, "{tried}");
}

#[test]
fn while_folding_and_collecting() {
    let tried = at_each_call(
        |store| fill(store, 7),
        |store, must| {
            for result in [store.fold(2, 6).map(drop), store.gc(&Collection::default()).map(drop)] {
                if let Err(e) = result {
                    assert!(!must, "{e}");
                }
            }
        },
    );
    assert!(tried > 100, "{tried}");
}
