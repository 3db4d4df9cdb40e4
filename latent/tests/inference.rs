//! Inference: golden bytes, a naive implementation of the spec, signals of any length, and untrusted bytes.

use gcodec::compress::random;
use gcodec_latent::{
    Architecture, CodeFormat, Conv, Error, FORMAT, Innovation, Layer, Limits, Model, Models, codes,
    decode_latent, encode_latent,
};

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    (0..count as u64).map(|i| (random::word(seed, 0, i) as i32) as f32 / 2f32.powi(31)).collect()
}

fn conv(inputs: usize, outputs: usize, kernel: usize, stride: usize, before: usize, weights: &[f32]) -> Conv {
    Conv { inputs, outputs, kernel, stride, before, weights: weights.to_vec(), bias: None, half: false }
}

/// A model with integer weights, so that results can be checked by hand.
fn tiny() -> Model {
    let encoder = vec![
        Layer::Conv(conv(1, 2, 3, 2, 1, &[1.0, 2.0, 3.0, -1.0, 0.0, 1.0])),
        Layer::LeakyRelu(0.5),
        Layer::Conv(Conv { bias: Some(vec![1.0]), ..conv(2, 1, 1, 1, 0, &[1.0, -2.0]) }),
    ];
    let decoder = |sign: f32| {
        vec![
            Layer::Transposed(conv(1, 1, 3, 2, 1, &[1.0, 2.0, 3.0])),
            Layer::Crop,
            Layer::Innovation,
            Layer::Conv(conv(2, 1, 1, 1, 0, &[sign, 10.0])),
        ]
    };
    Model::new(Innovation::Channel, encoder, vec![decoder(1.0), decoder(-1.0)]).unwrap()
}

#[test]
fn a_tiny_model_by_hand() {
    let model = tiny();
    // 1 2 3 padded to 1 2 3 0. First channel: 1*2 + 2*3 = 8; 2*1 + 3*2 + 0*3 = 8. Second: 0 + 2 = 2;
    // -2 + 0 = -2, rectified to -1. Codes: 8 - 4 + 1 = 5; 8 + 2 + 1 = 11.
    assert_eq!(model.code_shape(3), [1, 2]);
    assert_eq!(model.encode(&[1.0, 2.0, 3.0]).unwrap(), [5.0, 11.0]);
    // Column s of the codes goes to 2s - 1 (weight 1), 2s (2) and 2s + 1 (3): 10, 15 + 11, 22, (33).
    assert_eq!(model.decode(0, &[5.0, 11.0], 3, &[]).unwrap(), [10.0, 26.0, 22.0]);
    assert_eq!(model.decode(1, &[5.0, 11.0], 3, &[(1, 0.5)]).unwrap(), [-10.0, -21.0, -22.0]);
    assert!(matches!(model.decode(2, &[5.0, 11.0], 3, &[]), Err(Error::Input(_))));
    assert!(matches!(model.decode(0, &[5.0], 3, &[]), Err(Error::Input(_))));
    assert!(matches!(model.decode(0, &[5.0, 11.0], 3, &[(3, 1.0)]), Err(Error::Input(_))));
    assert!(matches!(model.decode(0, &[f32::MAX, f32::MAX], 3, &[]), Err(Error::NotFinite)));
    // The bytes and the id are those of the spec page: spec/reference/test_lgc_conv1d.py makes them by hand.
    assert_eq!(model.as_bytes()[..14], *b"lgc-c1d\x01\x01\x00\x02\x00\x03\x01");
    assert_eq!(model.id().to_string(), "3696d701a1522431f17c4dc1cc222e437851c1dff70fba664552e4b158540c24",);
    let again = Model::from_bytes(model.as_bytes(), &Limits::default()).unwrap();
    assert_eq!(again, model);
}

/// The formulas of the spec page, one output element after another, written independently of the library's
/// loops.
mod twin {
    use super::*;

    pub(super) type Matrix = Vec<Vec<f32>>;

    fn at(x: &[f32], column: i64) -> Option<f64> {
        usize::try_from(column).ok().and_then(|c| x.get(c)).map(|&x| f64::from(x))
    }

    pub(super) fn run(layers: &[Layer], mut x: Matrix, values: usize, innovation: &[f32]) -> Matrix {
        for layer in layers {
            x = match layer {
                Layer::Conv(c) => (0..c.outputs)
                    .map(|o| {
                        let sum = |t: usize| {
                            let mut sum = c.bias.as_ref().map_or(0.0, |b| f64::from(b[o]));
                            for i in 0..c.inputs {
                                for k in 0..c.kernel {
                                    let column = (t * c.stride + k) as i64 - c.before as i64;
                                    if let Some(x) = at(&x[i], column) {
                                        // A fused multiply-add; the spec page says that it makes no
                                        // difference.
                                        let w = c.weights[(o * c.inputs + i) * c.kernel + k];
                                        sum = f64::from(w).mul_add(x, sum);
                                    }
                                }
                            }
                            sum as f32
                        };
                        (0..x[0].len() / c.stride).map(sum).collect()
                    })
                    .collect(),
                Layer::Transposed(c) => (0..c.outputs)
                    .map(|o| {
                        let sum = |t: usize| {
                            let mut sum = c.bias.as_ref().map_or(0.0, |b| f64::from(b[o]));
                            for i in 0..c.inputs {
                                for k in 0..c.kernel {
                                    let place = (t + c.before) as i64 - k as i64;
                                    if place % c.stride as i64 == 0
                                        && let Some(x) = at(&x[i], place / c.stride as i64)
                                    {
                                        let w = c.weights[(i * c.outputs + o) * c.kernel + k];
                                        sum = f64::from(w).mul_add(x, sum);
                                    }
                                }
                            }
                            sum as f32
                        };
                        (0..x[0].len() * c.stride).map(sum).collect()
                    })
                    .collect(),
                Layer::LeakyRelu(slope) => {
                    let rectify = |x: f32| if x >= 0.0 { x } else { x * slope };
                    x.into_iter().map(|row| row.into_iter().map(rectify).collect()).collect()
                }
                Layer::Crop => x.into_iter().map(|row| row[..values].to_vec()).collect(),
                Layer::Innovation => {
                    x.push(innovation.to_vec());
                    x
                }
                _ => unreachable!(),
            };
        }
        x
    }
}

#[test]
fn inference_is_the_text_to_the_bit() {
    for (bias, half) in [(false, false), (true, true)] {
        let architecture =
            Architecture::new(3, Innovation::Channel).with_width(6).with_bias(bias).with_half(half);
        let model = architecture.init(5).unwrap();
        // Initial biases are zero; these are not.
        let with_bias = |layers: &[Layer]| -> Vec<Layer> {
            let change = |layer: &Layer| match layer.clone() {
                Layer::Conv(c) => Layer::Conv(Conv { bias: c.bias.map(|b| numbers(3, b.len())), ..c }),
                Layer::Transposed(c) => {
                    Layer::Transposed(Conv { bias: c.bias.map(|b| numbers(4, b.len())), ..c })
                }
                other => other,
            };
            layers.iter().map(change).collect()
        };
        let model = Model::new(
            model.innovation(),
            with_bias(model.encoder().layers()),
            model.decoders().iter().map(|d| with_bias(d.layers())).collect(),
        )
        .unwrap();
        for m in [0, 1, 15, 16, 17, 33, 1000] {
            let values = numbers(m as u64, m);
            let mut padded = values.clone();
            padded.resize(m.div_ceil(16) * 16, 0.0);
            let codes = model.encode(&values).unwrap();
            let rows = twin::run(model.encoder().layers(), vec![padded], m, &[]);
            assert_eq!(bits(&codes), bits(&rows.concat()), "codes of {m} values");
            let innovation: Vec<(usize, f32)> = (0..m).step_by(7).map(|i| (i, values[i])).collect();
            let mut dense = vec![0.0; m];
            innovation.iter().for_each(|&(i, x)| dense[i] = x);
            for sender in 0..3 {
                let decoded = model.decode(sender, &codes, m, &innovation).unwrap();
                let columns = m.div_ceil(16);
                let rows = (0..4).map(|c| codes[c * columns..][..columns].to_vec()).collect();
                let twin = twin::run(model.decoders()[sender as usize].layers(), rows, m, &dense);
                assert_eq!(decoded.len(), m);
                assert_eq!(bits(&decoded), bits(&twin.concat()), "{m} values of sender {sender}");
            }
        }
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn any_length_through_any_format() {
    for innovation in [Innovation::None, Innovation::Channel, Innovation::Replace] {
        let model = Architecture::new(1, innovation).with_width(4).init(1).unwrap();
        let mut models = Models::new();
        models.add(model.clone().into());
        for m in [0, 1, 15, 16, 17, 1000] {
            // Not trained, a model has small codes; these are normal numbers of f16.
            let values: Vec<f32> = numbers(9, m).iter().map(|x| x * 4096.0).collect();
            for format in [CodeFormat::F32, CodeFormat::F16, CodeFormat::Bf16, CodeFormat::Int8] {
                let latent = encode_latent(&model, &values, format).unwrap();
                assert_eq!(decode_latent(&models, &latent, m, 3).unwrap().len(), m);
                let (_, decoded) = codes(&models, &latent, m).unwrap();
                let exact = model.encode(&values).unwrap();
                let largest = exact.iter().fold(0.0f32, |a, x| a.max(x.abs()));
                // Half a step of the format at the largest magnitude; below its normal numbers f16 has the
                // same absolute error.
                let step = match format {
                    CodeFormat::F32 => 0.0,
                    CodeFormat::F16 => 2f32.powi(-11),
                    CodeFormat::Bf16 => 2f32.powi(-8),
                    CodeFormat::Int8 => 0.51 / 127.0,
                };
                let near = |(a, b): (&f32, &f32)| (a - b).abs() <= step * largest;
                assert!(decoded.iter().zip(&exact).all(near), "{format:?}, {m} values");
                assert!(decode_latent(&models, &latent, m + 16, 0).is_err());
            }
        }
    }
}

#[test]
fn what_a_sender_knows_replaces_what_is_decoded() {
    let model = Architecture::new(1, Innovation::Replace).with_width(4).init(1).unwrap();
    let values = numbers(2, 50);
    let codes = model.encode(&values).unwrap();
    let decoded = model.decode(0, &codes, 50, &[(3, values[3]), (49, values[49])]).unwrap();
    assert_eq!((decoded[3], decoded[49]), (values[3], values[49]));
    assert_ne!(decoded[4], values[4]);
}

#[test]
fn without_biases_the_scale_goes_through() {
    // A power of two changes no rounding, so codes and values scale exactly.
    let model = Architecture::new(1, Innovation::Channel).with_width(5).init(8).unwrap();
    let values = numbers(4, 100);
    let small: Vec<f32> = values.iter().map(|x| x * 2f32.powi(-20)).collect();
    let decode =
        |values: &[f32]| model.decode(0, &model.encode(values).unwrap(), 100, &[(5, values[5])]).unwrap();
    let scaled: Vec<f32> = decode(&small).iter().map(|x| x * 2f32.powi(20)).collect();
    assert_eq!(bits(&decode(&values)), bits(&scaled));
}

#[test]
fn a_missing_or_wrong_model_is_an_error() {
    let model = tiny();
    let latent = encode_latent(&model, &[1.0, 2.0], CodeFormat::F32).unwrap();
    let error = decode_latent(&Models::new(), &latent, 2, 0).unwrap_err();
    assert_eq!(error.to_string(), format!("missing model {}", model.id()));
    let reference = model.reference("tiny", "file:tiny.lgc");
    assert!(
        matches!(Model::from_frame(&reference, &Limits::default()), Err(Error::MissingModel(id)) if id == model.id())
    );
    assert_eq!(Model::fetched(&reference, model.as_bytes(), &Limits::default()).unwrap(), model);
    let other = Architecture::new(1, Innovation::None).with_width(1).init(0).unwrap();
    let error = Model::fetched(&reference, other.as_bytes(), &Limits::default()).unwrap_err();
    assert_eq!(error.to_string(), format!("the bytes of model {} have the hash {}", model.id(), other.id()));
    let mut frame = model.frame("tiny");
    assert_eq!(Model::from_frame(&frame, &Limits::default()).unwrap(), model);
    assert_eq!(frame.format, FORMAT);
    frame.format = "another/1".to_owned();
    assert!(matches!(Model::from_frame(&frame, &Limits::default()), Err(Error::Input(_))));
}

#[test]
fn bytes_from_a_stranger_are_a_model_or_an_error() {
    let limits = Limits::default().with_max_elements(1 << 20).with_max_multiplications(1 << 24);
    let model = Architecture::new(2, Innovation::Channel).with_width(2).with_bias(true).init(3).unwrap();
    let bytes = model.as_bytes();
    for end in 0..bytes.len() {
        assert!(Model::from_bytes(&bytes[..end], &limits).is_err(), "cut at {end}");
    }
    assert!(Model::from_bytes(&[bytes, &[0]].concat(), &limits).is_err());
    let (mut read, mut refused) = (0, 0);
    for i in 0..200_000u64 {
        let mut changed = bytes.to_vec();
        for j in 0..1 + i % 3 {
            let word = random::word(1, i, j) as usize;
            // Mostly at the beginning, where the structure is, and anywhere.
            let span = if word & 1 == 0 { 40 } else { changed.len() };
            let place = (word >> 9) % span;
            changed[place] = (word >> 1) as u8;
        }
        match Model::from_bytes(&changed, &limits) {
            Ok(model) => {
                assert_eq!(model.as_bytes(), changed);
                read += 1;
                if read % 64 == 0 {
                    // Any model runs within its limits.
                    let _ = model.encode(&[1.0; 40]).and_then(|codes| model.decode(0, &codes, 40, &[]));
                }
            }
            Err(Error::Model { .. } | Error::Limit { .. }) => refused += 1,
            Err(e) => panic!("{e}"),
        }
    }
    assert!(read > 1000 && refused > 1000, "{read} read, {refused} refused");
    let few = Limits::default().with_max_bytes(100);
    assert!(matches!(Model::from_bytes(bytes, &few), Err(Error::Limit { limit: "max_bytes", .. })));
    let model = Model::from_bytes(bytes, &limits).unwrap();
    for (values, limit) in [(1 << 20, "max_multiplications"), ((1 << 20) + 1, "max_elements")] {
        let encoded = model.encode(&vec![1.0; values]).map(drop);
        assert!(matches!(encoded, Err(Error::Limit { limit: l, .. }) if l == limit), "{values}: {encoded:?}");
    }
}

#[test]
fn layers_that_do_not_fit_are_refused() {
    let good = || vec![Layer::Transposed(conv(1, 1, 2, 2, 0, &[1.0, 1.0])), Layer::Crop];
    let encoder = || vec![Layer::Conv(conv(1, 1, 2, 2, 0, &[0.5, 0.5]))];
    let new = |innovation, encoder: Vec<Layer>, decoder: Vec<Layer>| {
        Model::new(innovation, encoder, vec![decoder]).map(drop)
    };
    new(Innovation::None, encoder(), good()).unwrap();
    let cases: Vec<(&str, Innovation, Vec<Layer>, Vec<Layer>)> = vec![
        ("no layers", Innovation::None, Vec::new(), good()),
        ("no crop", Innovation::None, encoder(), good()[..1].to_vec()),
        ("two crops", Innovation::None, encoder(), [good(), vec![Layer::Crop]].concat()),
        ("no growth", Innovation::None, encoder(), vec![Layer::Crop]),
        ("innovation undeclared", Innovation::None, encoder(), [good(), vec![Layer::Innovation]].concat()),
        ("innovation declared", Innovation::Channel, encoder(), good()),
        ("crop in an encoder", Innovation::None, vec![Layer::Crop], good()),
        ("slope", Innovation::None, [encoder(), vec![Layer::LeakyRelu(-0.5)]].concat(), good()),
        ("channels", Innovation::None, vec![Layer::Conv(conv(2, 1, 2, 2, 0, &[0.5; 4]))], good()),
        ("weights", Innovation::None, vec![Layer::Conv(conv(1, 1, 2, 2, 0, &[0.5]))], good()),
        ("infinity", Innovation::None, vec![Layer::Conv(conv(1, 1, 2, 2, 0, &[f32::INFINITY, 1.0]))], good()),
        ("before", Innovation::None, vec![Layer::Conv(conv(1, 1, 2, 2, 2, &[0.5, 0.5]))], good()),
    ];
    for (name, innovation, encoder, decoder) in cases {
        assert!(matches!(new(innovation, encoder, decoder), Err(Error::Input(_))), "{name}");
    }
    assert!(Model::new(Innovation::None, encoder(), Vec::new()).is_err());
}
