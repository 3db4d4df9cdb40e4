//! Positions in wire form from the device are bit for bit those of the encoder. The emulator runs the
//! kernels, behind the mock driver.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::{Memory, MockDriver, encode, mock_driver, normal};
use gcodec::block::{
    Block, BlockOptions, Constant, Part, PendingBlock, Scope, Sparse, Support, SupportId, Values,
};
use gcodec::compress::{Feedback, Input as HostInput, NonFinite, Options, compress};
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
use gcodec::stream::{EncodeOptions, Encoder};
use gcodec::{Codec, Dtype, TensorView};
use gcodec_cuda::{Compressor, Device, Input, Stream};

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// The same tensors on device and host.
struct Tensors {
    dtype: Dtype,
    bytes: Vec<Vec<u8>>,
    shapes: Vec<[u64; 1]>,
    memories: Vec<Memory>,
    manifest: Arc<Manifest>,
}

impl Tensors {
    fn new(mock: &MockDriver, dtype: Dtype, values: &[Vec<f32>]) -> Self {
        let bytes: Vec<Vec<u8>> = values.iter().map(|v| encode(dtype, v)).collect();
        let shapes: Vec<[u64; 1]> = values.iter().map(|v| [v.len() as u64]).collect();
        let infos = shapes.iter().zip(NAMES).map(|(shape, name)| TensorInfo::new(name, dtype, shape));
        let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
        let memories = bytes.iter().map(|b| mock.upload(b, 0)).collect();
        Self { dtype, bytes, shapes, memories, manifest }
    }

    fn on_device(&self, device: &Device) -> Vec<Input<'_>> {
        let tensors = self.memories.iter().zip(&self.shapes).zip(NAMES).zip(0..);
        tensors
            .map(|(((memory, shape), name), tensor)| Input {
                tensor,
                name,
                data: memory.tensor(device, 0, self.dtype, shape),
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

    /// Encodes one update.
    fn stream<'a, B: Into<PendingBlock<'a>>>(&self, blocks: impl IntoIterator<Item = B>) -> Vec<u8> {
        let blocks = blocks.into_iter().map(Into::into);
        let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
        encoder.update(&mut out, &UpdateHeader::default(), &self.manifest, blocks).unwrap();
        encoder.finish(&mut out);
        out
    }

    /// Checks that the frames of device and host are equal, with and without error feedback; returns the
    /// supports of all blocks, as [`written`].
    fn agree(&self, mock: &MockDriver, specs: &[&str], options: &Options) -> Vec<Option<Vec<u8>>> {
        let codecs: Vec<Codec> = specs.iter().map(|s| s.parse().unwrap()).collect();
        let device = mock.device();
        let mut compressor = Compressor::new(&device).unwrap();
        let expected = compress(&self.on_host(), &codecs, options, None).unwrap();
        let stream = self.stream(&expected);
        let mut found = Vec::new();
        for piece_len in [u64::MAX, 8192] {
            compressor = compressor.with_piece_len(piece_len);
            let blocks =
                compressor.compress_wire(&self.on_device(&device), &codecs, options, mock.stream()).unwrap();
            found = blocks.iter().map(|block| written(block).map(<[u8]>::to_vec)).collect();
            assert!(self.stream(blocks) == stream, "{specs:?} {piece_len} {}", self.dtype);
        }
        let mut feedback = Feedback::new();
        for step in 0..2 {
            let inputs = self.on_device(&device);
            let got =
                compressor.compress_wire_with_feedback(&inputs, &codecs, options, mock.stream()).unwrap();
            let host = compress(&self.on_host(), &codecs, options, Some(&mut feedback)).unwrap();
            assert!(self.stream(got) == self.stream(&host), "{specs:?} {step}");
            let words = |f: &Feedback| {
                f.save().into_iter().map(|(n, t)| (n, t.view().data().to_vec())).collect::<Vec<_>>()
            };
            assert!(words(&compressor.residuals().unwrap()) == words(&feedback), "{specs:?} {step}");
        }
        mock.assert_sound();
        found
    }
}

/// The bytes of a support that the device wrote, if it did.
fn written<'a>(block: &'a PendingBlock<'_>) -> Option<&'a [u8]> {
    match &block.block()?.support {
        Part::Written { id: SupportId::GAPS_RICE, bytes } => Some(bytes),
        Part::Written { id, .. } => panic!("{id}"),
        Part::Decoded(_) => None,
    }
}

/// The binary logarithm of the chunk length of a support.
fn chunk_log(support: &[u8]) -> u8 {
    support[support.iter().position(|b| b & 0x80 == 0).unwrap() + 1]
}

const SPECS: [[&str; 4]; 6] = [
    ["topk:density=0.2,positions=rice"; 4],
    ["topk:density=0.3,scope=global,values=sign,positions=rice"; 4],
    ["sbc:density=0.1,positions=rice"; 4],
    ["stc:density=0.02,positions=rice-one"; 4],
    ["threshold:at=0.5,values=q4,positions=rice"; 4],
    [
        "topk:k=90,scope=global,positions=rice",
        "sbc:k=3,positions=rice-one",
        "topk:k=90,scope=global,positions=rice",
        "threshold:at=100,positions=rice",
    ],
];

#[test]
fn frames_are_those_of_the_host_for_every_codec_and_type() {
    let Some(mock) = mock_driver() else { return };
    let values = [normal(3000, 1), vec![], vec![-1.0; 300], normal(700, 2)];
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let tensors = Tensors::new(&mock, dtype, &values);
        for specs in SPECS {
            let supports = tensors.agree(&mock, &specs, &Options::default());
            assert!(supports.iter().all(Option::is_some), "{specs:?}");
        }
    }
}

/// Every branch of every kernel, with small tensors.
#[test]
fn small_updates() {
    let Some(mock) = mock_driver() else { return };
    let values = [normal(8500, 1), vec![], vec![-1.0; 300], normal(700, 2)];
    for (specs, dtype) in [(SPECS[0], Dtype::F16), (SPECS[2], Dtype::F32), (SPECS[5], Dtype::Bf16)] {
        Tensors::new(&mock, dtype, &values).agree(&mock, &specs, &Options::default());
    }
    let tensors = Tensors::new(&mock, Dtype::F32, &values);
    // Supports that the device writes beside supports that it does not.
    let specs = [
        "topk:k=90,positions=rice",
        "topk:k=50",
        "topk:k=7,values=pow2,positions=rice",
        "sbc:k=40,positions=tokens",
    ];
    let supports = tensors.agree(&mock, &specs, &Options::default());
    let on_device: Vec<bool> = supports.iter().map(Option::is_some).collect();
    assert_eq!(on_device, [true, false, false, false]);
    let zeros = Tensors::new(&mock, Dtype::F32, &[vec![0.0; 500], vec![-0.0; 20], vec![]]);
    for spec in ["topk:k=5,positions=rice", "sbc:k=5,positions=rice", "threshold:at=1,positions=rice-one"] {
        let supports = zeros.agree(&mock, &[spec; 3], &Options::default());
        assert_eq!(supports[0], Some(vec![0]));
    }
    let none = Tensors::new(&mock, Dtype::F32, &[vec![]]);
    let supports = none.agree(&mock, &["topk:k=5,positions=rice"], &Options::default());
    assert_eq!(supports, [Some(vec![0])]);
}

#[test]
fn kernels_are_clean_under_sanitizers() {
    common::under_sanitizers("small_updates");
}

/// Gaps whose scale changes after every `every` elements, so that each chunk length is the best one for some
/// `every`.
fn clustered(n: usize, every: usize, seed: u64) -> Vec<f32> {
    let mut words = vec![0; n];
    gcodec::compress::random::words(seed, 0, 0, &mut words);
    let keep = |(i, w): (usize, &u32)| {
        let odds = [1, 40, 3, 300][i / every % 4];
        if w % odds == 0 { 1.0 + (w % 251) as f32 } else { 0.0 }
    };
    words.iter().enumerate().map(keep).collect()
}

#[test]
fn chunks_of_every_length_are_chosen_where_the_encoder_chooses_them() {
    let Some(mock) = mock_driver() else { return };
    if std::env::var_os(common::CHOSEN).is_some() {
        return; // takes minutes under a sanitizer
    }
    let mut logs = BTreeSet::new();
    for (n, every) in [(20_000, 100), (20_000, 700), (20_000, 12_000), (60_000, 25_000), (60_000, 50_000)] {
        let values = [clustered(n, every, 1), clustered(300, every, 2)];
        let tensors = Tensors::new(&mock, Dtype::F16, &values);
        for spec in ["topk:density=1,positions=rice", "topk:density=1,positions=rice-one"] {
            let supports = tensors.agree(&mock, &[spec; 2], &Options::default());
            let log = chunk_log(supports[0].as_ref().unwrap());
            assert!(spec.ends_with("rice") || log == 0);
            logs.insert(log);
        }
    }
    assert_eq!(logs.into_iter().collect::<Vec<_>>(), [0, 7, 8, 10, 13]);
}

/// A gap whose run of zeros is longer than the window in which a block composes words.
#[test]
fn a_gap_of_many_zeros() {
    let Some(mock) = mock_driver() else { return };
    if std::env::var_os(common::CHOSEN).is_some() {
        return; // takes minutes under a sanitizer
    }
    let mut values = vec![0.0; 1_300_000];
    (0..60_000).for_each(|i| values[i] = 1.0);
    (1_240_001..1_300_000).for_each(|i| values[i] = 1.0);
    let tensors = Tensors::new(&mock, Dtype::F16, &[values]);
    let device = mock.device();
    let codecs = ["threshold:at=1,positions=rice-one".parse::<Codec>().unwrap()];
    let mut compressor = Compressor::new(&device).unwrap();
    let options = Options::default();
    let got =
        compressor.compress_wire(&tensors.on_device(&device), &codecs, &options, mock.stream()).unwrap();
    let expected = compress(&tensors.on_host(), &codecs, &options, None).unwrap();
    let support = written(&got[0]).unwrap().to_vec();
    assert!(tensors.stream(got) == tensors.stream(&expected));
    // One of 119,999 gaps is 1,180,001. With k = 3 it takes 147,500 zeros.
    assert_eq!(support[4], 3);
    let zeros = support[5..].windows(10_000).any(|w| w.iter().all(|b| *b == 0));
    assert!(zeros);
    mock.assert_sound();
}

#[test]
fn elements_that_are_not_finite_give_the_error_of_the_host() {
    let Some(mock) = mock_driver() else { return };
    let mut values = normal(3000, 9);
    (values[2500], values[2600]) = (f32::NAN, f32::INFINITY);
    let tensors = Tensors::new(&mock, Dtype::F32, &[normal(100, 1), values]);
    let device = mock.device();
    let mut compressor = Compressor::new(&device).unwrap();
    for spec in ["topk:k=10,positions=rice", "sbc:k=4,positions=rice", "threshold:at=100,positions=rice-one"]
    {
        let codecs = [spec.parse::<Codec>().unwrap(); 2];
        let inputs = tensors.on_device(&device);
        let error =
            compressor.compress_wire(&inputs, &codecs, &Options::default(), mock.stream()).unwrap_err();
        assert_eq!(error.to_string(), "element 2500 is NaN or infinite (tensor 1)", "{spec}");
        tensors.agree(&mock, &[spec; 2], &Options::default().with_non_finite(NonFinite::Zero));
    }
    mock.assert_sound();
}

#[test]
fn an_update_is_three_copies_and_two_waits_for_any_number_of_tensors() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let values: Vec<Vec<f32>> = (0..161).map(|t| normal(64 + 7 * t as usize, t)).collect();
    let bytes: Vec<Vec<u8>> = values.iter().map(|v| encode(Dtype::F32, v)).collect();
    let memories: Vec<Memory> = bytes.iter().map(|b| mock.upload(b, 0)).collect();
    let shapes: Vec<[u64; 1]> = values.iter().map(|v| [v.len() as u64]).collect();
    let names: Vec<String> = (0..161).map(|t| format!("t{t}")).collect();
    let mut inputs = Vec::new();
    for (((m, shape), name), tensor) in memories.iter().zip(&shapes).zip(&names).zip(0..) {
        inputs.push(Input { tensor, name, data: m.tensor(&device, 0, Dtype::F32, shape) });
    }
    let mut compressor = Compressor::new(&device).unwrap();
    let (stream, options) = (mock.stream(), Options::default());
    for (spec, chosen) in [("topk:density=0.1,positions=rice", 0), ("sbc:density=0.1,positions=rice", 3)] {
        for tensors in [161, 161, 1] {
            let codecs: Vec<Codec> = vec![spec.parse().unwrap(); tensors];
            mock.reset_counts();
            let blocks = compressor.compress_wire(&inputs[..tensors], &codecs, &options, stream).unwrap();
            assert!(blocks.len() == 1 && written(&blocks[0]).is_some());
            for (call, expected) in [
                ("cuMemcpyHtoD", 1),
                ("cuMemcpyDtoH", 2),
                // The counters, and the payload.
                ("cuMemsetD8", 2),
                ("cuLaunchKernel", 8 + 4 + chosen),
                ("cuStreamSynchronize", 2),
            ] {
                assert_eq!(mock.count(call), expected, "{call}, {spec}, {tensors} tensors");
            }
        }
    }
    drop(compressor);
    mock.assert_sound();
}

/// A failed call leaves no memory behind, and residuals unchanged.
#[test]
fn failures_leave_residuals_as_they_were() {
    let Some(mock) = mock_driver() else { return };
    let tensors = Tensors::new(&mock, Dtype::F32, &[normal(3000, 1), normal(500, 2)]);
    let device = mock.device();
    let codecs = ["sbc:density=0.1,positions=rice".parse::<Codec>().unwrap(); 2];
    let mut compressor = Compressor::new(&device).unwrap();
    let (options, stream) = (Options::default(), mock.stream());
    let mut feedback = Feedback::new();
    let (mut failed, mut step) = (0, 0);
    for call in ["cuLaunchKernel", "cuMemsetD8", "cuMemcpyDtoH", "cuStreamSynchronize", "cuMemAlloc"] {
        for after in 0..20 {
            let inputs = tensors.on_device(&device);
            mock.fail(call, Some(after));
            let got = compressor.compress_wire_with_feedback(&inputs, &codecs, &options, stream);
            mock.fail(call, None);
            if got.is_ok() {
                compress(&tensors.on_host(), &codecs, &options, Some(&mut feedback)).unwrap();
                step += 1;
                break;
            }
            failed += 1;
        }
    }
    assert!(failed > 15 && step == 5, "{failed} {step}");
    let expected = compress(&tensors.on_host(), &codecs, &options, Some(&mut feedback)).unwrap();
    let got = compressor
        .compress_wire_with_feedback(&tensors.on_device(&device), &codecs, &options, stream)
        .unwrap();
    assert!(tensors.stream(got) == tensors.stream(&expected));
    assert!(compressor.residuals().unwrap().save() == feedback.save());
    mock.assert_sound();
}

// The kernels without the compressor, on index spaces larger than any memory.

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Rice {
    addresses: [u64; 16],
    n_rows: u32,
    n_searches: u32,
}

fn launch(mock: &MockDriver, kernel: &str, grid: u32, arguments: &Rice, stream: Stream) {
    type Get = extern "C" fn(*mut usize, usize, *const std::ffi::c_char) -> i32;
    type Launch = extern "C" fn(usize, u32, u32, u32, u32, u32, u32, u32, Stream, *mut usize, usize) -> i32;
    let name = std::ffi::CString::new(kernel).unwrap();
    let mut function = 0;
    assert_eq!(mock.function::<Get>("cuModuleGetFunction")(&raw mut function, 0, name.as_ptr()), 0);
    let mut pointers = [(&raw const *arguments).expose_provenance()];
    let launch = mock.function::<Launch>("cuLaunchKernel");
    assert_eq!(launch(function, grid, 1, 1, 256, 1, 1, 0, stream, pointers.as_mut_ptr(), 0), 0);
}

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn halves(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

/// Returns what the kernels write for places in pieces that begin at `starts`.
fn written_by_kernels(mock: &MockDriver, starts: &[u64], places: &[Vec<u32>], one: bool) -> Vec<u8> {
    let total: u64 = places.iter().map(|p| p.len() as u64).sum();
    let units = total / 1024 + 1;
    // One search with all pieces. These kernels read no other fields of searches and pieces.
    let pieces = vec![0u8; 56 * starts.len()];
    let mut search = vec![0u8; 80];
    search[52..56].copy_from_slice(&(starts.len() as u32).to_ne_bytes());
    let mut kept = Vec::new();
    let mut before = 0;
    for of_piece in places {
        kept.extend([before, 0]);
        before += of_piece.len() as u64;
    }
    let segments: Vec<u8> = starts
        .iter()
        .zip(0u32..)
        .flat_map(|(start, piece)| [start.to_ne_bytes().to_vec(), halves(&[piece, 0])].concat())
        .collect();
    let all: Vec<u32> = places.concat();
    let payload_bytes = 16 * total as usize + 64;
    let memories = [
        mock.upload(&pieces, 0),
        mock.upload(&search, 0),
        mock.upload(&words(&[total, 0]), 0),
        mock.upload(&words(&kept), 0),
        mock.upload(&words(&[0, total]), 0),
        mock.upload(&halves(&all), 0),
        mock.upload(&[0; 32], 0),
        mock.upload(&halves(&[0, starts.len() as u32, u32::from(one), 0]), 0),
        mock.upload(&segments, 0),
        mock.memory(0, 8 * starts.len()),
        mock.memory(0, 8 * starts.len()),
        mock.memory(0, 48),
        mock.memory(0, 208 * units as usize),
        mock.memory(0, 32),
        mock.upload(&vec![0; payload_bytes], 0),
        mock.upload(&[0; 8], 0),
    ];
    let arguments = Rice { addresses: memories.each_ref().map(|m| m.address), n_rows: 1, n_searches: 1 };
    let stream = mock.stream();
    let push = mock.function::<extern "C" fn(usize) -> i32>("cuCtxPushCurrent_v2");
    let pop = mock.function::<extern "C" fn(*mut usize) -> i32>("cuCtxPopCurrent_v2");
    let mut context = 0;
    assert_eq!(push(1), 0);
    launch(mock, "gcodec_rice_rows", 1, &arguments, stream);
    launch(mock, "gcodec_rice_measure", 3, &arguments, stream);
    launch(mock, "gcodec_rice_choose", 1, &arguments, stream);
    launch(mock, "gcodec_rice_pack", 3, &arguments, stream);
    mock.finish(stream);
    assert_eq!(pop(&raw mut context), 0);
    let told = memories[13].read();
    let word = |i: usize| u64::from_ne_bytes(std::array::from_fn(|j| told[8 * i + j]));
    assert_eq!((word(0), word(2)), (0, total));
    memories[14].read()[..word(1) as usize].to_vec()
}

/// Returns what the encoder writes.
fn written_by_the_encoder(positions: Vec<u64>, n: u64, one: bool) -> Vec<u8> {
    let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("w", Dtype::F32, [n])]).unwrap());
    let scales = gcodec::block::Scales::from_f32s(gcodec::block::ScaleFormat::F32, &[1.0]);
    let values = Values::Constant(Constant { groups: gcodec::block::Groups::Block, scales });
    let block =
        Block { scope: Scope::Tensor(0), add: false, support: Support::Sparse(Sparse { positions }), values };
    let choice = if one { gcodec::block::Positions::RiceOne } else { gcodec::block::Positions::Rice };
    let options = BlockOptions::default().with_positions(choice);
    let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default().with_index(false)), Vec::new());
    encoder.update(&mut out, &UpdateHeader::default(), &manifest, [(&block, options)]).unwrap();
    // The space is larger than what readers accept by default.
    let limits = gcodec::Limits::default().with_max_elements(u64::MAX);
    for event in gcodec::stream::SliceReader::new(&out, limits) {
        if let Ok(gcodec::stream::Event::Frame(_, gcodec::stream::Body::Update(part))) = event {
            return part.blocks[0].support.to_vec();
        }
    }
    panic!("no update");
}

#[test]
fn positions_beyond_32_bits() {
    let Some(mock) = mock_driver() else { return };
    let draws = |seed: u64, n: usize, most: u32| -> Vec<u32> {
        let mut words = vec![0; n];
        gcodec::compress::random::words(seed, 0, 0, &mut words);
        words.iter().map(|w| w % most).collect::<BTreeSet<_>>().into_iter().collect()
    };
    // Pieces of 2^31 elements, adjacent and far apart, some without kept elements.
    let starts =
        [0, 1u64 << 31, 1 << 32, (1 << 32) + (1 << 31), 1 << 40, (1 << 40) + (1 << 31) + 77, 1 << 57];
    for seed in 0..8u64 {
        // Many positions beside single ones.
        let lens = [900, 0, 1, 3000, 0, 2, 1500];
        let places: Vec<Vec<u32>> = lens
            .iter()
            .zip(0..)
            .map(|(&n, i)| draws(seed * 10 + i, n, [2000, 1 << 31, 9000][(seed % 3) as usize]))
            .collect();
        let positions =
            starts.iter().zip(&places).flat_map(|(s, p)| p.iter().map(move |&p| s + u64::from(p)));
        let positions: Vec<u64> = positions.collect();
        assert!(positions.is_sorted_by(|a, b| a < b));
        for one in [false, true] {
            let expected = written_by_the_encoder(positions.clone(), 1 << 58, one);
            let got = written_by_kernels(&mock, &starts, &places, one);
            assert!(got == expected, "{seed} {one}: {} and {} bytes", got.len(), expected.len());
        }
    }
    mock.assert_sound();
}
