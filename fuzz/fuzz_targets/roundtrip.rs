#![no_main]
//! Valid blocks survive a round trip, with any number of threads and kernels of any width. Invalid ones are
//! refused, or survive too. Any codec text is parsed or refused, and the codec's blocks for any tensors
//! survive.

use std::sync::Arc;

use gcodec::block::{
    Affine, Block, Chunked, Codebook, Constant, Dct, Floats, Groups, Latent, Levels, LowRank, Minifloat,
    Planes, Pow2, Rows, Scales, Scope, Seeded, Set, Sign, Sparse, Support, Ulp, Values,
};
use gcodec::compress::{Feedback, Input, NonFinite, Options, compress, deltas};
use gcodec::frame::{
    Delta, FrameKind, IndexSet, Manifest, Metadata, Model, TensorInfo, UpdateHeader, Weights,
};
use gcodec::stream::{Assembler, Body, EncodeOptions, Encoder, Event, SliceReader, Writer};
use gcodec::{Codec, Dtype, Error, Limits, Result, TensorBuf};
use gcodec_fuzz::{POOLS, begin, fingerprint, widest};
use libfuzzer_sys::{Corpus, fuzz_target};

#[path = "../../tests/properties/arbitrary/mod.rs"]
mod arbitrary;
use arbitrary::Random;

fuzz_target!(|bytes: &[u8]| -> Corpus {
    begin(true);
    let mut random = Random::of_bytes(bytes);
    match random.below(256) {
        0..96 => blocks(&mut random, false),
        96..144 => blocks(&mut random, true),
        144..160 => frames(&mut random),
        // Rare, since it takes a thousand times as long as the others.
        160 if random.below(16) == 0 => {
            long(&mut random);
            return Corpus::Reject;
        }
        _ => codec(&mut random),
    }
    Corpus::Keep
});

fn encode(update: &arbitrary::Update, options: &EncodeOptions) -> Result<Vec<u8>> {
    let mut encoder = Encoder::new(options.clone());
    let mut out = b"before".to_vec();
    let blocks: Vec<_> = update.blocks.iter().map(|(b, o)| (b, *o)).collect();
    let written = encoder.update(&mut out, &update.header, &update.manifest, &blocks);
    if let Err(e) = written {
        assert_eq!(out, b"before", "a call that fails appends nothing");
        encoder.finish(&mut out);
        assert_eq!(
            out[6..],
            Writer::new(Vec::new(), options.clone()).finish().unwrap(),
            "and leaves the encoder as it was"
        );
        return Err(e);
    }
    encoder.finish(&mut out);
    Ok(out.split_off(6))
}

fn come_back(stream: &[u8], update: &arbitrary::Update) {
    let found = decode(stream);
    let expected: Vec<&Block> = update.blocks.iter().map(|(b, _)| b).collect();
    let same = found.iter().collect::<Vec<_>>() == expected || fingerprint(&found) == fingerprint(&expected);
    assert!(same, "blocks come back: {expected:?} as {found:?}");
}

fn decode(stream: &[u8]) -> Vec<Block> {
    let mut blocks = Vec::new();
    for event in SliceReader::new(stream, Limits::default()) {
        if let Event::Frame(_, Body::Update(part)) = event.expect("what was encoded is read") {
            blocks.extend(part.decode_all().expect("what was encoded is decoded"));
        }
    }
    blocks
}

/// Runs it in every mode, and checks that the results agree.
fn same<T: std::fmt::Debug + PartialEq + Send>(what: impl Fn() -> T + Sync) -> T {
    let expected = what();
    for (pool, width) in [(0, 0), (1, 1), (1, 2)] {
        widest(width);
        let found = POOLS[pool].install(&what);
        // NaN differs from itself.
        let same = expected == found || fingerprint(&expected) == fingerprint(&found);
        let text = |of: &T| format!("{of:?}").chars().take(1000).collect::<String>();
        assert!(same, "pool {pool}, kernels of width {width}: {} not {}", text(&found), text(&expected));
    }
    expected
}

fn blocks(random: &mut Random<'_>, broken: bool) {
    let manifest = arbitrary::manifest(random);
    let ulp = random.below(4) == 0;
    let mut update = arbitrary::update(random, &manifest, ulp);
    if ulp {
        let digests = (0..manifest.tensors().len() as u64).map(|tensor| Delta {
            first: tensor,
            more: 0,
            base: [1; 16],
            result: [2; 16],
        });
        update.header.delta = Some(digests.collect());
    }
    if broken {
        for _ in 0..1 + random.below(3) {
            break_one(random, &mut update);
        }
    }
    let options = EncodeOptions::default()
        .with_part_bytes(random.one(&[1, 100, 64 << 20]))
        .with_index(random.below(2) == 0);
    let encoded =
        same(|| encode(&update, &options).map_err(|e| (matches!(e, Error::Input(_)), e.to_string())));
    match encoded {
        Ok(stream) => {
            come_back(&stream, &update);
        }
        Err((input, e)) => assert!(broken && input, "refused: {e}"),
    }
}

/// Changes a block, which may make it invalid.
fn break_one(random: &mut Random<'_>, update: &mut arbitrary::Update) {
    let at = random.below(update.blocks.len() as u64) as usize;
    let number = match random.below(3) {
        0 => random.below(4),
        1 => random.below(300),
        _ => u64::from(random.next()) << random.below(33),
    };
    let other = random.below(update.blocks.len() as u64) as usize;
    let (other, _) = update.blocks[other].clone();
    let block = &mut update.blocks[at].0;
    match random.below(8) {
        0 => block.add = !block.add,
        1 => block.support = other.support,
        2 => block.values = other.values,
        3 => block.scope = other.scope,
        4 => {
            block.scope = match random.below(3) {
                0 => gcodec::block::Scope::Tensor(number),
                1 => gcodec::block::Scope::Tensors { first: random.below(4), count: number },
                _ => gcodec::block::Scope::Range {
                    tensor: random.below(4),
                    start: random.below(9),
                    len: number,
                },
            }
        }
        5 => break_support(&mut block.support, random, number),
        _ => break_values(&mut block.values, random, number),
    }
}

/// Changes an element, or the number of elements.
fn break_row<T: Copy>(row: &mut Vec<T>, random: &mut Random<'_>, new: T) {
    let at = random.below(row.len() as u64 + 1) as usize;
    match random.below(3) {
        0 if at < row.len() => row[at] = new,
        1 if at < row.len() => drop(row.remove(at)),
        _ => row.insert(at, new),
    }
}

fn break_support(support: &mut Support, random: &mut Random<'_>, number: u64) {
    match support {
        Support::Sparse(Sparse { positions }) => break_row(positions, random, number),
        Support::Chunked(Chunked { chunk_len, kept, positions }) => match random.below(3) {
            0 => *chunk_len = number,
            1 => *kept = number,
            _ => break_row(positions, random, number as u32),
        },
        Support::Rows(Rows { row_len, rows }) => match random.below(2) {
            0 => *row_len = number,
            _ => break_row(rows, random, number),
        },
        Support::Seeded(Seeded { count, .. }) => *count = number,
        _ => *support = Support::Set(Set { id: gcodec::block::SetId([7; 32]) }),
    }
}

fn break_values(values: &mut Values, random: &mut Random<'_>, number: u64) {
    fn scales(scales: &mut Scales, random: &mut Random<'_>) {
        break_row(&mut scales.bytes, random, 1);
    }
    let byte = number as u8;
    let break_groups = |groups: &mut Groups, random: &mut Random<'_>| {
        *groups = random.one(&[Groups::Block, Groups::Tensor, Groups::Len(number)]);
    };
    let which = random.below(4);
    match values {
        Values::Floats(Floats { bytes, .. }) | Values::Planes(Planes { bytes }) => {
            break_row(bytes, random, byte)
        }
        Values::Constant(Constant { groups, scales: s }) | Values::Sign(Sign { groups, scales: s, .. }) => {
            match which {
                0 => break_groups(groups, random),
                _ => scales(s, random),
            }
        }
        Values::Pow2(Pow2 { min_exponent, codes, .. }) => match which {
            0 => *min_exponent = number as i16,
            _ => break_row(codes, random, byte),
        },
        Values::Levels(Levels { max_level, groups, norms, levels, .. }) => match which {
            0 => *max_level = number as u32,
            1 => break_groups(groups, random),
            2 => scales(norms, random),
            _ => {
                let mut wide: Vec<i32> = levels.iter().collect();
                break_row(&mut wide, random, number as i32);
                *levels = wide.into();
            }
        },
        Values::Affine(Affine { bits, groups, scales: s, codes, .. }) => match which {
            0 => *bits = byte,
            1 => break_groups(groups, random),
            2 => scales(s, random),
            _ => break_row(codes, random, byte),
        },
        Values::Codebook(Codebook { table, groups, codes, .. }) => match which {
            0 => break_row(table, random, 1.0),
            1 => break_groups(groups, random),
            _ => break_row(codes, random, byte),
        },
        Values::Minifloat(Minifloat { groups, scales: s, codes, .. }) => match which {
            0 => break_groups(groups, random),
            1 => scales(s, random),
            _ => break_row(codes, random, byte),
        },
        Values::Ulp(Ulp { diffs }) => break_row(diffs, random, number as i64),
        Values::Latent(Latent { shape, codes, .. }) => match which {
            0 => break_row(shape, random, number),
            _ => break_values(codes, random, number),
        },
        Values::LowRank(LowRank { rows, cols, rank, left, right }) => match which {
            0 if random.below(2) == 0 => *rows = number,
            0 => *cols = number,
            1 => *rank = number,
            2 => break_values(left, random, number),
            _ => break_values(right, random, number),
        },
        Values::Dct(Dct { rows, cols, chunk_rows, chunk_cols, support, coefficients }) => {
            match random.below(6) {
                0 => *rows = number,
                1 => *cols = number,
                2 => *chunk_rows = number,
                3 => *chunk_cols = number,
                4 => break_support(support, random, number),
                _ => break_values(coefficients, random, number),
            }
        }
        _ => {}
    }
}

/// Returns a stream with every kind of frame, in several segments.
fn frames(random: &mut Random<'_>) {
    let options =
        EncodeOptions::default().with_compress(random.below(2) == 0).with_index(random.below(2) == 0);
    let manifest = arbitrary::manifest(random);
    let mut encoder = Encoder::new(options);
    let (mut out, mut put, mut sets) = (Vec::new(), Vec::new(), Vec::new());
    let text = |random: &mut Random<'_>| {
        let len = random.below(300);
        // Some of it is compressible.
        String::from_utf8_lossy(&random.bytes(len)).replace(char::REPLACEMENT_CHARACTER, "again and ")
    };
    for _ in 0..1 + random.below(8) {
        match random.below(6) {
            0 => {
                let mut metadata = Metadata::default();
                for _ in 0..random.below(4) {
                    metadata.entries.insert(text(random), text(random));
                }
                encoder.metadata(&mut out, &metadata);
                put.push(fingerprint(&metadata));
            }
            1 => {
                let weights = text(random).into_bytes();
                let mut model = Model::inline(text(random), text(random), weights);
                if random.below(4) == 0 {
                    model.weights = Weights::At(text(random));
                }
                encoder.model(&mut out, &model);
                put.push(fingerprint(&model));
            }
            2 => {
                let kind = FrameKind(0xf000 | random.below(0x1000) as u16);
                let body = text(random).into_bytes();
                encoder.private(&mut out, kind, &body).expect("a private kind");
                put.push(fingerprint(&body));
            }
            3 => {
                let tensor = random.below(manifest.tensors().len() as u64);
                let (support, count) =
                    arbitrary::support(random, manifest.tensors()[tensor as usize].elements());
                let set = IndexSet {
                    manifest: manifest.id(),
                    step: random.next().into(),
                    leader: random.below(9),
                    world: random.below(9),
                    scope: Scope::Tensor(tensor),
                    support,
                };
                let options = arbitrary::options(random);
                let id = encoder.index_set(&mut out, &set, &manifest, options).expect("a set that fits");
                put.push(fingerprint(&set));
                sets.push((id, set, count));
            }
            4 if !sets.is_empty() => {
                let (id, set, count) = &sets[random.below(sets.len() as u64) as usize];
                let dtype = manifest.tensors()[set.scope.first() as usize].dtype;
                let values = arbitrary::values(random, dtype, *count, 1, false);
                let block =
                    Block { scope: set.scope, add: false, support: Support::Set(Set { id: *id }), values };
                let options = arbitrary::options(random);
                let header = UpdateHeader::default().with_label(text(random));
                encoder.update(&mut out, &header, &manifest, [(&block, options)]).expect("a block on a set");
                put.push(fingerprint(&block));
            }
            _ => encoder.finish(&mut out),
        }
    }
    encoder.finish(&mut out);
    let mut found = Vec::new();
    for event in SliceReader::new(&out, Limits::default()) {
        let Event::Frame(_, body) = event.expect("what was encoded is read") else { continue };
        match body {
            Body::Metadata(metadata) => found.push(fingerprint(&metadata)),
            Body::Model(model) => found.push(fingerprint(&*model)),
            Body::IndexSet(set, ..) => found.push(fingerprint(&*set)),
            Body::Unknown(body) => found.push(fingerprint(&body.to_vec())),
            Body::Update(part) => {
                let blocks = part.decode_all().expect("what was encoded is decoded");
                found.extend(blocks.iter().map(fingerprint));
            }
            _ => {}
        }
    }
    assert!(found == put, "{} frames come back as {}", put.len(), found.len());
}

/// Returns a tensor long enough for 32 lanes (131,072 symbols) and whole rows of the kernels.
fn long(random: &mut Random<'_>) {
    let (rows, cols) = (260 + random.below(40), 512);
    let (seed, spread) = (random.next(), random.below(32));
    let (matrix, halves) = (random.below(2) == 1, random.below(2) == 1);
    let mut words = vec![0; (rows * cols) as usize];
    gcodec::compress::random::words(seed.into(), 0, 0, &mut words);
    let number = |(i, word): (usize, &u32)| {
        // The exponents depend on row and column, and the second half differs from the first.
        let (row, column) = (i / cols as usize, i % cols as usize);
        let scale = if matrix { (row * 7 % 11 + column * 5 % 13) as u32 } else { 0 };
        let scale = if halves && i > words.len() / 2 { scale / 2 } else { scale };
        f32::from_bits((0x3f00_0000 ^ word >> spread).wrapping_sub(scale << 23))
    };
    let numbers: Vec<f32> = words.iter().enumerate().map(number).collect();
    let tensor = TensorBuf::from_f32(vec![rows, cols], &numbers).expect("a tensor");
    let codec: Codec = random
        .one(&["lossless", "natural", "int8", "qsgd:bits=4", "topk:density=0.1"])
        .parse()
        .expect("ours");
    let options = Options::default().with_non_finite(NonFinite::Zero);
    let stream = same(|| {
        let input = Input { tensor: 0, name: "w", view: tensor.view(), base: None };
        let blocks = compress(&[input], &[codec], &options, None).expect("a codec that takes any float");
        let manifest = manifest(&[&tensor]);
        let blocks = blocks.into_iter().map(|coded| (coded.block, coded.options)).collect();
        let update = arbitrary::Update { manifest, header: UpdateHeader::default(), blocks };
        encode(&update, &EncodeOptions::default()).expect("what was compressed is encoded")
    });
    let tensors = same(|| gcodec::decode(&stream).expect("what was encoded is decoded"));
    assert!(codec.is_lossy() || tensors[0].1 == tensor, "lossless");
}

fn manifest(tensors: &[&TensorBuf]) -> Arc<Manifest> {
    let info =
        |(i, t): (usize, &&TensorBuf)| TensorInfo::new(format!("t{i}"), t.view().dtype(), t.view().shape());
    Arc::new(Manifest::new(tensors.iter().enumerate().map(info).collect()).expect("a manifest"))
}

/// Returns a codec text: known words and small numbers, or the remaining bytes.
fn text(random: &mut Random<'_>) -> String {
    if random.below(8) == 0 {
        let len = random.below(40);
        return String::from_utf8_lossy(&random.bytes(len)).into_owned();
    }
    let mut text = random.one(Codec::NAMES).to_owned();
    let keys = [
        "density",
        "k",
        "values",
        "scope",
        "seed",
        "positions",
        "at",
        "fit",
        "stages",
        "scale",
        "chunk",
        "kept",
        "rank",
        "bits",
        "bucket",
        "norm",
        "levels",
        "clip",
        "group",
    ];
    let words = [
        "f32", "f16", "bf16", "pow2", "sign", "q4", "code2", "global", "tensor", "rice", "rice1", "tokens",
        "bitmap", "auto", "exp", "gamma-gp", "gp", "guard", "authors", "n/k", "1", "l1", "l2", "max", "inf",
        "nan", "0", "-1",
    ];
    for number in 0..random.below(4) {
        text += if number == 0 { ":" } else { "," };
        text += random.one(&keys);
        text += "=";
        match random.below(4) {
            0 => text += random.one(&words),
            1 => text += &(f64::from(random.next()) / f64::from(u32::MAX)).to_string(),
            2 => text += &random.below(20).to_string(),
            _ => text += &(u64::from(random.next()) << random.below(33)).to_string(),
        }
    }
    text
}

fn codec(random: &mut Random<'_>) {
    let text = text(random);
    let Ok(codec) = text.parse::<Codec>() else { return };
    let written = codec.to_string();
    assert_eq!(written.parse().as_ref(), Ok(&codec), "{text} is written {written}");
    let count = 1 + random.below(3);
    let alike = random.one(&[
        Dtype::F32,
        Dtype::F32,
        Dtype::Bf16,
        Dtype::F16,
        Dtype::F64,
        Dtype::F8E5M2,
        Dtype::F4E2M1,
        Dtype::I32,
    ]);
    let tensor = |random: &mut Random<'_>, shape: Option<&[u64]>| {
        let shape =
            shape.map_or_else(|| (0..random.below(4)).map(|_| random.below(13)).collect(), <[u64]>::to_vec);
        let n = gcodec::internal::elements(&shape).expect("few");
        let data = match random.below(3) {
            0 => random.elements(alike, n),
            // Numbers of similar size, which any codec accepts.
            _ => {
                let numbers: Vec<f32> = (0..n).map(|_| (random.below(512) as f32 - 256.0) / 64.0).collect();
                let mut data = vec![0; alike.bytes_for(n).expect("few") as usize];
                match gcodec::internal::element::encode_f32s(alike, &numbers, 0, &mut data) {
                    Ok(()) => data,
                    Err(_) => random.elements(alike, n),
                }
            }
        };
        TensorBuf::new(alike, shape, data).expect("a tensor")
    };
    let tensors: Vec<TensorBuf> = (0..count).map(|_| tensor(random, None)).collect();
    let bases: Vec<TensorBuf> = tensors
        .iter()
        .map(|t| match random.below(2) {
            0 => t.clone(),
            _ => tensor(random, Some(t.view().shape())),
        })
        .collect();
    let names: Vec<String> = (0..count).map(|i| format!("t{i}")).collect();
    let is_delta = matches!(codec, Codec::Delta { .. });
    let inputs: Vec<Input<'_>> = (0..tensors.len())
        .map(|i| Input {
            tensor: i as u64,
            name: &names[i],
            view: tensors[i].view(),
            base: is_delta.then(|| bases[i].view()),
        })
        .collect();
    let codecs = vec![codec; inputs.len()];
    let options = Options::default()
        .with_non_finite(random.one(&[NonFinite::Reject, NonFinite::Zero]))
        .with_block_len(random.one(&[1 << 22, 1 << 22, 100, 1]));
    let rounds = 1 + random.below(2);
    let compressed = same(|| {
        let mut feedback = Feedback::new();
        let mut blocks = Ok(Vec::new());
        for _ in 0..rounds {
            let before = feedback.clone();
            blocks = compress(&inputs, &codecs, &options, Some(&mut feedback)).map_err(|e| e.to_string());
            assert!(blocks.is_ok() || feedback == before, "{written}: an error changes residuals");
        }
        (blocks, feedback)
    });
    let Ok(blocks) = compressed.0 else { return };
    let manifest = manifest(&tensors.iter().collect::<Vec<_>>());
    let runs = deltas(&manifest, &inputs, &codecs, &blocks).expect("tensors of this manifest");
    let header = UpdateHeader::default().with_runs(runs);
    let blocks: Vec<_> = blocks.into_iter().map(|coded| (coded.block, coded.options)).collect();
    let update = arbitrary::Update { manifest, header, blocks };
    let stream = match encode(&update, &EncodeOptions::default()) {
        Ok(stream) => stream,
        Err(e) => panic!("{written}: what was compressed cannot be encoded: {e}"),
    };
    come_back(&stream, &update);
    let mut assembler =
        Assembler::new(&update.manifest, &Limits::default(), |_| true).expect("small tensors");
    for (name, base) in names.iter().zip(&bases).filter(|_| is_delta) {
        assembler.base(name, base.view()).expect("a base that fits");
    }
    for event in SliceReader::new(&stream, Limits::default()) {
        if let Ok(Event::Frame(_, Body::Update(part))) = event {
            assembler.apply(&part).expect("what was encoded is applied");
        }
    }
    let arrived = assembler.finish().expect("what was encoded is put together");
    if !codec.is_lossy() {
        assert!(arrived.iter().zip(&tensors).all(|((_, a), b)| a == b), "{written}: lossless");
    }
}
