//! Describes streams as JSON, with the names that `spec/reference/decoder.py` uses, through the library's
//! public API only. `tests/wire/vectors.rs` compares the description with the vectors, and
//! `cargo xtask vectors` writes it into them.

use std::sync::Arc;

use gcodec::block::{
    Block, BlockOptions, Floats, IndexSpace, Latent, Planes, RawBlock, Scope, Stored, Support, Ulp, Values,
};
use gcodec::error::Error;
use gcodec::frame::{Budget, Index, IndexSet, Manifest, Model, UpdatePart, Weights};
use gcodec::internal::{element, elements};
use gcodec::stream::{Assembler, Body, Decoder, EncodeOptions, Encoder, Event, FrameInfo, SliceReader};
use gcodec::{Dtype, Limits, Result, TensorBuf};
use serde_json::{Map, Value, json};

/// Returns the description of a stream: each frame in order.
pub(crate) fn describe(bytes: &[u8], limits: &Limits) -> Result<Value> {
    let mut stream = Stream::default();
    let mut reader = SliceReader::new(bytes, limits.clone());
    while let Some(event) = reader.next_event()? {
        stream.take(&event)?;
    }
    Ok(json!({ "frames": stream.frames }))
}

/// Returns the same description from a decoder that is fed pieces of `piece` bytes.
pub(crate) fn describe_in_pieces(bytes: &[u8], limits: &Limits, piece: usize) -> Result<Value> {
    let mut stream = Stream::default();
    let mut decoder = Decoder::new(limits.clone());
    for bytes in bytes.chunks(piece) {
        decoder.feed(bytes);
        while let Some(event) = decoder.next_event()? {
            stream.take(&event)?;
        }
    }
    decoder.finish()?;
    Ok(json!({ "frames": stream.frames }))
}

/// Returns the dense tensors of the last update; `base` is the base of a delta.
pub(crate) fn tensors(bytes: &[u8], limits: &Limits, base: Option<&Map<String, Value>>) -> Result<Value> {
    let mut parts: Vec<Box<UpdatePart<'_>>> = Vec::new();
    let mut reader = SliceReader::new(bytes, limits.clone());
    while let Some(event) = reader.next_event()? {
        if let Event::Frame(_, Body::Update(part)) = event {
            if part.part == 0 {
                parts.clear();
            }
            parts.push(part);
        }
    }
    let manifest = parts.first().expect("a vector with tensors has an update").manifest.clone();
    let base: Vec<(&String, TensorBuf)> = base.into_iter().flatten().map(|(n, t)| (n, tensor(t))).collect();
    let mut assembler = Assembler::new(&manifest, limits, |_| true)?;
    for (name, tensor) in &base {
        assembler.base(name, tensor.view())?;
    }
    for part in &parts {
        assembler.apply(part)?;
    }
    let mut out = Map::new();
    for (number, tensor) in assembler.finish()? {
        let view = tensor.view();
        let entry = json!({ "dtype": view.dtype().name(), "shape": view.shape(), "data": hex(view.data()) });
        out.insert(manifest.tensors()[number as usize].name.clone(), entry);
    }
    Ok(Value::Object(out))
}

fn tensor(json: &Value) -> TensorBuf {
    let dtype = Dtype::from_name(json["dtype"].as_str().unwrap_or_default()).expect("dtype of a base");
    let shape = json["shape"].as_array().expect("shape of a base").iter().filter_map(Value::as_u64).collect();
    let data = unhex(json["data"].as_str().expect("data of a base"));
    TensorBuf::new(dtype, shape, data).expect("the base is a valid tensor")
}

/// Encodes the decoded content of a stream again, with the encoder's default choices, and with an index if
/// the stream has one. Returns `None` if the stream has content that the encoder cannot write.
pub(crate) fn reencode(bytes: &[u8], limits: &Limits) -> Option<Vec<u8>> {
    let all = || SliceReader::new(bytes, limits.clone()).filter_map(Result::ok);
    let index = all().any(|e| matches!(e, Event::Frame(_, Body::Index(_))));
    let mut encoder = Encoder::new(EncodeOptions::default().with_index(index));
    let mut out = Vec::new();
    let mut manifests = Vec::new();
    for event in all() {
        let Event::Frame(info, body) = event else { continue };
        match body {
            Body::Manifest(manifest) => {
                encoder.manifest(&mut out, &manifest);
                manifests.push(manifest);
            }
            Body::Update(part) => {
                let blocks = part.decode_all().ok()?;
                let blocks: Vec<_> = blocks.iter().map(|b| (b, BlockOptions::default())).collect();
                encoder.update(&mut out, &part.header, &part.manifest, &blocks).ok()?;
            }
            Body::IndexSet(set, ..) => {
                let manifest = manifests.iter().find(|m| m.id() == set.manifest)?;
                encoder.index_set(&mut out, &set, manifest, BlockOptions::default()).ok()?;
            }
            Body::Model(model) => encoder.model(&mut out, &model).ok()?,
            Body::Metadata(metadata) => encoder.metadata(&mut out, &metadata),
            Body::End(_) => encoder.finish(&mut out),
            Body::Unknown(body) => encoder.private(&mut out, info.header.kind, body).ok()?,
            _ => {}
        }
    }
    Some(out)
}

/// The frames described so far, and the manifests that they define.
#[derive(Default)]
struct Stream {
    frames: Vec<Value>,
    manifests: Vec<Arc<Manifest>>,
}

impl Stream {
    fn take(&mut self, event: &Event<'_>) -> Result<()> {
        let Event::Frame(info, body) = event else { return Ok(()) };
        self.frames.push(match body {
            Body::Manifest(manifest) => {
                self.manifests.push(Arc::clone(manifest));
                describe_manifest(manifest)
            }
            Body::Update(part) => describe_update(part)?,
            Body::IndexSet(set, id, _) => {
                let manifest = self.manifests.iter().find(|m| m.id() == set.manifest);
                describe_set(set, &id.0, manifest.expect("the manifest of an index set"))?
            }
            Body::Model(model) => describe_model(model),
            Body::Metadata(metadata) => json!({ "kind": "metadata", "entries": metadata.entries }),
            Body::Index(index) => describe_index(index),
            Body::End(end) => {
                json!({ "kind": "end", "frame_count": end.frame_count, "index_offset": end.index_offset })
            }
            _ => describe_unknown(info),
        });
        Ok(())
    }
}

fn describe_unknown(info: &FrameInfo) -> Value {
    json!({ "kind": "skipped", "id": info.header.kind.0 })
}

fn describe_manifest(manifest: &Manifest) -> Value {
    let tensors = manifest.tensors().iter().map(|t| {
        let mut out = json!({ "name": t.name, "dtype": t.dtype.name(), "shape": t.shape });
        if let Some((rows, cols)) = t.matrix {
            out["matrix"] = json!([rows, cols]);
        }
        if let Some(shard) = &t.shard {
            out["shard"] =
                shard.global_shape.iter().zip(&shard.offsets).map(|(g, o)| json!([g, o])).collect();
        }
        out
    });
    json!({ "kind": "manifest", "id": hex(&manifest.id().0), "tensors": tensors.collect::<Vec<_>>() })
}

fn describe_index(index: &Index) -> Value {
    let frames: Vec<_> = index.frames.iter().map(|f| json!([f.kind.0, f.len])).collect();
    json!({ "kind": "index", "frames": frames })
}

/// Inline weights are always described as storage 1: a decoded model does not record whether they were
/// compressed.
fn describe_model(model: &Model) -> Value {
    let mut out = json!({
        "kind": "model", "id": hex(&model.id.0), "format": model.format, "name": model.name,
        "storage": 1, "weights_len": model.weights_len,
    });
    if let Weights::At(location) = &model.weights {
        out["storage"] = json!(0);
        out["location"] = json!(location);
    }
    out
}

fn describe_update(part: &UpdatePart<'_>) -> Result<Value> {
    let h = &part.header;
    let mut out = json!({
        "kind": "update", "manifest": hex(&part.manifest.id().0), "step": h.step, "round": h.round,
        "sender": h.sender, "world": h.world, "contributors": h.contributors, "inner_steps": h.inner_steps,
        "reduction": h.reduction as u8, "part": part.part, "last": part.last,
    });
    if !h.label.is_empty() {
        out["label"] = json!(h.label);
    }
    if let Some(delta) = &h.delta {
        let entries = delta.iter().map(
            |d| json!({ "first": d.first, "more": d.more, "base": hex(&d.base), "result": hex(&d.result) }),
        );
        out["delta"] = entries.collect();
    }
    if let Some(sums) = &h.sums {
        let entries = sums.iter().map(|d| {
            let [base, result] = [d.base, d.result].map(|sum| sum.to_string());
            json!({ "first": d.first, "more": d.more, "base": base, "result": result })
        });
        out["sums"] = entries.collect();
    }
    let blocks = part.decode_all()?;
    let described = part.blocks.iter().zip(&blocks).map(|(raw, block)| describe_block(part, raw, block));
    out["blocks"] = described.collect::<Result<_>>()?;
    Ok(out)
}

fn describe_scope(scope: &Scope, add: bool) -> Value {
    let add = u64::from(add) << 2;
    match *scope {
        Scope::Tensor(tensor) => json!([add, tensor]),
        Scope::Tensors { first, count } => json!([1 | add, first, count]),
        Scope::Range { tensor, start, len } => json!([2 | add, tensor, start, len]),
    }
}

fn describe_block(part: &UpdatePart<'_>, raw: &RawBlock<'_>, block: &Block) -> Result<Value> {
    let positions = match block.support {
        Support::All | Support::Based(_) => Value::Null,
        _ => json!(block.positions(&raw.space, part.sets(), &part.budget())?),
    };
    let numbers = match &block.values {
        Values::Floats(Floats { stored: Stored::Source, bytes }) | Values::Planes(Planes { bytes }) => {
            let digits = raw.space.dtype.bits() as usize / 4;
            let count = block.count(&raw.space, part.sets())?;
            let bits = (0..count).map(|i| element::bits_at(raw.space.dtype, bytes, i).expect("an element"));
            bits.map(|b| json!(format!("{b:0digits$x}"))).collect()
        }
        Values::Ulp(Ulp { diffs }) => json!({ "diffs": diffs }),
        Values::Latent(Latent { model, shape, codes }) => {
            let inner =
                Block { scope: block.scope, add: false, support: Support::All, values: (**codes).clone() };
            let space = IndexSpace::flat(Dtype::F32, elements(shape).expect("a shape that was read"));
            let codes = inner.numbers(&space, part.sets(), &part.budget())?;
            json!({ "model": hex(&model.0), "shape": shape, "codes": patterns(&codes) })
        }
        _ => patterns(&block.numbers(&raw.space, part.sets(), &part.budget())?),
    };
    let mut out = json!({
        "scope": describe_scope(&block.scope, block.add), "support": raw.support_id.name(),
        "values": raw.values_id.name(), "positions": positions, "numbers": numbers,
    });
    if let Support::Based(based) = &block.support {
        out["groups"] = based.ranks.iter().map(|ranks| json!([1, ranks.len()])).collect();
    }
    Ok(out)
}

fn describe_set(set: &IndexSet, id: &[u8], manifest: &Manifest) -> Result<Value> {
    let positions = match &set.support {
        Support::All => Value::Null,
        support => {
            // A block with this support. Its values do not affect its positions.
            let values = Values::Ulp(Ulp { diffs: Vec::new() });
            let block = Block { scope: set.scope, add: false, support: support.clone(), values };
            let space = manifest.space(set.scope, 0)?;
            json!(block.positions(&space, &Default::default(), &Budget::new(&Limits::default()))?)
        }
    };
    Ok(json!({
        "kind": "index_set", "id": hex(id), "manifest": hex(&set.manifest.0), "step": set.step,
        "leader": set.leader, "world": set.world, "scope": describe_scope(&set.scope, false),
        "positions": positions,
    }))
}

fn patterns(numbers: &[f32]) -> Value {
    numbers.iter().map(|n| json!(format!("{:08x}", n.to_bits()))).collect()
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Returns the bytes of hexadecimal digits.
pub(crate) fn unhex(digits: &str) -> Vec<u8> {
    let byte = |i: usize| u8::from_str_radix(&digits[i..i + 2], 16).expect("hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Returns the default limits, with the changes that a vector requests.
pub(crate) fn limits(vector: &Value) -> Limits {
    let mut limits = Limits::default();
    for (name, value) in vector["limits"].as_object().into_iter().flatten() {
        let value = value.as_u64().expect("a limit is a number");
        let field = match name.as_str() {
            "max_frame_bytes" => &mut limits.max_frame_bytes,
            "max_tensors" => &mut limits.max_tensors,
            "max_elements" => &mut limits.max_elements,
            "max_alloc_bytes" => &mut limits.max_alloc_bytes,
            "max_blocks" => &mut limits.max_blocks,
            "max_inflated_bytes" => &mut limits.max_inflated_bytes,
            "max_definitions" => &mut limits.max_definitions,
            other => panic!("unknown limit: {other}"),
        };
        *field = value;
    }
    limits
}

/// Decodes a vector, and computes its tensors if the vector has tensors or expects an error in that stage.
pub(crate) fn outcome(vector: &Value, bytes: &[u8]) -> Result<(Value, Option<Value>), Error> {
    let limits = limits(vector);
    let described = describe(bytes, &limits)?;
    let needed = !vector["tensors"].is_null() || vector["error"]["stage"] == "tensors";
    let tensors = if needed { Some(tensors(bytes, &limits, vector["base"].as_object())?) } else { None };
    Ok((described, tensors))
}
