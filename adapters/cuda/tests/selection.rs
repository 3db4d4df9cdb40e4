//! A device selects what the host selects, bit for bit. The emulator runs the kernels, behind the mock
//! driver.

mod common;

use common::{Memory, MockDriver, encode, mock_driver, normal};
use gcodec::block::{CodedBlock, Sparse, Support};
use gcodec::compress::{Feedback, Input as HostInput, NonFinite, Options, compress};
use gcodec::{Codec, Dtype, TensorView};
use gcodec_cuda::{Compressor, Device, Error, Input};

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// The same tensors on device and host.
struct Tensors {
    dtype: Dtype,
    skip: usize,
    bytes: Vec<Vec<u8>>,
    shapes: Vec<[u64; 1]>,
    memories: Vec<Memory>,
}

impl Tensors {
    fn new(mock: &MockDriver, dtype: Dtype, values: &[Vec<f32>], skip: usize) -> Self {
        Self::of_bytes(mock, dtype, values.iter().map(|v| encode(dtype, v)).collect(), skip)
    }

    fn of_bytes(mock: &MockDriver, dtype: Dtype, bytes: Vec<Vec<u8>>, skip: usize) -> Self {
        let shapes = bytes.iter().map(|b| [b.len() as u64 * 8 / u64::from(dtype.bits())]).collect();
        let memories = bytes.iter().map(|b| mock.upload(b, skip)).collect();
        Self { dtype, skip, bytes, shapes, memories }
    }

    fn on_device(&self, device: &Device) -> Vec<Input<'_>> {
        let tensors = self.memories.iter().zip(&self.shapes).zip(NAMES).zip(0..);
        tensors
            .map(|(((memory, shape), name), tensor)| {
                let data = memory.tensor(device, self.skip, self.dtype, shape);
                Input { tensor, name, data }
            })
            .collect()
    }

    fn on_host(&self) -> Vec<HostInput<'_>> {
        let tensors = self.bytes.iter().zip(&self.shapes).zip(NAMES).zip(0..);
        tensors
            .map(|(((bytes, shape), name), tensor)| {
                let view = TensorView::new(self.dtype, shape, bytes).unwrap();
                HostInput { tensor, name, view, base: None }
            })
            .collect()
    }

    /// Checks that blocks, residuals or errors of device and host are equal, with and without error feedback.
    fn agree(&self, mock: &MockDriver, specs: &[&str], options: &Options) -> Result<Vec<CodedBlock>, String> {
        let codecs: Vec<Codec> = specs.iter().map(|s| s.parse().unwrap()).collect();
        let device = mock.device();
        let mut compressor = Compressor::new(&device).unwrap();
        let expected = compress(&self.on_host(), &codecs, options, None).map_err(|e| e.to_string());
        for piece_len in [u64::MAX, 8192] {
            compressor = compressor.with_piece_len(piece_len);
            let got = compressor.compress(&self.on_device(&device), &codecs, options, mock.stream());
            assert_eq!(got.map_err(|e| e.to_string()), expected, "{specs:?} {piece_len} {}", self.dtype);
        }
        let mut feedback = Feedback::new();
        for step in 0..3 {
            let stream = mock.stream();
            let got = compressor.compress_with_feedback(&self.on_device(&device), &codecs, options, stream);
            let host = compress(&self.on_host(), &codecs, options, Some(&mut feedback));
            assert_eq!(
                got.map_err(|e| e.to_string()),
                host.map_err(|e| e.to_string()),
                "{specs:?} step {step}"
            );
            let residuals = compressor.residuals().unwrap();
            if expected.is_ok() {
                same(&residuals, &feedback, specs);
            }
        }
        mock.assert_sound();
        expected
    }
}

/// Compares bits: `==` takes -0 for 0.
fn same(got: &Feedback, expected: &Feedback, what: &[&str]) {
    let words = |feedback: &Feedback| {
        feedback.save().into_iter().map(|(n, t)| (n, t.view().data().to_vec())).collect::<Vec<_>>()
    };
    assert!(words(got) == words(expected), "residuals differ: {what:?}");
}

fn kept(block: &CodedBlock) -> usize {
    let Support::Sparse(Sparse { positions }) = &block.support else { panic!("{:?}", block.support) };
    positions.len()
}

#[test]
fn blocks_and_residuals_are_those_of_the_host() {
    let Some(mock) = mock_driver() else { return };
    let values: Vec<_> =
        [(70_001, 1), (0, 2), (8192, 3), (5, 4), (40_000, 5)].map(|(n, seed)| normal(n, seed)).into();
    for (dtype, skip) in [(Dtype::F32, 0), (Dtype::F32, 4), (Dtype::F16, 0), (Dtype::Bf16, 2)] {
        let tensors = Tensors::new(&mock, dtype, &values, skip);
        for specs in [
            ["topk:density=0.001"; 5],
            ["topk:density=0.01,scope=global"; 5],
            ["sbc:density=0.002"; 5],
            ["threshold:at=2.5"; 5],
            ["topk:k=20,values=pow2,seed=3", "stc:density=0.01", "sbc:k=3", "topk:k=9", "threshold:at=1"],
        ] {
            let blocks = tensors.agree(&mock, &specs, &Options::default()).unwrap();
            assert!(kept(&blocks[0]) > 0);
        }
    }
}

/// Numbers with heavy tails: those of [`normal`], cubed.
fn heavy(n: usize, seed: u64) -> Vec<f32> {
    normal(n, seed).into_iter().map(|x| x * x * x).collect()
}

/// The host fits thresholds to sums of the device, in the host's order: of samples, of candidates, of whole
/// tensors.
#[test]
fn fits_are_those_of_the_host() {
    let Some(mock) = mock_driver() else { return };
    // More than a chunk of 2^18 elements, more than a sample, no elements, a run, less than a sample.
    let values = [heavy(300_001, 1), normal(50_001, 2), vec![], heavy(1024, 3), heavy(20_000, 4)];
    for (dtype, skip) in [(Dtype::F32, 4), (Dtype::F16, 0), (Dtype::Bf16, 2)] {
        let tensors = Tensors::new(&mock, dtype, &values, skip);
        for specs in [
            ["sidco:density=0.001"; 5],
            ["sidco:density=0.01,fit=gamma-gp,values=bf16"; 5],
            ["sidco:density=0.05,fit=exp,stages=2"; 5],
            ["sidco:density=0.001,fit=gamma-gp,stages=authors"; 5],
            ["sidco:density=0.3", "topk:k=9", "sbc:k=4", "sidco:k=20,stages=7", "sidco:density=1"],
        ] {
            let blocks = tensors.agree(&mock, &specs, &Options::default()).unwrap();
            assert!(kept(&blocks[0]) > 0);
        }
    }
}

#[test]
fn every_kind_of_value_leaves_the_residual_of_the_host() {
    let Some(mock) = mock_driver() else { return };
    let values = [normal(9000, 1), normal(3000, 2)];
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let tensors = Tensors::new(&mock, dtype, &values, 0);
        for kept in ["f32", "f16", "bf16", "pow2", "sign", "q4"] {
            let spec = format!("topk:density=0.02,values={kept}");
            tensors.agree(&mock, &[spec.as_str(); 2], &Options::default()).unwrap();
        }
    }
}

#[test]
fn ties_zeros_and_extremes_are_cut_where_the_host_cuts() {
    let Some(mock) = mock_driver() else { return };
    let n = 50_000;
    let subnormal = |i: usize| f32::from_bits(1 + (i as u32 * 7919) % 1000);
    let cases: [Vec<f32>; 7] = [
        vec![0.0; n],
        vec![-0.0; n],
        vec![1.5; n],
        // Few magnitudes, both signs: the cut lies inside a long run of equal keys.
        (0..n).map(|i| [0.5, -0.5, 2.0, -0.0, 0.5][i * 31 % 5]).collect(),
        (0..n).map(|i| if i % 3 == 0 { -subnormal(i) } else { subnormal(i) }).collect(),
        (0..n).map(|i| if i % 1000 == 7 { f32::MAX } else { f32::MIN_POSITIVE }).collect(),
        // One element only, the last.
        (0..n).map(|i| if i == n - 1 { -3.0 } else { 0.0 }).collect(),
    ];
    for values in cases {
        let tensors = Tensors::new(&mock, Dtype::F32, &[values.clone(), values], 0);
        for spec in [
            "topk:k=777",
            "topk:k=777,scope=global",
            "topk:density=1",
            "sbc:k=777",
            "sbc:density=1",
            "threshold:at=0.5",
            "sidco:k=777",
            "sidco:k=777,fit=gamma-gp,stages=3",
        ] {
            tensors.agree(&mock, &[spec; 2], &Options::default()).unwrap();
        }
    }
}

/// If the sample misleads, the cut is found among all elements.
#[test]
fn a_sample_that_misleads_costs_time_only() {
    let Some(mock) = mock_driver() else { return };
    // Far larger than its sample, with keys in the sample that are far above or far below the cut.
    let n = 1 << 18;
    let few: Vec<f32> = (0..n).map(|i| if i % 16 == 5 { 1.0 + i as f32 } else { 0.0 }).collect();
    let steps: Vec<f32> = (0..n).map(|i| if i < n / 2 { 1.0 } else { 2.0 }).collect();
    for values in [few, steps] {
        let tensors = Tensors::new(&mock, Dtype::F32, &[values], 0);
        for spec in ["topk:k=100", "topk:density=0.07", "topk:density=0.6", "sbc:density=0.4", "sidco:k=100"]
        {
            tensors.agree(&mock, &[spec], &Options::default()).unwrap();
        }
    }
}

#[test]
fn elements_that_are_not_finite_give_the_error_of_the_host() {
    let Some(mock) = mock_driver() else { return };
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let dtypes = match (bad.is_nan(), bad.is_sign_negative()) {
            (true, false) | (false, false) => vec![Dtype::F32],
            (true, true) => vec![Dtype::F16],
            (false, true) => vec![Dtype::F16, Dtype::Bf16],
        };
        for dtype in dtypes {
            let mut values = normal(40_000, 9);
            (values[39_000], values[39_500]) = (bad, bad);
            let tensors = Tensors::new(&mock, dtype, &[normal(100, 1), values], 0);
            for spec in [
                "topk:k=10",
                "topk:k=1,scope=global",
                "sbc:k=4",
                "threshold:at=100",
                "sidco:k=9",
                "sidco:k=9,stages=2",
            ] {
                let error = tensors.agree(&mock, &[spec; 2], &Options::default()).unwrap_err();
                assert_eq!(error, "element 39000 is NaN or infinite (tensor 1)", "{spec}");
                let zero = Options::default().with_non_finite(NonFinite::Zero);
                tensors.agree(&mock, &[spec; 2], &zero).unwrap();
            }
        }
    }
}

/// Every bit pattern of the narrow types is widened as the host widens it.
#[test]
fn all_narrow_elements_are_read_as_on_the_host() {
    let Some(mock) = mock_driver() else { return };
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let tensors = Tensors::of_bytes(&mock, dtype, vec![bytes], 0);
        let zero = Options::default().with_non_finite(NonFinite::Zero);
        let blocks = tensors.agree(&mock, &["topk:density=1"], &zero).unwrap();
        // All but two zeros, two infinities and the NaNs.
        let nans = if dtype == Dtype::F16 { 2 * 1023 } else { 2 * 127 };
        assert_eq!(kept(&blocks[0]), 65_536 - 4 - nans);
    }
}

#[test]
fn an_update_is_three_copies_and_two_waits_for_any_number_of_tensors() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let values: Vec<Vec<f32>> = (0..161).map(|t| normal(64 + 37 * t as usize, t)).collect();
    let bytes: Vec<Vec<u8>> = values.iter().map(|v| encode(Dtype::F32, v)).collect();
    let memories: Vec<Memory> = bytes.iter().map(|b| mock.upload(b, 0)).collect();
    let shapes: Vec<[u64; 1]> = values.iter().map(|v| [v.len() as u64]).collect();
    let names: Vec<String> = (0..161).map(|t| format!("t{t}")).collect();
    let inputs: Vec<Input<'_>> = memories
        .iter()
        .zip(&shapes)
        .zip(&names)
        .zip(0..)
        .map(|(((m, shape), name), tensor)| Input {
            tensor,
            name,
            data: m.tensor(&device, 0, Dtype::F32, shape),
        })
        .collect();
    let host: Vec<HostInput<'_>> = bytes
        .iter()
        .zip(&shapes)
        .zip(&names)
        .zip(0..)
        .map(|(((bytes, shape), name), tensor)| {
            let view = TensorView::new(Dtype::F32, shape, bytes).unwrap();
            HostInput { tensor, name, view, base: None }
        })
        .collect();
    let mut compressor = Compressor::new(&device).unwrap();
    let (stream, options) = (mock.stream(), Options::default());
    // Codec, launches, rounds of fits. Means take three launches more; each round of fits takes a wait and
    // small copies.
    let kinds = [("topk:density=0.01", 8, 0), ("sbc:density=0.01", 11, 0), ("sidco:density=0.01", 13, 7)];
    for (spec, launches, rounds, feedback) in
        kinds.iter().flat_map(|&(s, l, r)| [false, true].map(|f| (s, l, r, f)))
    {
        let codecs: Vec<Codec> = vec![spec.parse().unwrap(); 161];
        compressor.set_residuals(&Feedback::new()).unwrap();
        let mut residuals = Feedback::new();
        for step in 0..3 {
            mock.reset_counts();
            let got = match feedback {
                true => compressor.compress_with_feedback(&inputs, &codecs, &options, stream),
                false => compressor.compress(&inputs, &codecs, &options, stream),
            };
            let expected = compress(&host, &codecs, &options, feedback.then_some(&mut residuals)).unwrap();
            assert_eq!(got.unwrap(), expected);
            // Two counts for each search and each piece; then positions and values, or positions and two sums
            // for each tensor.
            let kept = expected.iter().map(kept).sum::<usize>() as u64;
            let payload = match spec.split(':').next() {
                Some("sbc") => (4 * kept).next_multiple_of(16) + 32 * 161,
                _ => 8 * kept,
            };
            if !spec.starts_with("sidco") {
                assert_eq!(mock.count("bytes to the host"), 32 * 161 + payload, "{spec}");
            }
            if step == 0 {
                continue;
            }
            let more = u64::from(feedback);
            let fits = mock.count("cuStreamSynchronize") - 2;
            assert!(fits <= rounds && (fits > 0) == (rounds > 0), "{spec}: {fits} rounds of fits");
            for (call, expected) in [
                ("cuMemcpyHtoD", 1 + more + fits),
                ("cuMemcpyDtoH", 2 + fits),
                ("cuMemsetD8", 1),
                ("cuLaunchKernel", launches + more + fits),
                ("cuStreamSynchronize", 2 + fits),
                // The wait for work that the update before left in the stream.
                ("cuEventSynchronize", if step > 1 { more } else { more * u64::from(feedback) }),
                ("cuMemAlloc", 0),
                ("cuMemHostAlloc", 0),
            ] {
                assert_eq!(mock.count(call), expected, "{call}, feedback {feedback}, step {step}");
            }
        }
    }
    drop(compressor);
    mock.assert_sound();
}

/// Every branch of every kernel, with small tensors.
#[test]
fn small_updates() {
    let Some(mock) = mock_driver() else { return };
    let values = [normal(9000, 1), vec![], vec![-1.0; 300]];
    for (dtype, skip) in [(Dtype::F32, 0), (Dtype::F16, 2), (Dtype::Bf16, 0)] {
        let tensors = Tensors::new(&mock, dtype, &values, skip);
        for specs in [
            ["topk:density=0.01,values=pow2,scope=global"; 3],
            ["sbc:density=0.01", "topk:k=3", "threshold:at=0.5"],
            ["sidco:density=0.01", "sidco:density=0.1,fit=gamma-gp,stages=2", "sidco:k=3,stages=authors"],
        ] {
            tensors.agree(&mock, &specs, &Options::default()).unwrap();
        }
    }
    // A tensor larger than its sample, which misleads; then more candidates than there is room for.
    let steps: Vec<f32> = (0..140_000).map(|i| if i < 70_000 { 1.0 } else { 2.0 }).collect();
    let mut bad = steps.clone();
    bad[135_000] = f32::NAN;
    for (values, specs) in [
        (steps, ["topk:k=1500", "threshold:at=1", "sidco:k=1500"]),
        (heavy(40_000, 1), ["sidco:k=300", "sbc:k=20", "sidco:k=30,fit=gamma-gp"]),
        (bad, ["sbc:k=9", "topk:k=9", "sidco:k=9"]),
    ] {
        let tensors = Tensors::new(&mock, Dtype::F32, &[values], 0);
        for spec in specs {
            let got = tensors.agree(&mock, &[spec], &Options::default());
            assert_eq!(got.is_err(), spec.ends_with('9'));
        }
    }
}

/// Runs [`small_updates`] in a separate process, under AddressSanitizer and UndefinedBehaviorSanitizer.
#[test]
fn kernels_are_clean_under_sanitizers() {
    common::under_sanitizers("small_updates");
}

/// Elements whose indices take more than 31 and 32 bits. The tensors are GiB of zeros; the system allocates
/// only pages that are read, which are the last ones.
#[test]
fn positions_beyond_32_bits() {
    let Some(mock) = mock_driver() else { return };
    if std::env::var_os(common::CHOSEN).is_some() {
        return; // takes minutes under a sanitizer
    }
    let device = mock.device();
    let options = Options::default();
    for (power, dtype, piece_len) in [(31, Dtype::F16, u64::MAX), (32, Dtype::Bf16, 1 << 20)] {
        let (n, first) = ((1u64 << power) + 5, (1 << power) - 20_000);
        let planted = [first + 9000, (1 << power) - 1, 1 << power, n - 1];
        let memory = mock.memory(0, 2 * n as usize);
        for (i, &at) in planted.iter().enumerate() {
            memory.write(2 * at as usize, &encode(dtype, &[i as f32 + 0.5]));
        }
        let shape = [n];
        let inputs = [Input { tensor: 0, name: "w", data: memory.tensor(&device, 0, dtype, &shape) }];
        let compressor =
            || Compressor::new(&device).unwrap().with_piece_len(piece_len).with_zeros_before(first);
        for spec in ["topk:k=4", "stc:k=9", "threshold:at=0.25", "sbc:k=4", "sidco:k=4", "sidco:k=4,stages=2"]
        {
            let codec: Codec = spec.parse().unwrap();
            let mut compressor = compressor();
            let blocks = compressor.compress(&inputs, &[codec], &options, mock.stream()).unwrap();
            assert_eq!(blocks[0].support, Support::Sparse(Sparse { positions: planted.to_vec() }), "{spec}");
        }
        // A cut between them: the two largest are 2.5 and 3.5; then, with the residual added, 3 and 3.5.
        let (mut compressor, codec) = (compressor(), "topk:k=2".parse().unwrap());
        for expected in [[planted[2], planted[3]], [planted[1], planted[3]]] {
            let blocks = compressor.compress_with_feedback(&inputs, &[codec], &options, mock.stream());
            assert_eq!(blocks.unwrap()[0].support, Support::Sparse(Sparse { positions: expected.to_vec() }));
        }
        memory.write(2 * (n - 1) as usize, &encode(dtype, &[f32::NAN]));
        for spec in ["topk:k=4", "sbc:k=4", "sidco:k=4"] {
            let codec: Codec = spec.parse().unwrap();
            let mut compressor =
                Compressor::new(&device).unwrap().with_piece_len(1 << 20).with_zeros_before(first);
            let error = compressor.compress(&inputs, &[codec], &options, mock.stream()).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("element {} is NaN or infinite (tensor 0)", n - 1),
                "{spec}"
            );
        }
    }
    mock.assert_sound();
}

#[test]
fn codecs_that_do_not_run_on_a_device_are_refused() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let tensors = Tensors::new(&mock, Dtype::F32, &[normal(10, 1)], 0);
    let mut compressor = Compressor::new(&device).unwrap();
    for spec in ["raw", "powersgd", "randk"] {
        let got = compressor.compress(
            &tensors.on_device(&device),
            &[spec.parse().unwrap()],
            &Options::default(),
            mock.stream(),
        );
        assert!(matches!(got, Err(Error::Codec(_))), "{spec}");
    }
}
