#![no_main]
//! Any support and any values of any kind, after a valid head. An accepted block decodes to its
//! element-by-element result, whatever the width of the kernels, and the encoder reproduces it.

use std::sync::{Arc, LazyLock};

use gcodec::block::{Block, Constant, Floats, Planes, Scope, Sparse, Stored, Support, Target, Ulp, Values};
use gcodec::frame::{Delta, IndexSet, Manifest, TensorInfo, UpdateHeader, UpdatePart};
use gcodec::internal::element;
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Dtype, Limits};
use gcodec_fuzz::frames::{self, Frame, Repair};
use gcodec_fuzz::{allowance, begin, fingerprint, limits, memory, widest};
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/properties/arbitrary/mod.rs"]
mod arbitrary;
use arbitrary::Random;

/// Tensors of element types of every width, as matrices and rows; some are empty, or exceed the limits.
static MANIFEST: LazyLock<Arc<Manifest>> = LazyLock::new(|| {
    let tensors: [(Dtype, &[u64]); 13] = [
        (Dtype::F32, &[8, 4]),
        (Dtype::F32, &[]),
        (Dtype::F32, &[0]),
        (Dtype::F32, &[6, 6]),
        (Dtype::Bf16, &[5, 7]),
        (Dtype::Bf16, &[1 << 33]),
        (Dtype::F64, &[40]),
        (Dtype::I64, &[3]),
        (Dtype::F4E2M1, &[7]),
        (Dtype::F4E2M1, &[2]),
        (Dtype::F8E4M3Fn, &[300]),
        (Dtype::Bool, &[9]),
        // Its positions take more memory than the limits allow.
        (Dtype::F32, &[1 << 19]),
    ];
    let infos = tensors.iter().zip(0..).map(|(t, i)| TensorInfo::new(format!("t{i}"), t.0, t.1));
    Arc::new(Manifest::new(infos.collect()).expect("a manifest"))
});

/// Frames that updates can refer to, with an index set for the first tensor, and the head of an update.
struct Around {
    before: Vec<Frame>,
    set: (gcodec::block::SetId, IndexSet),
    plain: Vec<u8>,
    delta: Vec<u8>,
}

static AROUND: LazyLock<Around> = LazyLock::new(|| {
    let set = IndexSet {
        manifest: MANIFEST.id(),
        step: 1,
        leader: 0,
        world: 2,
        scope: Scope::Tensor(0),
        support: Support::Sparse(Sparse { positions: vec![1, 2, 30] }),
    };
    let stream = |delta: Option<Vec<Delta>>| {
        let mut encoder = Encoder::new(EncodeOptions::default().with_index(false));
        let mut out = Vec::new();
        let id = encoder.index_set(&mut out, &set, &MANIFEST, Default::default()).expect("a set");
        let count = MANIFEST.tensors().len() as u64;
        // Blocks without elements, so that each part lists all tensors in its delta.
        let header = UpdateHeader::default().with_delta(delta);
        let scales = gcodec::block::Scales { format: gcodec::block::ScaleFormat::E8M0, bytes: vec![1] };
        let groups = gcodec::block::Groups::Block;
        let blocks: Vec<Block> = (0..count)
            .map(|t| Block {
                scope: Scope::Tensor(t),
                add: false,
                support: Support::Sparse(Sparse { positions: Vec::new() }),
                values: match MANIFEST.tensors()[t as usize].dtype.is_float() {
                    true => Values::Constant(Constant { groups, scales: scales.clone() }),
                    false => Values::Planes(Planes { bytes: Vec::new() }),
                },
            })
            .collect();
        let blocks: Vec<_> = blocks.iter().map(|b| (b, Default::default())).collect();
        encoder.update(&mut out, &header, &MANIFEST, &blocks).expect("an update");
        let mut frames = frames::parse(&out);
        let update = frames.pop().expect("an update");
        (id, frames, frames::Update::parse(&update.body).expect("an update of ours").head)
    };
    let (id, before, plain) = stream(None);
    let digests = |tensor| Delta { first: tensor, more: 0, base: [1; 16], result: [2; 16] };
    let (_, _, delta) = stream(Some((0..MANIFEST.tensors().len() as u64).map(digests).collect()));
    Around { before, set: (id, set), plain, delta }
});

/// One to four blocks. The last takes all remaining bytes.
fn stream(bytes: &[u8]) -> Vec<u8> {
    let mut random = Random::of_bytes(bytes);
    let head = if random.below(4) == 0 { &AROUND.delta } else { &AROUND.plain };
    let count = 1 + random.below(4);
    let mut update = frames::Update { head: head.clone(), step: 0, sender: 0, blocks: Vec::new() };
    let mut tensor = 0;
    for number in 0..count {
        let flags = random.below(16) as u8;
        let mut block = frames::Block { scope: vec![flags & 7], ..Default::default() };
        tensor += random.below(13);
        frames::put_varint(&mut block.scope, tensor);
        for _ in 0..[0, 1, 2, 0][usize::from(flags & 3)] {
            frames::put_varint(&mut block.scope, random.below(40));
        }
        tensor += 1;
        block.support_id = if flags & 8 > 0 { 1 } else { 1 + random.below(8) };
        block.values_id = 1 + random.below(13);
        let support_len = if block.support_id == 1 { 0 } else { random.below(64) as usize };
        let values_len = if number + 1 == count { usize::MAX } else { random.below(64) as usize };
        let rest = random.rest();
        let (support, rest) = rest.split_at(support_len.min(rest.len()));
        let (values, rest) = rest.split_at(values_len.min(rest.len()));
        block.support = support.to_vec();
        if block.support_id == 8 {
            block.support = AROUND.set.0.0.to_vec();
        }
        block.values = values.to_vec();
        random = Random::of_bytes(rest);
        update.blocks.push(block);
    }
    let mut frames = AROUND.before.clone();
    frames.push(Frame { kind: frames::UPDATE, flags: 1, body: update.write() });
    frames.push(Frame { kind: frames::END, flags: 0, body: Vec::new() });
    frames::write(&frames, Repair::ALL)
}

fuzz_target!(|bytes: &[u8]| {
    begin(true);
    let stream = stream(bytes);
    for event in SliceReader::new(&stream, limits()) {
        match event {
            Ok(Event::Frame(_, Body::Update(part))) => {
                for number in 0..part.blocks.len() {
                    block(&part, number);
                }
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
});

fn block(part: &UpdatePart<'_>, number: usize) {
    let raw = &part.blocks[number];
    let decode = || part.decode(number, &part.budget());
    let decoded = memory::within(allowance(raw.len as usize, 1), "decoding a block", decode);
    for width in 0..2 {
        widest(width);
        assert_eq!(fingerprint(&decoded), fingerprint(&decode()), "decoded by kernels of width {width}");
    }
    widest(2);
    let Ok(block) = decoded else { return };
    again(&block, part);
    let budget = part.budget();
    let Ok(positions) = block.positions(&raw.space, part.sets(), &budget) else { return };
    assert!(positions.is_sorted_by(|a, b| a < b), "positions ascend");
    assert!(positions.last().is_none_or(|p| *p < raw.space.len()), "positions lie in their space");
    dense(&block, part, number, &positions);
}

/// Encodes and decodes the block again.
fn again(block: &Block, part: &UpdatePart<'_>) {
    let mut encoder = Encoder::new(EncodeOptions::default());
    let (id, set) = &AROUND.set;
    encoder.add_index_set(*id, set, &MANIFEST).expect("a set that fits");
    let mut out = Vec::new();
    let header = UpdateHeader::default().with_delta(part.header.delta.clone());
    let written = encoder.update(&mut out, &header, &part.manifest, &[(block, Default::default())]);
    written.expect("what was decoded can be encoded");
    encoder.finish(&mut out);
    let mut reader = SliceReader::new(&out, Limits::default());
    reader.add_index_set(*id, set, &MANIFEST).expect("a set that fits");
    let mut found = None;
    for event in reader {
        if let Event::Frame(_, Body::Update(part)) = event.expect("what was encoded is read") {
            found = Some(part.decode_all().expect("what was encoded is decoded"));
        }
    }
    assert_eq!(fingerprint(&found), fingerprint(&Some(vec![block])), "encoded and decoded again");
}

/// Applies the block to its tensors, with kernels of every width and element by element.
fn dense(block: &Block, part: &UpdatePart<'_>, number: usize, positions: &[u64]) {
    let raw = &part.blocks[number];
    let (dtype, lens) = (raw.space.dtype, &raw.space.lens);
    let start = if let Scope::Range { start, .. } = block.scope { start } else { 0 };
    if start + raw.space.len() > limits().max_elements {
        return;
    }
    let before: Vec<Vec<u8>> = lens
        .iter()
        .map(|&len| (0..dtype.bytes_for(start + len).expect("few")).map(|i| (i * 37 % 251) as u8).collect())
        .collect();
    let apply = |width: u8| {
        widest(width);
        let mut data = before.clone();
        let mut targets: Vec<_> =
            data.iter_mut().zip(lens).map(|(data, &len)| Target { data, start, len }).collect();
        let applied = block.apply(&raw.space, part.sets(), &part.budget(), &mut targets);
        applied.map(|()| data)
    };
    let plain = apply(0);
    for width in 1..3 {
        assert_eq!(fingerprint(&plain), fingerprint(&apply(width)), "applied by kernels of width {width}");
    }
    let Ok(plain) = plain else { return };
    let numbers = match block.values.gives_bits() {
        true => Vec::new(),
        false => block.numbers(&raw.space, part.sets(), &part.budget()).expect("numbers that were applied"),
    };
    assert!(block.values.gives_bits() || numbers.len() == positions.len(), "a number for each position");
    let mut expected = before;
    let (mut tensor, mut base) = (0, 0);
    for (value, &position) in positions.iter().enumerate() {
        while position - base >= lens[tensor] {
            base += lens[tensor];
            tensor += 1;
        }
        let (data, at) = (&mut expected[tensor], start + position - base);
        let old = element::bits_at(dtype, data, at).expect("an element");
        let new = match &block.values {
            Values::Floats(Floats { stored: Stored::Source, bytes }) | Values::Planes(Planes { bytes }) => {
                element::bits_at(dtype, bytes, value as u64).expect("a value for each position")
            }
            Values::Ulp(Ulp { diffs }) => element::ulp_step(dtype, old, diffs[value]),
            _ => {
                let mut number = [numbers[value]];
                if block.add {
                    element::decode_f32s(dtype, data, at, &mut number).expect("an element of a float type");
                    let sum = number[0] + numbers[value];
                    number[0] = if sum.is_nan() { f32::from_bits(0x7fc0_0000) } else { sum };
                }
                element::encode_f32s(dtype, &number, at, data).expect("an element of a float type");
                continue;
            }
        };
        element::set_bits_at(dtype, data, at, new);
    }
    assert!(plain == expected, "applied at once and element by element: {block:?}");
}
