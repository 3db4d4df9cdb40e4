//! A device finds the changes of a base like the host, byte for byte. The emulator runs the kernels, behind
//! the mock driver.

mod common;

use std::sync::Arc;

use common::{Memory, MockDriver, encode, mock_driver, normal};
use gcodec::block::{CodedBlock, Scope, Support, Values};
use gcodec::compress::random::word;
use gcodec::compress::{Digests, Input as HostInput, Options, compress};
use gcodec::frame::{DeltaRuns, Manifest, TensorInfo, UpdateHeader, tensor_digest};
use gcodec::stream::{EncodeOptions, Encoder};
use gcodec::{Codec, Dtype, TensorView};
use gcodec_cuda::{DeltaCompressor, DeltaInput, Device, Error, Stream};

/// Tensors and their bases, on device and host.
struct Pairs {
    dtype: Dtype,
    skip: usize,
    shapes: Vec<Vec<u64>>,
    /// Base and new tensor.
    bytes: Vec<[Vec<u8>; 2]>,
    memories: Vec<[Memory; 2]>,
    first: u64,
}

impl Pairs {
    fn new(mock: &MockDriver, dtype: Dtype, bytes: Vec<[Vec<u8>; 2]>, skip: usize) -> Self {
        let width = u64::from(dtype.bits() / 8);
        let shapes = bytes.iter().map(|[base, _]| vec![base.len() as u64 / width]).collect();
        let memories =
            bytes.iter().map(|pair| pair.each_ref().map(|bytes| mock.upload(bytes, skip))).collect();
        Self { dtype, skip, shapes, bytes, memories, first: 0 }
    }

    fn on_device(&self, device: &Device) -> Vec<DeltaInput<'_>> {
        let tensors = self.memories.iter().zip(&self.shapes).zip(self.first..);
        tensors
            .map(|((pair, shape), tensor)| {
                let [base, new] = pair.each_ref().map(|m| m.tensor(device, self.skip, self.dtype, shape));
                DeltaInput { tensor, new, base }
            })
            .collect()
    }

    fn on_host(&self) -> Vec<HostInput<'_>> {
        let tensors = self.bytes.iter().zip(&self.shapes).zip(self.first..);
        tensors
            .map(|((pair, shape), tensor)| {
                let [base, view] =
                    pair.each_ref().map(|bytes| TensorView::new(self.dtype, shape, bytes).unwrap());
                HostInput { tensor, name: "", view, base: Some(base) }
            })
            .collect()
    }

    fn manifest(&self) -> Manifest {
        let name = |t: usize| format!("t{t}");
        let before = (0..self.first as usize).map(|t| TensorInfo::new(name(t), self.dtype, [0]));
        let own = self.shapes.iter().enumerate();
        let own = own
            .map(|(i, shape)| TensorInfo::new(name(self.first as usize + i), self.dtype, shape.as_slice()));
        Manifest::new(before.chain(own).collect()).unwrap()
    }

    /// The update as a stream.
    fn frame(&self, blocks: &[CodedBlock], runs: DeltaRuns) -> Vec<u8> {
        let header = UpdateHeader::default().with_runs(runs);
        let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
        encoder.update(&mut out, &header, &Arc::new(self.manifest()), blocks).unwrap();
        encoder.finish(&mut out);
        out
    }

    /// The runs that the host computes.
    fn runs(&self, kept: &mut Digests, codecs: &[Codec], blocks: &[CodedBlock]) -> DeltaRuns {
        kept.deltas(&self.manifest(), &self.on_host(), codecs, blocks).unwrap()
    }

    /// Checks that blocks, digests and frames of device and host are equal, and returns the blocks.
    fn agree(&self, mock: &MockDriver, specs: &[&str]) -> Vec<CodedBlock> {
        let codecs: Vec<Codec> = specs.iter().map(|spec| with_digest(spec, "both")).collect();
        let device = mock.device();
        let mut compressor = DeltaCompressor::new(&device).unwrap();
        let expected = compress(&self.on_host(), &codecs, &Options::default(), None).unwrap();
        let runs = self.runs(&mut Digests::default(), &codecs, &expected);
        let (inputs, manifest) = (self.on_device(&device), self.manifest());
        let what = format!("{} {} {}", specs[0], self.dtype, self.skip);
        let mut kept = Digests::default();
        let (got, found) =
            compressor.compress_with_digests(&manifest, &inputs, &codecs, &mut kept, mock.stream()).unwrap();
        assert!(got == expected && found == runs, "{what}");
        assert!(self.frame(&got, found) == self.frame(&expected, runs), "{what}");
        mock.assert_sound();
        expected
    }
}

/// The codec with another kind of digest.
fn with_digest(spec: &str, kind: &str) -> Codec {
    let separator = if spec.contains(':') { ',' } else { ':' };
    format!("{spec}{separator}digest={kind}").parse().unwrap()
}

/// Bit patterns of which about one in `every` changes, small ones more often: mostly by little, some by much,
/// and some to NaN, infinity, zero or the other sign.
fn pair(dtype: Dtype, n: usize, every: u64, seed: u64) -> [Vec<u8>; 2] {
    let values: Vec<f32> = normal(n, seed).iter().map(|x| x * x * x).collect();
    let base = encode(dtype, &values);
    let mut new = base.clone();
    let width = dtype.bits() as usize / 8;
    for ((element, value), i) in new.chunks_exact_mut(width).zip(&values).zip(0..) {
        let random = |what| word(seed, what, i);
        let every = if value.abs() < 0.1 { every.div_ceil(3) } else { 2 * every };
        if !u64::from(random(1)).is_multiple_of(every) {
            continue;
        }
        let mut bits = [0; 4];
        bits[..width].copy_from_slice(element);
        let bits = u32::from_le_bytes(bits);
        let sign = 1u32 << (dtype.bits() - 1);
        let changed = match random(2) % 100 {
            0 => random(3),
            1 => bits ^ sign,
            2 => 0,
            3 => sign,
            4 => sign - 1,
            5 => u32::MAX,
            x if x % 2 == 0 => bits.wrapping_add(random(3) % 3),
            _ => bits.wrapping_sub(random(3) % 5),
        };
        element.copy_from_slice(&changed.to_le_bytes()[..width]);
    }
    [base, new]
}

/// Every combination of values and positions that is coded differently.
const SPECS: [&str; 7] = [
    "delta",
    "delta:positions=classed",
    "delta:positions=rice",
    "delta:positions=tokens",
    "delta:values=overwrite",
    "delta:values=overwrite,positions=rice",
    "delta:values=overwrite,positions=bitmap",
];

/// Lengths around the ends of rows, runs, steps and tiles, also empty.
const LENS: [usize; 12] = [9001, 0, 1, 31, 33, 1023, 1025, 4095, 4097, 8191, 8192, 8193];

#[test]
fn blocks_digests_and_frames_are_those_of_the_host() {
    let Some(mock) = mock_driver() else { return };
    let mut classed = 0;
    for (dtype, skip) in [(Dtype::F32, 0), (Dtype::F16, 2), (Dtype::Bf16, 0), (Dtype::Bf16, 6)] {
        for every in [1500, 20, 1] {
            let bytes = LENS.iter().zip(1..).map(|(&n, seed)| pair(dtype, n, every, seed)).collect();
            let mut pairs = Pairs::new(&mock, dtype, bytes, skip);
            pairs.first = every % 7;
            for spec in SPECS {
                let blocks = pairs.agree(&mock, &[spec; LENS.len()]);
                classed += blocks.iter().filter(|b| matches!(b.block.support, Support::Based(_))).count();
                let all = blocks.iter().any(|b| matches!(b.block.support, Support::All));
                assert_eq!(all, spec.contains("overwrite") && every == 1, "{spec} {every}");
            }
        }
    }
    // Those that are forced, and some that are chosen.
    assert!(classed > 12, "{classed}");
}

/// Tensors of several codecs, and numbers that are not consecutive: blocks of their own.
#[test]
fn codecs_differ_from_tensor_to_tensor() {
    let Some(mock) = mock_driver() else { return };
    let bytes: Vec<_> = (0..14).map(|t| pair(Dtype::Bf16, 3000 + 37 * t, 9, t as u64)).collect();
    let pairs = Pairs::new(&mock, Dtype::Bf16, bytes, 0);
    let specs: Vec<&str> = (0..14).map(|t| SPECS[t / 2]).collect();
    assert_eq!(pairs.agree(&mock, &specs).len(), 7);
}

/// Nothing changes: one block for each run of tensors, and digests.
#[test]
fn unchanged_tensors_send_digests_only() {
    let Some(mock) = mock_driver() else { return };
    let same = |n, seed| {
        let base = encode(Dtype::F32, &normal(n, seed));
        [base.clone(), base]
    };
    let pairs = Pairs::new(&mock, Dtype::F32, vec![same(9000, 1), same(1, 2), same(0, 3)], 0);
    for spec in SPECS {
        assert_eq!(pairs.agree(&mock, &[spec; 3]).len(), 1);
    }
    let empty = Pairs::new(&mock, Dtype::F16, vec![same(0, 1), same(0, 2)], 0);
    SPECS.iter().for_each(|&spec| assert_eq!(empty.agree(&mock, &[spec; 2]).len(), 1));
    let mut compressor = DeltaCompressor::new(&mock.device()).unwrap();
    assert!(compressor.compress(&[], &[], Stream::DEFAULT).unwrap().is_empty());
}

/// A tensor of several parts, which has a block for each part with changes.
#[test]
fn large_tensors_have_several_blocks() {
    let Some(mock) = mock_driver() else { return };
    let n = (16 << 20) + 10_000;
    let base = vec![0x3f; 2 * n];
    for (at, last) in [(vec![5, 16 << 20, n - 1], true), (vec![(16 << 20) - 1], false)] {
        let mut new = base.clone();
        at.iter().for_each(|i| new[2 * i] += 1);
        let pairs = Pairs::new(&mock, Dtype::Bf16, vec![[base.clone(), new]], 0);
        let blocks = pairs.agree(&mock, &["delta:positions=rice"]);
        let scopes: Vec<Scope> = blocks.iter().map(|b| b.block.scope).collect();
        let part = |start, len| Scope::Range { tensor: 0, start, len };
        let parts = [part(0, 16 << 20), part(16 << 20, 10_000)];
        assert_eq!(scopes, parts[..1 + usize::from(last)]);
    }
}

/// Classes are chosen by a sample of the steps.
#[test]
fn samples_are_those_of_the_host() {
    let Some(mock) = mock_driver() else { return };
    let n = (2 << 20) + 5000;
    let bytes = vec![pair(Dtype::Bf16, n, 40, 1), pair(Dtype::Bf16, 70_000, 40, 2)];
    let pairs = Pairs::new(&mock, Dtype::Bf16, bytes, 0);
    let blocks = pairs.agree(&mock, &["delta"; 2]);
    assert!(matches!(&blocks[0].block.support, Support::Based(based) if !based.bounds.is_empty()));
    // Only the steps of the sample change, by a little more than is sent apart; or only the others.
    for inside in [true, false] {
        let mut skewed = pair(Dtype::Bf16, n, 1 << 31, 3);
        for step in 0..n as u64 / 4096 {
            let sampled = (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).is_multiple_of(16);
            let first = 2 * 4096 * step as usize;
            if sampled == inside {
                skewed[1][first..first + 2 * 1300].fill(0x41);
            }
        }
        let pairs = Pairs::new(&mock, Dtype::Bf16, vec![skewed], 0);
        let blocks = pairs.agree(&mock, &["delta:values=overwrite"]);
        assert_eq!(matches!(blocks[0].block.support, Support::All), inside);
    }
}

/// Elements of two sizes change as often, but by differences whose codes are neighbours: classes are chosen
/// by these codes alone, the last two included.
#[test]
fn classes_are_chosen_by_the_codes_of_differences() {
    let Some(mock) = mock_driver() else { return };
    for (up, other) in [(1i16, -1i16), (3, 50), (-2, 2), (-3, 3)] {
        let base: Vec<u16> =
            (0..9000).map(|i| if word(1, 1, i).is_multiple_of(2) { 0x3f40 } else { 0x4140 }).collect();
        let new: Vec<u16> = base
            .iter()
            .zip(0..)
            .map(|(&bits, i)| match word(1, 2, i).is_multiple_of(4) {
                true => bits.wrapping_add_signed(if bits == 0x3f40 { up } else { other }),
                false => bits,
            })
            .collect();
        let bytes =
            |elements: &[u16]| elements.iter().flat_map(|bits| bits.to_le_bytes()).collect::<Vec<u8>>();
        let pairs = Pairs::new(&mock, Dtype::Bf16, vec![[bytes(&base), bytes(&new)]], 0);
        let blocks = pairs.agree(&mock, &["delta"]);
        assert!(matches!(&blocks[0].block.support, Support::Based(based) if based.bounds.len() == 1));
    }
}

/// Half of the elements change, whatever their size: positions cost as much as differences of all elements.
#[test]
fn all_elements_may_have_differences() {
    let Some(mock) = mock_driver() else { return };
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let base = encode(dtype, &normal(9001, 4));
        let mut new = base.clone();
        let elements = new.chunks_exact_mut(dtype.bits() as usize / 8).zip(0..);
        elements.filter(|(_, i)| word(4, 1, *i).is_multiple_of(2)).for_each(|(element, _)| element[0] ^= 1);
        let pairs = Pairs::new(&mock, dtype, vec![[base, new]], 0);
        let blocks = pairs.agree(&mock, &["delta"]);
        assert!(matches!(blocks[0].block.support, Support::All), "{dtype}");
        assert!(matches!(blocks[0].block.values, Values::Ulp(_)), "{dtype}");
    }
}

/// Digests of all lengths around the ends of blocks, chunks and groups of BLAKE3, at all alignments.
#[test]
fn digests_are_those_of_the_host() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let mut compressor = DeltaCompressor::new(&device).unwrap();
    let chunks = [1, 2, 3, 4, 5, 7, 8, 9, 255, 256, 257, 511, 512, 513, 769, 1030];
    let ends = chunks.iter().flat_map(|n| [1024 * n - 6, 1024 * n - 4, 1024 * n - 2, 1024 * n]);
    let small = (0..140).map(|n| 2 * n);
    let lens: Vec<usize> = small.chain(1000..1050).chain(ends).map(|bytes| bytes / 2 * 2).collect();
    for skip in [0, 2] {
        let bytes = |n: usize, seed| -> Vec<u8> { (0..n).map(|i| word(seed, 0, i as u64) as u8).collect() };
        let pairs = lens.iter().zip(0..).map(|(&n, seed)| [bytes(n, 2 * seed), bytes(n, 2 * seed + 1)]);
        let mut pairs = Pairs::new(&mock, Dtype::F16, pairs.collect(), skip);
        // Shapes whose dimensions take several bytes, and many of them.
        for (shape, i) in pairs.shapes.iter_mut().zip(0..) {
            shape.extend(vec![1; i % 5 * 40]);
        }
        let codecs = vec![with_digest("delta:values=overwrite", "blake3"); lens.len()];
        // No manifest has tensors of as many dimensions, and hashes need none.
        let (mut kept, manifest) = (Digests::default(), Manifest::new(Vec::new()).unwrap());
        let inputs = pairs.on_device(&device);
        let (blocks, runs) =
            compressor.compress_with_digests(&manifest, &inputs, &codecs, &mut kept, mock.stream()).unwrap();
        let mut anew = Digests::default();
        assert_eq!(runs, anew.deltas(&manifest, &pairs.on_host(), &codecs, &blocks).unwrap());
        // An entry covers a run of tensors; each by itself has its own.
        for (input, host) in inputs.iter().zip(pairs.on_host()).step_by(3) {
            let mut kept = Digests::default();
            let (_, runs) = compressor
                .compress_with_digests(&manifest, &[*input], &codecs[..1], &mut kept, mock.stream())
                .unwrap();
            let entries = runs.hashed.unwrap();
            let expected = (tensor_digest(host.base.unwrap()), tensor_digest(host.view));
            assert_eq!((entries[0].base, entries[0].result), expected, "{:?} {skip}", host.view.shape());
        }
    }
    mock.assert_sound();
}

/// More groups than one block of threads joins: 256 groups of 256 KiB are 64 MiB.
#[test]
fn digests_of_large_tensors() {
    let Some(mock) = mock_driver() else { return };
    let n = (64 << 20) + 300_001;
    let base: Vec<u8> = (0..n / 2 * 2).map(|i| (i / 7 + i / 65_536) as u8).collect();
    let pairs = Pairs::new(&mock, Dtype::Bf16, vec![[base.clone(), base]], 0);
    let device = mock.device();
    let mut compressor = DeltaCompressor::new(&device).unwrap();
    let mut kept = Digests::default();
    kept.keep_base(0, [7; 16]);
    let codecs = [with_digest("delta:positions=rice", "blake3")];
    let (blocks, runs) = compressor
        .compress_with_digests(
            &pairs.manifest(),
            &pairs.on_device(&device),
            &codecs,
            &mut kept,
            mock.stream(),
        )
        .unwrap();
    let entries = runs.hashed.unwrap();
    assert_eq!((blocks.len(), runs.summed), (1, None));
    assert_eq!((entries[0].base, entries[0].result), ([7; 16], tensor_digest(pairs.on_host()[0].view)));
    mock.assert_sound();
}

/// Copies, launches and waits do not depend on the number of tensors; only changes and digests cross the bus.
#[test]
fn calls_do_not_depend_on_the_number_of_tensors() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    for n in [1, 161] {
        let bytes: Vec<_> = (0..n).map(|t| pair(Dtype::Bf16, 900 + 17 * t, 50, t as u64)).collect();
        let pairs = Pairs::new(&mock, Dtype::Bf16, bytes, 0);
        let mut compressor = DeltaCompressor::new(&device).unwrap();
        // Uploads; copies to the host, which are the waits too; fills; launches without digests.
        for (spec, [up, down, fills, launches]) in [
            ("delta", [3, 3, 1, 4]),
            ("delta:positions=rice", [2, 2, 0, 3]),
            ("delta:values=overwrite", [3, 3, 1, 4]),
        ] {
            let codecs = vec![with_digest(spec, "blake3"); n];
            let expected = compress(&pairs.on_host(), &codecs, &Options::default(), None).unwrap();
            let runs = pairs.runs(&mut Digests::default(), &codecs, &expected);
            let (inputs, manifest) = (pairs.on_device(&device), pairs.manifest());
            let stream = mock.stream();
            // Both digests of each tensor, those of the results, none.
            for digests in [2, 2, 1, 0] {
                let mut kept = Digests::default();
                for input in pairs.on_host().iter().filter(|_| digests == 1) {
                    kept.keep_base(input.tensor, tensor_digest(input.base.unwrap()));
                }
                mock.reset_counts();
                let blocks = match digests {
                    0 => compressor.compress(&inputs, &codecs, stream).unwrap(),
                    _ => {
                        let (blocks, found) = compressor
                            .compress_with_digests(&manifest, &inputs, &codecs, &mut kept, stream)
                            .unwrap();
                        assert!(found == runs);
                        blocks
                    }
                };
                assert!(blocks == expected);
                let changed: u64 = blocks
                    .iter()
                    .map(|b| match &b.block.values {
                        Values::Ulp(ulp) => ulp.diffs.len() as u64,
                        Values::Planes(planes) => planes.bytes.len() as u64 / 2,
                        _ => 0,
                    })
                    .sum();
                let tasks = blocks.len() as u64;
                let counts = if spec.contains("rice") { 0 } else { tasks * 9 * 4 * 256 };
                let most = 6 * changed + counts + tasks * (4 * 48 + 2) + 16 * digests * n as u64;
                let crossed = mock.count("bytes to the host");
                assert!(crossed <= most && crossed > 6 * changed, "{crossed} {most} {changed}");
                let hashing = if digests > 0 { 2 } else { 0 };
                for (call, expected) in [
                    ("cuMemcpyHtoD", up),
                    ("cuMemcpyDtoH", down),
                    ("cuMemsetD8", fills),
                    ("cuLaunchKernel", launches + hashing),
                    ("cuStreamSynchronize", down),
                    ("cuEventSynchronize", 0),
                ] {
                    assert_eq!(mock.count(call), expected, "{call}, {spec}, {n} tensors, {digests} digests");
                }
            }
            // Sums take one launch more, and 32 bytes of each tensor.
            let summed = vec![with_digest(spec, "sum"); n];
            let mut counted = |blocks: &dyn Fn(&mut DeltaCompressor) -> Vec<CodedBlock>| {
                mock.reset_counts();
                assert!(blocks(&mut compressor) == expected);
                ["cuMemcpyHtoD", "cuMemcpyDtoH", "cuLaunchKernel", "cuStreamSynchronize", "bytes to the host"]
                    .map(|call| mock.count(call))
            };
            let without = counted(&|c| c.compress(&inputs, &codecs, stream).unwrap());
            let with = counted(&|c| {
                let kept = &mut Digests::default();
                c.compress_with_digests(&manifest, &inputs, &summed, kept, stream).unwrap().0
            });
            let more: Vec<u64> = with.iter().zip(without).map(|(with, without)| with - without).collect();
            assert_eq!(more, [1, 1, 1, 1, 64 * n as u64], "{spec}");
            // Memory is kept.
            mock.reset_counts();
            compressor.compress(&inputs, &codecs, stream).unwrap();
            assert_eq!(mock.count("cuMemAlloc") + mock.count("cuMemHostAlloc"), 0, "{spec}");
        }
    }
    mock.assert_sound();
}

/// The results of one update are the bases of the next, whose digests are not computed again.
#[test]
fn digests_are_kept_from_version_to_version() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let codecs = [with_digest("delta", "both")];
    let mut compressor = DeltaCompressor::new(&device).unwrap();
    let (mut on_device, mut on_host) = (Digests::default(), Digests::default());
    let [mut base, _] = pair(Dtype::Bf16, 9000, 5, 0);
    for version in 1..5 {
        let [_, new] = pair(Dtype::Bf16, 9000, 5, version);
        let pairs = Pairs::new(&mock, Dtype::Bf16, vec![[base, new.clone()]], 0);
        mock.reset_counts();
        let (inputs, manifest) = (pairs.on_device(&device), pairs.manifest());
        let (blocks, runs) = compressor
            .compress_with_digests(&manifest, &inputs, &codecs, &mut on_device, Stream::DEFAULT)
            .unwrap();
        assert_eq!(runs, pairs.runs(&mut on_host, &codecs, &blocks), "{version}");
        assert_eq!(runs, pairs.runs(&mut Digests::default(), &codecs, &blocks), "{version}");
        base = new;
    }
    mock.assert_sound();
}

#[test]
fn what_does_not_fit_is_an_error() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let pairs =
        Pairs::new(&mock, Dtype::F32, vec![pair(Dtype::F32, 60, 2, 1), pair(Dtype::F32, 60, 2, 2)], 0);
    let good = pairs.on_device(&device);
    let mut compressor = DeltaCompressor::new(&device).unwrap();
    let delta: Codec = "delta".parse().unwrap();
    let mut fails = |inputs: &[DeltaInput<'_>], codecs: &[Codec]| {
        compressor.compress(inputs, codecs, Stream::DEFAULT).unwrap_err().to_string()
    };
    let (shape, twice) = ([6, 10], [120]);
    let other = DeltaInput { base: pairs.memories[0][0].tensor(&device, 0, Dtype::F32, &shape), ..good[0] };
    let wide = DeltaInput { base: pairs.memories[0][0].tensor(&device, 0, Dtype::Bf16, &twice), ..good[0] };
    for wrong in [other, wide] {
        let text = fails(&[wrong], &[delta]);
        let host_view = pairs.on_host()[0].view;
        let shape = [6, 10];
        let base = TensorView::new(Dtype::F32, &shape, host_view.data()).unwrap();
        let host = HostInput { tensor: 0, name: "", view: host_view, base: Some(base) };
        let expected = compress(&[host], &[delta], &Options::default(), None).unwrap_err().to_string();
        assert_eq!(text, expected);
    }
    assert!(fails(&good, &[delta]).contains("numbers of inputs and codecs"));
    assert!(fails(&[good[1], good[0]], &[delta; 2]).contains("ascending"));
    assert!(fails(&good, &[delta, "topk:k=1".parse().unwrap()]).contains("not `delta`"));
    let another = Manifest::new(vec![TensorInfo::new("w", Dtype::F32, [9])]).unwrap();
    let kept = &mut Digests::default();
    let sums = compressor.compress_with_digests(&another, &good[..1], &[delta], kept, Stream::DEFAULT);
    assert!(sums.unwrap_err().to_string().contains("input and manifest"));
    let second = Device::of(&mock.driver, 1).unwrap();
    let mut elsewhere = DeltaCompressor::new(&second).unwrap();
    let error = elsewhere.compress(&good, &[delta; 2], Stream::DEFAULT).unwrap_err();
    assert_eq!(error.to_string(), "the tensor is on device 0, not 1");
}

/// Each driver call of an update fails once. Digests are then unchanged, and the next update is right.
#[test]
fn any_call_may_fail() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let before = mock.allocations();
    let pairs = Pairs::new(
        &mock,
        Dtype::Bf16,
        vec![pair(Dtype::Bf16, 2000, 20, 1), pair(Dtype::Bf16, 10, 2, 2), pair(Dtype::Bf16, 300, 3, 3)],
        0,
    );
    let specs = ["delta:positions=classed", "delta", "delta:values=overwrite"];
    let codecs = specs.map(|spec| with_digest(spec, "both"));
    let expected = compress(&pairs.on_host(), &codecs, &Options::default(), None).unwrap();
    let runs = pairs.runs(&mut Digests::default(), &codecs, &expected);
    let manifest = pairs.manifest();
    for (call, least) in [
        ("cuMemAlloc", 4),
        ("cuMemHostAlloc", 2),
        ("cuLaunchKernel", 6),
        ("cuMemcpyHtoD", 3),
        ("cuMemcpyDtoH", 3),
        ("cuMemsetD8", 1),
        ("cuStreamSynchronize", 3),
        ("cuCtxPushCurrent", 1),
    ] {
        let mut failures = 0;
        loop {
            let mut compressor = DeltaCompressor::new(&device).unwrap();
            let (inputs, mut kept) = (pairs.on_device(&device), Digests::default());
            let mut update = |mock: &MockDriver, kept: &mut Digests| {
                compressor.compress_with_digests(&manifest, &inputs, &codecs, kept, mock.stream())
            };
            mock.fail(call, Some(failures));
            let result = update(&mock, &mut kept);
            mock.fail(call, None);
            match result {
                Err(Error::OutOfMemory { pinned, bytes }) => {
                    assert_eq!(pinned, call == "cuMemHostAlloc");
                    assert!(call.starts_with("cuMem") && bytes > 0);
                }
                Err(Error::Call { call: said, .. }) => assert!(said.starts_with(call), "{said}"),
                Err(other) => panic!("{call}: {other}"),
                Ok((blocks, found)) => {
                    assert!(blocks == expected && found == runs);
                    break;
                }
            }
            // A kept digest would be taken for that of the base.
            let (blocks, found) = update(&mock, &mut kept).unwrap();
            assert!(blocks == expected && found == runs, "{call} {failures}");
            failures += 1;
        }
        assert!(failures >= least, "{call}: {failures}");
    }
    drop(pairs);
    assert_eq!(mock.allocations(), before, "memory leaks");
    mock.assert_sound();
}

#[test]
fn under_sanitizers_blocks_and_digests_agree() {
    common::under_sanitizers("codecs_differ_from_tensor_to_tensor");
    common::under_sanitizers("digests_are_those_of_the_host");
}
