//! Streams that earlier versions wrote, in `tests/frozen/VERSION/`: every later version reads them to the
//! same tensors (docs/compatibility.md). `hashes.txt` has a line for each: its name, the BLAKE3 hash of its
//! bytes, and that of the tensors of its last update; `-` for a stream whose tensors need a model.
//!
//! Files in these folders are never changed. To freeze a new version of the format, write its folder once:
//! `cargo test --test wire frozen::write -- --ignored`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use gcodec::block::Values;
use gcodec::compress::random::word;
use gcodec::compress::{Input, Options, compress, deltas};
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
use gcodec::internal::element::{bits_at, set_bits_at, ulp_step};
use gcodec::stream::{Assembler, Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Dtype, Limits, Result, TensorBuf};

use crate::streams::{blocks, header_for, manifest, needs_delta, sample};

/// The newest version of the format.
const VERSION: &str = "1.2";

/// Stream that the deltas of a folder change.
const BASE: &str = "base";

fn folder(version: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/frozen", version].iter().collect()
}

type Named = Vec<(String, TensorBuf)>;

/// Decodes every block of a stream, and assembles the tensors of its last update if no block needs a model.
fn read(bytes: &[u8], base: &Named) -> Result<Option<Named>> {
    let limits = Limits::default();
    let mut reader = SliceReader::new(bytes, limits.clone());
    let mut parts = Vec::new();
    let mut needs_model = false;
    while let Some(event) = reader.next_event()? {
        if let Event::Frame(_, Body::Update(part)) = event {
            let budget = part.budget();
            for block in 0..part.blocks.len() {
                needs_model |= matches!(part.decode(block, &budget)?.values, Values::Latent(_));
            }
            if part.part == 0 {
                parts.clear();
            }
            parts.push(part);
        }
    }
    if needs_model || parts.is_empty() {
        return Ok(None);
    }
    let manifest = parts[0].manifest.clone();
    let mut assembler = Assembler::new(&manifest, &limits, |_| true)?;
    for (name, tensor) in base.iter().filter(|_| parts[0].header.is_delta()) {
        assembler.base(name, tensor.view())?;
    }
    for part in &parts {
        assembler.apply(part)?;
    }
    let name = |number: u64| manifest.tensors()[usize::try_from(number).unwrap()].name.clone();
    Ok(Some(assembler.finish()?.into_iter().map(|(number, tensor)| (name(number), tensor)).collect()))
}

fn hash(tensors: Option<&Named>) -> String {
    let Some(tensors) = tensors else { return "-".to_owned() };
    let mut hasher = blake3::Hasher::new();
    for (name, tensor) in tensors {
        hasher.update(format!("{name} {} {:?} ", tensor.dtype().name(), tensor.shape()).as_bytes());
        hasher.update(tensor.data());
    }
    hasher.finalize().to_hex().to_string()
}

#[test]
fn streams_of_every_version_are_read_to_the_same_tensors() {
    let versions: Vec<_> = fs::read_dir(folder("")).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(versions.contains(&folder(VERSION)), "no streams of version {VERSION}");
    for version in versions {
        let stream = |name: &str| fs::read(version.join(format!("{name}.gcodec"))).unwrap();
        let base = read(&stream(BASE), &Named::new()).unwrap().unwrap();
        let lines = fs::read_to_string(version.join("hashes.txt")).unwrap();
        for line in lines.lines() {
            let [name, bytes, tensors] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let found = stream(name);
            assert_eq!(blake3::hash(&found).to_hex().as_str(), bytes, "{name}: a frozen file was changed");
            let read = read(&found, &base).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(hash(read.as_ref()), tensors, "{name}: other tensors");
        }
        let files = fs::read_dir(&version).unwrap().count();
        assert_eq!(
            files,
            lines.lines().count() + 1,
            "each file has a line, and {} its own",
            version.display()
        );
    }
}

/// Tensors of several types and shapes; each is large enough for tables, chunks, rows and columns.
fn gradients() -> Named {
    let number = |tensor: u64, i: u64, columns: u64| {
        let uniform = f64::from(word(11, tensor, i) >> 8) / f64::from(1 << 24) - 0.5;
        let scale = (i / columns * 7 % 11) as i32 - (i % columns * 5 % 13) as i32;
        (uniform * uniform * uniform * 2f64.powi(scale / 2)) as f32
    };
    let f32s = |tensor: u64, shape: &[u64]| {
        let n: u64 = shape.iter().product();
        let values: Vec<f32> = (0..n).map(|i| number(tensor, i, shape[0].max(1))).collect();
        TensorBuf::from_f32(shape.to_vec(), &values).unwrap()
    };
    let halves = |tensor: u64, n: u64| -> Vec<u8> {
        let half = |i| ((number(tensor, i, 1).to_bits() >> 16) as u16).to_le_bytes();
        (0..n).flat_map(half).collect()
    };
    let named = [
        ("bias", f32s(1, &[37])),
        ("conv", f32s(2, &[16, 8, 3, 3])),
        ("empty", f32s(3, &[0])),
        ("matrix", f32s(4, &[96, 64])),
        ("half", TensorBuf::new(Dtype::Bf16, vec![40, 50], halves(5, 2000)).unwrap()),
    ];
    named.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}

/// The tensors after an optimizer step: some elements are one or two units in the last place away.
fn stepped(tensors: &Named) -> Named {
    let step = |(t, (name, tensor)): (usize, &(String, TensorBuf))| {
        let dtype = tensor.dtype();
        let mut data = tensor.data().to_vec();
        for i in (0..tensor.view().elements()).filter(|&i| word(12, t as u64, i).is_multiple_of(25)) {
            let old = bits_at(dtype, &data, i).unwrap();
            let diff = if word(13, t as u64, i).is_multiple_of(5) { -2 } else { 1 };
            set_bits_at(dtype, &mut data, i, ulp_step(dtype, old, diff));
        }
        (name.clone(), TensorBuf::new(dtype, tensor.shape().to_vec(), data).unwrap())
    };
    tensors.iter().enumerate().map(step).collect()
}

/// Encodes tensors, one codec after the other in turn, in one part.
fn encoded(tensors: &Named, base: Option<&Named>, codecs: &[&str]) -> Vec<u8> {
    encoded_in_parts(tensors, base, codecs, u64::MAX)
}

fn encoded_in_parts(tensors: &Named, base: Option<&Named>, codecs: &[&str], part_bytes: u64) -> Vec<u8> {
    let label = codecs.join("; ");
    let codecs: Vec<Codec> = codecs.iter().map(|codec| codec.parse().unwrap()).collect();
    let infos = tensors.iter().map(|(name, t)| TensorInfo::new(name, t.dtype(), t.shape()));
    let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
    let inputs: Vec<Input<'_>> = tensors
        .iter()
        .enumerate()
        .map(|(i, (name, tensor))| Input {
            tensor: i as u64,
            name,
            view: tensor.view(),
            base: base.map(|base| base[i].1.view()),
        })
        .collect();
    let codecs: Vec<Codec> = codecs.into_iter().cycle().take(inputs.len()).collect();
    let blocks = compress(&inputs, &codecs, &Options::default(), None).unwrap();
    let runs = deltas(&manifest, &inputs, &codecs, &blocks).unwrap();
    let header = UpdateHeader::default().with_label(label).with_runs(runs);
    let (mut encoder, mut out) =
        (Encoder::new(EncodeOptions::default().with_part_bytes(part_bytes)), Vec::new());
    encoder.update(&mut out, &header, &manifest, &blocks).unwrap();
    encoder.finish(&mut out);
    out
}

/// Codecs by the name of their stream.
const CODECS: [(&str, &str); 26] = [
    (BASE, "lossless"),
    ("raw", "raw"),
    ("natural", "natural:seed=7"),
    ("qsgd", "qsgd:bits=4"),
    ("qsgd-max", "qsgd:bits=8,norm=max"),
    ("dither", "dither"),
    ("terngrad", "terngrad"),
    ("sign", "sign"),
    ("int8", "int8"),
    ("sbc", "sbc:density=0.02"),
    ("sbc-rice-one", "sbc:density=0.02,positions=rice-one"),
    ("topk", "topk:density=0.05"),
    ("topk-rice", "topk:density=0.05,positions=rice"),
    ("topk-tokens", "topk:density=0.05,positions=tokens"),
    ("topk-bitmap", "topk:density=0.3,positions=bitmap,values=bf16"),
    ("topk-classed", "topk:density=0.05,positions=classed,values=sign"),
    ("topk-global", "topk:density=0.05,scope=global,values=pow2"),
    ("topk-q4", "topk:density=0.3,values=q4"),
    ("stc", "stc:density=0.05"),
    ("threshold", "threshold:at=0.05,values=f16"),
    ("sidco", "sidco:density=0.05"),
    ("randk", "randk:density=0.05"),
    ("chunked", "chunked:chunk=256,kept=16"),
    ("chunked-sign", "chunked:chunk=256,kept=16,values=sign"),
    ("demo", "demo:chunk=8,kept=6"),
    ("powersgd", "powersgd:rank=2"),
];

#[test]
#[ignore = "writes the folder of a new version of the format"]
fn write() {
    let folder = folder(VERSION);
    assert!(!folder.exists(), "a frozen folder is written once: {}", folder.display());
    fs::create_dir_all(&folder).unwrap();
    let tensors = gradients();
    let new = stepped(&tensors);
    let mut streams: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for (name, codec) in CODECS {
        streams.insert(name.to_owned(), encoded(&tensors, None, &[codec]));
    }
    for positions in ["auto", "classed", "tokens", "rice", "bitmap"] {
        let delta = encoded(&new, Some(&tensors), &[&format!("delta:positions={positions}")]);
        streams.insert(format!("delta-{positions}"), delta);
    }
    for digest in ["sum", "blake3", "both"] {
        let delta = encoded(&new, Some(&tensors), &[&format!("delta:digest={digest}")]);
        streams.insert(format!("delta-{digest}"), delta);
    }
    let mixed = ["delta:positions=classed", "lossless", "delta:positions=rice"];
    streams.insert("delta-in-parts".to_owned(), encoded_in_parts(&new, Some(&tensors), &mixed, 100));
    streams.insert("frames".to_owned(), sample());
    // The blocks of deltas have bases that nobody has.
    for (i, block) in blocks().iter().enumerate().filter(|(_, block)| !needs_delta(block)) {
        let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
        encoder.update(&mut out, &header_for(block), &manifest(), [block]).unwrap();
        encoder.finish(&mut out);
        streams.insert(format!("block-{i:02}"), out);
    }
    let mut hashes = String::new();
    for (name, bytes) in &streams {
        let read = read(bytes, &tensors).unwrap_or_else(|e| panic!("{name}: {e}"));
        hashes += &format!("{name} {} {}\n", blake3::hash(bytes).to_hex(), hash(read.as_ref()));
        fs::write(folder.join(format!("{name}.gcodec")), bytes).unwrap();
    }
    fs::write(folder.join("hashes.txt"), hashes).unwrap();
}
