//! Pinned hashes of whole streams, so that encoded bytes never change by accident. The streams cover many
//! codecs and tensors that reach every path of the encoder (long and short, structured and not, subnormal,
//! constant). A change here is a change of the encoder's choices and must be intentional.

use gcodec::compress::random;
use gcodec::{Codec, Dtype, TensorBuf};

/// Returns `n` random numbers. If `matrix`, their exponents depend on row and column.
fn numbers(n: usize, columns: usize, matrix: bool) -> Vec<f32> {
    let mut words = vec![0; n];
    random::words(3, n as u64, 0, &mut words);
    let value = |(i, &w): (usize, &u32)| {
        let uniform = (w >> 8) as f32 / (1 << 24) as f32 - 0.5 + 1e-9;
        let cube = uniform * uniform * uniform;
        let scale = (i / columns * 7 % 11) as i32 - (i % columns * 5 % 13) as i32;
        if matrix { cube * 2f32.powi(scale) } else { cube }
    };
    words.iter().enumerate().map(value).collect()
}

fn tensors() -> Vec<(&'static str, TensorBuf)> {
    let f32s = |shape: &[u64], values: &[f32]| TensorBuf::from_f32(shape.to_vec(), values).unwrap();
    let mut odd = numbers(70_001, 1, false);
    odd.iter_mut().step_by(3).for_each(|x| *x = 0.0);
    odd.iter_mut().step_by(7).for_each(|x| *x *= 1e-38);
    let bf16: Vec<u8> =
        numbers(33_333, 1, false).iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect();
    vec![
        ("bias", f32s(&[37], &numbers(37, 1, false))),
        ("constant", f32s(&[3000], &[0.25; 3000])),
        ("empty", f32s(&[0], &[])),
        ("even", f32s(&[300_007], &numbers(300_007, 1, false))),
        ("half", TensorBuf::new(Dtype::Bf16, vec![33_333], bf16).unwrap()),
        ("matrix", f32s(&[1100, 512], &numbers(1100 * 512, 512, true))),
        ("odd", f32s(&[70_001], &odd)),
        ("small", f32s(&[50, 60], &numbers(3000, 60, true))),
        ("zero", f32s(&[5000], &[0.0; 5000])),
    ]
}

#[test]
fn encoded_streams_have_their_pinned_hashes() {
    let tensors = tensors();
    let views: Vec<_> = tensors.iter().map(|(name, t)| (*name, t.view())).collect();
    let mut found = String::new();
    for (spec, _) in PINNED {
        let codec: Codec = spec.parse().unwrap();
        let bytes = gcodec::encode(&views, &codec).unwrap();
        let decoded = gcodec::decode(&bytes).unwrap();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes);
        for (_, tensor) in &decoded {
            hasher.update(tensor.data());
        }
        found += &format!("    (\"{spec}\", \"{}\"),\n", &hasher.finalize().to_hex()[..32]);
    }
    let expected: String =
        PINNED.iter().map(|(spec, hash)| format!("    (\"{spec}\", \"{hash}\"),\n")).collect();
    assert!(found == expected, "encoded bytes changed; found\n{found}");
}

/// The first half of the BLAKE3 hash of each stream and the tensors decoded from it.
const PINNED: [(&str, &str); 16] = [
    ("raw", "203400ea2cac25c3cdd7477e9c9674be"),
    ("lossless", "e3e93a90c84b3a4e15d1938513ff4941"),
    ("natural", "a442ddcb89ec21ef774ccba49e9ea67d"),
    ("natural:seed=7", "e4e775655d207ae383d72766eea49966"),
    ("sbc:density=0.001", "2a00ad7361d794396f38b5980df68b98"),
    ("sbc:density=0.02", "e1f103d235245d39b10e7871bca80abb"),
    ("topk:density=0.001", "dc6214d40647f74e7bd06cdfd6186f02"),
    ("topk:density=0.01,values=pow2", "e8e57c14959136da2762d8401303c3a9"),
    ("topk:density=0.05,values=f16,scope=global", "d59e8751db66027eb2f67a307f82b5c6"),
    ("topk:density=0.3,values=q4", "c74f1e0522b5816b7ac2a5dd87b7420c"),
    ("topk:density=0.01,positions=rice", "c34a9d7ffeea65083bec89858809e4bb"),
    ("topk:density=0.01,positions=tokens,values=sign", "5aa40d966d1344a71acccb777d442a8c"),
    ("threshold:at=0.05,values=bf16", "f319adee649cb816b2f5413c9cc7ef15"),
    ("qsgd:bits=4", "8c4884efb35e1ac0f0c3193b5bd85e48"),
    ("qsgd:bits=8,norm=max", "01804037ee27a81fbee61b254e61b014"),
    ("int8", "e3a8ae9e8f667ce24540c1b0040e4baa"),
];
