//! The efforts of codecs: other bytes, the same elements.

use std::path::Path;

use gcodec::compress::random::word;
use gcodec::file::File;
use gcodec::{Codec, Dtype, Limits, TensorBuf, TensorView, decode, encode};

fn codec(spec: &str) -> Codec {
    spec.parse().unwrap()
}

/// Returns the tensors of a file of the repository.
fn gradient(name: &str) -> Vec<(String, TensorBuf)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/cli/gradients").join(name);
    let bytes = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let entries = json.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    let numbers = |value: &serde_json::Value| -> Vec<u64> {
        value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
    };
    let tensor = |(name, entry): (&String, &serde_json::Value)| {
        let ends: Vec<usize> =
            numbers(&entry["data_offsets"]).iter().map(|at| header + *at as usize).collect();
        let dtype = Dtype::from_name(&entry["dtype"].as_str().unwrap().to_lowercase()).unwrap();
        let data = bytes[ends[0]..ends[1]].to_vec();
        (name.clone(), TensorBuf::new(dtype, numbers(&entry["shape"]), data).unwrap())
    };
    entries.map(tensor).collect()
}

/// Files of the repository.
const FILES: [&str; 3] = [
    "digits_convnet_step0030_worker0.safetensors",
    "gpt_attention_bf16_sync020.safetensors",
    "resnet_head_step0200_worker0.safetensors",
];

fn views(tensors: &[(String, TensorBuf)]) -> Vec<(&str, TensorView<'_>)> {
    tensors.iter().map(|(name, tensor)| (&**name, tensor.view())).collect()
}

#[test]
fn powers_of_two_are_the_same_with_every_effort() {
    let both = |tensors: &[(String, TensorBuf)]| {
        let [usual, fast] = ["natural:seed=5", "natural:seed=5,effort=fast"]
            .map(|spec| encode(&views(tensors), &codec(spec)).unwrap());
        assert_eq!(decode(&fast).unwrap(), decode(&usual).unwrap());
        assert!(fast.len() * 100 <= usual.len() * 101 + 1000, "{} and {}", fast.len(), usual.len());
        [usual, fast].map(|bytes| bytes.len())
    };
    for name in FILES {
        both(&gradient(name));
    }
    // Products of random numbers, enough of them for trees.
    let number = |of, i| word(1, of, i) as f32;
    let products: Vec<f32> = (0..1 << 16).map(|i| number(0, i) * number(1, i) * number(2, i)).collect();
    let [usual, fast] = both(&[("w".to_owned(), TensorBuf::from_f32(vec![1 << 16], &products).unwrap())]);
    assert!(fast > usual + 100, "{fast} and {usual}");
}

#[test]
fn real_gradients_come_back_with_every_effort() {
    for name in FILES {
        let tensors = gradient(name);
        let views = views(&tensors);
        let [usual, same, fast] = ["lossless", "lossless:effort=default", "lossless:effort=fast"]
            .map(|spec| encode(&views, &codec(spec)).unwrap());
        assert_eq!(usual, same, "{name}");
        assert!(fast.len() * 100 <= usual.len() * 103, "{name}: {} and {}", fast.len(), usual.len());
        for bytes in [usual, fast] {
            assert_eq!(decode(&bytes).unwrap(), tensors, "{name}");
        }
    }
}

/// Rows of very different scales.
fn rows() -> TensorBuf {
    let scale = |i: usize| 0.5f32.powi((i / 512 * 7 % 40) as i32);
    let values: Vec<f32> = (0..512 * 512).map(|i| scale(i) * (1.0 + (i as f32 * 0.37).sin() / 3.0)).collect();
    TensorBuf::from_f32(vec![512, 512], &values).unwrap()
}

#[test]
fn only_the_default_has_references() {
    let tensor = rows();
    let len = |spec| encode(&[("w", tensor.view())], &codec(spec)).unwrap().len();
    let (usual, fast) = (len("lossless"), len("lossless:effort=fast"));
    assert!(usual * 10 < fast * 9, "{usual} and {fast}");
}

#[test]
fn the_label_tells_the_effort() {
    let tensor = rows();
    for (spec, label) in
        [("lossless:effort=default", "lossless"), ("lossless:effort=fast", "lossless:effort=fast")]
    {
        let bytes = encode(&[("w", tensor.view())], &codec(spec)).unwrap();
        let file = File::open(&bytes, Limits::default()).unwrap();
        assert_eq!(file.updates()[0].header.label, label);
    }
    let wrong = "lossless:effort=best".parse::<Codec>().unwrap_err().to_string();
    assert!(wrong.contains("effort") && wrong.contains("one of fast, default"), "{wrong}");
}
