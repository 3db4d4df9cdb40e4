//! Finite elements of binary64 that f32, in which lossy codecs compute, cannot hold.

use gcodec::compress::{Input, NonFinite, Options, compress};
use gcodec::error::InputErrorKind;
use gcodec::{Codec, Dtype, Error, TensorBuf};

const SIDE: usize = 300;

fn tensor(change: impl Fn(&mut [f64])) -> TensorBuf {
    let mut values: Vec<f64> = (0..SIDE * SIDE).map(|i| ((i * 37 % 101) as f64 - 50.0) / 7.0).collect();
    change(&mut values);
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    TensorBuf::new(Dtype::F64, vec![SIDE as u64, SIDE as u64], bytes).unwrap()
}

fn kind(tensor: &TensorBuf, codec: Codec, non_finite: NonFinite) -> Option<InputErrorKind> {
    let inputs = [Input { tensor: 0, name: "w", view: tensor.view(), base: None }];
    match compress(&inputs, &[codec], &Options::default().with_non_finite(non_finite), None) {
        Ok(_) => None,
        Err(Error::Input(e)) => Some(e.kind),
        Err(e) => panic!("{codec}: {e}"),
    }
}

#[test]
fn every_lossy_codec_names_what_is_beyond_f32() {
    let lossy = Codec::NAMES.iter().filter_map(|name| name.parse::<Codec>().ok()).filter(Codec::is_lossy);
    let mut count = 0;
    for codec in lossy {
        for (at, value) in [(0, 1e39), (4_321, -1.7e308), (SIDE * SIDE - 1, 3.41e38)] {
            let beyond = tensor(|values| values[at] = value);
            for non_finite in [NonFinite::Reject, NonFinite::Zero] {
                let wanted = InputErrorKind::BeyondF32 { index: at as u64, bits: value.to_bits() };
                assert_eq!(kind(&beyond, codec, non_finite), Some(wanted), "{codec}, {non_finite:?}");
            }
            // Infinity and NaN keep their policy.
            for bad in [f64::INFINITY, f64::NAN] {
                let bad = tensor(|values| values[at] = bad);
                let wanted = InputErrorKind::NonFinite { index: at as u64 };
                assert_eq!(kind(&bad, codec, NonFinite::Reject), Some(wanted), "{codec}");
                assert_eq!(kind(&bad, codec, NonFinite::Zero), None, "{codec}");
            }
        }
        let largest = tensor(|values| values[7] = f64::from(f32::MAX));
        let fits = kind(&largest, codec, NonFinite::Zero);
        assert!(!matches!(fits, Some(InputErrorKind::BeyondF32 { .. })), "{codec}");
        count += 1;
    }
    assert!(count > 10);
    let all = [Codec::Raw, Codec::LOSSLESS];
    assert!(all.iter().all(|codec| kind(&tensor(|v| v[0] = 1e39), *codec, NonFinite::Reject).is_none()));
    let text = InputErrorKind::BeyondF32 { index: 3, bits: 1e39f64.to_bits() }.to_string();
    assert!(text.starts_with("element 3 is 1e39, beyond the range of f32"), "{text}");
}
