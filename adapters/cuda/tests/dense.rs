//! A device quantises like the host, bit for bit. The emulator runs the kernels, behind the mock driver.

mod common;

use common::{Memory, MockDriver, encode, mock_driver, normal};
use gcodec::block::{CodedBlock, Levels, Pow2, Values};
use gcodec::compress::{Feedback, Input as HostInput, NonFinite, Options, compress};
use gcodec::{Codec, Dtype, TensorView};
use gcodec_cuda::{Compressor, Device, Error, Input};

/// Every quantiser, with buckets of part of a run, of one run and of several runs, and with widths from 1 to
/// 16 bits.
const SPECS: [&str; 15] = [
    "natural:seed=7",
    "qsgd:bits=4,bucket=512,seed=1",
    "qsgd:bits=4,bucket=100",
    "qsgd:bits=16,bucket=2048,norm=max,seed=2",
    "qsgd:bits=3,bucket=333,norm=l2",
    "dither:levels=8,bucket=64,norm=l1",
    "dither:levels=255,bucket=5000,norm=l2,seed=9",
    "terngrad:bucket=1024,clip=1.5",
    "terngrad:bucket=2,clip=inf",
    "int8:group=256",
    "int8:group=8192",
    "sign",
    "sign:group=64",
    "sign:group=100",
    "sign:group=3000",
];

/// The same tensors on device and host.
struct Tensors {
    dtype: Dtype,
    skip: usize,
    bytes: Vec<Vec<u8>>,
    shapes: Vec<[u64; 1]>,
    names: Vec<String>,
    memories: Vec<Memory>,
}

impl Tensors {
    fn new(mock: &MockDriver, dtype: Dtype, values: &[Vec<f32>], skip: usize) -> Self {
        let bytes: Vec<_> = values.iter().map(|v| encode(dtype, v)).collect();
        let shapes = values.iter().map(|v| [v.len() as u64]).collect();
        let names = (0..values.len()).map(|t| format!("t{t}")).collect();
        let memories = bytes.iter().map(|b| mock.upload(b, skip)).collect();
        Self { dtype, skip, bytes, shapes, names, memories }
    }

    fn on_device(&self, device: &Device) -> Vec<Input<'_>> {
        let tensors = self.memories.iter().zip(&self.shapes).zip(&self.names).zip(0..);
        tensors
            .map(|(((memory, shape), name), tensor)| {
                let data = memory.tensor(device, self.skip, self.dtype, shape);
                Input { tensor, name, data }
            })
            .collect()
    }

    fn on_host(&self) -> Vec<HostInput<'_>> {
        let tensors = self.bytes.iter().zip(&self.shapes).zip(&self.names).zip(0..);
        tensors
            .map(|(((bytes, shape), name), tensor)| {
                let view = TensorView::new(self.dtype, shape, bytes).unwrap();
                HostInput { tensor, name, view, base: None }
            })
            .collect()
    }

    /// Checks that blocks, residuals or errors of device and host are equal, with and without error feedback,
    /// in several steps.
    fn agree(
        &self,
        mock: &MockDriver,
        specs: &[&str],
        options: &Options,
        steps: usize,
    ) -> Result<Vec<CodedBlock>, String> {
        let codecs: Vec<Codec> = specs.iter().map(|s| s.parse().unwrap()).collect();
        let device = mock.device();
        let mut compressor = Compressor::new(&device).unwrap();
        let expected = compress(&self.on_host(), &codecs, options, None).map_err(|e| e.to_string());
        let got = compressor.compress(&self.on_device(&device), &codecs, options, mock.stream());
        let what = format!("{specs:?} {} {}", self.dtype, options.block_len);
        assert!(got.map_err(|e| e.to_string()) == expected, "{what}");
        let mut feedback = Feedback::new();
        for step in 0..steps {
            let codecs: Vec<Codec> = codecs.iter().map(|c| c.later(step as u64)).collect();
            let got =
                compressor.compress_with_feedback(&self.on_device(&device), &codecs, options, mock.stream());
            let host = compress(&self.on_host(), &codecs, options, Some(&mut feedback));
            assert!(got.map_err(|e| e.to_string()) == host.map_err(|e| e.to_string()), "{what}, step {step}");
            if expected.is_ok() {
                same(&compressor.residuals().unwrap(), &feedback, &what);
            }
        }
        mock.assert_sound();
        expected
    }
}

/// Compares bits: `==` takes -0 for 0.
fn same(got: &Feedback, expected: &Feedback, what: &str) {
    let words = |feedback: &Feedback| {
        feedback.save().into_iter().map(|(n, t)| (n, t.view().data().to_vec())).collect::<Vec<_>>()
    };
    assert!(words(got) == words(expected), "residuals differ: {what}");
}

/// Lengths around the ends of runs and tiles; small neighbours that share a block, some of them empty.
fn some() -> Vec<Vec<f32>> {
    [9001, 0, 1, 1023, 0, 8192, 5, 1025, 8191].iter().zip(1..).map(|(&n, seed)| normal(n, seed)).collect()
}

#[test]
fn blocks_and_residuals_are_those_of_the_host() {
    let Some(mock) = mock_driver() else { return };
    for (dtype, skip) in [(Dtype::F32, 0), (Dtype::F32, 4), (Dtype::F16, 2), (Dtype::Bf16, 0)] {
        let tensors = Tensors::new(&mock, dtype, &some(), skip);
        for spec in SPECS {
            tensors.agree(&mock, &[spec; 9], &Options::default(), 2).unwrap();
            // Blocks that begin at elements that are no multiples of four.
            if skip == 4 {
                tensors.agree(&mock, &[spec; 9], &Options::default().with_block_len(3001), 2).unwrap();
            }
        }
    }
}

#[test]
fn codecs_of_all_kinds_in_one_update() {
    let Some(mock) = mock_driver() else { return };
    let specs = [
        "natural",
        "natural",
        "topk:k=1,scope=global",
        "qsgd:bits=8,bucket=512",
        "sign",
        "sbc:density=0.01",
        "topk:k=1,scope=global",
        "int8:group=64",
        "terngrad:bucket=512,clip=2.5",
    ];
    for dtype in [Dtype::F32, Dtype::F16] {
        let tensors = Tensors::new(&mock, dtype, &some(), 0);
        tensors.agree(&mock, &specs, &Options::default(), 3).unwrap();
    }
}

/// Buckets larger than a block of threads holds, and sums over more than a chunk.
#[test]
fn large_buckets_are_summed_in_the_order_of_the_host() {
    let Some(mock) = mock_driver() else { return };
    let values = [normal(20_000, 1), normal((1 << 18) + 9001, 2)];
    let tensors = Tensors::new(&mock, Dtype::F32, &values, 0);
    for spec in [
        "qsgd:bits=4,bucket=8193",
        "dither:levels=4,bucket=1000000,norm=l1",
        "terngrad:bucket=70001,clip=2.5",
        "int8:group=10000",
        "sign",
        "sign:group=262145",
    ] {
        tensors.agree(&mock, &[spec; 2], &Options::default(), 2).unwrap();
    }
    tensors.agree(&mock, &["sign"; 2], &Options::default().with_block_len(100_001), 2).unwrap();
}

/// Sums that other orders round to other floats. The numbers are zeros, one large number, and a few small
/// ones: a small one is lost if it is added to the large one alone, and counts if two of them are summed
/// first. Norms are rounded up, and means lie between two floats, so that the last bit of a sum decides.
#[test]
fn sums_are_taken_in_the_order_of_the_host() {
    let Some(mock) = mock_driver() else { return };
    let word = |seed: u64, i: u64| u64::from(gcodec::compress::random::word(seed, 3, i));
    let delicate = |n: u64, bucket: u64, large: f32, small: f32, seed: u64| -> Vec<f32> {
        let value = |i: u64| match word(seed, i) % bucket {
            _ if i % bucket == word(seed + 1, i / bucket) % bucket.min(n) => large,
            0..4 => small,
            _ => 0.0,
        };
        (0..n).map(value).collect()
    };
    let n = (1 << 18) + 20_000;
    // Squares are chosen just above 2, where the last place of the root is that of the sum.
    for (large, small, norm) in [(1.0, 2f32.powi(-53), "l1"), (1.414_213_7, 2f32.powi(-26) * 0.99, "l2")] {
        for bucket in [7, 60, 128, 512, 2048, 8192, 8200, 70_000, 300_000] {
            let tensors: Vec<_> =
                if bucket < 10_000 { vec![(30_000, 1)] } else { (1..8).map(|s| (n, 2 * s)).collect() };
            let values: Vec<_> =
                tensors.iter().map(|&(n, seed)| delicate(n, bucket, large, small, seed)).collect();
            let spec = format!("dither:levels=2,bucket={bucket},norm={norm}");
            let tensors = Tensors::new(&mock, Dtype::F32, &values, 0);
            tensors.agree(&mock, &vec![spec.as_str(); values.len()], &Options::default(), 0).unwrap();
        }
    }
    // 2^24 + 1, divided by a power of two, is a tie, which far smaller numbers break.
    for (n, count) in [(1 << 10, 60), (1 << 15, 20), (1 << 19, 4)] {
        let values: Vec<_> = (0..count)
            .map(|seed| {
                let mut values = delicate(n, n, 16_777_216.0, 2f32.powi(-29), 2 * seed);
                let at = values.iter().position(|&x| x == 0.0).unwrap();
                values[at] = 1.0;
                values
            })
            .collect();
        let tensors = Tensors::new(&mock, Dtype::F32, &values, 0);
        tensors.agree(&mock, &vec!["sign"; values.len()], &Options::default(), 0).unwrap();
    }
}

/// Finite floats of all magnitudes, subnormal ones and the largest included: powers of two that span more
/// than a block has codes for.
#[test]
fn exponents_of_every_size() {
    let Some(mock) = mock_driver() else { return };
    let wild = |n: u64, seed: u64, least: u32| -> Vec<f32> {
        let word = |i| gcodec::compress::random::word(seed, 1, i);
        let float = |i: u64| match (word(i), i % 7) {
            (w, 0) => f32::from_bits(w & 0x8000_0000),
            (w, 1) => f32::from_bits(w & 0x807f_ffff),
            (w, _) if f32::from_bits(w).is_finite() => f32::from_bits(w.max(least)),
            (w, _) => f32::MAX.copysign(f32::from_bits(w)),
        };
        (0..n).map(float).collect()
    };
    let cases: [Vec<Vec<f32>>; 4] = [
        vec![wild(9000, 1, 0), wild(500, 2, 0), wild(3, 3, 0)],
        // Subnormal numbers only, and zeros only.
        vec![
            (1..5000).map(|i| f32::from_bits(i * 977 % 0x80_0000)).collect(),
            vec![0.0; 4500],
            vec![-0.0; 100],
        ],
        // Powers just inside of the range of a block's codes, and just outside.
        vec![vec![f32::MAX, -1e-38, 2e-38, 1e-39, -1e-40], vec![1.5, -1e-45], vec![]],
        vec![vec![-f32::MAX; 5000], vec![f32::MIN_POSITIVE; 5000], vec![1e-45; 5000]],
    ];
    for values in cases {
        let tensors = Tensors::new(&mock, Dtype::F32, &values, 0);
        for spec in SPECS {
            tensors.agree(&mock, &[spec; 3], &Options::default(), 3).unwrap();
        }
        tensors.agree(&mock, &["natural"; 3], &Options::default().with_block_len(4097), 2).unwrap();
    }
    // Sums beyond the range of a narrow type are limited.
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let most = gcodec::internal::element::max_finite(dtype);
        let values = [vec![most; 300], vec![-most; 3000], (0..999).map(|i| i as f32 * 1e-7).collect()];
        let tensors = Tensors::new(&mock, dtype, &values, 0);
        for spec in SPECS {
            tensors.agree(&mock, &[spec; 3], &Options::default(), 3).unwrap();
        }
    }
}

#[test]
fn elements_that_are_not_finite_give_the_error_of_the_host() {
    let Some(mock) = mock_driver() else { return };
    let zero = Options::default().with_non_finite(NonFinite::Zero);
    for (dtype, bad) in
        [(Dtype::F32, f32::NAN), (Dtype::F16, f32::INFINITY), (Dtype::Bf16, f32::NEG_INFINITY)]
    {
        let mut values = vec![normal(100, 1), normal(30, 2), normal(12_000, 3), normal(9, 4)];
        (values[2][10_000], values[2][11_500], values[3][2]) = (bad, bad, bad);
        let tensors = Tensors::new(&mock, dtype, &values, 0);
        for spec in SPECS.into_iter().chain(["qsgd:bits=4,bucket=9000"]) {
            let error = tensors.agree(&mock, &[spec; 4], &Options::default(), 1).unwrap_err();
            assert_eq!(error, "element 10000 is NaN or infinite (tensor 2)", "{spec}");
            tensors.agree(&mock, &[spec; 4], &Options::default().with_block_len(5000), 1).unwrap_err();
            tensors.agree(&mock, &[spec; 4], &zero, 2).unwrap();
        }
        // The error of a selection among all tensors comes first.
        let mixed = ["natural", "topk:k=3,scope=global", "natural", "topk:k=3,scope=global"];
        let error = tensors.agree(&mock, &mixed, &Options::default(), 1).unwrap_err();
        assert_eq!(error, "element 2 is NaN or infinite (tensor 3)");
        let mixed = ["natural", "topk:k=3", "natural", "topk:k=3"];
        let error = tensors.agree(&mock, &mixed, &Options::default(), 1).unwrap_err();
        assert_eq!(error, "element 10000 is NaN or infinite (tensor 2)");
        // Small tensors of one block, the second with the error.
        let mut small = vec![normal(10, 1), normal(20, 2), normal(30, 3)];
        small[1][7] = bad;
        let tensors = Tensors::new(&mock, dtype, &small, 0);
        let error = tensors.agree(&mock, &["natural"; 3], &Options::default(), 1).unwrap_err();
        assert_eq!(error, "element 7 is NaN or infinite (tensor 1)");
    }
}

/// Indices of elements that take more than 32 bits, also divided by four.
#[test]
fn words_of_elements_beyond_32_bits() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let n = 9000u64;
    let tensors = Tensors::new(&mock, Dtype::F32, &[vec![1.25; n as usize]], 0);
    for first in [(1u64 << 32) - 5, (1 << 34) - 4096, (1 << 34) + 3, u64::MAX - 20_000] {
        let mut compressor = Compressor::new(&device).unwrap().with_first_element(first);
        let mut blocks = |spec: &str| {
            let codecs = [spec.parse::<Codec>().unwrap()];
            compressor
                .compress(&tensors.on_device(&device), &codecs, &Options::default(), mock.stream())
                .unwrap()
        };
        let word = |i: u64| gcodec::compress::random::word(11, 0, first + i);
        // 1.25 becomes 2 for the smallest quarter of all words.
        let up: Vec<bool> = (0..n).map(|i| word(i) < 1 << 30).collect();
        let Values::Pow2(Pow2 { codes, .. }) = &blocks("natural:seed=11")[0].values else { panic!() };
        assert!(codes.iter().map(|&c| c == 2).eq(up.iter().copied()), "{first}");
        // With a norm of four such elements, 2.5, 1.25 is half of the largest level.
        let Values::Levels(Levels { levels, .. }) = &blocks("qsgd:bits=2,bucket=4,seed=11")[0].values else {
            panic!()
        };
        let half = (0..n).map(|i| i32::from(word(i) < 1 << 31));
        assert!(levels.iter().eq(half), "{first}");
    }
    mock.assert_sound();
}

/// One tensor and 161 take the same number of copies, launches and waits.
#[test]
fn calls_do_not_depend_on_the_number_of_tensors() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    for (specs, launches) in [
        (&["natural"][..], 3),
        (&["qsgd:bits=4,bucket=512"], 1),
        (&["qsgd:bits=3,bucket=512"], 2),
        (&["int8:group=512"], 1),
        (&["sign"], 3),
        (&["natural", "sign", "dither:levels=8,bucket=64,norm=max"], 6),
    ] {
        for n in [specs.len(), 161] {
            let values: Vec<Vec<f32>> = (0..n).map(|t| normal(16 + 37 * t, t as u64)).collect();
            let tensors = Tensors::new(&mock, Dtype::F32, &values, 0);
            let codecs: Vec<Codec> = (0..n).map(|t| specs[t % specs.len()].parse().unwrap()).collect();
            let mut compressor = Compressor::new(&device).unwrap();
            let (stream, options) = (mock.stream(), Options::default());
            let mut feedback = Feedback::new();
            for step in 0..3 {
                mock.reset_counts();
                let inputs = tensors.on_device(&device);
                let got = compressor.compress_with_feedback(&inputs, &codecs, &options, stream).unwrap();
                let expected = compress(&tensors.on_host(), &codecs, &options, Some(&mut feedback)).unwrap();
                assert!(got == expected, "{specs:?} {n} {step}");
            }
            for (call, expected) in [
                ("cuMemcpyHtoD", 1),
                ("cuMemcpyDtoH", 2),
                ("cuMemsetD8", 1),
                ("cuLaunchKernel", launches),
                ("cuStreamSynchronize", 2),
                ("cuEventSynchronize", 0),
                ("cuMemAlloc", 0),
                ("cuMemHostAlloc", 0),
            ] {
                assert_eq!(mock.count(call), expected, "{call}, {specs:?}, {n} tensors");
            }
        }
    }
    mock.assert_sound();
}

/// Each driver call of an update fails once. Residuals are then unchanged, and the next update is right.
#[test]
fn any_call_may_fail() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let before = mock.allocations();
    let tensors = Tensors::new(&mock, Dtype::F32, &[normal(9000, 1), normal(300, 2), normal(2000, 3)], 0);
    let codecs: Vec<Codec> = ["natural", "sign", "topk:k=5"].iter().map(|s| s.parse().unwrap()).collect();
    let options = Options::default();
    let mut feedback = Feedback::new();
    compress(&tensors.on_host(), &codecs, &options, Some(&mut feedback)).unwrap();
    let mut after = feedback.clone();
    let expected = compress(&tensors.on_host(), &codecs, &options, Some(&mut after)).unwrap();
    for (call, least) in [
        ("cuMemAlloc", 5),
        ("cuMemHostAlloc", 4),
        ("cuLaunchKernel", 15),
        ("cuMemcpyHtoD", 3),
        ("cuMemcpyDtoH", 4),
        ("cuMemsetD8", 2),
        ("cuStreamSynchronize", 4),
    ] {
        let mut failures = 0;
        loop {
            let mut compressor = Compressor::new(&device).unwrap();
            compressor.set_residuals(&feedback).unwrap();
            mock.fail(call, Some(failures));
            let inputs = tensors.on_device(&device);
            let result = compressor.compress_with_feedback(&inputs, &codecs, &options, mock.stream());
            mock.fail(call, None);
            match result {
                Err(Error::OutOfMemory { .. }) => assert!(call.starts_with("cuMem")),
                Err(Error::Call { call: said, .. }) => assert!(said.starts_with(call), "{said}"),
                Err(other) => panic!("{call}: {other}"),
                Ok(blocks) => {
                    assert_eq!(blocks, expected);
                    break;
                }
            }
            same(&compressor.residuals().unwrap(), &feedback, call);
            let blocks = compressor.compress_with_feedback(&inputs, &codecs, &options, mock.stream());
            assert_eq!(blocks.unwrap(), expected, "{call} {failures}");
            same(&compressor.residuals().unwrap(), &after, call);
            failures += 1;
        }
        assert!(failures >= least, "{call}: {failures}");
    }
    drop(tensors);
    assert_eq!(mock.allocations(), before, "memory leaks");
    mock.assert_sound();
}

/// Every branch of every kernel, with small tensors.
#[test]
fn small_updates() {
    let Some(mock) = mock_driver() else { return };
    let mut odd = normal(8300, 1);
    (odd[5], odd[7], odd[8250]) = (1e-45, -f32::MAX, 3e-39);
    // First whole tiles, then parts of runs.
    for (dtype, skip, n, part) in
        [(Dtype::F32, 4, 8300, 1), (Dtype::F16, 2, 1500, 2), (Dtype::Bf16, 0, 1500, 2)]
    {
        let most = gcodec::internal::element::max_finite(dtype);
        let odd: Vec<f32> = odd[..n].iter().map(|x| x.clamp(-most, most)).collect();
        let tensors = Tensors::new(&mock, dtype, &[odd.clone(), vec![], odd[..301].to_vec()], skip);
        for spec in SPECS.into_iter().step_by(part).chain(["qsgd:bits=4,bucket=8193"]) {
            tensors.agree(&mock, &[spec; 3], &Options::default(), 1).unwrap();
        }
        let mixed = ["natural", "int8:group=7", "topk:k=3"];
        tensors.agree(&mock, &mixed, &Options::default().with_block_len(4099), 1).unwrap();
    }
    let tensors = Tensors::new(&mock, Dtype::F32, &[vec![f32::NAN; 1100]], 0);
    for spec in SPECS {
        tensors.agree(&mock, &[spec], &Options::default(), 1).unwrap_err();
    }
}

/// Runs [`small_updates`] in a separate process, under AddressSanitizer and UndefinedBehaviorSanitizer.
#[test]
fn kernels_are_clean_under_sanitizers() {
    common::under_sanitizers("small_updates");
}
