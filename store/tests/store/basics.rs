//! Publishing, pulling, folding and collecting on a store without faults.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gcodec::{Codec, TensorBuf, TensorView};
use gcodec_store::object_store::ObjectStore;
use gcodec_store::object_store::memory::InMemory;
use gcodec_store::object_store::path::Path;
use gcodec_store::{Collection, Error, Policy, Publisher, Reanchor, Staged, Store};

use crate::weights::{GROUP, check, options, publish, touched, views, weights};

pub(crate) fn open(objects: &Arc<dyn ObjectStore>) -> Store {
    let options = options().with_backoff(Duration::from_millis(1));
    Store::with_objects(Arc::clone(objects), Path::from("runs/7"), options).unwrap()
}

pub(crate) fn memory() -> Arc<dyn ObjectStore> {
    Arc::new(InMemory::new())
}

pub(crate) fn policy(anchor_every: u64) -> Policy {
    Policy::default().with_anchor_every(anchor_every).with_group_bytes(GROUP)
}

/// Publishes the steps 1 to `count`, with anchors at versions 1, 5, 9, ..
pub(crate) fn fill(store: &Store, count: u64) {
    let mut publisher = Publisher::new(store, policy(4)).unwrap();
    for step in 1..=count {
        publish(&mut publisher, step).unwrap();
    }
}

#[test]
fn addresses_of_folders_are_known() {
    let folder = |address| Store::folder_of(address).unwrap().map(|folder| folder.display().to_string());
    assert_eq!(folder("runs/7").as_deref(), Some("runs/7"));
    assert_eq!(folder("s3://bucket/run"), None);
    #[cfg(unix)]
    assert_eq!(folder("file:///runs/a%20b").as_deref(), Some("/runs/a b"));
}

#[test]
fn every_version_is_reached_from_every_other() {
    let store = open(&memory());
    assert!(matches!(store.pull(None, None), Err(Error::Empty)));
    fill(&store, 10);
    for to in 1..=10 {
        let fresh = store.pull(None, Some(to)).unwrap();
        check(&fresh);
        for from in 1..=10 {
            let held = store.pull(None, Some(from)).unwrap();
            let staged = store.stage(Some(&held), Some(to)).unwrap();
            if from <= to {
                assert!(staged.steps() as u64 <= to - from, "{from} to {to}");
            }
            let replica = staged.verify().unwrap().commit(Some(held)).unwrap();
            check(&replica);
            assert_eq!((replica.version(), replica.state()), (to, fresh.state()));
        }
    }
    assert!(matches!(store.pull(None, Some(11)), Err(Error::NoVersion { version: 11, latest: 10 })));
    assert!(matches!(store.pull(None, Some(0)), Err(Error::NoVersion { .. })));
    let anchors = store.log(100).unwrap().into_iter().filter(|v| v.anchor_bytes.is_some());
    assert_eq!(anchors.map(|v| v.version).collect::<Vec<_>>(), [9, 5, 1]);
}

#[test]
fn a_folder_is_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("new").to_str().unwrap().to_owned();
    fill(&Store::open(&address, options()).unwrap(), 3);
    let store = Store::open(&format!("file://{address}"), options()).unwrap();
    check(&store.pull(None, None).unwrap());
    let mut publisher = Publisher::new(&store, policy(4)).unwrap();
    assert_eq!(publish(&mut publisher, 4).unwrap().version, 4);
    for wrong in ["ftp://host/x", "file://host/x"] {
        assert!(matches!(Store::open(wrong, options()), Err(Error::Address { .. })), "{wrong}");
    }
    let cloud = Store::open("s3://bucket/run", options());
    assert_eq!(matches!(cloud, Err(Error::Backend { feature: "aws", .. })), !cfg!(feature = "aws"));
}

#[test]
fn only_what_changed_is_touched() {
    let store = open(&memory());
    let mut publisher = Publisher::new(&store, policy(100)).unwrap();
    publish(&mut publisher, 1).unwrap();
    let held = store.pull(None, None).unwrap();
    // A version without changes costs a record, and the receiver has nothing to do.
    let same = publish(&mut publisher, 1).unwrap();
    assert_eq!((same.version, same.touched, same.delta_bytes), (2, 0, Some(0)));
    let verified = store.stage(Some(&held), None).unwrap().verify().unwrap();
    assert!(touched(&verified).is_empty());
    let held = verified.commit(Some(held)).unwrap();
    // One tensor.
    let mut next = weights(1);
    let mut data = next[2].1.data().to_vec();
    data[5] ^= 1;
    next[2].1 = TensorBuf::new(next[2].1.dtype(), next[2].1.shape().to_vec(), data).unwrap();
    assert_eq!(publisher.publish(&views(&next), BTreeMap::new()).unwrap().touched, 1);
    let verified = store.stage(Some(&held), None).unwrap().verify().unwrap();
    assert_eq!(touched(&verified), ["layer.0.weight"]);
    // A version belongs to the replica that it was staged for.
    assert!(matches!(verified.commit(None), Err(Error::Input(_))));
}

#[test]
fn a_chain_that_outweighs_its_anchor_ends() {
    let store = open(&memory());
    let mut publisher = Publisher::new(&store, policy(u64::MAX)).unwrap();
    for step in 0..60 {
        // Steps far apart differ in most elements.
        publish(&mut publisher, step * 100).unwrap();
    }
    let log = store.log(100).unwrap();
    let mut chain = 0;
    for version in log.iter().rev() {
        match version.anchor_bytes {
            Some(_) => chain = 0,
            None => chain += version.delta_bytes.unwrap(),
        }
        assert!(chain < log.last().unwrap().anchor_bytes.unwrap(), "version {}", version.version);
    }
    assert!(log.iter().filter(|v| v.anchor_bytes.is_some()).count() > 1);
}

#[test]
fn a_fold_equals_its_deltas() {
    let objects = memory();
    let store = open(&objects);
    let mut publisher = Publisher::new(&store, policy(100)).unwrap();
    for step in 1..=12 {
        publish(&mut publisher, step).unwrap();
    }
    let old = store.pull(None, Some(2)).unwrap();
    let replayed = store.stage(Some(&old), Some(11)).unwrap();
    assert!(replayed.steps() > 1);
    let replayed = replayed.verify().unwrap();
    let folded = store.fold(2, 11).unwrap();
    assert!(folded.bytes < folded.replay_bytes && folded.touched > 0, "{folded:?}");
    let staged = store.stage(Some(&old), Some(11)).unwrap();
    assert_eq!((staged.steps(), staged.bytes()), (1, folded.bytes));
    let verified = staged.verify().unwrap();
    assert!(verified.touched().eq(replayed.touched()));
    check(&verified.commit(Some(old.clone())).unwrap());
    // On the way to a later version, and again: the same fold.
    assert_eq!(store.stage(Some(&old), Some(12)).unwrap().steps(), 2);
    assert_eq!(store.fold(2, 11).unwrap(), folded);
    for (from, to) in [(0, 3), (3, 3), (4, 3), (3, 13)] {
        assert!(store.fold(from, to).is_err(), "{from} to {to}");
    }
}

#[test]
fn the_publisher_chooses_what_deltas_say() {
    let store = open(&memory());
    let overwrite: Codec = "delta:values=overwrite".parse().unwrap();
    fill(&store, 2);
    let mut publisher = Publisher::new(&store, policy(100).with_codec(overwrite)).unwrap();
    for step in 3..=6 {
        publish(&mut publisher, step).unwrap();
    }
    let codecs: Vec<_> = store.log(6).unwrap().into_iter().rev().map(|v| v.codec).collect();
    let stated = [None, Some("delta"), Some("delta:values=overwrite")].map(|text| text.map(str::to_owned));
    assert_eq!(codecs[..3], stated);
    let held = store.pull(None, Some(1)).unwrap();
    for version in 2..=6 {
        check(&store.pull(Some(held.clone()), Some(version)).unwrap());
    }
    // A fold is like its last delta.
    let folded = store.fold(1, 6).unwrap();
    let staged = store.stage(Some(&held), None).unwrap();
    assert_eq!((staged.steps(), staged.bytes()), (1, folded.bytes));
    check(&staged.verify().unwrap().commit(Some(held)).unwrap());
    let lossy = Publisher::new(&store, policy(1).with_codec(Codec::LOSSLESS));
    assert!(matches!(lossy, Err(Error::Input(_))));
}

#[test]
fn a_collection_keeps_what_readers_need() {
    let objects = memory();
    let store = open(&objects).with_grace(Duration::ZERO);
    fill(&store, 11);
    let held = store.pull(None, Some(3)).unwrap();
    store.fold(2, 4).unwrap();
    store.lease("slow-reader", 3, Duration::from_secs(60)).unwrap();
    let all = store.gc(&Collection::default().with_dry_run(true)).unwrap();
    assert!(all.deleted > 0);
    assert_eq!(store.gc(&Collection::default()).unwrap().deleted, all.deleted);
    // The lease keeps the deltas after version 3, but not the versions before it.
    let staged = store.stage(Some(&held), Some(4)).unwrap();
    assert_eq!(staged.steps(), 1);
    check(&staged.verify().unwrap().commit(Some(held.clone())).unwrap());
    assert!(store.pull(None, Some(2)).is_err());
    store.release("slow-reader").unwrap();
    assert!(store.gc(&Collection::default().with_keep(2)).unwrap().deleted > 0);
    // Now the reader continues from the anchor at version 9.
    for version in 9..=11 {
        check(&store.pull(Some(held.clone()), Some(version)).unwrap());
    }
    assert!(store.pull(Some(held), Some(4)).is_err());
    assert_eq!(store.gc(&Collection::default().with_keep(2)).unwrap().deleted, 0);
    publish(&mut Publisher::new(&store, policy(4)).unwrap(), 12).unwrap();
    for wrong in ["", "a/b", "..", "\u{e9}"] {
        assert!(matches!(store.lease(wrong, 1, Duration::ZERO), Err(Error::Input(_))));
    }
}

#[test]
fn one_tensor_is_read_alone() {
    let store = open(&memory());
    fill(&store, 7);
    for version in 1..=7 {
        for (name, tensor) in weights(version) {
            assert_eq!(
                store.tensor(Some(version), &name).unwrap().view(),
                tensor.view(),
                "{name} at {version}"
            );
        }
    }
    assert!(matches!(store.tensor(None, "no such tensor"), Err(Error::Input(_))));
    // Of a large anchor, only the tensor's part.
    let large: Vec<(String, TensorBuf)> = (0..8u32)
        .map(|n| {
            let values: Vec<f32> =
                (0..50_000u32).map(|i| f32::from_bits(i.wrapping_mul(n + 77_777_777))).collect();
            (format!("t{n}"), TensorBuf::from_f32(vec![50_000], &values).unwrap())
        })
        .collect();
    Publisher::new(&store, Policy::default()).unwrap().publish(&views(&large), BTreeMap::new()).unwrap();
    let before = store.transferred();
    assert_eq!(store.tensor(None, "t3").unwrap().view(), large[3].1.view());
    let (read, anchor) = (store.transferred() - before, store.log(1).unwrap()[0].anchor_bytes.unwrap());
    assert!(read < anchor / 4, "{read} of {anchor} bytes");
}

#[test]
fn tensors_are_held_only_as_their_version() {
    let store = open(&memory());
    fill(&store, 3);
    let mut shuffled = weights(2);
    shuffled.reverse();
    check(&store.hold(2, shuffled).unwrap());
    let mut missing = weights(2);
    missing.pop();
    let mut retyped = weights(2);
    retyped[1].1 = TensorBuf::from_f32(vec![3], &[0.0; 3]).unwrap();
    let prefixed: Vec<_> = weights(2).into_iter().map(|(n, t)| (format!("module.{n}"), t)).collect();
    for (wrong, parts) in [
        (weights(3), vec!["other elements than in version 2", "\"embed\""]),
        (missing.clone(), vec!["missing: \"empty\""]),
        ([missing.clone(), missing].concat(), vec!["two tensors have the name \"embed\""]),
        (
            [weights(2), vec![("x".into(), weights(2)[0].1.clone())]].concat(),
            vec!["not in the version: \"x\""],
        ),
        (retyped, vec!["\"layer.0.bias\" is f32 [3], in the version f32 [30]"]),
        (prefixed, vec!["not those of version 2", "(6 tensors)", "all names match without `module.`"]),
    ] {
        let Err(Error::Input(text)) = store.hold(2, wrong) else { panic!("{parts:?}") };
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn a_young_store_is_not_collected() {
    let store = open(&memory());
    fill(&store, 20);
    assert_eq!(store.gc(&Collection::default()).unwrap().deleted, 0);
}

#[test]
fn a_sink_that_fails_poisons_its_receiver() {
    let store = open(&memory());
    fill(&store, 3);
    let held = store.pull(None, Some(1)).unwrap();
    // The engine's buffers.
    let mut engine: BTreeMap<String, Vec<u8>> =
        held.tensors().map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect();
    let wanted = weights(3);
    let count = store.stage(Some(&held), None).unwrap().verify().unwrap().touched().len();
    for fails_at in 0..count {
        let mut left = fails_at;
        let mut sink = |name: &str, view: TensorView<'_>| {
            engine.insert(name.to_owned(), if left == 0 { vec![] } else { view.data().to_vec() });
            left = left.checked_sub(1).ok_or("the device is lost")?;
            Ok::<_, &str>(())
        };
        let poisoned = store
            .stage(Some(&held), None)
            .and_then(Staged::verify)
            .unwrap()
            .commit_to(&mut sink)
            .unwrap_err();
        assert_eq!(*poisoned.cause(), "the device is lost");
        // Still poisoned while the store or the sink fails.
        let Err(Reanchor::Pull { poisoned, .. }) = poisoned.reanchor(&store, Some(99), &mut sink) else {
            panic!("version 99 does not exist")
        };
        let Err(Reanchor::Sink(poisoned)) = poisoned.reanchor(&store, None, &mut sink) else {
            panic!("the sink fails")
        };
        let mut mended = |name: &str, view: TensorView<'_>| {
            engine.insert(name.to_owned(), view.data().to_vec());
            Ok(())
        };
        check(&poisoned.reanchor(&store, None, &mut mended).unwrap());
        assert!(wanted.iter().all(|(name, tensor)| engine[name] == tensor.data()));
    }
    assert!(count > 2);
}

#[test]
fn a_thousand_versions() {
    let objects = memory();
    let store = open(&objects).with_grace(Duration::ZERO);
    let mut publisher = Publisher::new(&store, policy(50)).unwrap();
    for step in 1..=1000 {
        publish(&mut publisher, step).unwrap();
    }
    let mut follower = None;
    for version in [1, 2, 49, 51, 300, 777, 1000] {
        check(&store.pull(None, Some(version)).unwrap());
        follower = Some(store.pull(follower, Some(version)).unwrap());
        check(follower.as_ref().unwrap());
    }
    assert_eq!(store.log(u64::MAX).unwrap().len(), 1000);
    // A lost hint costs a search.
    futures_util::FutureExt::now_or_never(gcodec_store::object_store::ObjectStoreExt::delete(
        &objects,
        &Path::from("runs/7/latest.json"),
    ));
    assert_eq!(store.latest().unwrap(), 1000);
    let collected = store.gc(&Collection::default().with_keep(10)).unwrap();
    assert!(collected.deleted > 900, "{collected:?}");
    check(&store.pull(None, None).unwrap());
    check(&store.pull(follower, None).unwrap());
}
