//! Weights that are a function of their step, so that every test knows what a version contains.

use std::collections::BTreeMap;

use gcodec::{Dtype, TensorBuf, TensorView};
use gcodec_store::{Options, Published, Publisher, Replica, Result, Verified};

/// Variable with the folder for temporary files. Without it, the stores of these tests have none.
pub(crate) const SCRATCH: &str = "GCODEC_STORE_SCRATCH";

/// Returns the options of the stores of these tests.
pub(crate) fn options() -> Options {
    Options::default().with_scratch(std::env::var_os(SCRATCH).map(Into::into))
}

/// Names, types and shapes: two groups of 1 KiB and an own group for the large one.
const TENSORS: [(&str, Dtype, &[u64]); 6] = [
    ("embed", Dtype::Bf16, &[40, 20]),
    ("layer.0.bias", Dtype::F32, &[30]),
    ("layer.0.weight", Dtype::Bf16, &[20, 12]),
    ("layer.1.codes", Dtype::U8, &[100]),
    ("layer.1.frozen", Dtype::F16, &[64]),
    ("empty", Dtype::F32, &[0, 4]),
];
/// Bytes of a group in these tests.
pub(crate) const GROUP: u64 = 1024;

fn hash(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_mul(0xd1b5_4a32_d192_ed03);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

/// Returns the weights of a step.
pub(crate) fn weights(step: u64) -> Vec<(String, TensorBuf)> {
    let tensor = |(number, (name, dtype, shape)): (usize, &(&str, Dtype, &[u64]))| {
        let width = dtype.bits() as usize / 8;
        let elements = shape.iter().product::<u64>();
        let mut data = Vec::new();
        for i in 0..elements {
            let key = hash(number as u64, i);
            // Each element changes in steps of its own; a frozen tensor never does.
            let age = if name.ends_with("frozen") { 0 } else { (step + key % 97) / (20 + key % 77) };
            let bits = 0x3c00_3c00u64 + (key & 0xff) + age;
            data.extend_from_slice(&bits.to_le_bytes()[..width]);
        }
        (name.to_string(), TensorBuf::new(*dtype, shape.to_vec(), data).unwrap())
    };
    TENSORS.iter().enumerate().map(tensor).collect()
}

pub(crate) fn views(weights: &[(String, TensorBuf)]) -> Vec<(&str, TensorView<'_>)> {
    weights.iter().map(|(name, tensor)| (name.as_str(), tensor.view())).collect()
}

/// Publishes the weights of a step, and notes the step.
pub(crate) fn publish(publisher: &mut Publisher<'_>, step: u64) -> Result<Published> {
    let meta = BTreeMap::from([("step".to_owned(), step.to_string())]);
    publisher.publish(&views(&weights(step)), meta)
}

/// Checks that a replica is, bit by bit, the weights of the step that it states.
#[track_caller]
pub(crate) fn check(replica: &Replica) {
    let step = replica.meta()["step"].parse().unwrap();
    let wanted = weights(step);
    assert!(replica.tensors().eq(views(&wanted)), "version {} is not step {step}", replica.version());
}

/// Returns the names of the touched tensors.
pub(crate) fn touched(verified: &Verified) -> Vec<String> {
    verified.touched().map(|(name, _)| name.to_owned()).collect()
}
