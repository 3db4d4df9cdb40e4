//! A block changes a device tensor like [`Block::apply`] changes one on the host, bit for bit.

mod common;

use common::{encode, mock_driver, normal};
use gcodec::block::{
    Block, Floats, IndexSpace, Scope, Sets, Sparse, Stored, Support, Target as HostTarget, Values,
};
use gcodec::compress::{Input, Options, compress};
use gcodec::frame::Budget;
use gcodec::{Codec, Dtype, Limits, TensorView};
use gcodec_cuda::{Error, Scatter, Stream, Target};

#[allow(unsafe_code)]
fn put(
    mock: &common::MockDriver,
    scatter: &mut Scatter,
    block: &Block,
    space: &IndexSpace,
    skip: u64,
    add: bool,
) {
    let device = mock.device();
    // Targets are larger than the scope, which begins at their element `skip`.
    let before: Vec<Vec<f32>> =
        space.lens.iter().zip(90..).map(|(&n, seed)| normal((n + 2 * skip) as usize, seed)).collect();
    let mut host: Vec<Vec<u8>> = before.iter().map(|v| encode(space.dtype, v)).collect();
    let memories: Vec<_> = host.iter().map(|b| mock.upload(b, 0)).collect();
    let shapes: Vec<[u64; 1]> = space.lens.iter().map(|n| [n + 2 * skip]).collect();
    let targets: Vec<Target<'_>> = memories
        .iter()
        .zip(&shapes)
        .zip(&space.lens)
        .map(|((m, shape), &len)| Target {
            tensor: m.tensor(&device, 0, space.dtype, shape),
            start: skip,
            len,
        })
        .collect();
    let (sets, budget) = (Sets::new(), Budget::new(&Limits::default()));
    let stream = mock.stream();
    // Twice, so that an addition meets its own result.
    for _ in 0..2 {
        // SAFETY: the memory stays allocated until the stream was waited for.
        unsafe { scatter.put(block, space, &sets, &budget, &targets, add, stream) }.unwrap();
        let mut block = Block { add: block.add || add, ..block.clone() };
        if let (true, Values::Floats(Floats { stored: Stored::Source, bytes })) = (add, &block.values) {
            // The host does not add elements stored in the source type, so convert them to floats.
            let mut numbers = vec![0.0; bytes.len() * 8 / space.dtype.bits() as usize];
            gcodec::internal::element::decode_f32s(space.dtype, bytes, 0, &mut numbers).unwrap();
            block.values =
                Values::Floats(Floats { stored: Stored::F32, bytes: encode(Dtype::F32, &numbers) });
        }
        let mut targets: Vec<HostTarget<'_>> = host
            .iter_mut()
            .zip(&space.lens)
            .map(|(data, &len)| HostTarget { data, start: skip, len })
            .collect();
        block.apply(space, &sets, &budget, &mut targets).unwrap();
    }
    mock.finish(stream);
    for (memory, expected) in memories.iter().zip(&host) {
        assert!(memory.read() == *expected, "{:?} {add} {}", block.scope, space.dtype);
    }
}

#[test]
fn blocks_are_put_and_added_as_on_the_host() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let mut scatter = Scatter::new(&device).unwrap();
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let shapes: [[u64; 1]; 3] = [[3000], [0], [9000]];
        let tensors: Vec<Vec<u8>> =
            shapes.iter().zip(1..).map(|([n], s)| encode(dtype, &normal(*n as usize, s))).collect();
        let inputs: Vec<Input<'_>> = tensors
            .iter()
            .zip(&shapes)
            .zip(0..)
            .map(|((data, shape), tensor)| {
                let view = TensorView::new(dtype, shape, data).unwrap();
                Input { tensor, name: "", view, base: None }
            })
            .collect();
        for spec in [
            "topk:density=0.05",
            "topk:density=0.05,values=bf16",
            "topk:density=0.05,values=pow2",
            "stc:density=0.05",
            "sbc:density=0.05",
            "natural",
            "int8",
        ] {
            let codec: Codec = spec.parse().unwrap();
            for block in compress(&inputs, &[codec; 3], &Options::default(), None).unwrap() {
                let first = block.scope.first() as usize;
                let tensors = first..first + block.scope.tensors() as usize;
                let lens = shapes[tensors].iter().map(|[n]| *n).collect::<Vec<_>>().into();
                let space = IndexSpace { dtype, lens, row_lens: vec![], shapes: Default::default() };
                put(&mock, &mut scatter, &block, &space, 0, false);
                put(&mock, &mut scatter, &block, &space, 3, true);
            }
        }
    }
    drop(scatter);
    mock.assert_sound();
}

/// Numbers around every boundary of the narrow types: ties, subnormal numbers, the largest and beyond.
#[test]
fn numbers_are_rounded_as_on_the_host() {
    let Some(mock) = mock_driver() else { return };
    let mut scatter = Scatter::new(&mock.device()).unwrap();
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let last = if dtype == Dtype::F16 { 12 } else { 15 };
        let numbers: Vec<f32> = (0..=u16::MAX)
            .flat_map(|high| {
                let base = u32::from(high) << 16;
                // Halfway, and next to it, at the last place of the type and of its subnormal numbers.
                (0..=last).flat_map(move |bit| {
                    [0u32, 1, u32::MAX].map(|d| base.wrapping_add(1 << bit).wrapping_add(d))
                })
            })
            .map(f32::from_bits)
            .filter(|x| x.is_finite())
            .step_by(5)
            .collect();
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let n = numbers.len() as u64;
        let block = Block {
            scope: Scope::Tensor(0),
            add: false,
            support: Support::Sparse(Sparse { positions: (0..n).map(|i| 2 * i).collect() }),
            values: Values::Floats(Floats { stored: Stored::F32, bytes }),
        };
        let space = IndexSpace::flat(dtype, 2 * n);
        put(&mock, &mut scatter, &block, &space, 0, false);
        put(&mock, &mut scatter, &block, &space, 0, true);
    }
    mock.assert_sound();
}

#[test]
#[allow(unsafe_code)]
fn blocks_that_do_not_fit_are_refused() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let memory = mock.upload(&encode(Dtype::F32, &[1.0; 8]), 0);
    let shape = [8];
    let tensor = memory.tensor(&device, 0, Dtype::F32, &shape);
    let mut scatter = Scatter::new(&device).unwrap();
    let block = |positions: &[u64], values: &[f32]| Block {
        scope: Scope::Tensor(0),
        add: false,
        support: Support::Sparse(Sparse { positions: positions.to_vec() }),
        values: Values::Floats(Floats {
            stored: Stored::F32,
            bytes: values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }),
    };
    let good = block(&[1], &[1.0]);
    let space = IndexSpace::flat(Dtype::F32, 4);
    let target = Target { tensor, start: 2, len: 4 };
    let wrong = [
        (block(&[4], &[1.0]), &space, target),
        (block(&[2, 1], &[1.0; 2]), &space, target),
        (block(&[1, 1], &[1.0; 2]), &space, target),
        (block(&[1, 2], &[1.0]), &space, target),
        (good.clone(), &IndexSpace::flat(Dtype::F16, 4), target),
        (good.clone(), &space, Target { len: 5, ..target }),
        (good.clone(), &space, Target { start: 5, ..target }),
        (good, &space, Target { start: u64::MAX, ..target }),
    ];
    for (block, space, target) in wrong {
        let (sets, budget) = (Sets::new(), Budget::new(&Limits::default()));
        // SAFETY: the memory is allocated.
        let got = unsafe { scatter.put(&block, space, &sets, &budget, &[target], false, Stream::DEFAULT) };
        assert!(matches!(got, Err(Error::Codec(_))), "{block:?}");
    }
    mock.finish(Stream::DEFAULT);
    assert_eq!(memory.read(), encode(Dtype::F32, &[1.0; 8]));
    mock.assert_sound();
}

/// NaN results of arithmetic have one bit pattern. Elements stored in the source type keep their bits,
/// signalling NaN included.
#[test]
#[allow(unsafe_code)]
fn nan_has_the_bits_of_the_host() {
    let Some(mock) = mock_driver() else { return };
    let mut scatter = Scatter::new(&mock.device()).unwrap();
    let patterns =
        [0x7f80_0001u32, 0xffc0_0005, 0x7fff_ffff, 0xff80_0000, 0x7f80_0000, 0x3f80_0000, 0x8000_0000];
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let width = (dtype.bits() / 8) as usize;
        let space =
            IndexSpace { dtype, lens: vec![49].into(), row_lens: Vec::new(), shapes: Default::default() };
        let halves = [0x7c01u16, 0xfe05, 0x7fff, 0x7f81, 0xff80, 0x7c00, 0xfc00];
        let source = |i: usize| match width {
            4 => patterns[i % 7].to_le_bytes().to_vec(),
            _ => halves[i % 7].to_le_bytes().to_vec(),
        };
        let before: Vec<u8> = (0..49).flat_map(|i| source(i / 7)).collect();
        let numbers = |i: usize| f32::from_bits(patterns[i % 7]).to_le_bytes();
        let floats =
            Values::Floats(Floats { stored: Stored::F32, bytes: (0..49).flat_map(numbers).collect() });
        let own =
            Values::Floats(Floats { stored: Stored::Source, bytes: (0..49).flat_map(source).collect() });
        for (add, values) in [(false, floats.clone()), (true, floats), (false, own)] {
            for support in [Support::All, Support::Sparse(Sparse { positions: (0..49).collect() })] {
                let block = Block { scope: Scope::Tensor(0), add, support, values: values.clone() };
                let (sets, budget) = (Sets::new(), Budget::new(&Limits::default()));
                let (memory, mut host) = (mock.upload(&before, 0), before.clone());
                let shape = [49];
                let tensor = memory.tensor(&mock.device(), 0, dtype, &shape);
                let targets = [Target { tensor, start: 0, len: 49 }];
                // SAFETY: the memory stays allocated until the stream was waited for.
                unsafe { scatter.put(&block, &space, &sets, &budget, &targets, false, Stream::DEFAULT) }
                    .unwrap();
                scatter.wait().unwrap();
                let mut targets = [HostTarget { data: &mut host, start: 0, len: 49 }];
                block.apply(&space, &sets, &budget, &mut targets).unwrap();
                assert_eq!(memory.read(), host, "{dtype} {add} {:?}", block.values.id());
            }
        }
    }
    mock.assert_sound();
}
