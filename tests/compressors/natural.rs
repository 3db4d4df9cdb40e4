//! Natural compression (arXiv 1905.10988): its second moment, and its size after top-k.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gcodec::block::{Pow2, Values};
use gcodec::compress::{Input, Options, compress};
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Dtype, Limits, TensorBuf};

/// Encodes one tensor and returns the decoded elements.
fn arrived(values: &[f32], spec: &str) -> Vec<f32> {
    let tensor = TensorBuf::from_f32(vec![values.len() as u64], values).unwrap();
    let bytes = gcodec::encode(&[("w", tensor.view())], &spec.parse().unwrap()).unwrap();
    gcodec::decode(&bytes).unwrap()[0].1.view().to_f32().unwrap()
}

/// Second moment of natural compression. A number 1 + m becomes 2 with probability m and 1 otherwise, so E
/// C(x)^2 / x^2 = (1 + 3m) / (1 + m)^2. The maximum of this ratio is 9/8, at 1 + m = 4/3.
///
/// A draw of C(x)^2 has variance 9 m (1 - m). The mean of 10^6 draws is within 5 deviations of its
/// expectation. Near the maximum the ratio falls by 0.63 d^2 at a distance d. Two means differ by less than 5
/// of their deviations, 0.0057 in all. The m of the largest ratio is thus less than 0.095 away from 1/3.
#[test]
fn the_second_moment_has_its_peak_at_four_thirds() {
    let (draws, steps) = (1_000_000, 48);
    let mut peak = (0.0, 0.0);
    for i in 0..=steps {
        let m = f64::from(i) / f64::from(steps);
        for scale in [1.0, -2f64.powi(-100), 2f64.powi(120)] {
            let x = ((1.0 + m) * scale) as f32;
            let squares = arrived(&vec![x; draws], &format!("natural:seed={}", i + 1));
            let mean = squares.iter().map(|&y| (f64::from(y) / scale).powi(2)).sum::<f64>() / draws as f64;
            let expected = 1.0 + 3.0 * m;
            let bound = 5.0 * (9.0 * m * (1.0 - m) / draws as f64).sqrt();
            assert!((mean - expected).abs() <= bound, "{x}: {mean} {expected} {bound}");
            let ratio = mean / (1.0 + m).powi(2);
            assert!(ratio <= 1.125 + bound, "{x}: {ratio}");
            if ratio > peak.1 {
                peak = (m, ratio);
            }
        }
    }
    println!("largest E C(x)^2 / x^2: {:.4} at {:.3}", peak.1, 1.0 + peak.0);
    assert!((peak.0 - 1.0 / 3.0).abs() < 0.095 && (peak.1 - 1.125).abs() < 0.0057, "{peak:?}");
}

/// Rounding of the elements that top-k keeps: each becomes one of the two powers of two around it, without
/// bias.
#[test]
fn kept_elements_round_to_powers_of_two() {
    let n = 100_000;
    let (x, small) = (-1.375f32, 0.25f32);
    let values: Vec<f32> = (0..2 * n).map(|i| if i % 2 == 0 { x } else { small }).collect();
    let got = arrived(&values, "topk:density=0.5,values=pow2");
    assert!(got.iter().skip(1).step_by(2).all(|&y| y == 0.0));
    let kept: Vec<f64> = got.iter().step_by(2).map(|&y| f64::from(y)).collect();
    assert!(kept.iter().all(|y| [-1.0, -2.0].contains(y)));
    let mean = kept.iter().sum::<f64>() / n as f64;
    assert!((mean - f64::from(x)).abs() <= 5.0 * (0.375 * 0.625 / n as f64).sqrt(), "{mean}");
    // The largest number (it has no next power), subnormal numbers, and both zeros.
    let special = [f32::MAX, -1e-45, 0.0, -0.0, f32::MIN_POSITIVE];
    let powers = [2f32.powi(127), -1e-45, 0.0, 0.0, f32::MIN_POSITIVE];
    let got = arrived(&special, "topk:density=1,values=pow2,seed=3");
    // One block holds 255 powers: next to 2^127, 2^-149 becomes 2^-127 or zero.
    assert!([0.0, -2f32.powi(-127)].contains(&got[1]), "{got:?}");
    assert!(got[..].iter().zip(powers).enumerate().all(|(i, (&y, p))| i == 1 || y == p), "{got:?}");
    assert_eq!(arrived(&special[1..], "topk:density=1,values=pow2"), powers[1..]);
    for bad in [f32::NAN, f32::INFINITY] {
        let tensor = TensorBuf::from_f32(vec![2], &[1.0, bad]).unwrap();
        let codec: Codec = "topk:density=0.5,values=pow2".parse().unwrap();
        assert!(gcodec::encode(&[("w", tensor.view())], &codec).is_err());
    }
}

type Named = Vec<(String, TensorBuf)>;

/// Reads the tensors of a safetensors file; `None` unless all are f32.
fn dump(path: &Path) -> Option<Named> {
    let bytes = std::fs::read(path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let tensors = json.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    tensors
        .map(|(name, t)| {
            let at = |i: usize| header + t["data_offsets"][i].as_u64().unwrap() as usize;
            let shape = t["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect();
            let tensor = TensorBuf::new(Dtype::F32, shape, bytes[at(0)..at(1)].to_vec());
            (t["dtype"] == "F32").then(|| (name.clone(), tensor.unwrap()))
        })
        .collect()
}

fn dumps() -> Vec<(String, Named)> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/gradients");
    let folder: PathBuf = std::env::var_os("GCODEC_GRADIENTS").map_or_else(default, Into::into);
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: {} is not there; GCODEC_GRADIENTS names another folder", folder.display());
        return Vec::new();
    };
    let mut paths: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "safetensors"));
    paths.sort();
    let name = |p: &Path| p.file_stem().unwrap().to_string_lossy().into_owned();
    paths.iter().filter_map(|p| Some((name(p), dump(p)?))).collect()
}

/// Returns the bits of all frames of an update without its manifest, and the number of kept elements.
fn bits_and_kept(tensors: &Named, spec: &str) -> (f64, f64) {
    let codec: Codec = spec.parse().unwrap();
    let infos = tensors.iter().map(|(name, t)| TensorInfo::new(name, t.dtype(), t.shape()));
    let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
    let inputs: Vec<Input<'_>> = tensors
        .iter()
        .zip(0..)
        .map(|((name, t), tensor)| Input { tensor, name, view: t.view(), base: None })
        .collect();
    let blocks = compress(&inputs, &vec![codec; inputs.len()], &Options::default(), None).unwrap();
    let kept = blocks.iter().map(|block| match &block.values {
        Values::Pow2(Pow2 { codes, .. }) => codes.len(),
        other => panic!("{other:?}"),
    });
    let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
    encoder.update(&mut bytes, &UpdateHeader::default(), &manifest, &blocks).unwrap();
    encoder.finish(&mut bytes);
    let (mut reader, mut len) = (SliceReader::new(&bytes, Limits::default()), 0);
    while let Some(event) = reader.next_event().unwrap() {
        if let Event::Frame(info, Body::Update(part)) = event {
            len += info.len();
            assert_eq!(part.decode_all().unwrap().len(), part.blocks.len());
        }
    }
    (len as f64 * 8.0, kept.sum::<usize>() as f64)
}

/// Size of an element that top-k keeps and natural compression rounds. The paper counts 40 bits. The bound
/// here is 14 bits, with the update's headers, tables and checksums counted.
#[test]
fn a_kept_element_costs_at_most_fourteen_bits() {
    let dumps = dumps();
    if !dumps.is_empty() {
        println!(
            "{:<40} {:>9} {:>7} {:>14} {:>14}",
            "bits for a kept element", "kept", "global", "one parameter", "each tensor"
        );
    }
    for (name, tensors) in dumps {
        let of = |rest: &str| {
            let (bits, kept) = bits_and_kept(&tensors, &format!("topk:density=0.0039,values=pow2{rest}"));
            (bits / kept, kept)
        };
        let ((global, kept), (classic, _), (each, _)) =
            (of(",scope=global"), of(",scope=global,positions=rice-one"), of(""));
        println!("{name:<40} {kept:>9} {global:>7.2} {classic:>14.2} {each:>14.2}");
        for (scope, bits) in [("global", global), ("global, one parameter", classic), ("tensor", each)] {
            assert!(bits <= 14.0, "{name} {scope}: {bits}");
        }
        assert!(global <= classic, "{name}: {global} {classic}");
    }
}
