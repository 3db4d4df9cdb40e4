//! Statistics: those that NumPy computes of the public dumps (`stats.py`), and the same for an update as for
//! the tensors that it decodes to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gcodec::reduce::stats::{Stats, StatsOptions};
use gcodec::stream::{Body, Event, SliceReader};
use gcodec::{Codec, Dtype, Limits, TensorBuf};
use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the tensors of a safetensors file.
fn tensors(path: &Path) -> Vec<(String, TensorBuf)> {
    let bytes = std::fs::read(path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let tensors = json.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    tensors
        .map(|(name, t)| {
            let at = |i: usize| header + t["data_offsets"][i].as_u64().unwrap() as usize;
            let shape = t["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect();
            let dtype = Dtype::from_name(&t["dtype"].as_str().unwrap().to_lowercase()).unwrap();
            (name.clone(), TensorBuf::new(dtype, shape, bytes[at(0)..at(1)].to_vec()).unwrap())
        })
        .collect()
}

fn numpy() -> Value {
    serde_json::from_slice(&std::fs::read(root().join("tests/properties/stats.json")).unwrap()).unwrap()
}

fn check(stats: &Stats, expected: &Value, at: &str) {
    let close = |found: f64, name: &str, scale: f64| {
        let expected = expected[name].as_f64().unwrap();
        assert!(
            (found - expected).abs() <= 1e-12 * scale.max(expected.abs()),
            "{at} {name}: {found} {expected}"
        );
    };
    assert_eq!(expected["elements"], stats.elements, "{at}");
    assert_eq!(expected["zeros"], stats.zeros, "{at}");
    assert_eq!((stats.nan, stats.infinite, stats.finite()), (0, 0, stats.elements), "{at}");
    close(stats.norm(), "norm", 0.0);
    close(stats.min.unwrap(), "min", 0.0);
    close(stats.max.unwrap(), "max", 0.0);
    close(stats.mean(), "mean", stats.std());
    close(stats.std(), "std", 0.0);
    let keys = stats
        .exponents
        .iter()
        .map(|(negative, exponent, count)| (u16::from(exponent) + if negative { 256 } else { 0 }, count));
    let expected = expected["exponents"].as_object().unwrap();
    let expected: BTreeMap<u16, u64> =
        expected.iter().map(|(key, count)| (key.parse().unwrap(), count.as_u64().unwrap())).collect();
    assert_eq!(keys.collect::<BTreeMap<_, _>>(), expected, "{at}");
}

#[test]
fn statistics_of_the_small_dumps_are_those_of_numpy() {
    let numpy = numpy();
    let mut checked = 0;
    for (file, expected) in numpy["small"].as_object().unwrap() {
        for (name, tensor) in tensors(&root().join("tools/cli/gradients").join(file)) {
            let stats = Stats::of(&tensor.view(), &StatsOptions::default());
            check(&stats, &expected[&name], &format!("{file} {name}"));
            checked += 1;
        }
    }
    assert!(checked > 30, "{checked} tensors");
}

#[test]
fn statistics_of_the_public_dumps_are_those_of_numpy() {
    let default = || root().join("../shared/gradients");
    let folder: PathBuf = std::env::var_os("GCODEC_GRADIENTS").map_or_else(default, Into::into);
    if !folder.is_dir() {
        println!("skipped: {} is not there; GCODEC_GRADIENTS names another folder", folder.display());
        return;
    }
    for (file, expected) in numpy()["public"].as_object().unwrap() {
        let mut all = Stats::default();
        for (_, tensor) in tensors(&folder.join(file)) {
            all.merge(&Stats::of(&tensor.view(), &StatsOptions::default()));
        }
        check(&all, expected, file);
    }
}

/// Returns the statistics of each tensor of the one update of a stream, from its blocks.
fn of_update(bytes: &[u8]) -> BTreeMap<String, Stats> {
    let options = StatsOptions::default().with_grid(true);
    let mut found = BTreeMap::<u64, Stats>::new();
    let mut named = BTreeMap::new();
    for event in SliceReader::new(bytes, Limits::default()) {
        let Event::Frame(_, Body::Update(part)) = event.unwrap() else { continue };
        for (number, raw) in part.blocks.iter().enumerate() {
            let block = part.decode(number, &part.budget()).unwrap();
            let each = Stats::of_block(&part, number, &block, &part.budget(), &options).unwrap();
            for (tensor, stats) in (raw.scope.first()..).zip(each) {
                found.entry(tensor).or_default().merge(&stats);
            }
        }
        for (number, info) in (0..).zip(part.manifest.tensors()) {
            let stats = found.get(&number).cloned().unwrap_or_default();
            named.insert(info.name.clone(), stats.with_elements(info.elements()));
        }
    }
    named
}

#[test]
fn statistics_of_an_update_are_those_of_its_tensors() {
    let codecs = [
        "raw",
        "lossless",
        "topk:density=0.01",
        "topk:density=0.02,values=bf16,scope=global",
        "topk:density=0.05,values=sign",
        "chunked:chunk=512,kept=16",
        "randk:density=0.1",
        "sbc:density=0.01",
        "natural",
        "qsgd:bits=4",
        "int8:group=256",
        "powersgd:rank=2",
        "demo:chunk=64,kept=32",
    ];
    let input = tensors(&root().join("tools/cli/gradients/digits_convnet_step0030_worker0.safetensors"));
    let views: Vec<_> = input.iter().map(|(name, t)| (name.as_str(), t.view())).collect();
    for codec in codecs {
        let bytes = gcodec::encode(&views, &codec.parse::<Codec>().unwrap()).unwrap();
        let sparse = of_update(&bytes);
        for (name, tensor) in gcodec::decode(&bytes).unwrap() {
            let dense = Stats::of(&tensor.view(), &StatsOptions::default().with_grid(true));
            let found = &sparse[&name];
            let whole =
                |s: &Stats| (s.elements, s.zeros, s.nan, s.min, s.max, s.exponents.clone(), s.nonzero());
            assert_eq!(whole(found), whole(&dense), "{codec} {name}");
            if found.kept > 0 {
                assert_eq!(found.grid, dense.grid, "{codec} {name}");
            }
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * dense.std().max(a.abs());
            assert!(close(found.norm(), dense.norm()), "{codec} {name}");
            assert!(close(found.mean(), dense.mean()), "{codec} {name}");
            assert!(close(found.std(), dense.std()), "{codec} {name}");
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_statistics() {
    let values: Vec<f32> =
        (0..1_000_003u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 * 1e-7).collect();
    let tensor = TensorBuf::from_f32(vec![1_000_003], &values).unwrap();
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| Stats::of(&tensor.view(), &StatsOptions::default().with_grid(true)))
    };
    assert_eq!(with(1), with(2));
    assert_eq!(with(1), with(5));
}
