//! Versions whose tensors are in another order, are more or fewer, or have other names, types or shapes.

use std::collections::BTreeMap;

use gcodec::{Dtype, TensorBuf};
use gcodec_store::{Collection, Error, Policy, Published, Publisher, Replica, Store, Verified};

use crate::basics::{memory, open};
use crate::weights::{options, touched, views};

type Weights = Vec<(String, TensorBuf)>;

/// Returns a tensor of noise that no codec makes smaller.
fn noise(seed: u64, dtype: Dtype, shape: &[u64]) -> TensorBuf {
    let bytes = shape.iter().product::<u64>() * u64::from(dtype.bits()) / 8;
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut byte = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    };
    TensorBuf::new(dtype, shape.to_vec(), (0..bytes).map(|_| byte()).collect()).unwrap()
}

fn named(name: &str, tensor: TensorBuf) -> (String, TensorBuf) {
    (name.to_owned(), tensor)
}

/// Two tensors of 40,000 bytes between two of 400.
fn base() -> Weights {
    vec![
        named("z.weight", noise(1, Dtype::F32, &[100, 100])),
        named("z.bias", noise(2, Dtype::F32, &[100])),
        named("a.weight", noise(3, Dtype::F32, &[100, 100])),
        named("a.bias", noise(4, Dtype::F32, &[100])),
    ]
}

fn put(publisher: &mut Publisher<'_>, weights: &Weights) -> Published {
    publisher.publish(&views(weights), BTreeMap::new()).unwrap()
}

/// Flips a bit of a tensor's first element.
fn change(weights: &mut Weights, name: &str) {
    let (_, tensor) = weights.iter_mut().find(|(n, _)| n == name).unwrap();
    let mut data = tensor.data().to_vec();
    data[0] ^= 1;
    *tensor = TensorBuf::new(tensor.dtype(), tensor.shape().to_vec(), data).unwrap();
}

/// Whether a replica has these tensors, in any order.
fn holds(replica: &Replica, weights: &Weights) -> bool {
    replica.tensors().len() == weights.len()
        && weights.iter().all(|(name, tensor)| replica.get(name) == Some(tensor.view()))
}

/// Publishes the first version, and pulls it.
fn begun(store: &Store) -> (Publisher<'_>, Weights, Replica) {
    let mut publisher = Publisher::new(store, Policy::default()).unwrap();
    let weights = base();
    put(&mut publisher, &weights);
    (publisher, weights, store.pull(None, None).unwrap())
}

fn stage(store: &Store, held: &Replica) -> Verified {
    store.stage(Some(held), None).unwrap().verify().unwrap()
}

#[test]
fn another_order_is_a_delta_that_touches_what_differs() {
    let store = open(&memory());
    let (mut publisher, mut weights, held) = begun(&store);
    weights.reverse();
    let published = put(&mut publisher, &weights);
    assert_eq!((published.touched, published.delta_bytes, published.anchor_bytes), (0, Some(0), None));
    let verified = stage(&store, &held);
    assert!(touched(&verified).is_empty());
    let held = verified.commit(Some(held)).unwrap();
    weights.rotate_left(1);
    change(&mut weights, "a.bias");
    let published = put(&mut publisher, &weights);
    assert_eq!((published.touched, published.anchor_bytes), (1, None));
    let verified = stage(&store, &held);
    assert_eq!(touched(&verified), ["a.bias"]);
    assert!(holds(&verified.commit(Some(held)).unwrap(), &weights));
    // Another process, with another order still.
    weights.swap(0, 2);
    let published = put(&mut Publisher::new(&store, Policy::default()).unwrap(), &weights);
    assert_eq!((published.touched, published.anchor_bytes), (0, None));
}

#[test]
fn a_tensor_that_comes_goes_or_changes_its_form_costs_itself() {
    let grown = noise(9, Dtype::F32, &[100, 10]);
    let half = noise(9, Dtype::F16, &[100]);
    let zeros = TensorBuf::new(Dtype::F32, vec![50], vec![0; 200]).unwrap();
    let empty = TensorBuf::new(Dtype::F32, vec![0, 3], vec![]).unwrap();
    type Edit<'e> = Box<dyn Fn(&mut Weights) + 'e>;
    let cases: Vec<(&str, Edit<'_>, &[&str])> = vec![
        ("one more", Box::new(|w| w.insert(1, named("new", grown.clone()))), &["new"]),
        ("one of zeros", Box::new(|w| w.push(named("new", zeros.clone()))), &["new"]),
        ("an empty one", Box::new(|w| w.insert(0, named("new", empty.clone()))), &["new"]),
        ("one less", Box::new(|w| drop(w.remove(2))), &[]),
        ("another name", Box::new(|w| w[3].0 = "b.bias".into()), &["b.bias"]),
        ("another type", Box::new(|w| w[1].1 = half.clone()), &["z.bias"]),
        ("another shape", Box::new(|w| w[1].1 = grown.clone()), &["z.bias"]),
        (
            "all at once",
            Box::new(|w| {
                w.remove(2);
                w[1] = named("other", half.clone());
                w.push(named("new", grown.clone()));
                w.reverse();
            }),
            &["new", "other"],
        ),
    ];
    for group_bytes in [50_000, 1 << 20] {
        for (what, edit, differing) in &cases {
            let store = open(&memory());
            let policy = Policy::default().with_group_bytes(group_bytes);
            let mut publisher = Publisher::new(&store, policy).unwrap();
            let mut weights = base();
            put(&mut publisher, &weights);
            let first = store.pull(None, None).unwrap();
            change(&mut weights, "z.weight");
            put(&mut publisher, &weights);
            let held = store.pull(None, None).unwrap();
            edit(&mut weights);
            let published = put(&mut publisher, &weights);
            assert_eq!(published.touched, differing.len() as u64, "{what}");
            assert!(
                published.anchor_bytes.is_none() && published.delta_bytes < Some(6_000),
                "{what}: {published:?}"
            );
            let staged = store.stage(Some(&held), None).unwrap();
            assert!(staged.bytes() < 6_000, "{what}");
            let verified = staged.verify().unwrap();
            let mut names = touched(&verified);
            names.sort();
            assert_eq!(names, *differing, "{what}");
            let held = verified.commit(Some(held)).unwrap();
            // From an anchor, from an earlier version, and a tensor alone.
            for replica in
                [&held, &store.pull(None, None).unwrap(), &store.pull(Some(first.clone()), None).unwrap()]
            {
                assert!(holds(replica, &weights), "{what}");
            }
            for (name, tensor) in &weights {
                assert_eq!(store.tensor(None, name).unwrap().view(), tensor.view(), "{what}: {name}");
            }
            assert!(matches!(store.tensor(None, "gone"), Err(Error::Input(_))));
            // The chain goes on.
            change(&mut weights, "z.weight");
            assert_eq!(put(&mut publisher, &weights).touched, 1, "{what}");
            assert_eq!(touched(&stage(&store, &held)), ["z.weight"], "{what}");
            assert!(holds(&store.pull(Some(held), None).unwrap(), &weights), "{what}");
        }
    }
}

#[test]
fn a_model_that_is_mostly_new_begins_a_chain() {
    let store = open(&memory());
    let (mut publisher, mut weights, held) = begun(&store);
    for (name, _) in &mut weights[..3] {
        name.insert_str(0, "model.");
    }
    // Two thirds are worth a delta.
    let mut two_thirds = base();
    two_thirds.insert(0, named("b.weight", noise(5, Dtype::F32, &[100, 100])));
    let other = open(&memory());
    let mut others = Publisher::new(&other, Policy::default()).unwrap();
    put(&mut others, &two_thirds);
    two_thirds[0].0.push('2');
    two_thirds[1].0.push('2');
    let published = put(&mut others, &two_thirds);
    assert!(published.delta_bytes < Some(90_000) && published.anchor_bytes.is_none(), "{published:?}");
    let published = put(&mut publisher, &weights);
    assert!(published.anchor_bytes.is_some() && published.delta_bytes.is_none());
    // What is the same is not touched, although it came from an anchor.
    assert_eq!(published.touched, 3);
    let verified = stage(&store, &held);
    assert_eq!(touched(&verified), ["model.z.weight", "model.z.bias", "model.a.weight"]);
    assert!(holds(&verified.commit(Some(held)).unwrap(), &weights));
    let twice = [views(&weights)[0], views(&weights)[0]];
    assert!(matches!(publisher.publish(&twice, BTreeMap::new()), Err(Error::Codec(_))));
    let twice = [views(&weights), vec![views(&weights)[0]]].concat();
    assert!(matches!(publisher.publish(&twice[1..], BTreeMap::new()), Ok(Published { touched: 0, .. })));
    assert!(matches!(publisher.publish(&twice, BTreeMap::new()), Err(Error::Codec(_))));
}

#[test]
fn every_version_is_reached_over_changes_of_the_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().to_str().unwrap(), options()).unwrap();
    let store = store.with_grace(std::time::Duration::ZERO);
    let policy = Policy::default().with_anchor_every(6).with_group_bytes(1000);
    let mut publisher = Publisher::new(&store, policy).unwrap();
    let mut weights: Weights =
        (0..8).map(|n| named(&format!("t{n}"), noise(n, Dtype::Bf16, &[20 + n, 10]))).collect();
    let mut versions: Vec<Weights> = Vec::new();
    for step in 0u64..16 {
        let n = (step as usize * 5) % weights.len();
        match step % 5 {
            1 => drop(weights.remove(n)),
            // A tensor that was dropped comes back under its name, with other elements.
            2 => weights
                .insert(n, named(&format!("t{}", 3 * step % 8 + 8), noise(step, Dtype::Bf16, &[20, 10]))),
            3 => weights[n].1 = noise(step, Dtype::F32, &[7, 9]),
            4 => weights.reverse(),
            _ => {}
        }
        let name = weights[step as usize % weights.len()].0.clone();
        change(&mut weights, &name);
        put(&mut publisher, &weights);
        versions.push(weights.clone());
    }
    let number = |index: usize| Some(index as u64 + 1);
    let check = |from: usize, to: usize| {
        let held = store.pull(None, number(from)).unwrap();
        assert!(holds(&held, &versions[from]), "version {}", from + 1);
        let verified = store.stage(Some(&held), number(to)).unwrap().verify().unwrap();
        let mut names = touched(&verified);
        names.sort();
        let differs = |(name, tensor): &&(String, TensorBuf)| held.get(name) != Some(tensor.view());
        let mut wanted: Vec<_> = versions[to].iter().filter(differs).map(|(name, _)| name.clone()).collect();
        wanted.sort();
        assert_eq!(names, wanted, "{from} to {to}");
        assert!(holds(&verified.commit(Some(held)).unwrap(), &versions[to]), "{from} to {to}");
    };
    for to in 0..versions.len() {
        (0..versions.len()).for_each(|from| check(from, to));
    }
    // Folds over the changes, and within one table.
    for (from, to) in [(2, 14), (7, 9), (1, 16), (3, 4), (10, 13)] {
        let folded = store.fold(from, to).unwrap();
        let held = store.pull(None, Some(from)).unwrap();
        let staged = store.stage(Some(&held), Some(to)).unwrap();
        if to - from > 2 {
            assert!(staged.bytes() <= folded.bytes, "{from} to {to}");
        }
        check(from as usize - 1, to as usize - 1);
    }
    // A reader that holds a version may begin again after a collection.
    store.lease("reader", 9, std::time::Duration::from_secs(60)).unwrap();
    store.gc(&Collection::default()).unwrap();
    let mut held = versions[8].clone();
    held.reverse();
    let held = store.hold(9, held).unwrap();
    assert!(holds(&store.pull(Some(held), None).unwrap(), &versions[15]));
}
