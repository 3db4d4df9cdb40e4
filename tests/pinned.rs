//! Encoded bytes never change by accident: hashes of whole streams, for every codec and for tensors that take every way
//! through the encoder (long and short, structured and not, subnormal, constant). A change here is a change of the
//! encoder's choices and has to be meant.

use gcodec::{Codec, Dtype, TensorBuf, random};

/// Numbers in whose exponents rows and columns show if `matrix`.
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
fn encoded_streams_are_what_they_were() {
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
    ("raw", "85767593487e6da7fc43b8a72ac75f6a"),
    ("lossless", "b47cfa82d83e9c551879609f0ce820d1"),
    ("natural", "ad2d2f7a0e0d795ada6aabf59e004a72"),
    ("natural:seed=7", "174effc9552a55daf0cd6bee72b32015"),
    ("sbc:density=0.001", "42eb1c01eacdc1edbeb74c7e382afe5b"),
    ("sbc:density=0.02", "42852121a7465694dbf2a593f50250e0"),
    ("topk:density=0.001", "6ab607c92fd1d4b42860f86d7c9b723f"),
    ("topk:density=0.01,values=pow2", "6ccd46a9bb67096630f80ef5036b2a6b"),
    ("topk:density=0.05,values=f16,scope=global", "de74dd9cb1eacd1f95b0affb16ad59a1"),
    ("topk:density=0.3,values=q4", "58d52384506ebeb82ad2385fd2c2aa01"),
    ("topk:density=0.01,positions=rice", "10dc97ab154975f2560ace52d9ec2c08"),
    ("topk:density=0.01,positions=tokens,values=sign", "9376390e1f608936a4664dd13f77a79e"),
    ("threshold:at=0.05,values=bf16", "b5e1890a3f42e76ead6fdfc5bd0a9172"),
    ("qsgd:bits=4", "0a5841868b33f0d3388f56bc57079997"),
    ("qsgd:bits=8,norm=max", "154bbdd62f7afbedd129046937b78952"),
    ("int8", "90cd9659a36cc6002ecd13adc61068d6"),
];
