//! Servers that ignore or do not know the condition of a write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gcodec_store::object_store::{ObjectStore, ObjectStoreExt, path::Path};
use gcodec_store::{Error, Publisher};

use crate::basics::{memory, open, policy};
use crate::faulty::{Fault, Faulty};
use crate::weights::{check, publish};

fn on(inner: &Arc<dyn ObjectStore>, fault: Fault) -> Arc<dyn ObjectStore> {
    Faulty::new(Arc::clone(inner), move |_, _| fault)
}

#[test]
fn a_server_that_ignores_conditions_is_refused_before_anything_is_published() {
    for fault in [Fault::Unconditional, Fault::NotImplemented] {
        let objects = memory();
        let store = open(&on(&objects, fault));
        for step in 1..3 {
            let mut publisher = Publisher::new(&store, policy(4)).unwrap();
            let error = publish(&mut publisher, step).unwrap_err();
            assert!(matches!(&error, Error::Unconditional { .. }), "{fault:?}: {error}");
            assert!(error.to_string().contains("`If-None-Match: *`"), "{error}");
            assert_eq!(error.fault(), "world");
        }
        assert!(matches!(store.latest(), Err(Error::Empty)));
    }
}

#[test]
fn a_store_that_moves_to_such_a_server_is_refused_and_still_read() {
    let objects = memory();
    let store = open(&objects);
    publish(&mut Publisher::new(&store, policy(4)).unwrap(), 1).unwrap();
    let moved = open(&on(&objects, Fault::Unconditional));
    let held = moved.pull(None, None).unwrap();
    check(&held);
    let mut publisher = Publisher::with_base(&moved, policy(4), Some(held)).unwrap();
    assert!(matches!(publish(&mut publisher, 2), Err(Error::Unconditional { .. })));
    assert_eq!(store.latest().unwrap(), 1);
}

#[test]
fn conditions_are_tried_once_for_each_store() {
    let objects = memory();
    let probes = |from: u64| {
        let count = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&count);
        let counted: Arc<dyn ObjectStore> = Faulty::new(Arc::clone(&objects), move |_, name| {
            counter.fetch_add(name.ends_with("probe.json").into(), Ordering::Relaxed);
            Fault::None
        });
        let store = open(&counted);
        let mut publisher = Publisher::new(&store, policy(100)).unwrap();
        let calls = (from..from + 3).map(|step| {
            publish(&mut publisher, step).unwrap();
            count.swap(0, Ordering::Relaxed)
        });
        calls.collect::<Vec<_>>()
    };
    // A write that succeeds, one that is refused, and a look at what is there.
    assert_eq!(probes(1), [3, 0, 0]);
    assert_eq!(probes(4), [2, 0, 0]);
    let path = Path::from("runs/7/probe.json");
    assert!(futures_util::FutureExt::now_or_never(objects.head(&path)).unwrap().is_ok());
}
